"""The prompt of an episode for an agent."""

from __future__ import annotations

import json
from typing import Any

from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepResult

from .images import images_within, without_data

_FRAMEWORKS = {"reward", "done", "terminated", "truncated", "info", "metadata"}
"""Fields of an observation that are not the environment's own."""


def prompt_of(first: StepResult[Any]) -> str:
    """Return the prompt for an agent: the task's, or else the reset's observation, as JSON if it is not a single text.

    Empty if the observation has no fields of the environment's own.
    """
    if first.prompt:
        return first.prompt
    fields = without_data(fields_of(first))
    if not fields:
        return ""
    texts = list(fields.values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else json.dumps(fields, ensure_ascii=False)


def images_of(first: StepResult[Any]) -> list[dict[str, Any]]:
    """Return the images of the reset's observation, as blocks of MCP content."""
    return images_within(fields_of(first))


def fields_of(first: StepResult[Any]) -> dict[str, Any]:
    """Return the fields of the reset's observation that are the environment's own."""
    fields: dict[str, Any] = dict(first.metadata)
    if isinstance(first.observation, Observation):
        fields |= first.observation.model_dump(mode="json", exclude=_FRAMEWORKS, exclude_none=True)
    return fields
