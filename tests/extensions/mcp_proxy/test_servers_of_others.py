"""Servers that keep files in the home folder, get tools without notice, or list what MCP does not allow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mcpenv
from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.extensions.mcp_proxy.delivery import DiscoveryFailed
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.mcp_proxy.home import caches_of_launchers, make_home
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target
from mcpenv.worlds import ObjectWorld

NOTES = '''
import os
from pathlib import Path
from fastmcp import FastMCP

server = FastMCP("notes")
FILES = [Path.home() / name for name in ("notes.txt", ".own/notes.txt", ".config/own/notes.txt", ".cache/own.txt")]


@server.tool
def add(text: str) -> str:
    """Add a note."""
    for file in FILES:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.write(text)
    return "added"


@server.tool
def read() -> str:
    """Return all notes."""
    return "".join(file.read_text() for file in FILES if file.exists())


@server.tool
def where() -> str:
    """Return the path of the first note."""
    return str(FILES[0])


@server.tool
def read_at(path: str) -> str:
    """Return the file of a path."""
    return Path(path).read_text()


@server.tool
def user() -> str:
    """Return the settings of the user."""
    return (Path.home() / ".settings").read_text() + (Path.home() / ".config/other/settings").read_text()


server.run(show_banner=False)
'''

GROWING = """
import asyncio

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOLS = ["grow"]


async def list_tools(context, params):
    schema = {"type": "object", "properties": {}}
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=schema) for name in TOOLS])


async def call_tool(context, params):
    if params.name == "grow":
        TOOLS.append(f"extra{len(TOOLS)}")
    return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])


async def main():
    server = Server("growing", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())
"""

UNTYPED = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        info = {"name": "untyped", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif asked.get("method") == "tools/list":
        answer = {"result": {"tools": [{"name": "a", "inputSchema": {"properties": {}}}]}}
    else:
        answer = {"error": {"code": -32601, "message": "no such method"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def server(folder: Path, text: str, **more: Any) -> type[ProxyEnvironment]:
    file = folder / "server.py"
    file.write_text(text)
    return ProxyEnvironment.from_config({"mcpServers": {"a": {"command": sys.executable, "args": [str(file)], **more}}})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    (made / ".config" / "other").mkdir(parents=True)
    (made / ".settings").write_text("mine ")
    (made / ".config" / "other" / "settings").write_text("too")
    monkeypatch.setenv("HOME", str(made))
    return made


def test_what_a_server_writes_into_the_home_folder_ends_with_the_episode(home: Path, tmp_path: Path) -> None:
    cls = server(tmp_path, NOTES)
    before = sorted(home.rglob("*"))
    with cls() as env, cls() as other:
        env.reset()
        other.reset()
        env.call_tool("add", {"text": "first"})
        assert env.call_tool("read").text == "first" * 4
        assert other.call_tool("read").text == ""
        assert env.call_tool("where").text == "/episode-home/notes.txt"
        assert env.call_tool("read_at", {"path": "/episode-home/notes.txt"}).text == "first"
        env.reset()
        assert env.call_tool("read").text == ""
        assert env.call_tool("user").text == "mine too"
    assert sorted(home.rglob("*")) == before


def test_a_home_folder_that_is_named_is_the_servers(home: Path, tmp_path: Path) -> None:
    with server(tmp_path, NOTES, env={"HOME": "${HOME}"})() as env:
        env.reset()
        env.call_tool("add", {"text": "kept"})
    assert (home / "notes.txt").read_text() == "kept"


def test_a_home_folder_has_copies_of_small_files_and_links_to_the_rest(home: Path) -> None:
    (home / "large").write_bytes(b"x" * 100_000)
    (home / "Documents").mkdir()
    made = make_home()
    assert (made / ".settings").is_file() and not (made / ".settings").is_symlink()
    assert (made / "large").is_symlink() and (made / "Documents").is_symlink()
    assert (made / ".config" / "other").is_symlink() and not (made / ".config").is_symlink()


def test_startup_files_of_shells_run_with_the_users_home_folder(home: Path) -> None:
    (home / ".tool").mkdir()
    (home / ".profile").write_text('export TOOL_ROOT="$HOME/.tool"\ncase $- in *i*) ;; *) return;; esac\n')
    made = make_home()
    shell = ["bash", "-lc", 'echo "$TOOL_ROOT $HOME"']
    done = subprocess.run(shell, env={"HOME": str(made), "PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.stdout.split() == [str(home / ".tool"), str(made)]


def test_launchers_install_into_the_users_caches(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in caches_of_launchers({"HOME": "/workspace"}):
        monkeypatch.delenv(name, raising=False)
    assert caches_of_launchers({"HOME": str(home)}) == {}
    found = caches_of_launchers({"HOME": "/workspace"})
    assert found["npm_config_cache"] == str(home / ".npm") and found["UV_CACHE_DIR"] == str(home / ".cache/uv")


DECLARING = """
import json, sys
tools = ["grow"]
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        info = {"name": "declaring", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}}
    elif asked.get("method") == "tools/list":
        answer = {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}}
    elif asked.get("method") == "tools/call":
        name = asked["params"]["name"]
        if name == "grow":
            tools.append(f"extra{len(tools)}")
        answer = {"result": {"content": [{"type": "text", "text": name}]}}
    else:
        answer = {"error": {"code": -32601, "message": "no such method"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize("text", [GROWING, DECLARING], ids=["declares none", "declares them"])
def test_a_tool_that_a_server_gets_without_notice_is_listed_and_called(tmp_path: Path, text: str) -> None:
    with server(tmp_path, text)() as env:
        env.reset()
        env.call_tool("grow")
        assert [tool.name for tool in env.list_tools()] == ["grow", "extra1"]
        assert env.call_tool("extra1").text == "extra1"
        env.reset()
        assert [tool.name for tool in env.list_tools()] == ["grow"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (UNTYPED, 'its tool number 1 has no "type": "object" in its inputSchema'),
        ("from mcp.server.fastmcp import FastMCP", "install the package 'mcp<2' beside it"),
    ],
)
def test_a_server_that_cannot_start_says_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DiscoveryFailed) as raised:
        server(tmp_path, text)
    assert said in str(raised.value)


def test_tasks_are_verified_by_the_workspace_if_it_is_the_world(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    (tmp_path / "server.py").write_text(NOTES)
    args = [str(tmp_path / "server.py")]
    servers = {"a": {"command": sys.executable, "args": args, "env": {"HOME": "{workspace}"}}}
    settings = {"workspace": str(template), "world": "workspace"}
    cls = ProxyEnvironment.from_config({"mcpServers": servers, "mcpenv": settings})
    with cls() as env:
        env.reset()
        env.call_tool("add", {"text": "done"})
        assert env.world.capture()["notes.txt"] == {"text": "done"}
        env.reset()
        assert "notes.txt" not in env.world.capture()
    with pytest.raises(ConfigurationError, match="no server uses one"):
        ProxyEnvironment.from_config({"mcpServers": {"a": {"command": "x"}}, "mcpenv": {"world": "workspace"}})


TASK = '{"id": "one", "prompt": "Add a note.", "verifier": {"kind": "expect_exactly", "changes": []}}'


def configured(folder: Path, args: list[str], settings: dict[str, str]) -> dict[str, str | Path]:
    """Write a configuration of the server of notes, and a task that compares the world; return arguments of `load`."""
    (folder / "server.py").write_text(NOTES)
    (folder / "tasks.jsonl").write_text(TASK)
    servers = {"a": {"command": sys.executable, "args": [str(folder / "server.py"), *args]}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers, "mcpenv": settings}))
    return {"target": str(folder / "mcp.json"), "tasks": folder / "tasks.jsonl"}


def test_tasks_that_need_a_world_which_is_not_configured_are_refused_at_start(tmp_path: Path) -> None:
    given = configured(tmp_path, [], {})
    with pytest.raises(TargetError, match="task 'one': verifier: reads the world") as raised:
        mcpenv.load(given["target"], tasks=given["tasks"])
    cls = load_target(str(given["target"]), (), given["tasks"]).environment_class
    assert cls is not None

    class Own(cls):  # type: ignore[valid-type, misc]
        """It has a world of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.world = ObjectWorld(dict)

    with pytest.raises(ConfigurationError, match="task 'one'"), serving(cls):
        pass
    with Own() as env:
        assert env.reset(task="one").prompt == "Add a note."
    assert '"mcpenv": {"world": "workspace"}' in str(raised.value)


def test_tasks_that_need_the_configured_world_are_served(tmp_path: Path) -> None:
    given = configured(tmp_path, ["{workspace}"], {"world": "workspace"})
    with mcpenv.load(given["target"], tasks=given["tasks"]) as env:
        assert env.reset(task="one").prompt == "Add a note."
