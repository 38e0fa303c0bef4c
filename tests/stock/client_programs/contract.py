"""The input and output of every client program here, whichever SDK it uses.

One argument, a JSON object: ``url`` and ``token``, or ``command`` (a server to start); ``mode`` (the SDK's own word for
its protocol era); ``calls``, pairs of a tool and its arguments; for a client that is a command ``client``, its words.
Printed: the names of the tools, and for each call what a model would read of it and whether it failed.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """One connection to one server, and the calls to make there."""

    url: str | None
    token: str | None
    command: list[str] | None
    mode: str | None
    calls: list[tuple[str, dict[str, Any]]]
    client: list[str]

    @property
    def headers(self) -> dict[str, str]:
        """The bearer token as HTTP has it; nothing without a token."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def stdio(self) -> dict[str, Any]:
        """The command that starts the server."""
        # With the environment as it is: left to themselves, SDKs hand on a few variables only.
        assert self.command is not None
        return {"command": self.command[0], "args": self.command[1:], "env": dict(os.environ)}


def job() -> Job:
    """The orders of this program."""
    told = json.loads(sys.argv[1])
    calls = [(name, arguments) for name, arguments in told["calls"]]
    return Job(told["url"], told["token"], told["command"], told["mode"], calls, told["client"])


class Seen:
    """The findings of the program so far."""

    def __init__(self, tools: list[str]) -> None:
        self.tools = sorted(tools)
        self.results: list[dict[str, Any]] = []

    def add(self, text: object, *, failed: bool) -> None:
        """The outcome of one more call."""
        self.results.append({"text": str(text), "failed": failed})

    def show(self) -> None:
        """Print it, as the program's last line."""
        print(json.dumps({"tools": self.tools, "results": self.results}))
