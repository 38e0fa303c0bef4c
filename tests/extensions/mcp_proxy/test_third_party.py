"""MCP servers of other people, from PyPI and npm, run as environments: what a reset does, and what passes."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from third_party import SERVERS, Server

from mcpenv import CallToolAction, CallToolObservation
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment

pytestmark = pytest.mark.world

EPISODES = 3
AT_ONCE = 2


@dataclass
class Place:
    """What servers need around them.

    Attributes:
        workspace: a folder with a git repository, which is copied for each episode.
        values: by the name that stands for it in a server's arguments.
    """

    workspace: Path
    values: dict[str, str]

    def fill(self, value: Any) -> Any:
        """Return a value with the names replaced."""
        if isinstance(value, str):
            return re.sub(r"\{(page|redis)\}", lambda found: self.values[found[1]], value)
        if isinstance(value, dict):
            return {key: self.fill(each) for key, each in value.items()}
        return [self.fill(each) for each in value] if isinstance(value, list | tuple) else value

    def entry(self, server: Server) -> dict[str, Any]:
        """Return a server's entry in ``mcpServers``."""
        return {
            "command": str(program(server)),
            "args": self.fill(list(server.args)),
            "env": dict(server.env),
            "state": server.state,
            "tools": dict(server.tools),
            "call_timeout_s": 120,
            "start_timeout_s": 180,
        }

    def environment(self, **servers: Server) -> type[ProxyEnvironment]:
        """Return the environment of servers by name."""
        entries = {name: self.entry(server) for name, server in servers.items()}
        return ProxyEnvironment.from_config({"mcpServers": entries, "mcpenv": {"workspace": str(self.workspace)}})


def program(server: Server) -> Path:
    """Return the path of a server's program."""
    if server.npm:
        folder = Path(os.environ.get("MCPENV_NODE_MODULES", "/nowhere")) / ".bin"
    else:
        venvs = Path(os.environ.get("MCPENV_SERVER_VENVS", "/nowhere"))
        folder = venvs / re.sub(r"[^a-z0-9.]+", "-", server.pypi[0]) / "bin"
    path = folder / server.program
    assert path.exists(), f"there is no {path}; .ci/run installs the servers, and names their folders"
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("world")
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "a.txt").write_text("first\n")
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-qm", "Begin"]):
        subprocess.run(["git", "-C", str(workspace), *words], check=True)
    with Page() as page, Redis(folder) as redis:
        yield Place(workspace, {"page": page, "redis": redis})


class Page:
    """A page on this machine, for a server that fetches pages."""

    def __enter__(self) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/plain")
                self.end_headers()
                self.wfile.write(b"a page")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Redis:
    """A Redis of Debian's, on a free port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        found = shutil.which("redis-server")
        assert found, "there is no redis-server; .ci/run installs it"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen([found, *words], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until and self._process.poll() is None, "redis-server does not start"
        return f"redis://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)


def call(env: ProxyEnvironment, name: str, arguments: dict[str, Any]) -> CallToolObservation:
    """Call a tool that must succeed."""
    done = env.step(CallToolAction(tool_name=name, arguments=arguments))
    assert isinstance(done, CallToolObservation)
    assert done.error is None and done.result is not None and not done.result.is_error, (name, done.text)
    return done


ROWS: dict[str, list[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def _print_the_table() -> Iterator[None]:
    yield
    heading = ["server", "version", "protocol", "tools", "state", "per episode", "after a reset", "episodes"]
    rows = [heading, *(ROWS[server.name] for server in SERVERS if server.name in ROWS)]
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(len(heading))]
    lines = ("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    print("\n" + "\n".join(lines))


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_a_server_of_other_people_is_an_environment(place: Place, server: Server) -> None:
    cls = place.environment(**{server.name.replace(" ", "-"): server})
    look, changes = place.fill(server.look), place.fill(list(server.changes))
    (info,) = cls.catalog.servers.values()

    def play(_: int) -> int:
        clean = 0
        with cls() as env:
            texts = []
            for _ in range(EPISODES):
                env.reset()
                texts.append(call(env, *look).text)
                for change in changes:
                    call(env, *change)
                if server.state != "none":
                    if server.forgets:
                        assert call(env, *look).text != texts[-1]
                    else:
                        assert "a" in call(env, *look).text
                ended = env.end()
                assert ended.done and not ended.truncated
                clean += 1
            if server.forgets:
                assert len(set(texts)) == 1, texts
        return clean

    with ThreadPoolExecutor(AT_ONCE) as threads:
        clean = sum(threads.map(play, range(AT_ONCE)))
    assert clean == EPISODES * AT_ONCE
    (settings,) = cls.config.servers.values()
    reset = "-" if server.state == "none" else "as before" if server.forgets else "shared, not reset"
    ROWS[server.name] = [
        server.name,
        f"{info['version']}",
        f"{info['protocol']}",
        str(len(cls.catalog.tools)),
        server.state,
        "keep" if settings.kept else "start",
        reset,
        f"{clean} of {EPISODES * AT_ONCE}",
    ]


def test_the_server_with_everything_passes_all_kinds_of_content(place: Place) -> None:
    everything = next(server for server in SERVERS if server.name == "everything")
    with place.environment(everything=everything)() as env:
        env.reset()

        def kinds(name: str, **arguments: Any) -> list[str]:
            result = call(env, name, arguments).result
            assert result is not None
            return [str(part["type"]) for part in result.content]

        assert kinds("echo", message="hello") == ["text"]
        assert "image" in kinds("get-tiny-image")
        assert kinds("get-annotated-message", messageType="error", includeImage=True) == ["text", "image"]
        assert "resource" in kinds("get-resource-reference", resourceType="Blob")
        assert "resource_link" in kinds("get-resource-links", count=2)
        assert kinds("gzip-file-as-resource", data="data:text/plain,hello", outputType="resource") == ["resource"]
        structured = call(env, "get-structured-content", {"location": "Chicago"}).result
        assert structured is not None and structured.structured_content is not None
        assert "temperature" in structured.structured_content
        annotated = call(env, "get-annotated-message", {"messageType": "error"}).result
        assert annotated is not None and annotated.content[0]["annotations"]["priority"] == 1


def test_two_servers_with_clashing_names_are_one_tool_set(place: Place) -> None:
    git = next(server for server in SERVERS if server.name == "git")
    with place.environment(first=git, second=git)() as env:
        env.reset()
        call(env, "first_git_create_branch", {"branch_name": "work"})
        call(env, "first_git_checkout", {"branch_name": "work"})
        assert "work" in call(env, "second_git_status", {}).text
