"""The rollouts of one task on one trie: where they part, and the advantage of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.fingerprint import canonical
from mcpenv_client.scores import advantages_of_scores, score_of
from mcpenv_client.types.records import StepRecord

from .where import failed

MAX_STEPS = 200
"""Maximum steps of a lane."""

MAX_ARGUMENTS = 200
"""Maximum characters of the arguments of a step."""


@dataclass(slots=True)
class _Node:
    """The rollouts that made the same calls up to a step."""

    lanes: list[int]
    children: dict[bytes, _Node] = field(default_factory=dict)


def rollouts_of(episodes: Sequence[tuple[str, RecordedEpisode]]) -> dict[str, Any]:
    """Return the lanes of a task's episodes, and where they part.

    Args:
        episodes: each with its place, in any order.

    Returns:
        ``lanes``: in the order of the trie, at each branch the episodes that end there first, then those with the
        higher mean. Each has ``place``, ``id``, ``seed``, ``score`` (None: not scored), ``advantage`` over the group
        (as `advantages` with the defaults of the client), ``status``, ``n_steps``, ``dropped`` (the number of its first
        steps that the record lacks), and ``steps``: ``name``, ``arguments``, ``reward``, ``failed``, and ``lanes``, the
        number of lanes from this one on that share the step and all before it; 0 for a step that an earlier lane has
        drawn. ``partings``: the branches by how much of the scores they explain, the most first: ``step``,
        ``explained`` (0 to 1, of the variance of all scores), and ``ways``, each with the ``call`` (None: the episode
        ends), the number of ``lanes``, and their ``mean``. ``equal``: True if all scores are equal, so that no
        advantage is left. ``scored`` and ``mean``: the number of lanes with a score, and their mean score.
    """
    scores = [score_of(episode.trajectory) for _, episode in episodes]
    advantages = advantages_of_scores(scores)
    root = _Node(list(range(len(episodes))))
    for lane, (_, episode) in enumerate(episodes):
        node = root
        for step in episode.trajectory.steps[:MAX_STEPS]:
            node = node.children.setdefault(_key(step), _Node([]))
            node.lanes.append(lane)
    known = [score for score in scores if score is not None]
    whole = _variance(known)
    order: list[int] = []
    partings: list[dict[str, Any]] = []
    pending = [(root, 0)]
    while pending:  # not by recursion: an episode may have more steps than Python has frames
        node, depth = pending.pop()
        ended = [lane for lane in node.lanes if len(episodes[lane][1].trajectory.steps[:MAX_STEPS]) == depth]
        children = sorted(node.children.values(), key=lambda child: _mean_or_least(child.lanes, scores))
        pending += [(child, depth + 1) for child in children]
        order += ended
        ways = [*([ended] if ended else []), *(child.lanes for child in children)]
        if len(ways) > 1:
            partings.append(_parting(depth, ways, scores, episodes, whole))
    return _answer(episodes, scores, advantages, order, partings, whole)


def _answer(
    episodes: Sequence[tuple[str, RecordedEpisode]],
    scores: Sequence[float | None],
    advantages: Sequence[float | None],
    order: Sequence[int],
    partings: list[dict[str, Any]],
    whole: float,
) -> dict[str, Any]:
    keys = [[_key(step) for step in episodes[lane][1].trajectory.steps[:MAX_STEPS]] for lane in order]
    shared = [0, *(_common(one, other) for one, other in pairwise(keys))]
    lanes = []
    for index, lane in enumerate(order):
        place, episode = episodes[lane]
        trajectory = episode.trajectory
        steps = [
            {**_chip(step), "lanes": 0 if number < shared[index] else _span(shared, index, number)}
            for number, step in enumerate(trajectory.steps[:MAX_STEPS])
        ]
        lanes.append(
            {
                "place": place,
                "id": episode.id,
                "seed": trajectory.seed,
                "score": scores[lane],
                "advantage": advantages[lane],
                "status": None if trajectory.status is None else trajectory.status.code.value,
                "n_steps": trajectory.dropped + len(trajectory.steps),
                "dropped": trajectory.dropped,
                "steps": steps,
            }
        )
    partings.sort(key=lambda parting: (-parting["explained"], parting["step"]))
    scored = sum(score is not None for score in scores)
    equal = scored > 1 and not any(advantages)
    mean = _mean(_known(order, scores))
    return {"lanes": lanes, "partings": partings, "equal": equal, "scored": scored, "mean": mean}


def _parting(
    depth: int,
    ways: Sequence[Sequence[int]],
    scores: Sequence[float | None],
    episodes: Sequence[tuple[str, RecordedEpisode]],
    whole: float,
) -> dict[str, Any]:
    known = [_known(way, scores) for way in ways]
    every = [score for way in known for score in way]
    mean = _mean(every) or 0.0
    between = math.fsum(len(way) * ((_mean(way) or 0.0) - mean) ** 2 for way in known if way)
    described = []
    for way in sorted(ways, key=lambda way: -_mean_or_least(way, scores)):
        steps = episodes[way[0]][1].trajectory.steps
        call = _chip(steps[depth]) if depth < len(steps) else None
        described.append({"call": call, "lanes": len(way), "mean": _mean(_known(way, scores))})
    return {"step": depth, "explained": between / whole if whole else 0.0, "ways": described}


def _chip(step: StepRecord) -> dict[str, Any]:
    given = canonical(step.call.arguments).decode("utf-8", "replace")
    return {
        "name": step.call.name,
        "arguments": given if len(given) <= MAX_ARGUMENTS else f"{given[:MAX_ARGUMENTS]}…",
        "reward": None if step.reward is None else step.reward.value,
        "failed": failed(step),
    }


def _key(step: StepRecord) -> bytes:
    return canonical({"name": step.call.name, "arguments": step.call.arguments})


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return the number of calls with which two lanes both begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _span(shared: Sequence[int], index: int, number: int) -> int:
    """Return the number of lanes from one on that share its step."""
    below = next((at for at in range(index + 1, len(shared)) if shared[at] <= number), len(shared))
    return below - index


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) / len(known) if known else None


def _known(lanes: Iterable[int], scores: Sequence[float | None]) -> list[float]:
    return [score for lane in lanes if (score := scores[lane]) is not None]


def _mean_or_least(lanes: Iterable[int], scores: Sequence[float | None]) -> float:
    mean = _mean(_known(lanes, scores))
    return -math.inf if mean is None else mean


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values) or 0.0
    return math.fsum((value - mean) ** 2 for value in values)
