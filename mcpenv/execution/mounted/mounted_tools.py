"""The tools of a mounted server as an environment shows them, with the settings that the author gave (``tools=``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastmcp.tools.base import Tool as Component
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import ToolAnnotations
from pydantic import PrivateAttr, ValidationError

from mcpenv.errors import InvalidTool
from mcpenv.tools.names import check_name
from mcpenv.tools.settings import ToolSettings, unknown_key
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.faults import describe_faults


class MountedTools:
    """The settings of tools of a mounted server, by the server's own names.

    Attributes:
        settings: the settings.
        key: equal for equal settings.

    Raises:
        InvalidTool: a setting is unknown or does not fit, or two tools get one name.
    """

    def __init__(self, tools: Mapping[str, ToolSettings | Mapping[str, Any]]) -> None:
        self.settings = {name: _read(name, given) for name, given in tools.items()}
        self.key = frozenset((name, each.model_dump_json()) for name, each in self.settings.items())
        self._renamed: dict[tuple[Mode, str], str] = {}
        for name, each in self.settings.items():
            if each.name is None:
                continue
            check_name(each.name)
            for mode in Mode:
                if self.shows(name, mode) and (other := self._renamed.setdefault((mode, each.name), name)) != name:
                    raise InvalidTool(name, f"it gets the name {each.name!r}, as {other!r} does. Choose another name")

    def __bool__(self) -> bool:
        return bool(self.settings)

    def shows(self, name: str, mode: Mode) -> bool:
        """Return True if the tool that the server calls ``name`` is visible in a mode, under any name."""
        settings = self.settings.get(name)
        return settings is None or (not settings.hidden and settings.mode in (None, mode))

    def shown_as(self, name: str) -> str:
        """Return the name for agents of the tool that the server calls ``name``."""
        settings = self.settings.get(name)
        return name if settings is None or settings.name is None else settings.name

    def source(self, shown: str, mode: Mode) -> str | None:
        """Return the server's name of the tool that agents call ``shown``; None if there can be none."""
        renamed = self._renamed.get((mode, shown))
        if renamed is not None:
            return renamed
        return shown if self.shows(shown, mode) and self.shown_as(shown) == shown else None

    def of(self, shown: str, mode: Mode) -> ToolSettings | None:
        """Return the settings of the tool that agents call ``shown``, if it has any."""
        source = self.source(shown, mode)
        return None if source is None else self.settings.get(source)

    def apply(self, tool: Component) -> Component:
        """Return a tool of the server as agents see it.

        Raises:
            InvalidTool: the settings bind an argument that the tool does not have.
        """
        settings = self.settings.get(tool.name)
        if settings is None:
            return tool
        changes: dict[str, Any] = {}
        if settings.name is not None:
            changes["name"] = settings.name
        if settings.description is not None:
            changes["description"] = settings.description
        if settings.annotations:
            own = tool.annotations
            plain = None if own is None else own.model_dump(mode="json", by_alias=True, exclude_none=True)
            changes["annotations"] = ToolAnnotations.model_validate(settings.merged_annotations(plain))
        if not settings.arguments:
            return tool.model_copy(update=changes) if changes else tool
        bound = _BoundTool(
            **{
                "name": tool.name,
                "title": tool.title,
                "description": tool.description,
                "parameters": settings.schema_for_agents(tool.parameters, tool.name),
                "output_schema": tool.output_schema,
                "annotations": tool.annotations,
                "tags": tool.tags,
                "meta": tool.meta,
                "icons": tool.icons,
                "version": tool.version,
                "auth": tool.auth,
                **changes,
            }
        )
        bound._tool, bound._values = tool, settings.arguments
        return bound


class _BoundTool(Component):
    """A tool of the server with fixed values for some arguments."""

    _tool: Component = PrivateAttr()
    _values: Mapping[str, Any] = PrivateAttr()

    async def run(self, arguments: dict[str, Any]) -> FastMCPResult:
        return await self._tool.run({**arguments, **self._values})


def _read(name: str, given: ToolSettings | Mapping[str, Any]) -> ToolSettings:
    if isinstance(given, ToolSettings):
        return given
    if not isinstance(given, Mapping):
        raise InvalidTool(name, f"tools= has a {type(given).__name__} for it; write a dict of settings")
    for key in given:
        if key not in ToolSettings.model_fields:
            raise InvalidTool(name, unknown_key(str(key), ToolSettings.model_fields))
    try:
        return ToolSettings.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidTool(name, describe_faults(error)) from error
