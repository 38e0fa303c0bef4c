"""Every extension can be deleted: without its folder and its entry points, the kernel imports, serves and plays.

The kernel's tests run without all of them.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Forks, forks

import mcpenv
import mcpenv_client

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, CLIENT = (Path(str(package.__file__)).parent for package in (mcpenv, mcpenv_client))
PREFIX = "mcpenv.extensions."
EXTENSIONS = sorted(
    path.name for path in (PACKAGE / "extensions").iterdir() if path.is_dir() and path.name != "__pycache__"
)

WORLD = '''
from mcpenv import MCPEnvironment


class Counter(MCPEnvironment):
    """Count."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add(by: int = 1) -> int:
            """Add to the count."""
            self.count += by
            return self.count
'''

PROGRAM = """
import importlib
import pkgutil
import sys

import mcpenv
from starlette.testclient import TestClient

assert mcpenv.__path__[0].startswith(sys.argv[1]), mcpenv.__path__
failed = {}
for module in pkgutil.walk_packages(mcpenv.__path__, "mcpenv.", onerror=lambda name: None):
    # The modules of a folder `inside` are programs for other processes, which import their neighbours.
    if not module.name.startswith(("mcpenv.extensions", "mcpenv.__main__")) and ".inside." not in module.name:
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed[module.name] = str(error)
assert failed == {}, failed

from counter import Counter
from mcpenv import CallToolAction
from mcpenv.server import create_app

env = Counter()
env.reset()
assert env.step(CallToolAction(tool_name="add", arguments={"by": 2})).text == "2"
env.close()

with TestClient(create_app(Counter), base_url="http://127.0.0.1") as client:
    session_id = client.post("/reset", json={}).json()["session_id"]
    action = {"type": "call_tool", "tool_name": "add", "arguments": {"by": 2}}
    stepped = client.post("/step", json={"action": action, "session_id": session_id})
    assert stepped.json()["observation"]["result"]["content"][0]["text"] == "2", stepped.text
    with client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset", "data": {}})
        assert socket.receive_json()["type"] == "observation"
        socket.send_json({"type": "step", "data": action})
        assert socket.receive_json()["data"]["observation"]["result"]["content"][0]["text"] == "2"
    headers = {"Accept": "application/json, text/event-stream"}
    client_info = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client_info}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    assert client.post("/mcp", json=message, headers=headers).status_code == 200
    assert client.get("/metadata").json()["name"]

from mcpenv.cli import execute

assert execute(["--help"]) == 0
assert execute(["call", "counter.py", "add", "by=2"]) == 0
"""


@functools.cache
def needed_by(name: str) -> frozenset[str]:
    """Return the extensions whose modules import one of another extension directly."""
    names: set[str] = set()
    for file in (PACKAGE / "extensions" / name).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names |= {module.removeprefix(PREFIX).partition(".")[0] for module in modules if module.startswith(PREFIX)}
    return frozenset(names - {name})


def without(name: str) -> set[str]:
    """Return an extension and the extensions that cannot be imported without it."""
    gone, found = set[str](), {name}
    while gone != found:
        gone = found
        found = gone | {each for each in EXTENSIONS if needed_by(each) & gone}
    return gone


def install(folder: Path, gone: set[str]) -> None:
    """Copy the packages without some extensions, with the entry points that are left."""
    shutil.copytree(PACKAGE, folder / "mcpenv")  # with what is compiled, which no program imports without its source
    shutil.copytree(CLIENT, folder / "mcpenv_client")
    for name in gone:
        shutil.rmtree(folder / "mcpenv" / "extensions" / name)
    prefixes = tuple(f"{PREFIX}{name}." for name in gone)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        left = {key: value for key, value in entries.items() if not f"{value}.".replace(":", ".").startswith(prefixes)}
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in left.items()), ""]
    info = folder / f"mcpenv-{project['version']}.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mcpenv\nVersion: {project['version']}\n")


def run(folder: Path, *arguments: str, timeout_s: float = 100) -> str:
    ended = subprocess.run(
        [sys.executable, "-P", *arguments],  # without the working directory, which may have a whole mcpenv
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-9000:] + ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="module")
def no_mcpenv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Run programs after what mcpenv imports, without mcpenv."""
    with forks(tmp_path_factory.mktemp("forks"), "fastmcp", "starlette.testclient", "uvicorn", "cyclopts") as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_kernel_works_without_an_extension(name: str, no_mcpenv: Forks, tmp_path: Path) -> None:
    install(tmp_path, without(name))
    (tmp_path / "counter.py").write_text(WORLD)
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = no_mcpenv.run(tmp_path / "program.py", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout[-9000:] + ended.stderr[-3000:]
    assert "run" in ended.stdout and ended.stdout.splitlines()[-1] == "2"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_kernel_s_tests_pass_without_any_extension(tmp_path: Path) -> None:
    install(tmp_path, set(EXTENSIONS))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("extensions"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("clients", "docs", "envs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    # Where settings, entry points and records are. Steps, tools and the client know no extension.
    folders = [f"tests/{name}" for name in ("cli", "interaction", "server", "targets", "trajectories")]
    ran = run(tmp_path, "-m", "pytest", "-n", "auto", "-rfE", "--tb=short", *folders, timeout_s=1100)
    passed = re.search(r"(\d+) passed", ran)
    assert passed is not None and int(passed[1]) > 1000, ran


def test_extensions_that_need_others_are_found() -> None:
    assert "console" in without("exports") and "exports" not in without("console")
