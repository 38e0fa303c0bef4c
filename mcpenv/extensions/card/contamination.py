"""What tells memory from skill: canaries, tasks that two splits share, agents that play by heart, and variants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from mcpenv.extensions.generated_worlds.composer import VARIANTS, original_of
from mcpenv.extensions.validation.tasks.play import oracle
from mcpenv.extensions.validation.tasks.validate import Bench
from mcpenv_client.types.tasks import Task

from .counting import Counted
from .plays import MODEL, Stage, by_heart, by_levels, outcomes, players, scripted_name

VARIED = scripted_name(0.2)
"""The agent that plays variants beside their originals."""
SCORES = ("tasks", "solved", "interval", "mean_score", "failures")
"""The figures of an agent that are shown of variants and of their originals."""


def contamination_of(
    bench: Bench,
    looked_at: Mapping[str, Sequence[Task]],
    counted: Mapping[str, Counted],
    number: int,
    stage: Stage,
) -> dict[str, Any]:
    """Return the score of an agent that replays solutions of one split on another, and the tasks that two share.

    Args:
        bench: has the instance.
        looked_at: the first tasks of each split, which are played.
        counted: the figures of each split.
        number: the most tasks of a split that are played.
        stage: shows progress.
    """
    main = next(iter(looked_at))
    replays: list[dict[str, Any]] = []
    for split, tasks in looked_at.items():
        base = original_of(split)
        known = looked_at.get(base if split != base else main, ())
        if split == main or not any(task.oracle for task in known):
            continue
        chosen = by_levels(tasks, number)
        with stage(f"by heart: {split}", len(chosen)) as step:
            if split != base:
                twins = _twins(tasks, known)
                pairs = ((task, oracle(twins[task.id])) for task in chosen if task.id in twins)
                found = outcomes(bench, pairs, step)
            else:
                found = by_heart(bench, known, chosen, step)
        replays.append({"known": known[0].split, "played": split, "variants": split != base, **found.to_plain()})
    return {
        "canary": {split: each.with_canary / each.number for split, each in counted.items()},
        "variants": [split for split in looked_at if split.endswith(VARIANTS)],
        "shared": [
            {"splits": [one, other], "tasks": shared}
            for one, other in combinations(counted, 2)
            if (shared := len(counted[one].digests & counted[other].digests))
        ],
        "by_heart": replays,
        "beside": [*_beside(VARIED, looked_at, number, functools.partial(_scripted, bench, stage))],
    }


def _scripted(bench: Bench, stage: Stage, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the figures of the scripted agent that plays variants too. It makes mistakes by a task's number."""
    with stage(f"{VARIED}: {tasks[0].split}", len(tasks)) as step:
        pairs = ((task, players()[VARIED](task, seed)) for seed, task in enumerate(tasks))
        return outcomes(bench, pairs, step).to_plain()


def _twins(tasks: Sequence[Task], others: Sequence[Task]) -> dict[str, Task]:
    """Return the task of the same number in another split, by the names of tasks."""
    return {task.id: other for task, other in zip(tasks, others, strict=False)}


def _beside(
    agent: str, looked_at: Mapping[str, Sequence[Task]], number: int, figures_of: Callable[[Sequence[Task]], Any]
) -> Iterator[dict[str, Any]]:
    """Yield the scores of an agent on tasks and on their variants.

    Args:
        agent: its name.
        looked_at: the first tasks of each split.
        number: the most tasks of a split.
        figures_of: plays tasks, and returns the figures.
    """
    for split, variants in looked_at.items():
        base = original_of(split)
        if split == base or base not in looked_at:
            continue
        twins = _twins(looked_at[base], variants)
        solvable = [task for task in looked_at[base] if task.id in twins and task.oracle and twins[task.id].oracle]
        chosen = by_levels(solvable, number)
        if not chosen:
            continue
        of_both = map(figures_of, (chosen, [twins[task.id] for task in chosen]))
        one, other = ({name: each[name] for name in SCORES} for each in of_both)
        yield {"agent": agent, "original": base, "variant": split, "of_originals": one, "of_variants": other}


def model_beside(
    looked_at: Mapping[str, Sequence[Task]],
    played: Sequence[Task],
    known: dict[str, Any],
    of_model: Callable[[Sequence[Task]], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield the scores of a model on the tasks that it has played, and on their variants, which it plays now."""
    main = played[0].split
    splits = {split: found for split, found in looked_at.items() if original_of(split) == main}
    return _beside(MODEL, splits, len(played), lambda tasks: known if tasks == played else of_model(tasks))
