"""Running a stock client's program against ``mcpenv run``, and what was seen of it on both sides."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import install
from programs import HERE, node_environment, printed, run
from stock_clients import StockClient
from tally import COMPONENT, OF_EACH_CALL
from tap import Request, tapped

TALLY = HERE / "tally.py"
TOKEN = "the-token-of-stock-clients"

MCP, HANDLE, STDIO = "/mcp", "handle", "stdio"
WITH_TOKEN = " with a token"
PLACES = (MCP, MCP + WITH_TOKEN, HANDLE, HANDLE + WITH_TOKEN, STDIO)
"""Where a client meets the environment. Those with a token are on a server that lets no agent in without it."""

AT_ONCE = 2
"""Programs that run at the same time."""

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("add", {"by": 1}),
    ("add", {"by": 2}),
    ("add", {"by": "x"}),
    ("stop", {}),
    ("add", {"by": 4}),
)
"""What every client calls: two that show whether state is kept, one that fails, the end of an episode, one after it."""

BY_ANOTHER = 1000
"""What an anonymous stateless client adds before all others come, in the world that such clients share."""

USES = ("tools/list", "tools/call")
"""The requests for which a client needs a server."""

QUIET = {"MCP_USE_ANONYMIZED_TELEMETRY": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1", "NO_COLOR": "1"}
"""Clients that would tell their makers about the run are asked not to."""

OF_REWARDS = ("reward", "terminated", "truncated", str(OF_EACH_CALL), COMPONENT)
"""What is on the wire wherever a reward is."""


def places_of(client: StockClient) -> tuple[str, ...]:
    """Those of PLACES where a client can be."""
    return PLACES[:-1] if client.bridge else PLACES


@dataclass(frozen=True)
class Driven:
    """One run of a client's program.

    Attributes:
        tools: What it listed.
        texts: What a model would have read, of each call.
        failed: Whether it took the call for a failure.
        requests: What the server was sent; nothing over stdio.
        rewards: Those of OF_REWARDS that were among the bytes it was answered with.
        episode: The state that the orchestrator read afterwards; None where there is no episode.
    """

    tools: list[str]
    texts: list[str]
    failed: list[bool]
    requests: list[Request] = field(default_factory=list)
    rewards: list[str] = field(default_factory=list)
    episode: dict[str, Any] | None = None

    @property
    def kept(self) -> bool:
        """Return True if the second call found what the first had done."""
        return int(self.texts[1]) == int(self.texts[0]) + 2

    @property
    def shared(self) -> bool:
        """Return True if it found what another anonymous client had done before it."""
        return int(self.texts[0]) > BY_ANOTHER

    @property
    def protocol(self) -> str:
        """The version of the protocol in which it called."""
        (version,) = {request.headers["mcp-protocol-version"] for request in self.calls()}
        return version

    @property
    def sessions(self) -> str:
        """Return what it did about MCP sessions, in words for the table."""
        opened = {request.session for request in self.requests if request.session}
        used = {request.session for request in self.requests if request.session and request.rpc in USES}
        ended = {request.session for request in self.requests if request.method == "DELETE"}
        calls = Counter(request.session for request in self.calls())
        words = [
            "none" if not used else "one" if len(used) == 1 else "one per call" if max(calls.values()) == 1 else "some"
        ]
        if opened - used:
            words.append(f"{len(opened - used)} opened without use")
        if any(request.rpc == "server/discover" for request in self.requests):
            words.append("`server/discover` first")
        if opened:
            words.append("DELETE" if ended == opened else "some DELETE" if ended else "no DELETE")
        return "; ".join(words)

    def calls(self) -> list[Request]:
        """The requests that call a tool."""
        return [request for request in self.requests if request.rpc == "tools/call"]


@dataclass
class Bench:
    """The servers that clients are run with. A client runs once, when its runs are first asked for.

    Its runs at different places may go at the same time, because no world is in two places. Two clients' may not: the
    anonymous stateless ones share a world, and so do those with the same token.

    Attributes:
        servers: Base URLs of a server without a token and of one with TOKEN.
        venvs: Folder for virtual environments.
        modules: ``node_modules`` with the clients of npm.
        home: Where each program is given a folder that it may take for its user's.
    """

    servers: tuple[str, str]
    venvs: Path
    modules: Path
    home: Path
    _runs: dict[tuple[StockClient, str | None, str], Future[Driven]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE))

    def drive(self, client: StockClient, mode: str | None, place: str) -> Driven:
        """The outcome of a client's program, which ended with status 0, at one of PLACES."""
        if (client, mode, place) not in self._runs:
            wait(self._runs.values())
            self._python(client)  # made before programs at once ask for it
            for each in places_of(client):
                self._runs[client, mode, each] = self._pool.submit(self._run, client, mode, each)
        return self._runs[client, mode, place].result()

    def _run(self, client: StockClient, mode: str | None, place: str) -> Driven:
        if place == STDIO:
            command = [sys.executable, "-m", "mcpenv", "run", str(TALLY), "--transport", "stdio"]
            return Driven(**self._program(client, mode, command=command, words=client.command("", None, mode)))
        token = TOKEN if place.endswith(WITH_TOKEN) else None
        server = self.servers[token is not None]
        path, session = "/mcp", None
        if place.startswith(HANDLE):
            opened = httpx.post(f"{server}/reset", json={}).raise_for_status().json()
            path, session = urlsplit(opened["info"]["mcp_url"]).path, opened["session_id"]
        with tapped(server) as tap:
            url = tap.url + path
            if client.bridge:
                seen = self._program(client, mode, command=client.command(url, token, mode))
            else:
                seen = self._program(client, mode, url=url, token=token, words=client.command(url, token, mode))
        episode = None
        if session is not None:
            answer = httpx.get(f"{server}/state", params={"session_id": session})
            episode = answer.raise_for_status().json()
        return Driven(**seen, requests=tap.requests(), rewards=list(filter(tap.answered, OF_REWARDS)), episode=episode)

    def _program(
        self,
        client: StockClient,
        mode: str | None,
        *,
        url: str | None = None,
        token: str | None = None,
        command: list[str] | None = None,
        words: list[str] | None = None,
    ) -> dict[str, Any]:
        told = {"url": url, "token": token, "command": command, "mode": mode, "calls": CALLS, "client": words or []}
        home = Path(tempfile.mkdtemp(dir=self.home))
        # In the folder of the packages npx takes the pinned ones.
        ended = run(
            "node" if client.program.endswith(".cjs") else self._python(client),
            str(HERE / "client_programs" / client.program),
            json.dumps(told),
            cwd=self.modules.parent,
            env={**node_environment(self.modules, home), **QUIET, "NODE_PATH": str(self.modules)},
        )
        # Some SDKs log to standard output; the last line is the program's own.
        ended.stdout = "".join(ended.stdout.splitlines()[-1:])
        seen = printed(ended)
        assert "Traceback" not in ended.stderr, ended.stderr
        results = seen["results"]
        return {
            "tools": seen["tools"],
            "texts": [result["text"] for result in results],
            "failed": [result["failed"] for result in results],
        }

    def _python(self, client: StockClient) -> str:
        return str(install.python_of(self.venvs, client.pypi)) if client.pypi else sys.executable
