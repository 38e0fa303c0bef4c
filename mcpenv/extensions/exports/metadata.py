"""Metadata: the fields of an exported episode other than the chat and the steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv.trajectories.summary import components_of, summary_of


def metadata_of(episode: RecordedEpisode) -> dict[str, Any]:
    """Return the episode's summary, its callers, the components of its return, the rewards of its end, and its parent.

    ``callers`` has the number of steps of each named caller (``call.principal``). It and the components are JSON text:
    their names differ by task, but a table needs the same fields in every row.
    """
    trajectory = episode.trajectory
    origin = trajectory.forked_from
    end, verified, task = trajectory.end_reward, trajectory.verified, trajectory.task
    callers = Counter(step.call.principal for step in trajectory.steps if step.call.principal is not None)
    return {
        **summary_of(episode),
        "callers": _json(callers),
        "reward_components": _json(components_of(trajectory)),
        "end_reward": None if end is None else end.value,
        "end_reward_components": None if end is None else _json(end.components),
        "verified": None if verified is None else verified.value,
        "task_version": None if task is None else task.version,
        "parent_id": None if origin is None else origin.episode_id,
        "parent_step": None if origin is None else origin.step,
    }


def _json(parts: Mapping[str, float]) -> str:
    return json.dumps(parts, ensure_ascii=False)
