"""TaskSampler: an endless source of tasks that prefers those from which a policy can learn."""

from __future__ import annotations

import json
import operator
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mcpenv_client.portal import in_daemon_thread
from mcpenv_client.rows import LIKE_ALL, PAGE, Rows
from mcpenv_client.types.starts import Start
from mcpenv_client.types.tasks import Task

from .assignment import WORLD, Played, check_several, world_of

By = Literal["weight", "level", "pass_rate"]
"""The rule of a sampler."""

Row = Task | str | Mapping[str, Any] | Start


@dataclass
class Seen:
    """The episodes of one task that were scored: ``rate`` is a moving mean of those that were solved."""

    episodes: int = 0
    rate: float = 0.5


class TaskSampler:
    """An endless source of tasks for `EnvPool.play`, which tells it each episode by `record`.

    The same seed and the same records in the same order give the same tasks.

    Of the rows of a client or an environment, which are read when they are used, a sampler reads those that it draws,
    in a pool's play in a thread beside it. With ``by="level"`` it reads their labels when it is made, of a split with
    more than 10,000 those of 10,000 tasks in 100 places, and draws from these. That blocks the thread.

    Args:
        tasks: the tasks, their ids, rows, or steps of recorded episodes (`Start`), each with a rate of its own; for a
            `MixedPool` also a mapping of worlds to tasks, ids or rows.
        by: the rule. "weight": each task by its entry of ``weights``. "level": each level as often as the others.
            "pass_rate": by ``p * (1 - p)`` of the measured rate ``p`` at which a task is solved, which is the variance
            of the rewards in its group; a task that was not played counts as 0.5, so that it comes soon.
        weights: a positive number for each task; None: 1. Of a mapping of worlds, the part of each world in the draws,
            by name; None: equal parts. A world's tasks are equal within it, but for the rule.
        solved: an episode with at least this reward is solved; None: as `Played.passed` decides, which is the rule of
            evaluations.
        replay: the share of the tasks that are drawn from those solved in nearly all episodes (a rate above 0.9), so
            that they are not forgotten; 0 to 1. For "pass_rate".
        memory: the number of episodes after which an old one counts for about a third.
        seed: of the draws.

    Raises:
        ValueError: there is no task, an argument is out of range, or by "level" a level is no whole number.
    """

    def __init__(
        self,
        tasks: Sequence[Row] | Mapping[str, Sequence[Row]],
        *,
        by: By = "pass_rate",
        weights: Sequence[float] | Mapping[str, float] | None = None,
        solved: float | None = None,
        replay: float = 0.1,
        memory: int = 16,
        seed: int = 0,
    ) -> None:
        if by not in get_args(By):
            raise ValueError(f"by is {by!r}; use one of: {', '.join(get_args(By))}")
        if not 0 <= replay <= 1 or memory < 1:
            raise ValueError(f"replay is {replay} and memory {memory}; use 0 to 1, and 1 or more")
        self._tasks, self._by, self._replay, self._memory, self._solved = _Tasks(tasks), by, replay, memory, solved
        self._weights = self._tasks.weights(weights)
        if by == "level":
            self._weights = self._tasks.weights_by_level(self._weights)
        self._seen: dict[str, Seen] = {}
        self._evaluations: list[_Evaluation] = []
        self._random = random.Random(seed)
        self._weigh()

    def __iter__(self) -> Iterator[Row]:
        while True:
            yield self.draw()

    async def __aiter__(self) -> AsyncIterator[Row]:
        """Yield tasks, each read in a thread: a server may be slow."""
        while True:
            place = self._next_place()
            row = await in_daemon_thread(self._tasks.at, place) if self._tasks.lazy else self._tasks.at(place)
            if self._accepts(row):
                yield row

    def draw(self) -> Row:
        """Return the next task."""
        while not self._accepts(row := self._tasks.at(self._next_place())):
            pass
        return row

    def _accepts(self, row: Row) -> bool:
        """Return True to use a task that was drawn.

        Before a row was read, its chance is that of a task that was not played, which is the largest. If an evaluation
        knows it, it is drawn again with the ratio of both chances, so that its chance was right from the beginning.
        """
        begun = self._evaluated(row) if self._by == "pass_rate" and _name(row) not in self._seen else None
        if begun is None:
            return True
        self._seen[_name(row)] = begun
        self._reweigh(_name(row))
        return self._random.random() * _chance(_UNSEEN.rate) < _chance(begun.rate)

    def _evaluated(self, row: Row) -> Seen | None:
        """Return what an evaluation knows of a task; None if none does."""
        return next((found for each in reversed(self._evaluations) if (found := each.of(row)) is not None), None)

    def _next_place(self) -> int:
        chances = self._chances
        if self._by == "pass_rate" and self._random.random() < self._replay and self._mastered.total:
            chances = self._mastered
        return chances.place_at(self._random.random())

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
        for place in self._tasks.places_of(name) if self._by == "pass_rate" else ():
            weight = self._weights[place]
            self._chances.change(place, weight * _chance(rate))
            self._mastered.change(place, weight if rate > MASTERED else 0.0)

    def known(self) -> Iterator[Row]:
        """Yield the tasks that are in memory, and for those that are read when they are used one with their columns."""
        return self._tasks.known()

    def rate(self, task: Row) -> float:
        """Return the measured rate at which a task is solved; 0.5 before its first episode."""
        return (self._seen.get(_name(task)) or self._evaluated(task) or _UNSEEN).rate

    def record(self, played: Played) -> None:
        """Take the result of an episode. Results without a reward, and of other tasks, are ignored."""
        row, passed = played.assignment.row, played.passed(self._solved)
        if row is None or passed is None or not self._tasks.places_of(_name(row)):
            return
        seen = self._seen.setdefault(_name(row), self._evaluated(row) or Seen())
        seen.episodes += 1
        seen.rate += (float(passed) - seen.rate) / min(seen.episodes + 1, self._memory)
        self._reweigh(_name(row))

    def begin_from(self, summary: Mapping[str, Any], world: str | None = None, episodes: int = 4) -> int:
        """Begin with the pass rates that an evaluation measured, and return the number of tasks that it knows.

        A task is found by its id, or by ``task`` or ``task_id`` of its row. One that was not evaluated begins with the
        rate of its level, if that was measured. Rows that are read when they are used get their rates when they are
        drawn, with the same chances; here they are not read, and count as many as were evaluated.

        Args:
            summary: the object in ``summary.json`` of a folder of ``mcpenv eval``.
            world: the world that was evaluated, if the rows have several.
            episodes: the number of episodes, at most, that a task's own rate counts for, so that later ones change it.

        Raises:
            ValueError: it is no such object.
        """
        if not isinstance(summary.get("tasks"), list):
            raise ValueError('the summary has no "tasks"; give the object in summary.json of an evaluation')
        scored = [each for each in summary["tasks"] if each["scored"] and each["passed"] is not None]
        tasks = {each["name"]: (min(each["scored"], episodes), each["passed"] / each["scored"]) for each in scored}
        levels = {each["label"]: each["pass_rate"] for each in summary["labels"] if each["kind"] == "level"}
        rates = {label: rate["value"] for label, rate in levels.items() if rate is not None}
        evaluation, found = _Evaluation(world, tasks, rates), 0
        self._evaluations.append(evaluation)
        for row in self._tasks.read():
            begun = evaluation.of(row)
            if begun is not None:
                self._seen[_name(row)] = begun
                found += _id(row) in tasks
        self._weigh()
        return found + (len(tasks) if self._tasks.is_lazy(world) else 0)

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data, for `resume`."""
        version, numbers, gauss = self._random.getstate()
        seen = {name: [each.episodes, each.rate] for name, each in self._seen.items()}
        evaluations = [asdict(each) for each in self._evaluations]
        return {"seen": seen, "random": [version, list(numbers), gauss], "evaluations": evaluations}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Measured tasks that this sampler does not have are kept and not drawn."""
        version, numbers, gauss = state["random"]
        self._random.setstate((version, tuple(numbers), gauss))
        self._seen = {name: Seen(int(episodes), float(rate)) for name, (episodes, rate) in state["seen"].items()}
        self._evaluations = [_Evaluation(**each) for each in state.get("evaluations", ())]
        self._weigh()


@dataclass(frozen=True)
class _Evaluation:
    """The pass rates that an evaluation measured.

    Attributes:
        world: the world of the evaluated tasks.
        tasks: the number of episodes that count, and the rate, by the id of a task.
        levels: the rate by level.
    """

    world: str | None
    tasks: Mapping[str, Sequence[float]]
    levels: Mapping[str, float]

    def of(self, row: Row) -> Seen | None:
        """Return what is known of a task; None if nothing is."""
        if world_of(row) != self.world or isinstance(row, Start):  # the rate is that of whole episodes
            return None
        known, level = self.tasks.get(_id(row) or ""), self.levels.get(str(_level(row)))
        if known is not None:
            return Seen(int(known[0]), known[1])
        return None if level is None else Seen(1, level)


MASTERED = 0.9
"""The rate above which a task is solved in nearly all episodes."""

LEAST = 0.01
"""The smallest chance of a task, where a task that is solved in half of the episodes has 0.25."""

BLOCKS = 100
"""The number of places of a split in which `PAGE` labels are read, if there are more tasks than that."""

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


class _Tasks:
    """The tasks of a sampler, of one world or of several. Rows that are read when they are used are not read before.

    Args:
        tasks: as for `TaskSampler`.

    Attributes:
        lazy: True if the use of a task may read it.

    Raises:
        ValueError: there is no task.
    """

    def __init__(self, tasks: Sequence[Row] | Mapping[str, Sequence[Row]]) -> None:
        self._mixed = isinstance(tasks, Mapping)
        self._parts: dict[str | None, Sequence[Row]] = dict(
            tasks.items() if isinstance(tasks, Mapping) else [(None, tasks)]
        )
        self._starts, self._number = dict[str | None, int](), 0
        self._places: dict[str, list[int]] = {}
        self.lazy = any(isinstance(part, Rows) for part in self._parts.values())
        for world, part in self._parts.items():
            check_several(part)
            if not len(part):
                raise ValueError("a sampler needs at least one task" + (f" of {world!r}" if self._mixed else ""))
            self._starts[world] = self._number
            for place, task in enumerate(() if isinstance(part, Rows) else part, self._number):
                self._places.setdefault(_name(self._row(world, task)), []).append(place)
            self._number += len(part)
        if not self._number:
            raise ValueError("a sampler needs at least one task")

    def _row(self, world: str | None, task: Row) -> Row:
        if not self._mixed:
            return task
        if isinstance(task, Start):
            raise ValueError(f"{task} is a step of a record; a mapping of worlds takes tasks, ids and rows")
        return {**(task if isinstance(task, Mapping) else {"task": task}), WORLD: world}

    def at(self, place: int) -> Row:
        """Return the task at a place."""
        world = next(world for world, start in reversed(self._starts.items()) if start <= place)
        return self._row(world, self._parts[world][place - self._starts[world]])

    def read(self) -> Iterator[Row]:
        """Yield the tasks that are in memory."""
        parts = ((world, part) for world, part in self._parts.items() if not isinstance(part, Rows))
        return (self._row(world, task) for world, part in parts for task in part)

    def known(self) -> Iterator[Row]:
        """Yield the tasks that are in memory, and one for all of each world that are not."""
        yield from self.read()
        yield from (self._row(world, LIKE_ALL) for world, part in self._parts.items() if isinstance(part, Rows))

    def is_lazy(self, world: str | None) -> bool:
        """Return True if the use of a task of that world may read it."""
        return isinstance(self._parts.get(world), Rows)

    def places_of(self, name: str) -> list[int]:
        """Return the places of a task; none if it is not one of these."""
        if name in self._places or not self.lazy:
            return self._places.get(name, [])
        try:
            *worlds, split, index = json.loads(name)
        except (ValueError, TypeError):  # the name of another kind of task
            return []
        world = worlds[0] if worlds else None
        part = self._parts.get(world) if world is None or isinstance(world, str) else None
        place = part.place_of(split, index) if isinstance(part, Rows) else None
        return [] if place is None else [self._starts[world] + place]

    def weights(self, given: Sequence[float] | Mapping[str, float] | None) -> list[float]:
        """Return the weight of each task.

        Raises:
            ValueError: they do not fit the tasks.
        """
        if not self._mixed:
            weights = [1.0] * self._number if given is None else [*given]
            if isinstance(given, Mapping) or len(weights) != self._number or not all(each > 0 for each in weights):
                raise ValueError("weights needs one positive number for each task")
            return weights
        shares: Any = dict.fromkeys(self._parts, 1.0) if given is None else given
        if not isinstance(shares, Mapping) or shares.keys() != self._parts.keys() or min(shares.values()) <= 0:
            raise ValueError(f"weights needs one positive number for each world: {', '.join(map(str, self._parts))}")
        return [shares[world] / len(part) for world, part in self._parts.items() for _ in range(len(part))]

    def weights_by_level(self, weights: Sequence[float]) -> list[float]:
        """Return the weights such that the levels of a world are drawn equally often, in sum as the world before."""
        found = [0.0] * self._number
        for world, part in self._parts.items():
            start, lazy = self._starts[world], isinstance(part, Rows)
            firsts = range(0, len(part), max(len(part) // BLOCKS, PAGE)) if lazy else [0]
            blocks = [(first, part[first : first + PAGE] if lazy else part) for first in firsts]
            levels = {at: _level(task) for first, block in blocks for at, task in enumerate(block, first)}
            sizes = Counter(levels.values())
            for at, level in levels.items():
                found[start + at] = weights[start + at] * len(part) / (len(sizes) * sizes[level])
        return found


def _chance(rate: float) -> float:
    # The smallest chance lets a task return whose rate has changed with the policy.
    return max(rate * (1.0 - rate), LEAST)


def _name(row: Row) -> str:
    if isinstance(row, str):
        return row
    if isinstance(row, Task):
        return row.id
    if isinstance(row, Start):
        return json.dumps([row.episode_id, row.step])
    world, task = world_of(row), row.get("task")
    if task is not None:
        name = task.id if isinstance(task, Task) else str(task)
        return name if world is None else json.dumps([world, name])
    return json.dumps([*([] if world is None else [world]), row.get("split"), row.get("index")])


def _id(row: Row) -> str | None:
    """Return the id of a task; None if the row does not have it."""
    task: Any = row if not isinstance(row, Mapping) else row.get("task") or row.get("task_id")
    return task.id if isinstance(task, Task) else task


def _level(row: Row) -> int:
    task = row.get("task") if isinstance(row, Mapping) else row.task if isinstance(row, Start) else row
    level = task.level if isinstance(task, Task) else row.get("level") if isinstance(row, Mapping) else None
    try:
        return 0 if level is None else int(level)
    except (TypeError, ValueError):
        raise ValueError(f"the level of {_name(row)} is {level!r}; it must be a whole number") from None
