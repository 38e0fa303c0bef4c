"""The cost of resets of a proxied server: git episodes at once, with a process each, forked, and kept.

``python -m benchmarks proxied_resets [--quick]``

An episode is a reset, a branch, a commit, and a check of the repository. ``mcp-server-git`` is installed from PyPI, in
a virtual environment of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.rewards.verifiers import Evidence

from .peers import python_of

FILES = 100
ROUNDS = ("first round", "next round")

WAYS: dict[str, dict[str, Any]] = {
    "a process each": {"per_episode": "start", "isolation": "none"},
    "a process each, isolated": {"per_episode": "start"},
    "forked": {"per_episode": "fork"},
    "kept": {"per_episode": "keep", "isolation": "none"},
}
"""Settings of the server. ``kept`` starts its processes in the first round."""

GOALS_S = {"forked": 12.0, "kept": 6.0}
"""Maximum seconds of 50 episodes, in the next round."""


class Repository(ProxyEnvironment):
    """A repository, in which an agent commits on a branch."""

    async def verify(self, evidence: Evidence) -> bool:
        """Return True if the branch has the commit, and nothing is left over."""
        assert self.workspace is not None
        return await asyncio.to_thread(committed, self.workspace.path)


def run(quick: bool = False) -> dict[str, Any]:
    """Print the table, and return its figures: seconds of all episodes of a round."""
    episodes = 8 if quick else 50
    server = python_of("mcp-server-git").with_name("mcp-server-git")
    print(f"{episodes} git episodes at once, each a reset, a branch, a commit and a check of the repository; seconds\n")
    print(f"{'':30}{ROUNDS[0]:>14}{ROUNDS[1]:>14}{'goal':>10}")
    figures: dict[str, Any] = {"episodes at once": episodes}
    with tempfile.TemporaryDirectory(prefix="mcpenv-repository-") as folder:
        make_repository(Path(folder))
        for way, settings in WAYS.items():
            seconds = asyncio.run(measure(environment(server, Path(folder), settings), episodes))
            goal = f"{GOALS_S[way]:g}" if way in GOALS_S else ""
            print(f"{way:30}{seconds[0]:14.1f}{seconds[1]:14.1f}{goal:>10}", flush=True)
            figures |= {f"{way}, {name}, s": round(each, 1) for name, each in zip(ROUNDS, seconds, strict=True)}
    return figures


def environment(server: Path, template: Path, settings: dict[str, Any]) -> type[Repository]:
    """Return the class of an environment of the git server."""
    repository = {"arguments": {"repo_path": "{workspace}"}}
    tools = dict.fromkeys(("git_create_branch", "git_checkout", "git_add", "git_commit"), repository)
    entry = {
        "command": str(server),
        "args": ["--repository", "{workspace}"],
        "state": "workspace",
        "tools": tools,
        "start_timeout_s": 300,
        "call_timeout_s": 300,
        **settings,
    }
    return Repository.from_config({"mcpServers": {"git": entry}, "mcpenv": {"workspace": str(template)}})


async def measure(cls: type[Repository], episodes: int) -> list[float]:
    """Return the seconds of each round."""
    envs = [cls() for _ in range(episodes)]
    try:
        seconds = []
        for _ in ROUNDS:
            began = time.perf_counter()
            rewards = await asyncio.gather(*map(play, envs))
            seconds.append(time.perf_counter() - began)
            assert rewards == [1.0] * episodes, rewards
        return seconds
    finally:
        await asyncio.gather(*(env.close_async() for env in envs))


async def play(env: Repository) -> float | None:
    """Play one episode, and return its reward."""
    await env.reset_async()
    await env.call_tool_async("git_create_branch", {"branch_name": "work"})
    await env.call_tool_async("git_checkout", {"branch_name": "work"})
    assert env.workspace is not None
    (env.workspace.path / "notes.txt").write_text("done\n")
    await env.call_tool_async("git_add", {"files": ["notes.txt"]})
    await env.call_tool_async("git_commit", {"message": "Add notes"})
    await env.end_async()
    assert env.trajectory is not None
    return env.trajectory.total_reward


def make_repository(folder: Path) -> None:
    """Fill a folder with a repository of `FILES` files and one commit."""
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "A. Author")
    git(folder, "config", "user.email", "author@example.com")
    for number in range(FILES):
        (folder / f"file-{number}.txt").write_text(f"{number}\n" * 50)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Begin")


def committed(folder: Path) -> bool:
    """Return True if the branch ``work`` has the commit, and nothing is left over."""
    said = git(folder, "log", "-2", "--format=%s", "work").splitlines() == ["Add notes", "Begin"]
    return said and git(folder, "show", "work:notes.txt") == "done\n" and git(folder, "status", "--porcelain") == ""


def git(folder: Path, *arguments: str) -> str:
    """Return what a command of git prints."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
