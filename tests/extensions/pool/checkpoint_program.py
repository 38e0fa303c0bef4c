"""A training script that takes checkpoints, and kills itself after a number of lines of the client and of its own.

Arguments: a mode of `PLAYS`, the folder of its files, the number of lines (0: never), and the URLs of servers. It
writes `results.json` when it is done, and prints the number of lines that ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode, Played, TaskSampler

FILE = __file__
GROUPS = 6
TASKS = [f"t{goal}" for goal in range(1, 7)]


def calls_of(episode: Episode | BlockingEpisode) -> list[dict[str, Any]]:
    """Return the errands of an episode: each has another name."""
    name = f"{episode.assignment.number}-{episode.assignment.options['task']}"
    return [{"name": f"{name}-{number}", "seconds": 0.01} for number in range(5)]


async def policy(episode: Episode) -> int:
    return sum([int((await episode.call_tool("run", each)).text) for each in calls_of(episode)])


def blocking_policy(episode: BlockingEpisode) -> int:
    return sum(int(episode.call_tool("run", each).text) for each in calls_of(episode))


async def chatting_policy(episode: Episode) -> int:
    """Play as a model that cannot say again what it said: each of its messages has an id of its own."""
    chat, calls = await episode.chat(), calls_of(episode)
    while not chat.done and chat.turns < len(calls):
        call = {"name": "run", "arguments": json.dumps(calls[chat.turns])}
        episode.wrote([1, chat.turns], [2], [-0.5])
        calling = [{"id": f"call-{os.urandom(4).hex()}", "type": "function", "function": call}]
        await chat.act({"role": "assistant", "content": "", "tool_calls": calling})
    assert [turn.steps for turn in episode.turns] == [[number] for number in range(1, len(calls) + 1)], chat.messages
    return sum(int(each["content"]) for each in chat.messages if each["role"] == "tool")


def rows_of(played: list[Played]) -> list[list[Any]]:
    found = []
    for each in played:
        assert each.trajectory is not None, each
        found.append([each.assignment.options["task"], each.assignment.number, digest_of(each.trajectory), each.reward])
    return found


async def rollouts(pool: EnvPool, path: Path) -> dict[str, Any]:
    """Play one batch after the other, with an evaluation between."""
    state = pool.restore(path) or {}
    async with pool:
        for step in range(3):
            if str(step) in state:
                continue
            trained = await pool.rollout(policy, TASKS[2 * step : 2 * step + 2], group=2, seed=step)
            evaluated = await pool.rollout(chatting_policy, TASKS[:1], n=2, seed=100)
            state[str(step)] = rows_of(trained) + rows_of(evaluated)
            pool.checkpoint(path, state)
    return state


async def groups(pool: EnvPool, path: Path) -> dict[str, Any]:
    """Take groups of sampled tasks, and more than one between two checkpoints."""
    state = pool.restore(path) or {}
    sampler = TaskSampler(TASKS, by="weight", seed=5)
    async with pool, pool.groups(chatting_policy, sampler, group=2, seed=7) as stream:
        taken = 0
        while len(state) < GROUPS:
            group = await anext(stream)
            if group[0].assignment.group < GROUPS:
                assert str(group[0].assignment.group) not in state, "a group was handed out twice"
                state[str(group[0].assignment.group)] = rows_of(group)
            taken += 1
            if taken % 2 == 0:
                pool.checkpoint(path, state)
    return state


def blocking(pool: EnvPool, path: Path) -> dict[str, Any]:
    """Take episodes of a list, with a policy that is a plain function."""
    with pool.sync() as blocking_pool:
        state = blocking_pool.restore(path) or {}
        with blocking_pool.play(blocking_policy, TASKS, n=2, seed=3) as stream:
            for each in stream:
                state[str(each.assignment.number)] = rows_of([each])
                blocking_pool.checkpoint(path, state)
    return state


PLAYS: dict[str, Any] = {"rollouts": rollouts, "groups": groups, "blocking": blocking}


class Killer:
    """Kills this process at a line."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if "mcpenv_client" not in file and file != FILE:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def main() -> None:
    mode, folder, at, *urls = sys.argv[1:]
    pool = EnvPool(urls, 3, backend="remote")
    killer = Killer(int(at))
    threading.settrace(killer)
    sys.settrace(killer)
    played = PLAYS[mode](pool, Path(folder) / "checkpoint")
    state = asyncio.run(played) if asyncio.iscoroutine(played) else played
    sys.settrace(None)
    threading.settrace(None)
    (Path(folder) / "results.json").write_text(json.dumps(sorted(row for rows in state.values() for row in rows)))
    print(killer.lines)


if __name__ == "__main__":
    main()
