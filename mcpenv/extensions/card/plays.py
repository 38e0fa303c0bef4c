"""Plays of agents of known strength: how often they solve tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.evaluation.statistics import wilson
from mcpenv.extensions.generated_worlds.demonstration import demonstration
from mcpenv.extensions.validation.tasks.play import Calls, Player, at_random, oracle
from mcpenv.extensions.validation.tasks.validate import MAX_STEPS, Bench
from mcpenv_client.scores import reaches
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.tasks import Task

RATES = (0.05, 0.2, 0.4)
"""The rates of mistakes of the scripted agent."""

IDLE, RANDOM, SOLUTION, MODEL = "idle", "random", "solution", "model"

Step = Callable[[], None]
Stage = Callable[[str, int], AbstractContextManager[Step]]
"""A context manager of a stage with a name and a number of steps; it yields what is called after each step."""


@dataclass
class Outcomes:
    """The outcomes of one agent.

    Attributes:
        solved: one for each played episode, by level; None for tasks without one.
        scores: the score of each.
        failures: the texts of the environment's own failures. Such episodes are not among the others.
    """

    solved: dict[int | None, list[bool]] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        """Return the figures as plain JSON data, with Wilson's interval (95 %) of the share of solved tasks."""
        every = [each for of_level in self.solved.values() for each in of_level]
        share = fmean(every) if every else None
        interval = None if share is None else wilson(share, len(every))
        levels = sorted((level, of_level) for level, of_level in self.solved.items() if level is not None)
        return {
            "tasks": len(every),
            "solved": share,
            "interval": None if interval is None else list(interval),
            "mean_score": fmean(self.scores) if self.scores else None,
            "by_level": {str(level): fmean(of_level) for level, of_level in levels},
            "failures": len(self.failures),
        }


def outcomes(bench: Bench, pairs: Iterable[tuple[Task, Player | None]], on_step: Step) -> Outcomes:
    """Play each task with its player, and return the outcomes.

    Args:
        bench: has the instance.
        pairs: a task and its player; None makes no call.
        on_step: called after each episode.
    """
    found = Outcomes()
    for task, player in pairs:
        played = bench.play(task, player)
        if played.error is not None:
            found.failures.append(played.error)
        else:
            score = 0.0 if played.score is None else played.score
            found.scores.append(score)
            found.solved.setdefault(task.level, []).append(reaches(score, task.reward_range[1]))
        on_step()
    return found


def scripted_name(rate: float) -> str:
    """Return the name of the scripted agent with a rate of mistakes."""
    return f"{rate:.0%} mistakes"


def players() -> Mapping[str, Callable[[Task, int], Player | None]]:
    """Return the agents by name: each makes the player of a task and a seed."""
    scripted = {scripted_name(rate): _scripted(rate) for rate in RATES}
    return {
        IDLE: lambda task, seed: None,
        RANDOM: lambda task, seed: at_random(task, seed, min(MAX_STEPS, task.limits.max_steps or MAX_STEPS)),
        **dict(reversed(scripted.items())),
        SOLUTION: lambda task, seed: oracle(task),
    }


def _scripted(rate: float) -> Callable[[Task, int], Player]:
    def player(task: Task, seed: int) -> Player:
        return calling(demonstration(task, rate, seed, ()))

    return player


def calling(made: Iterable[tuple[str, dict[str, Any]]]) -> Player:
    """Return a player that makes these calls."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        yield from made

    return calls


def by_levels(tasks: Sequence[Task], number: int) -> list[Task]:
    """Return at most ``number`` tasks, as evenly from all levels as they are there, in their order."""
    levels: dict[int | None, list[int]] = {}
    for at, task in enumerate(tasks):
        levels.setdefault(task.level, []).append(at)
    rounds = sorted((place, at) for of_level in levels.values() for place, at in enumerate(of_level))
    return [tasks[at] for at in sorted(at for _, at in rounds[:number])]


# -- contamination


def by_heart(bench: Bench, known: Sequence[Task], tasks: Sequence[Task], on_step: Step) -> Outcomes:
    """Play tasks by the solution of the known task with the most similar prompt."""
    solutions = [(_words(task.prompt), task) for task in known if task.oracle]

    def nearest(task: Task) -> Player:
        words = _words(task.prompt)
        return oracle(max(solutions, key=lambda each: len(words & each[0]) / max(len(words | each[0]), 1))[1])

    return outcomes(bench, ((task, nearest(task)) for task in tasks), on_step)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))
