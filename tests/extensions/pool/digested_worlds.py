"""The shipped worlds with a tool that answers with the digest of their state, and their solutions as a policy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpenv import Task
from mcpenv.worlds import capture
from mcpenv_client.fingerprint import digest, digest_of
from mcpenv_client.pool import BlockingEpisode, Played

ENVS = Path(__file__).resolve().parents[3] / "envs"
if str(ENVS) not in sys.path:
    sys.path.insert(0, str(ENVS))

TASKS = ["train-0", "train-5", "train-6", "train-30", "train-4"]
"""Tasks of levels 1, 1, 2, 1 and 5."""


def _digested(world: str) -> Any:
    environment: Any = getattr(importlib.import_module(f"{world}_mcp.environment"), f"{world.title()}Environment")

    class Digested(environment):  # type: ignore[misc]  # its class is not known before it is imported
        def __init__(self) -> None:
            super().__init__()

            def state_digest() -> str:
                """Return the digest of the state."""
                return digest({"state": capture(self.world)})

            self.tool(state_digest)

    Digested.__name__ = Digested.__qualname__ = world.title()
    return Digested


Office, Operations, Terminal = (_digested(world) for world in ("office", "operations", "terminal"))
WORLDS: Mapping[str, Any] = {"office": Office, "operations": Operations, "terminal": Terminal}


class Solution:
    """A policy that plays solutions. It returns the digests of the state at the start and after each call.

    Args:
        tasks: the tasks, by whose ids the solutions are found.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.calls = {task.id: [(call.tool_name, call.arguments) for call in task.oracle or ()] for task in tasks}

    def __call__(self, episode: BlockingEpisode) -> list[str]:
        digests = [episode.call_tool("state_digest").text]
        for name, arguments in self.calls[episode.assignment.options["task"]]:
            episode.call_tool(name, arguments)
            digests.append(episode.call_tool("state_digest").text)
        return digests


def solution_of(world: str) -> Solution:
    """Return the policy that solves the tasks of a world."""
    with WORLDS[world]() as env:
        return Solution([env.get_task("train", int(task.removeprefix("train-"))) for task in TASKS])


def found(played: Sequence[Played]) -> list[list[Any]]:
    """Return of each episode the digests of its states, that of its trajectory, and its return."""
    return [
        [each.value, None if each.trajectory is None else digest_of(each.trajectory), each.reward] for each in played
    ]
