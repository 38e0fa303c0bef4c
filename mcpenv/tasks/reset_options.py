"""Parse the options of an environment's ``reset``, from its signature, once per class."""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, ValidationError, create_model

from mcpenv.errors import meant
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.json_types import reader_of, with_base64
from mcpenv_client.wire.faults import describe_faults, faults

logger = logging.getLogger("mcpenv")

FRAMEWORK = ("seed", "episode_id")
"""The parameters of a reset that every environment has."""

MAX_EPISODE_ID = 255
"""Maximum characters of an episode's id."""

_TASK_SCHEMA: dict[str, Any] = {
    "task": {
        "anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}],
        "default": None,
        "description": "The id of one of the environment's tasks, or a task",
    },
    "split": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    "index": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
}


class ResetOptions:
    """The options of one ``reset`` function.

    Args:
        body: the author's function; its first parameter is ``self``.
    """

    def __init__(self, body: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(body).parameters.values())[1:]
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._own = {name: p for name, p in self._named.items() if name not in FRAMEWORK}
        self._model = _model_of(body, self._own, self._takes_any)
        self._loose = _model_of(body, self._own, self._takes_any, all_optional=True)
        self._read = reader_of(self._loose.__pydantic_core_schema__)
        self._told = False

    def declares(self, name: str) -> bool:
        """Return True if the function has a parameter of that name."""
        return name in self._named

    def takes(self, name: str) -> bool:
        """Return True if the function accepts an option of that name."""
        return name in self._own or self._takes_any

    @property
    def takes_seed(self) -> bool:
        """True if the function accepts the seed."""
        return "seed" in self._named or self._takes_any

    def check(self, options: Mapping[str, Any], *, tasks: bool = False) -> None:
        """Raise if options are unknown or missing.

        Args:
            tasks: the environment has tasks, which the error for an unknown option then mentions.

        Raises:
            InvalidMessage: with their names.
        """
        self._refuse_unknown(options, tasks)
        self._refuse_missing(options)

    def _refuse_missing(self, options: Mapping[str, Any]) -> None:
        missing = [n for n, p in self._own.items() if p.default is p.empty and n not in options]
        if missing:
            raise InvalidMessage(
                f"reset needs {', '.join(map(repr, missing))}",
                errors=[{"loc": [name], "msg": "Field required", "type": "missing"} for name in missing],
            )

    def arguments(
        self, seed: int | None, episode_id: str | None, options: Mapping[str, Any], *, own_seed: bool = False
    ) -> dict[str, Any]:
        """Return the keyword arguments of the function. Seed and episode id are included only if it accepts them.

        Args:
            own_seed: True if the seed is of mcpenv's own, so that nobody is warned that it has no effect.
        """
        given: dict[str, Any] = {"seed": seed, "episode_id": episode_id}
        if seed is not None and not own_seed and not self.takes_seed and not self._told:
            self._told = True
            logger.warning("reset has no parameter 'seed', so the given seed has no effect")
        return {n: v for n, v in given.items() if n in self._named or (self._takes_any and v is not None)} | dict(
            options
        )

    def revived(self, options: Mapping[str, Any], *, tasks: bool = False, complete: bool = False) -> dict[str, Any]:
        """Convert options of plain data to the annotated types of the function.

        Args:
            tasks: as for `check`.
            complete: True if no options are added to these.

        Raises:
            InvalidMessage: for unknown options and values that do not fit, with locations in ``errors``, and for
                missing ones if the options are complete.
        """
        if not options:
            if complete:
                self._refuse_missing(options)
            return {}
        self._refuse_unknown(options, tasks)
        try:
            checked = self._read(dict(options))
        except ValidationError as error:
            raise InvalidMessage(f"invalid reset options: {describe_faults(error)}", errors=faults(error)) from error
        if complete:
            self._refuse_missing(options)
        values = {name: getattr(checked, _field_name(name)) for name in self._own if name in options}
        return values | dict(checked.__pydantic_extra__ or {})

    def schema(self, *, tasks: bool = False) -> dict[str, Any]:
        """Return the JSON Schema of a reset's ``data``. With ``tasks``, it includes the fields that select a task."""
        try:
            own = with_base64(self._model.model_json_schema(by_alias=True))
        except (PydanticSchemaGenerationError, ValueError, TypeError):
            own = {"properties": {name: {} for name in self._own}}
        properties = {
            "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "episode_id": {
                "anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_EPISODE_ID}, {"type": "null"}],
                "default": None,
            },
            **own.get("properties", {}),
            **(_TASK_SCHEMA if tasks else {}),
        }
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": self._takes_any}
        for key in ("required", "$defs"):
            if key in own:
                schema[key] = own[key]
        return schema

    def _refuse_unknown(self, options: Mapping[str, Any], tasks: bool) -> None:
        unknown = [] if self._takes_any else [name for name in options if name not in self._own]
        if unknown:
            takes = ", ".join(self._own) or "none"
            of_tasks = ""
            if tasks:
                of_tasks = "; 'task', or 'split' and 'index', choose a task"
            elif _TASK_SCHEMA.keys() & set(unknown):
                of_tasks = "; it has no tasks"
            of_tasks += meant(unknown[0], [*FRAMEWORK, *self._own])
            raise InvalidMessage(
                f"unknown reset option {', '.join(map(repr, unknown))}; this environment's options: {takes}{of_tasks}",
                errors=[{"loc": [name], "msg": "unknown reset option", "type": "extra_forbidden"} for name in unknown],
            )


def _field_name(name: str) -> str:
    return f"option_{name}"


def _default(parameter: inspect.Parameter, optional: bool) -> Any:
    if parameter.default is parameter.empty:
        return None if optional else ...
    return parameter.default


def _model_of(
    body: Callable[..., Any], own: dict[str, inspect.Parameter], takes_any: bool, all_optional: bool = False
) -> type[BaseModel]:
    """Create a model with one field per option. Aliases avoid clashes with the names of BaseModel."""
    try:
        hints = typing.get_type_hints(body, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    fields: dict[str, Any] = {
        _field_name(name): (hints.get(name, Any), Field(alias=name, default=_default(p, all_optional)))
        for name, p in own.items()
    }
    config = ConfigDict(extra="allow" if takes_any else "forbid", arbitrary_types_allowed=True)
    try:
        return create_model("ResetOptions", __config__=config, **fields)
    except (PydanticSchemaGenerationError, NameError, TypeError):
        loose: dict[str, Any] = {name: (Any, field) for name, (_, field) in fields.items()}
        return create_model("ResetOptions", __config__=config, **loose)
