"""Tool lists: what agents could call, kept once for all episodes that had the same tools."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from mcpenv.errors import DamagedRecord
from mcpenv_client.types.tools import Tool

_TOOLS = TypeAdapter(list[Tool])
_MANY = 1024


class ToolLists:
    """The lists of a record, in its folder ``tools``, each under the hash of its content."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "tools"
        self._kept: dict[tuple[int, ...], tuple[str, Sequence[Tool]]] = {}
        self._last: tuple[str, Sequence[Tool] | None] = "", None  # the list that was named last

    def keep(self, tools: Sequence[Tool]) -> str:
        """Write a list, if it is not there; its name.

        Raises:
            OSError: it cannot be written.
        """
        last, listed = self._last
        if tools is listed:
            return last
        # By identity, because instances of one class share their tools' descriptions; those in here are not freed.
        same = tuple(map(id, tools))
        if same in self._kept:
            self._last = self._kept[same][0], tools
            return self._last[0]
        text = to_json(_TOOLS.dump_python(list(tools), mode="json"), indent=1)
        name = hashlib.sha256(text).hexdigest()
        file = self._folder / f"{name}.json"
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            # Whole or absent, whoever else writes the same.
            written = self._folder / f".{name}-{secrets.token_hex(4)}"
            written.write_bytes(text)
            os.replace(written, file)
        if len(self._kept) >= _MANY:
            self._kept.clear()
        self._kept[same] = name, tools
        return name

    def has(self, tools: Sequence[Tool]) -> bool:
        """Whether this process has kept the list already: `keep` then only names it."""
        return tools is self._last[1] or tuple(map(id, tools)) in self._kept

    def read(self, name: str | None) -> list[Tool]:
        """The list of that name; none where it is not known.

        Raises:
            DamagedRecord: it is not there, or is no list of tools.
        """
        if name is None:
            return []
        file = self._folder / f"{name}.json"
        try:
            return _TOOLS.validate_python(from_json(file.read_bytes()))
        except (OSError, ValueError, ValidationError) as error:
            raise DamagedRecord(f"the list of tools cannot be read: {error}", str(file)) from error
