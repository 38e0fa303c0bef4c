"""The toolbox: the tools that one environment instance registered, per mode."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from mcpenv_client.tools import Mode

from .admission import AuthChecks, Listing
from .errors import InvalidTool
from .kinds import ToolKind

BOTH_MODES = (Mode.SIMULATION, Mode.PRODUCTION)

MAX_REMEMBERED = 256
"""How many removed tools, and how many earlier sets of tools, one instance can have again."""


def modes_of(mode: Mode | str | None, name: str) -> tuple[Mode, ...]:
    """The modes that ``mode=`` names; None means both.

    Raises:
        InvalidTool: no such mode.
    """
    if mode is None:
        return BOTH_MODES
    try:
        return (Mode(mode),)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in Mode)
        raise InvalidTool(name, f"unknown mode {mode!r}; use {allowed}, or leave it out for both") from None


@dataclasses.dataclass(slots=True, eq=False)  # not frozen: that makes a new one three times as dear
class BoundTool:
    """A kind, and what is this instance's own: its function, and which agents may use it (None: all)."""

    kind: ToolKind
    fn: Callable[..., Any]
    auth: AuthChecks | None = None


class Toolbox:
    """An instance's own tools in order of registration; each mode sees one tool per name."""

    __slots__ = ("_by_mode", "_removed", "_saved", "version")

    def __init__(self) -> None:
        self._by_mode: dict[Mode, dict[str, BoundTool]] = {Mode.SIMULATION: {}, Mode.PRODUCTION: {}}
        self._saved: dict[int, dict[Mode, dict[str, BoundTool]]] = {}
        self._removed: dict[tuple[Mode, str], BoundTool] = {}
        self.version = 0

    def add(self, tool: BoundTool, modes: tuple[Mode, ...]) -> None:
        """Register a tool.

        Raises:
            InvalidTool: one of the modes has a tool of that name.
        """
        name = tool.kind.name
        for mode in modes:
            if name in self._by_mode[mode]:
                raise InvalidTool(name, f"registered twice for {mode.value} mode; each mode takes one tool per name")
        for mode in modes:
            self._by_mode[mode][name] = tool
        self.version += 1
        if len(modes) == 1:
            self._compare(name)

    def remove(self, name: str) -> bool:
        """Take a tool out of both modes; whether there was one."""
        found = {(mode, name): tools.pop(name) for mode, tools in self._by_mode.items() if name in tools}
        self._removed.update(found)
        while len(self._removed) > MAX_REMEMBERED:
            del self._removed[next(iter(self._removed))]
        self.version += bool(found)
        return bool(found)

    def save(self) -> int:
        """Remember the tools as they are; gives the version by which `load` finds them."""
        if self.version not in self._saved:
            self._saved[self.version] = {mode: dict(tools) for mode, tools in self._by_mode.items()}
            while len(self._saved) > MAX_REMEMBERED:
                del self._saved[next(iter(self._saved))]
        return self.version

    def load(self, version: int) -> None:
        """Have the tools again that there were when `save` gave ``version``, if that is remembered."""
        if version != self.version and version in self._saved:
            self._by_mode = {mode: dict(tools) for mode, tools in self._saved[version].items()}
            self.version += 1

    def arrange(self, mode: Mode, names: tuple[str, ...]) -> list[str]:
        """Have the tools of these names, in this order, those that were removed among them; gives what is missing."""
        tools = self._by_mode[mode]
        if tuple(tools) == names:
            return []
        found = {name: tools.get(name) or self._removed.get((mode, name)) for name in names}
        self._by_mode[mode] = {name: tool for name, tool in found.items() if tool is not None}
        self.version += 1
        return [name for name, tool in found.items() if tool is None]

    def get(self, mode: Mode, name: str) -> BoundTool | None:
        """The tool that ``mode`` sees under this name."""
        return self._by_mode[mode].get(name)

    def listed(self, mode: Mode) -> Iterator[BoundTool]:
        """The tools that ``mode`` sees."""
        return iter(self._by_mode[mode].values())

    def listing(self, mode: Mode) -> Listing:
        """What ``mode`` sees, for those who list."""
        tools = self._by_mode[mode].values()
        checks = {tool.kind.name: tool.auth for tool in tools if tool.auth is not None}
        return Listing([tool.kind.spec for tool in tools], checks)

    def get_any(self, name: str) -> BoundTool | None:
        """A tool of this name in whichever mode."""
        return self._by_mode[Mode.SIMULATION].get(name) or self._by_mode[Mode.PRODUCTION].get(name)

    def _compare(self, name: str) -> None:
        """Warn of a tool whose two modes differ for the agent: what it learns in one does not hold in the other."""
        first, *rest = [tools[name].kind.spec for tools in self._by_mode.values() if name in tools]
        if any(spec.input_schema != first.input_schema for spec in rest):
            warnings.warn(f"tool {name!r} takes other arguments in simulation than in production", stacklevel=4)

    def clear(self) -> None:
        """Forget all tools, and with them the closures that hold the instance."""
        for tools in self._by_mode.values():
            tools.clear()
        self._saved.clear()
        self._removed.clear()


__all__ = ["BOTH_MODES", "BoundTool", "Toolbox", "modes_of"]
