"""The descriptions of an environment: ``/metadata`` and ``/schema``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from mcpenv.environment import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.observations import CallToolObservation, ListToolsObservation, Observation
from mcpenv_client.types.tools import Tool
from mcpenv_client.wire.version import PROTOCOL_VERSION


class _Lenient(GenerateJsonSchema):
    """Fields of types without a schema (numpy arrays) are "anything" instead of an error."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


class Description:
    """The description of one served environment.

    Args:
        readme: text of its README, if there is one.
    """

    def __init__(self, source: EnvironmentFactory, config: ServerConfig, readme: str | None) -> None:
        self._source = source
        self._config = config
        self._readme = readme

    def metadata(self) -> dict[str, Any]:
        """Return the body of ``/metadata`` without the counts of recorded episodes."""
        cls = self._class
        return {
            "name": self._source.name,
            "description": self._source.description,
            "version": cls.VERSION,
            "author": None,
            "documentation_url": None,
            "readme_content": self._readme,
            "mode": self._config.mode.value,
            "protocol": PROTOCOL_VERSION,
            "durable": self._config.durable is not None and cls.DURABILITY != "restart",
            "mcp_path": "/mcp",
            "supports_concurrent_sessions": cls.SUPPORTS_CONCURRENT_SESSIONS,
            "tasks": self.task_counts(),
            "task_set": None if self._source.tasks is None else self._source.tasks.origin(),
            "details": dict(cls.DETAILS),
        }

    def task_counts(self) -> dict[str, int] | None:
        """Return the number of tasks in each split; None without tasks.

        Blocks if they were not read before; a server reads them when it starts.
        """
        tasks = self._source.tasks
        return None if tasks is None else tasks.sizes()

    def recording(self) -> dict[str, int] | None:
        """Return the counts of this worker's recorded episodes, without their directory; None without a recorder."""
        recorder = self._source.recorder
        if recorder is None:
            return None
        counts = recorder.counts
        return {"episodes_written": counts.written, "episodes_lost": counts.lost, "episodes_waiting": counts.waiting}

    def schema(self, tools: list[Tool]) -> dict[str, Any]:
        """Return the body of ``/schema``: JSON Schemas of actions, observations, state and reset options; the tools."""
        cls = self._class
        own: list[type[Action]] = list(cls.action_types)
        observations: list[type[Observation]] = [CallToolObservation, ListToolsObservation]
        if cls.observation_type is not Observation or own:
            observations.append(cls.observation_type)
        action = any_of([CallToolAction, ListToolsAction, *own], "validation")
        if not own:
            action["title"] = "Action"  # OpenEnv's name, by which clients recognise an environment of tools
        # The classes have defaults for it; the wire needs it to tell them apart.
        if len(own) == 1:
            _require_type(action, CallToolAction, ListToolsAction)
        else:
            action["required"] = ["type"]
        return {
            "action": action,
            "observation": any_of(observations, "serialization"),
            "reset_observation": schema_of(cls.observation_type, "serialization"),
            "state": schema_of(cls.state_type, "serialization"),
            "reset": cls.author_hooks.options.schema(tasks=cls.tasks is not None),
            "tools": [tool.model_dump(mode="json") for tool in tools],
        }

    @property
    def _class(self) -> type[MCPEnvironment]:
        assert self._source.environment_class is not None
        return self._source.environment_class


def _require_type(action: dict[str, Any], *classes: type[Action]) -> None:
    """Require ``type`` in the schemas of these classes: an action without it is the environment's own."""
    names = {cls.__name__ for cls in classes}
    for schema in (*action["anyOf"], *action.get("$defs", {}).values()):
        if schema.get("title") in names:
            schema["required"] = [*schema.get("required", ()), "type"]


def schema_of(cls: type[BaseModel], mode: JsonSchemaMode) -> dict[str, Any]:
    """Return the JSON Schema of a model; an open object if it has none."""
    try:
        return cls.model_json_schema(mode=mode, schema_generator=_Lenient)
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return {"title": cls.__name__, "type": "object"}


def any_of(classes: list[Any], mode: JsonSchemaMode) -> dict[str, Any]:
    """Return one schema for several models."""
    if len(classes) == 1:
        return schema_of(classes[0], mode)
    union: Any = classes[0]
    for cls in classes[1:]:
        union = union | cls
    try:
        return TypeAdapter(union).json_schema(mode=mode, schema_generator=_Lenient)
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return {"anyOf": [schema_of(cls, mode) for cls in classes]}
