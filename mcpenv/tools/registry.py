"""Keep the tools that one environment instance registered, per mode."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from mcpenv.errors import InvalidTool
from mcpenv_client.types.tools import Mode

from .access import AuthChecks, Listing
from .definition import ToolDefinition

BOTH_MODES = (Mode.SIMULATION, Mode.PRODUCTION)

MAX_REMEMBERED = 256
"""Maximum number of removed tools, and of saved sets of tools, that one instance can restore."""


def modes_of(mode: Mode | str | None, name: str) -> tuple[Mode, ...]:
    """Return the modes for a value of ``mode=``; None means both.

    Raises:
        InvalidTool: if there is no such mode.
    """
    if mode is None:
        return BOTH_MODES
    try:
        return (Mode(mode),)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in Mode)
        raise InvalidTool(name, f"unknown mode {mode!r}. Use {allowed}, or leave it out for both") from None


@dataclasses.dataclass(slots=True, eq=False)  # a frozen class takes three times as long to construct
class BoundTool:
    """A kind with the parts of one instance: its function, and the checks of its agents (None admits all)."""

    kind: ToolDefinition
    fn: Callable[..., Any]
    auth: AuthChecks | None = None


class ToolRegistry:
    """An instance's own tools in order of registration. Each mode has one tool per name.

    Attributes:
        by_mode: the tools of each mode by name, for reading.
        version: changes with the tools.
        cuts: True if long results are cut, so that they do not fit the tools' output schemas.
    """

    __slots__ = ("_awaited", "_removed", "_saved", "by_mode", "cuts", "version")

    def __init__(self) -> None:
        self.by_mode: dict[Mode, dict[str, BoundTool]] = {Mode.SIMULATION: {}, Mode.PRODUCTION: {}}
        self._saved: dict[int, dict[Mode, dict[str, BoundTool]]] = {}
        self._removed: dict[tuple[Mode, str], BoundTool] = {}
        self._awaited: list[tuple[str | None, str]] = []
        self.version = 0
        self.cuts = False

    def decorator(self, register: Callable[[Any], Any], name: str | None, frame: FrameType) -> Callable[[Any], Any]:
        """Return a decorator that registers a function. Until it is used, `check` refuses the tools.

        Args:
            name: the tool's name, if it is given.
            frame: the frame that made the decorator.
        """
        awaited = (name, f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        self._awaited.append(awaited)

        def decorate(fn: Any) -> Any:
            if awaited in self._awaited:
                self._awaited.remove(awaited)
            return register(fn)

        return decorate

    def check(self) -> None:
        """Raise if a decorator was made, and not used.

        Raises:
            InvalidTool: naming its line.
        """
        for name, line in self._awaited:
            raise InvalidTool(
                name or "(unnamed)",
                f"self.tool(...) in {line} got no function. Write it as a decorator above one, or register the "
                "function itself: self.tool(self.method), not self.tool(self.method())",
            )

    def add(self, tool: BoundTool, modes: tuple[Mode, ...]) -> None:
        """Register a tool.

        Raises:
            InvalidTool: if one of the modes has a tool of that name.
        """
        name = tool.kind.name
        for mode in modes:
            if name in self.by_mode[mode]:
                raise InvalidTool(
                    name, f"registered twice for {mode.value} mode. Rename it, as each mode has one tool per name"
                )
        for mode in modes:
            self.by_mode[mode][name] = tool
        self.version += 1
        if len(modes) == 1:
            self._compare(name)

    def remove(self, name: str) -> bool:
        """Remove a tool from both modes. Return True if there was one."""
        found = {(mode, name): tools.pop(name) for mode, tools in self.by_mode.items() if name in tools}
        self._removed.update(found)
        while len(self._removed) > MAX_REMEMBERED:
            del self._removed[next(iter(self._removed))]
        self.version += bool(found)
        return bool(found)

    def replace(self, old: Sequence[BoundTool], new: Sequence[tuple[BoundTool, tuple[Mode, ...]]]) -> None:
        """Remove the ``old`` tools, and register the ``new`` ones before all others.

        Raises:
            InvalidTool: if a mode has another tool of the name of a new one. Nothing was changed.
        """
        gone = {id(tool) for tool in old}
        by_mode: dict[Mode, dict[str, BoundTool]] = {}
        for mode, tools in self.by_mode.items():
            kept = {name: tool for name, tool in tools.items() if id(tool) not in gone}
            made = {tool.kind.name: tool for tool, modes in new if mode in modes}
            for name in made:
                if name in kept:
                    raise InvalidTool(name, f"there is another tool of that name in {mode.value} mode")
            by_mode[mode] = {**made, **kept}
        self.by_mode = by_mode
        self.version += 1

    def save(self) -> int:
        """Save the current set of tools, and return its version for `load`."""
        if self.version not in self._saved:
            self._saved[self.version] = {mode: dict(tools) for mode, tools in self.by_mode.items()}
            while len(self._saved) > MAX_REMEMBERED:
                del self._saved[next(iter(self._saved))]
        return self.version

    def load(self, version: int) -> None:
        """Restore the set of tools that `save` returned ``version`` for, if it is still kept."""
        if version != self.version and version in self._saved:
            self.by_mode = {mode: dict(tools) for mode, tools in self._saved[version].items()}
            self.version += 1

    def arrange(self, mode: Mode, names: tuple[str, ...]) -> list[str]:
        """Select the tools with these names, in this order, even removed ones. Return the names of missing tools."""
        tools = self.by_mode[mode]
        if tuple(tools) == names:
            return []
        found = {name: tools.get(name) or self._removed.get((mode, name)) for name in names}
        self.by_mode[mode] = {name: tool for name, tool in found.items() if tool is not None}
        self.version += 1
        return [name for name, tool in found.items() if tool is None]

    def listed(self, mode: Mode) -> Iterator[BoundTool]:
        """Return the tools of ``mode``."""
        return iter(self.by_mode[mode].values())

    def listing(self, mode: Mode) -> Listing:
        """Return the tools of ``mode`` with their checks and icons.

        Raises:
            InvalidTool: as `check`.
        """
        self.check()
        tools = self.by_mode[mode].values()
        checks = {tool.kind.name: tool.auth for tool in tools if tool.auth is not None}
        icons = {tool.kind.name: tool.kind.component.icons for tool in tools if tool.kind.component.icons}
        specs = [tool.kind.loose_spec if self.cuts else tool.kind.spec for tool in tools]
        return Listing(specs, checks, icons)

    def _compare(self, name: str) -> None:
        """Warn if a tool's schemas differ between modes, so that an agent trained in one mode fails in the other."""
        first, *rest = [tools[name].kind.spec for tools in self.by_mode.values() if name in tools]
        if any(spec.input_schema != first.input_schema for spec in rest):
            warnings.warn(f"tool {name!r} has other parameters in simulation than in production", stacklevel=4)

    def clear(self) -> None:
        """Remove all tools, because their closures refer to the instance."""
        for tools in self.by_mode.values():
            tools.clear()
        self._saved.clear()
        self._removed.clear()
        self._awaited.clear()
