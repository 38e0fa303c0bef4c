"""Represent an OpenEnv environment by a class: its tools, actions, rewards, state and tasks are forwarded."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import ContentBlock
from pydantic import ConfigDict, TypeAdapter, create_model

from mcpenv.failures import SortedFailure
from mcpenv.tasks.reset_options import ResetOptions
from mcpenv.tasks.source import TaskRefusal, TaskSource
from mcpenv.tools.json_schema import embedded
from mcpenv.tools.names import check_name
from mcpenv.tools.registry import BOTH_MODES, BoundTool
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv_client.errors import NotSupported, SessionLost
from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import AnyObservation, Observation
from mcpenv_client.types.state import State
from mcpenv_client.types.tools import Mode, Tool, ToolErrorType, ToolFailure
from mcpenv_client.types.values import to_plain

from .own_actions import ActingEnvironment
from .process import OpenEnvProcess, OpenEnvRefusal

_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])


class OpenEnvEnvironment(ActingEnvironment):
    """The base of the classes that `adapted` makes."""

    REMEDIES = {
        "descriptions": "Add a docstring to the tool or the action in the environment of OpenEnv",
        **dict.fromkeys(
            ("reset", "end"), "Correct the environment of OpenEnv: a reset begins an episode that is not done"
        ),
        "state": "Let the environment's state have the episode's id and number of steps",
        "calls": "Correct step of the environment of OpenEnv, or its actions' fields. Call tools that need particular "
        "arguments in the oracle of a task (--tasks FILE)",
        "determinism": "Let reset of the environment of OpenEnv draw from its seed. If the world cannot be repeated, "
        "use --live",
        "sharing": "Nothing has to be corrected: it is the cost of an instance of this kind",
    }

    process: ClassVar[OpenEnvProcess]
    described: ClassVar[Mapping[str, Any]]

    def __init__(self, **settings: Any) -> None:
        self._id = uuid.uuid4().hex
        self._remote: OpenEnvProcess = self.shared
        made = self._remote.request("make", instance=self._id, settings=settings).result()
        by_mode = {mode: {spec["name"]: spec for spec in made["tools"][mode.value]} for mode in Mode}
        simulation, production = by_mode[Mode.SIMULATION], by_mode[Mode.PRODUCTION]
        for name, spec in simulation.items():
            self._add_tool(Tool.from_mcp(spec), BOTH_MODES if production.get(name) == spec else (Mode.SIMULATION,))
        for name, spec in production.items():
            if simulation.get(name) != spec:
                self._add_tool(Tool.from_mcp(spec), (Mode.PRODUCTION,))
        if self.action_types and not (simulation or production):
            action = self.described["action"]
            self._add_action_tool(action["name"], action["schema"])

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncIterator[OpenEnvProcess]:
        """Yield the process, which ends with the server."""
        try:
            yield cls.process
        finally:
            cls.process.stop()

    @classmethod
    def task_source(cls) -> TaskSource:
        """Return the source of tasks: the environment's own Task API."""
        return OpenEnvTasks(cls)

    async def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Reset the remote environment. Both episodes have the same id."""
        given = {"seed": seed, "episode_id": episode_id or self.episode_id, **options}
        takes = self.described["reset"]
        given = {name: value for name, value in given.items() if takes["any"] or name in takes["options"]}
        return _observation(await self._ask("reset", options=given))

    async def act(self, action: Action) -> Observation:
        """Take one of the remote environment's own actions."""
        data = to_plain(action, "action")
        if not data.get("metadata"):
            data.pop("metadata", None)
        return _observation(await self._ask("act", data=data))

    @property
    def state(self) -> State:
        """The state of the remote environment."""
        return self.state_type(**self._remote.request("state", instance=self._id).result())

    async def close(self) -> None:
        """Close the remote environment."""
        with suppress(SessionLost):  # the instance ended with its process
            await self._remote.ask("close", instance=self._id)

    def save_state(self) -> Any:
        """Raise: the state is in another process, and OpenEnv cannot export it.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(
            f"{type(self).__name__} cannot be saved: an OpenEnv environment keeps its state in a process of its own. "
            "Convert it to an mcpenv environment (mcpenv share import-openenv) to use snapshots"
        )

    @classmethod
    async def ask_tasks(cls, method: str, *arguments: Any) -> Any:
        """Return one answer of the Task API, from an instance made for it.

        Raises:
            OpenEnvRefusal: if the environment has no such method ("unsupported") or no such task ("index").
        """
        instance = uuid.uuid4().hex
        await cls.process.ask("make", instance=instance, settings={})
        try:
            return await cls.process.ask("task", instance=instance, method=method, arguments=list(arguments))
        finally:
            await cls.process.ask("close", instance=instance)

    async def _ask(self, op: str, **fields: Any) -> Any:
        return await self._remote.ask(op, instance=self._id, mode=self.mode.value, **fields)

    def _add_tool(self, spec: Tool, modes: tuple[Mode, ...]) -> None:
        check_name(spec.name)
        self._execution.tools.add(BoundTool(SchemaTool(spec), partial(self._call, spec.name)), modes)

    async def _call(self, name: str, arguments: dict[str, Any]) -> FastMCPResult:
        answer = await self._ask("call", name=name, arguments=arguments)
        self._end_of_step(answer["reward"], answer["done"])
        if "error" in answer:
            kind = ToolErrorType(answer["error"]["error_type"])
            raise SortedFailure(ToolFailure(error_type=kind, message=answer["error"]["message"]))
        result = answer["result"]
        return FastMCPResult(
            content=_BLOCKS.validate_python(result["content"], by_alias=True),
            structured_content=result["structured_content"],
            meta=result["meta"],
        )

    async def _taken(self, arguments: dict[str, Any]) -> tuple[Mapping[str, Any], Any, bool]:
        answer = await self._ask("act", data=arguments)
        return answer["fields"], answer["reward"], answer["done"]


def adapted(process: OpenEnvProcess, described: Mapping[str, Any]) -> type[OpenEnvEnvironment]:
    """Return the class that represents the environment of ``process``.

    Args:
        process: the process.
        described: the result of `OpenEnvProcess.describe`.
    """
    action = described["action"]
    cls: type[OpenEnvEnvironment] = type(
        described["class"],
        (OpenEnvEnvironment,),
        {
            "__doc__": described["description"] or f"{described['name']}, an OpenEnv environment.",
            "__module__": __name__,
            "process": process,
            "described": described,
            "SUPPORTS_CONCURRENT_SESSIONS": described["concurrent"],
            "EXPOSED_NAME": described["name"],
            "VERSION": described["version"],
            "action_types": () if action is None else (_action_class(action),),
            "observation_type": _with_schema(AnyObservation, described["observation"]),
            "state_type": _with_schema(State, described["state"]),
        },
    )
    cls.author_hooks = replace(cls.author_hooks, options=_reset_options(described["reset"]))
    return cls


def _action_class(action: Mapping[str, Any]) -> type[Action]:
    fields: dict[str, Any] = {}
    if action["types"]:
        fields["type"] = (Literal[tuple(action["types"])], action["types"][0])
    base = create_model(action["name"], __base__=_AnyAction, **fields)
    return _with_schema(base, action["schema"])


class _AnyAction(Action):
    """An action with fields that the process checks."""

    model_config = ConfigDict(extra="allow")


def _with_schema(base: type[Any], schema: Mapping[str, Any]) -> type[Any]:
    """Return a subclass of ``base`` with the name and the JSON Schema of the remote class."""
    # Pydantic does not resolve references to definitions that it did not make.
    whole = embedded(dict(schema))

    def of_the_other_side(cls: Any, core: Any, handler: Any) -> dict[str, Any]:
        return whole

    return type(
        schema.get("title", base.__name__),
        (base,),
        {"__module__": __name__, "__get_pydantic_json_schema__": classmethod(of_the_other_side)},
    )


def _reset_options(takes: Mapping[str, Any]) -> ResetOptions:
    """Return reset options with the remote signature. The process checks their values."""
    kinds = inspect.Parameter
    parameters = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    for name, needed in takes["options"].items():
        parameters.append(kinds(name, kinds.KEYWORD_ONLY, default=kinds.empty if needed else None))
    for name in ("seed", "episode_id"):
        if name not in takes["options"]:
            parameters.append(kinds(name, kinds.KEYWORD_ONLY, default=None))
    if takes["any"]:
        rest = "options"
        while rest in takes["options"]:
            rest += "_"
        parameters.append(kinds(rest, kinds.VAR_KEYWORD))

    def reset(self: Any, **options: Any) -> None: ...

    body: Callable[..., Any] = reset
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return ResetOptions(body)


def _observation(answer: Mapping[str, Any]) -> Observation:
    ours = ("terminated", "truncated", "info")
    fields = {name: value for name, value in answer["fields"].items() if name not in ours}
    return AnyObservation.model_validate({**fields, "reward": answer["reward"], "done": answer["done"]})


_REFUSALS = {"unsupported": 501, "index": 400}


class OpenEnvTasks:
    """The source of tasks that asks OpenEnv's Task API, with a new instance for each answer."""

    def __init__(self, environment_class: type[OpenEnvEnvironment]) -> None:
        self._cls = environment_class
        self.name = environment_class.exposed_name()

    async def answer(self, method: str, *arguments: Any) -> Any:
        """Implement `TaskSource.answer`."""
        if method not in self._cls.described["tasks"]:
            raise TaskRefusal(501, f"{method} is not supported for this environment")
        try:
            return await self._cls.ask_tasks(method, *arguments)
        except OpenEnvRefusal as refusal:
            raise TaskRefusal(_REFUSALS.get(refusal.kind, 500), refusal.message) from refusal
