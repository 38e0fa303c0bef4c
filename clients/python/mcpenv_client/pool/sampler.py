"""TaskSampler: an endless source of tasks that prefers those from which a policy can learn."""

from __future__ import annotations

import json
import operator
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mcpenv_client.rows import Rows
from mcpenv_client.scores import reaches
from mcpenv_client.types.tasks import Task

from .assignment import Played, world_of

By = Literal["weight", "level", "pass_rate"]
"""The rule of a sampler."""

Row = Task | str | Mapping[str, Any]


@dataclass
class Seen:
    """The episodes of one task that were scored: ``rate`` is a moving mean of those that were solved."""

    episodes: int = 0
    rate: float = 0.5


class TaskSampler:
    """An endless source of tasks for `EnvPool.play`, which tells it each episode by `record`.

    The same seed and the same records in the same order give the same tasks.

    Of the rows of a client or an environment, which are read when they are used, a sampler reads those that it draws.
    Only with ``by="level"``, and in `begin_from`, it reads all of them, which blocks the thread.

    Args:
        tasks: the tasks, their ids, or rows.
        by: the rule. "weight": each task by its entry of ``weights``. "level": each level as often as the others.
            "pass_rate": by ``p * (1 - p)`` of the measured rate ``p`` at which a task is solved, which is the variance
            of the rewards in its group; a task that was not played counts as 0.5, so that it comes soon.
        weights: a positive number for each task; None: 1.
        solved: an episode with at least this reward is solved.
        replay: the share of the tasks that are drawn from those solved in nearly all episodes (a rate above 0.9), so
            that they are not forgotten; 0 to 1. For "pass_rate".
        memory: the number of episodes after which an old one counts for about a third.
        seed: of the draws.

    Raises:
        ValueError: there is no task, or an argument is out of range.
    """

    def __init__(
        self,
        tasks: Sequence[Row],
        *,
        by: By = "pass_rate",
        weights: Sequence[float] | None = None,
        solved: float = 1.0,
        replay: float = 0.1,
        memory: int = 16,
        seed: int = 0,
    ) -> None:
        if by not in get_args(By):
            raise ValueError(f"by is {by!r}; use one of: {', '.join(get_args(By))}")
        if not len(tasks):
            raise ValueError("a sampler needs at least one task")
        if not 0 <= replay <= 1 or memory < 1:
            raise ValueError(f"replay is {replay} and memory {memory}; use 0 to 1, and 1 or more")
        if weights is not None and (len(weights) != len(tasks) or not all(weight > 0 for weight in weights)):
            raise ValueError("weights needs one positive number for each task")
        self._tasks, self._by, self._replay, self._memory, self._solved = tasks, by, replay, memory, solved
        self._weights = list(weights) if weights is not None else [1.0] * len(tasks)
        self._places: dict[str, list[int]] = {}
        for place, task in enumerate(() if isinstance(tasks, Rows) else tasks):
            self._places.setdefault(_name(task), []).append(place)
        if by == "level":
            levels = [_level(task) for task in tasks]
            sizes = Counter(levels)
            self._weights = [each / sizes[level] for each, level in zip(self._weights, levels, strict=True)]
        self._seen: dict[str, Seen] = {}
        self._random = random.Random(seed)
        self._weigh()

    def __iter__(self) -> Iterator[Row]:
        while True:
            yield self.draw()

    def draw(self) -> Row:
        """Return the next task."""
        chances = self._chances
        if self._by == "pass_rate" and self._random.random() < self._replay and self._mastered.total:
            chances = self._mastered
        return self._tasks[chances.place_at(self._random.random())]

    def _weigh(self) -> None:
        """Compute the chances of all tasks."""
        if self._by != "pass_rate":
            self._chances = _Chances(self._weights)
            return
        unseen = _chance(_UNSEEN.rate)
        self._chances = _Chances([each * unseen for each in self._weights])
        self._mastered = _Chances([0.0] * len(self._weights))
        for name in self._seen:
            self._reweigh(name)

    def _reweigh(self, name: str) -> None:
        """Compute the chances of a task anew, after its rate changed."""
        rate = self._seen[name].rate
        for place in self._places_of(name) if self._by == "pass_rate" else ():
            weight = self._weights[place]
            self._chances.change(place, weight * _chance(rate))
            self._mastered.change(place, weight if rate > MASTERED else 0.0)

    def _places_of(self, name: str) -> list[int]:
        """Return the places of a task; none if it is not one of these."""
        if not isinstance(self._tasks, Rows):
            return self._places.get(name, [])
        try:
            split, index = json.loads(name)
        except (ValueError, TypeError):  # the name of another kind of task
            return []
        place = self._tasks.place_of(split, index)
        return [] if place is None else [place]

    def rate(self, task: Row) -> float:
        """Return the measured rate at which a task is solved; 0.5 before its first episode."""
        return self._seen.get(_name(task), _UNSEEN).rate

    def record(self, played: Played) -> None:
        """Take the result of an episode. Results without a reward, and of other tasks, are ignored."""
        row = played.assignment.row
        if row is None or played.reward is None or not self._places_of(_name(row)):
            return
        seen = self._seen.setdefault(_name(row), Seen())
        seen.episodes += 1
        seen.rate += (float(reaches(played.reward, self._solved)) - seen.rate) / min(seen.episodes + 1, self._memory)
        self._reweigh(_name(row))

    def begin_from(self, summary: Mapping[str, Any], world: str | None = None, episodes: int = 4) -> int:
        """Begin with the pass rates that an evaluation measured, and return the number of tasks that it knows.

        A task is found by its id, or by ``task`` or ``task_id`` of its row. One that was not evaluated begins with the
        rate of its level, if that was measured.

        Args:
            summary: the object in ``summary.json`` of a folder of ``mcpenv eval``.
            world: the world that was evaluated, if the rows have several.
            episodes: the number of episodes, at most, that a task's own rate counts for, so that later ones change it.

        Raises:
            ValueError: it is no such object.
        """
        if not isinstance(summary.get("tasks"), list):
            raise ValueError('the summary has no "tasks"; give the object in summary.json of an evaluation')
        measured = {each["name"]: each for each in summary["tasks"] if each["scored"] and each["passed"] is not None}
        levels = {each["label"]: each["pass_rate"] for each in summary["labels"] if each["kind"] == "level"}
        found = 0
        for row in self._tasks:
            if world_of(row) != world:
                continue
            known, level = measured.get(_id(row) or ""), levels.get(str(_level(row)))
            if known is not None:
                self._seen[_name(row)] = Seen(min(known["scored"], episodes), known["passed"] / known["scored"])
                found += 1
            elif level is not None:
                self._seen[_name(row)] = Seen(1, level["value"])
        self._weigh()
        return found

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data, for `resume`."""
        version, numbers, gauss = self._random.getstate()
        seen = {name: [each.episodes, each.rate] for name, each in self._seen.items()}
        return {"seen": seen, "random": [version, list(numbers), gauss]}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Measured tasks that this sampler does not have are kept and not drawn."""
        version, numbers, gauss = state["random"]
        self._random.setstate((version, tuple(numbers), gauss))
        self._seen = {name: Seen(int(episodes), float(rate)) for name, (episodes, rate) in state["seen"].items()}
        self._weigh()


MASTERED = 0.9
"""The rate above which a task is solved in nearly all episodes."""

LEAST = 0.01
"""The smallest chance of a task, where a task that is solved in half of the episodes has 0.25."""

_UNSEEN = Seen()


class _Chances:
    """The chances of tasks as a binary tree of sums, so that a draw and a change cost the logarithm of their number."""

    def __init__(self, chances: Sequence[float]) -> None:
        self._number = len(chances)
        self._sums = [0.0] * self._number + [*chances]
        stop = self._number
        while stop > 1:  # the nodes whose parts are summed already
            start = (stop + 1) // 2
            parts = self._sums[2 * start : 2 * stop]
            self._sums[start:stop] = map(operator.add, parts[::2], parts[1::2])
            stop = start

    @property
    def total(self) -> float:
        """The sum of the chances."""
        return self._sums[1]

    def change(self, place: int, chance: float) -> None:
        """Change one chance."""
        node = place + self._number
        self._sums[node] = chance
        while (node := node // 2) > 0:
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def place_at(self, fraction: float) -> int:
        """Return the place at a fraction of the total, from 0 to below 1."""
        node, left = 1, fraction * self.total
        while node < self._number:
            node *= 2
            if left >= self._sums[node] and self._sums[node + 1]:
                left -= self._sums[node]
                node += 1
        return node - self._number


def _chance(rate: float) -> float:
    # The smallest chance lets a task return whose rate has changed with the policy.
    return max(rate * (1.0 - rate), LEAST)


def _name(row: Row) -> str:
    if isinstance(row, str):
        return row
    if isinstance(row, Task):
        return row.id
    world, task = world_of(row), row.get("task")
    if task is not None:
        name = task.id if isinstance(task, Task) else str(task)
        return name if world is None else json.dumps([world, name])
    return json.dumps([*([] if world is None else [world]), row.get("split"), row.get("index")])


def _id(row: Row) -> str | None:
    """Return the id of a task; None if the row does not have it."""
    task = row if not isinstance(row, Mapping) else row.get("task") or row.get("task_id")
    return task.id if isinstance(task, Task) else task


def _level(row: Row) -> int:
    level = row.level if isinstance(row, Task) else row.get("level") if isinstance(row, Mapping) else None
    return 0 if level is None else int(level)
