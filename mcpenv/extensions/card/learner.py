"""A tiny policy that learns: a table of the values of tools, as a first sign that rewards can be learned from."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.validation.tasks.play import Call, Calls, Player
from mcpenv.extensions.validation.tasks.validate import Bench
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.tasks import Task

from .plays import Outcomes, Step, outcomes

METHOD = (
    "A table learns which tool comes next, for each family and the tools called before, from the score of its "
    "episodes alone. The arguments of the right tools are given to it; its words are the tools of the solutions. So it "
    "shows that the reward leads to the right tools, and nothing about language."
)
FAMILIES = 4
"""Maximum families that are learned."""
LEAST = 2
"""Minimum tasks of a family."""
WITHOUT_FAMILIES = 8
"""Maximum tasks that are learned where no family has several."""
LONGEST = 4
"""Maximum calls of a solution that is to be learned."""
STOP = ""
"""The word that ends an episode."""


@dataclass
class Table:
    """The policy: mean scores of words, by state.

    Attributes:
        words: the tools, and `STOP`.
        borrowed: a call of each tool, for tasks whose solution does not have it.
        horizon: maximum calls of an episode.
        explore: the probability of a random word.
    """

    words: list[str]
    borrowed: dict[str, Call]
    horizon: int
    rng: random.Random
    explore: float = 1.0
    _tried: Counter[tuple[Any, str]] = field(default_factory=Counter)
    _worth: defaultdict[tuple[Any, str], float] = field(default_factory=lambda: defaultdict(float))
    _path: list[tuple[Any, str]] = field(default_factory=list)

    def player(self, task: Task) -> Player:
        """Return a player that follows the policy, and remembers its words for `learn`."""

        def calls(env: MCPEnvironment, observation: Observation) -> Calls:
            own: defaultdict[str, list[Call]] = defaultdict(list)
            for call in task.oracle or ():
                own[call.tool_name].append((call.tool_name, call.arguments))
            done: tuple[str, ...] = ()
            self._path = []
            while len(done) < self.horizon:
                state = (name_of(task), done)
                word = self._choose(state)
                self._path.append((state, word))
                if word == STOP:
                    return
                yield own[word].pop(0) if own[word] else self.borrowed[word]
                done = (*done, word)

        return calls

    def learn(self, score: float) -> None:
        """Count the words of the last episode with its score."""
        for each in self._path:
            self._tried[each] += 1
            self._worth[each] += (score - self._worth[each]) / self._tried[each]

    def _choose(self, state: Any) -> str:
        if self.rng.random() < self.explore:
            return self.rng.choice(self.words)
        best = max(self._worth[state, word] for word in self.words)
        return self.rng.choice([word for word in self.words if self._worth[state, word] == best])


def name_of(task: Task) -> str:
    """Return the name by which a task is known to the policy: its family, or its id without one."""
    return task.family or task.id


def learned(bench: Bench, tasks: Sequence[Task], episodes: int, on_step: Step) -> dict[str, Any]:
    """Learn from episodes of some tasks, and return the figures as plain JSON data.

    Args:
        bench: has the instance.
        tasks: the tasks to choose from: those of the lowest level are learned. Where families have several tasks, half
            of them are not seen before the end.
        episodes: the number of episodes to learn from.
        on_step: called after each episode.
    """
    lowest = min((task.level for task in tasks if task.level is not None), default=None)
    fit = [t for t in tasks if t.level == lowest and t.oracle and len(t.oracle) <= LONGEST]
    if not fit:
        return {"not_measured": f"no task of the lowest level has a solution of 1 to {LONGEST} calls"}
    families = Counter(task.family for task in fit if task.family is not None)
    names = [name for name, number in families.most_common(FAMILIES) if number >= LEAST]
    if names:
        of_family = {name: [task for task in fit if task.family == name] for name in names}
        seen = [task for found in of_family.values() for task in found[::2]]
        unseen = [task for found in of_family.values() for task in found[1::2]]
    else:
        seen = unseen = fit[:WITHOUT_FAMILIES]
    used = {call.tool_name: (call.tool_name, call.arguments) for task in seen for call in task.oracle or ()}
    horizon = max(len(task.oracle or ()) for task in seen)
    rng = random.Random(0)
    table = Table([STOP, *sorted(used)], used, horizon, rng)
    before = _of(table, bench, unseen, on_step)
    curve: list[float] = []
    for at in range(episodes):
        table.explore = max(0.05, 1 - 1.5 * at / episodes)
        task = rng.choice(seen)
        played = bench.play(task, table.player(task))
        score = played.score or 0.0
        table.learn(score)
        curve.append(score)
        on_step()
    table.explore = 0.0
    after = _of(table, bench, unseen, on_step)
    fifth = max(episodes // 5, 1)
    return {
        "level": lowest,
        "families": names,
        "words": len(table.words),
        "episodes": episodes,
        "tasks": len(seen),
        "unseen_tasks": len(unseen) if names else 0,
        "before": before.to_plain()["solved"],
        "after": after.to_plain()["solved"],
        "curve": [sum(part) / len(part) for at in range(0, episodes, fifth) if (part := curve[at : at + fifth])],
        "method": METHOD,
    }


def _of(table: Table, bench: Bench, tasks: Sequence[Task], on_step: Step) -> Outcomes:
    """Return the outcomes of the policy as it is, over four episodes of each task."""
    return outcomes(bench, ((task, table.player(task)) for task in tasks for _ in range(4)), on_step)
