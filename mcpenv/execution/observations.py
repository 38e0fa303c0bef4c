"""The observation of a tool call as plain data, made from the record of its step."""

from __future__ import annotations

from typing import Any, NamedTuple

from mcpenv_client.types.records import StepRecord
from mcpenv_client.wire.protocol import call_data


class ToolCalled(NamedTuple):
    """The step of a tool call.

    Attributes:
        record: the step.
        info: `Episode.info_of` it.
    """

    record: StepRecord
    info: dict[str, Any]


def step_data(result: ToolCalled) -> dict[str, Any]:
    """Return the ``data`` of the observation frame of a step: plain JSON data, without building an observation."""
    record, info = result
    outcome, reward = record.outcome, record.reward
    return call_data(
        record.call.name,
        outcome.result_data(),
        outcome.error,
        None if reward is None else reward.value,
        record,
        info,
    )
