"""The lists of tools, each stored once for all episodes that had the same tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from mcpenv.errors import DamagedRecord
from mcpenv_client.types.tools import Tool
from mcpenv_client.wire.faults import describe_faults

from .blobs import write_whole

_TOOLS = TypeAdapter(list[Tool])
_MANY = 1024


class ToolLists:
    """The lists of a record, in its folder ``tools``, each named by the hash of its content.

    Args:
        directory: the record.
        others: further records that lists are read from.
    """

    def __init__(self, directory: Path, *others: Path) -> None:
        self._folder = directory / "tools"
        self._others = [other / "tools" for other in others]
        self._kept: dict[tuple[int, ...], tuple[str, Sequence[Tool]]] = {}
        self._last: tuple[str, Sequence[Tool] | None] = "", None  # the list that was last stored

    def keep(self, tools: Sequence[Tool]) -> str:
        """Write a list unless it exists, and return its name.

        Raises:
            OSError: the list cannot be written.
        """
        last, listed = self._last
        if tools is listed:
            return last
        # By identity, because instances of one class share their tools' descriptions. References here keep them alive.
        same = tuple(map(id, tools))
        if same in self._kept:
            self._last = self._kept[same][0], tools
            return self._last[0]
        text = to_json(_TOOLS.dump_python(list(tools), mode="json"), indent=1)
        name = hashlib.sha256(text).hexdigest()
        file = self._folder / f"{name}.json"
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
        if len(self._kept) >= _MANY:
            self._kept.clear()
        self._kept[same] = name, tools
        return name

    def has(self, tools: Sequence[Tool]) -> bool:
        """Return True if this process has stored the list already, so that `keep` only returns its name."""
        return tools is self._last[1] or tuple(map(id, tools)) in self._kept

    def read(self, name: str | None) -> list[Tool]:
        """Return the list of that name; an empty list for None.

        Raises:
            DamagedRecord: the file does not exist, or is not a list of tools.
        """
        if name is None:
            return []
        files = [folder / f"{name}.json" for folder in (self._folder, *self._others)]
        file = next((file for file in files if file.exists()), files[0])
        try:
            return _TOOLS.validate_python(from_json(file.read_bytes()))
        except ValidationError as error:
            raise DamagedRecord(f"the list of tools cannot be read: {describe_faults(error)}", str(file)) from error
        except (OSError, ValueError) as error:
            raise DamagedRecord(f"the list of tools cannot be read: {error}", str(file)) from error
