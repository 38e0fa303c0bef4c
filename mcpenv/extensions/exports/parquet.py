"""Parquet: a table with one row for each episode. Requires ``mcpenv[parquet]``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mcpenv.cli.output import note, number_of
from mcpenv.extensions.records.chat import text_of
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.types.records import StepRecord
from mcpenv_client.types.tools import Tool

from .openai import openai_row
from .trees import SharedEpisodes

_TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task_id", pa.string()),
        ("split", pa.string()),
        ("level", pa.int64()),
        ("family", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("environment", pa.string()),
        ("environment_version", pa.string()),
        ("seed", pa.int64()),
        ("seed_text", pa.string()),
        ("return", pa.float64()),
        ("fault", pa.string()),
        ("status", pa.string()),
        ("status_stage", pa.string()),
        ("status_retryable", pa.bool_()),
        ("status_limit", pa.string()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("reason", pa.string()),
        ("ending", pa.string()),
        ("n_steps", pa.int64()),
        ("callers", pa.string()),
        ("reward_components", pa.string()),
        ("end_reward", pa.float64()),
        ("end_reward_components", pa.string()),
        ("verified", pa.float64()),
        ("task_version", pa.string()),
        ("parent_id", pa.string()),
        ("parent_step", pa.int64()),
        ("started_at", _TIME),
        ("ended_at", _TIME),
        ("messages", pa.string()),
        ("tools", pa.string()),
        (
            "steps",
            pa.list_(
                pa.struct(
                    [
                        ("step", pa.int64()),
                        ("tool_name", pa.string()),
                        ("arguments", pa.string()),
                        ("plane", pa.string()),
                        ("text", pa.string()),
                        ("structured_content", pa.string()),
                        ("error_type", pa.string()),
                        ("status", pa.string()),
                        ("status_stage", pa.string()),
                        ("status_retryable", pa.bool_()),
                        ("reward", pa.float64()),
                        ("reward_components", pa.string()),
                        ("started_at", _TIME),
                        ("duration_s", pa.float64()),
                        ("scoring_s", pa.float64()),
                    ]
                )
            ),
        ),
    ]
)
"""The columns.

Values with fields that differ by tool (messages, tools, arguments, contents, components) are JSON text.
"""

TREE_SCHEMA = pa.schema([*SCHEMA, *((name, pa.int64()) for name in ("prefix_of", "prefix_messages", "prefix_steps"))])
"""The columns of a table of branches: also the number of an earlier row, from 0, and what it has of this one's messages
and steps. ``tools`` is null where both have the same.
"""

_ROWS = 256
_INT64 = 2**63


def write_parquet(episodes: Iterable[tuple[RecordedEpisode, Sequence[Tool]]], file: Path, *, tree: bool = False) -> int:
    """Write episodes with their tools and return their number.

    Args:
        tree: write what branches have in common once.

    Raises:
        OSError: the file cannot be written.
    """
    count, rows = 0, list[dict[str, Any]]()
    large = 0
    schema, shared = (TREE_SCHEMA, SharedEpisodes()) if tree else (SCHEMA, None)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for episode, tools in episodes:
            rows.append(row_of(episode, tools, shared))
            count += 1
            large += rows[-1]["seed"] is None and rows[-1]["seed_text"] is not None
            if len(rows) == _ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema))
    if large:
        note(f"{number_of(large, 'seed')} of more than 64 bits: their column seed is null, and seed_text has them")
    return count


def row_of(episode: RecordedEpisode, tools: Sequence[Tool], shared: SharedEpisodes | None = None) -> dict[str, Any]:
    """Return the row of an episode. The seed is None, and only a text, if it does not fit into 64 bits.

    Args:
        shared: the earlier rows of a table of branches.
    """
    chat = openai_row(episode, tools)
    row = chat["metadata"]
    seed, found = row["seed"], None if shared is None else shared.next(episode, chat)
    before = 0
    if found is not None:
        chat, before = found.cut(chat), found.steps
        row |= {"prefix_of": found.of, "prefix_messages": found.messages, "prefix_steps": before}
    same_tools = found is not None and found.tools
    return {
        **row,
        "seed": seed if seed is not None and -_INT64 <= seed < _INT64 else None,
        "seed_text": None if seed is None else str(seed),
        "started_at": _time(row["started_at"]),
        "ended_at": _time(row["ended_at"]),
        "messages": _json(chat["messages"]),
        "tools": None if same_tools else _json(chat["tools"]),
        "steps": [_step(episode, step) for step in episode.trajectory.steps[before:]],
    }


def _step(episode: RecordedEpisode, step: StepRecord) -> dict[str, Any]:
    result, error, reward = step.outcome.result, step.outcome.error, step.reward
    return {
        "step": step.call.step,
        "tool_name": step.call.name,
        "arguments": _json(step.call.arguments),
        "plane": step.call.plane.value,
        "text": text_of(episode, step),
        "structured_content": None if result is None else _json(result.structured_content),
        "error_type": None if error is None else error.error_type.value,
        "status": step.status.code.value,
        "status_stage": None if step.status.stage is None else step.status.stage.value,
        "status_retryable": step.status.retryable,
        "reward": None if reward is None else reward.value,
        "reward_components": None if reward is None else _json(reward.components),
        "started_at": _time(step.started_at),
        "duration_s": step.outcome.duration_s,
        "scoring_s": step.scoring_s,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
