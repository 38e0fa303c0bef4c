"""What the tiny policy of `examples/choose_calls.py` must show, for an interpreter with torch. Prints JSON."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from choose_calls import FAMILIES, SAMPLERS, Bandit, Chooser, Copied, Desk, Remembered, Tools, curve_of, play

from mcpenv import MCPEnvironment, TaskSet, load
from mcpenv_client.types.tasks import Task

ROOT = Path(__file__).resolve().parents[3]


class Levers(MCPEnvironment):
    """Pull one of two levers."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "levers", "prompt": "Pull the lever that pays.", "family": "levers"}])

    def __init__(self) -> None:
        self.pulled = ""
        for tool in (self.left, self.right):
            self.tool(tool)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.pulled = ""

    def left(self) -> None:
        """Pull the left lever."""
        self._pull("left")

    def right(self) -> None:
        """Pull the right lever."""
        self._pull("right")

    def _pull(self, lever: str) -> None:
        self.pulled = lever
        self.finish()

    def verify(self, evidence: Any) -> float:
        return float(self.pulled == "right")


def levers(sampler: str) -> list[float]:
    """Return the chance of the lever that pays, beside that of the other, before and after some updates."""
    torch.manual_seed(3)
    network = Chooser()
    with Levers() as env:
        (task,) = env.get_tasks("train", 0, 1)
        env.reset(task=task)
        tools = Tools({tool.name: tool.input_schema for tool in env.list_tools()})
        chances = [chance_of(tools, network, task)]
        for _ in curve_of(env, tools, network, SAMPLERS[sampler]([task], random.Random(3)), 12):
            pass
        chances.append(chance_of(tools, network, task))
    return chances


def chance_of(tools: Tools, network: Chooser, task: Task) -> float:
    desk = Desk()
    desk.read(task.prompt)
    chances: dict[Any, float] = {}

    def choose(desk: Desk, place: Any, options: Any) -> Any:
        with torch.no_grad():
            logs = network(desk.about(place), [option.features for option in options])
        chances.update(zip((option.value for option in options), logs.exp().tolist(), strict=True))
        return "stop"

    tools.call(desk, choose)
    return chances["right"] / (chances["left"] + chances["right"])


def taken() -> dict[str, int]:
    """Return how often a bandit took each of two families: the groups of one are always solved."""
    tasks = [Task(id=family, family=family) for family in ("always", "sometimes")]
    bandit = Bandit(tasks, random.Random(0))
    counted: Counter[str] = Counter()
    for _ in range(300):
        task = bandit.take()
        counted[task.id] += 1
        bandit.note(task, [1.0, 1.0] if task.id == "always" else [0.0, 1.0])
    return dict(counted)


def families(office: Any) -> dict[str, float]:
    """Return the return of a solution of each family, whose calls were chosen among the options."""
    found: dict[str, float] = {}
    for index in range(300):
        task = office.get_task("train", index)
        if task.family in FAMILIES and task.family not in found:
            office.reset(task=task)
            tools = Tools({tool.name: tool.input_schema for tool in office.list_tools()})
            player = Copied([(call.tool_name, call.arguments) for call in task.oracle or ()])
            found[task.family] = play(office, task, tools, player)
    return found


class Counted:
    """An environment whose resets are counted."""

    def __init__(self, env: Any) -> None:
        self.env, self.resets = env, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: Any) -> Any:
        self.resets += 1
        return self.env.reset(**options)


def remembered(office: Any) -> dict[str, Any]:
    """Play a solution, its first call alone and the solution again with a memory."""
    counted = Counted(office)
    memory = Remembered(counted)
    task = office.get_task("train", 0)
    tools = Tools({tool.name: tool.input_schema for tool in office.list_tools()})
    calls = [(call.tool_name, call.arguments) for call in task.oracle or ()]
    players = [Copied(calls), Copied(calls)]
    scores = [play(memory, task, tools, player) for player in players]
    return {"equal": scores == [1.0, 1.0] and players[0].made == players[1].made, "resets": counted.resets}


if __name__ == "__main__":
    torch.set_num_threads(1)
    answers: dict[str, Any] = {sampler: levers(sampler) for sampler in SAMPLERS}
    answers["again"] = levers("plain")
    answers["taken"] = taken()
    with load(ROOT / "envs" / "office_mcp") as office:
        answers["families"] = families(office)
        answers["remembered"] = remembered(office)
    print(json.dumps(answers))
