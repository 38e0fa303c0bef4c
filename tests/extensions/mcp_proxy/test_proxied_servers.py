"""Third-party servers behind environments, many episodes, and kill -9."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from proxying import PLAIN, descendants, has_ended

from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment

pytestmark = [pytest.mark.world, pytest.mark.timeout(1800)]

AT_ONCE = 10


@pytest.fixture(scope="module")
def git_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of ``mcp-server-git``, in a virtual environment of its own."""
    folder = tmp_path_factory.mktemp("git-server")
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "mcp-server-git"], check=True)
    return folder / "bin" / "mcp-server-git"


@pytest.fixture(scope="module")
def uvx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uv")
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return folder / "bin" / "uvx"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for words in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("config", "user.name", "A. Author"),
        ("config", "user.email", "author@example.com"),
        ("commit", "--quiet", "--allow-empty", "--message", "Begin"),
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    """The settings of ``@modelcontextprotocol/server-everything``, which does not end when its stdin is closed."""
    named = os.environ.get("MCPENV_NODE_MODULES")
    assert named, "MCPENV_NODE_MODULES names no folder; .ci/run installs the npm packages and sets it"
    modules = Path(named).resolve()
    node = modules / ".bin" / "node"
    server = modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    return {"command": str(node) if node.exists() else "node", "args": [str(server), "stdio"]}


def of(template: Path | None = None, **servers: dict[str, Any]) -> Any:
    own = {} if template is None else {"workspace": str(template)}
    return ProxyEnvironment.from_config({"mcpServers": servers, "mcpenv": own})


def git(server: Path, **more: Any) -> dict[str, Any]:
    bound = {"arguments": {"repo_path": "{workspace}"}}
    return {
        "command": str(server),
        "args": ["--repository", "{workspace}"],
        "state": "workspace",
        "tools": {"git_create_branch": bound, "git_branch": bound},
        "start_timeout_s": 300,
        **more,
    }


@pytest.mark.parametrize(("way", "episodes"), [("start", 100), ("keep", 300), ("fork", 200)])
def test_no_process_is_left_after_many_episodes(way: str, episodes: int, repository: Path) -> None:
    server = {"command": sys.executable, "args": [str(PLAIN), "{workspace}"], "state": "workspace", "per_episode": way}
    before = descendants(os.getpid())
    cls = of(repository, server=server)
    zygotes = descendants(os.getpid()) - before

    async def play() -> None:
        for _ in range(episodes // AT_ONCE // 10):
            env = cls()
            for _ in range(10):
                assert "replaced" not in (await env.reset_async()).metadata
                assert (await env.call_tool_async("write", {"name": "a", "text": "b"})).text == "written to /episode/a"
            await env.close_async()

    async def main() -> None:
        await asyncio.gather(*(play() for _ in range(AT_ONCE)))

    asyncio.run(main())
    left = descendants(os.getpid()) - before - zygotes
    assert all(has_ended(each) for each in left), left
    assert len(zygotes) == (2 if way == "fork" else 0)  # the process that forks, and its guard


@pytest.mark.parametrize("way", ["start", "keep", "fork"])
def test_a_git_server_from_pypi_is_restored(git_server: Path, repository: Path, way: str) -> None:
    with of(repository, git=git(git_server, per_episode=way))() as env:
        for _ in range(2):
            told = env.reset().metadata
            assert "replaced" not in told and told["servers"]["git"]["name"] == "mcp-git"
            assert "work" not in env.call_tool("git_branch", {"branch_type": "local"}).text
            env.call_tool("git_create_branch", {"branch_name": "work"})
            assert "work" in env.call_tool("git_branch", {"branch_type": "local"}).text


def test_uvx_runs_once_and_the_server_without_it_is_isolated(uvx: Path, repository: Path) -> None:
    settings = git(uvx) | {"args": ["mcp-server-git", "--repository", "{workspace}"]}
    cls = of(repository, git=settings)
    assert "uvx" not in cls.catalog.launchers["git"].program
    before = descendants(os.getpid())
    with cls() as env:
        env.reset()
        assert "Created branch" in env.call_tool("git_create_branch", {"branch_name": "work"}).text
        names = {Path(f"/proc/{each}/comm").read_text().strip() for each in descendants(os.getpid()) - before}
    assert not names & {"uv", "uvx"}, names


def test_a_server_that_goes_on_without_stdin_leaves_no_process(everything: dict[str, Any]) -> None:
    before = descendants(os.getpid())
    cls = of(everything=everything)
    for _ in range(3):
        with cls() as env:
            env.reset()
            assert "hello" in env.call_tool("echo", {"message": "hello"}).text
    assert all(has_ended(each) for each in descendants(os.getpid()) - before)


def test_no_server_outlives_an_mcpenv_that_was_killed(
    everything: dict[str, Any], git_server: Path, repository: Path
) -> None:
    servers = {
        "everything": everything,
        "isolated": git(git_server),
        "forked": git(git_server, per_episode="fork"),
        "kept": git(git_server, per_episode="keep", isolation="none"),
    }
    program = (
        "import sys\n"
        "from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment\n"
        f"source = {{'mcpServers': {servers!r}, 'mcpenv': {{'workspace': {str(repository)!r}}}}}\n"
        "env = ProxyEnvironment.from_config(source)()\n"
        "env.reset()\n"
        "print(env.call_tool('echo', {'message': 'ready'}).text, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and "ready" in parent.stdout.readline()
        below = descendants(parent.pid)
        assert len(below) >= 6, below
        parent.kill()
    assert all(has_ended(each) for each in below)
