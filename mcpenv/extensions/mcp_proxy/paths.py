"""The constant name of an episode's folder, so that paths in calls and results are equal in all episodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SEEN = "/episode"
"""The path of the workspace for agents and, in bubblewrap, for servers."""

HOME_SEEN = "/episode-home"
"""The path, for agents, of a home folder that a process has of its own."""


class PathNames:
    """The names of a workspace on both sides of a connection to a process.

    Args:
        real: the folder on this machine.
        isolated: True if the server sees it as ``seen``; False if the server sees the real path.
        seen: its path for agents.
    """

    def __init__(self, real: Path, *, isolated: bool, seen: str = SEEN) -> None:
        self._seen = seen
        self._pattern = re.compile(rf"(?:(?<=file://)|(?<![\w./~-])){seen}(?![\w.-])")
        self._real = str(real)
        self._isolated = isolated
        self._spellings = {spelled.encode() for spelled in (_inner(str(real), True), _inner(str(real), False))}

    @property
    def server_side(self) -> str:
        """The folder's path for the server."""
        return self._seen if self._isolated else self._real

    def to_server(self, message: bytes) -> bytes:
        """Return a JSON message with the server's path in place of any other name of the folder."""
        if self._isolated:
            return self._with_one_name(message)
        if self._seen.encode() not in message:
            return message
        return json.dumps(self._with_real(json.loads(message)), ensure_ascii=False).encode()

    def from_server(self, message: bytes) -> bytes:
        """Return a JSON message with the path for agents in place of the folder's real path."""
        return message if self._isolated else self._with_one_name(message)

    def _with_one_name(self, message: bytes) -> bytes:
        for spelled in self._spellings:
            message = message.replace(spelled, self._seen.encode())
        return message

    def _with_real(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(lambda _: self._real, value)
        if isinstance(value, dict):
            return {key: self._with_real(item) for key, item in value.items()}
        return [self._with_real(item) for item in value] if isinstance(value, list) else value


def _inner(text: str, ensure_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
