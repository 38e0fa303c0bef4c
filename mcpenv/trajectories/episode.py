"""The recorded episode, `RecordedEpisode`: one line of a record, written and read here."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import math
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, from_json, to_json

from mcpenv.errors import DamagedRecord
from mcpenv.redaction import has_named, redact_named
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.json_types import plain, writer_of
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.tasks import Task, without_unset_labels
from mcpenv_client.types.values import MAX_DEPTH, to_plain
from mcpenv_client.wire.faults import describe_fault, faults

FORMAT = 1
"""The version of the line's format. A reader refuses unknown ones."""

NOT_RECORDED = "not_recorded"
"""The key in ``extra`` of the values without a JSON form, as a list of ``{"path", "why"}``."""

OBSERVATIONS = "observations"
"""The key in ``extra`` of the observations of the environment's own actions, by step number as text."""

CONTEXT = "context"
"""The key in ``extra`` of the parts that a model dropped from its context; `mcpenv_client.messages_at` reads it."""

EVALUATED = "eval"
"""The key in ``extra`` of the result of ``mcpenv eval``, as plain JSON data: also the counts of tokens."""

RESCORED = "rescored"
"""The key in ``extra`` of the rubric that rescored the episode, and of the rewards before, as ``{"rubric",
"before"}``."""

Ending = Literal[
    "terminated", "truncated", "reset", "closed", "disconnected", "idle", "restored", "shutdown", "unfinished"
]
"""The ending of an episode. The first two are ends; "unfinished" is an abandoned episode without a reason."""


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that this process runs on. Do not change the result."""
    found = {name: importlib.metadata.version(name) for name in ("mcpenv", "fastmcp", "mcp")}
    return {**found, "python": platform.python_version()}


@dataclass(frozen=True, slots=True)
class RecordedEnvironment:
    """The environment of a recorded episode.

    Attributes:
        tasks: licence, source and version of its tasks, as `TaskSet.origin`; None without tasks, and in older records.
    """

    name: str
    version: str | None = None
    tasks: dict[str, str | None] | None = None


def name_of_agent(agent: Mapping[str, Any] | None) -> str | None:
    """Return what names an agent: its name, model or command, else its kind; None if nothing is known."""
    known = agent or {}
    found = known.get("name") or known.get("model") or known.get("command") or known.get("kind")
    return str(found) if found else None


@dataclass(slots=True)
class RecordedEpisode:
    """The record of one episode.

    Attributes:
        trajectory: the trajectory.
        environment: the environment.
        versions: of mcpenv, fastmcp, mcp and Python.
        tools: the name of the list of tools, see `ToolLists`; None if unknown.
        messages: the chat in which a model played it, in OpenAI's format; None without a chat.
        agent: the agent that played it (``name``, ``version``, ``model``, ...); None if unknown.
        model_turns: the agent's requests to a model and the answers, in the order in which they ended; None if no proxy
            recorded them.
        extra: further data for programs. Reserved keys are `NOT_RECORDED`, `OBSERVATIONS`, `CONTEXT`, `EVALUATED`
            and `RESCORED`.
        format: the version of the line's format, `FORMAT`.
    """

    trajectory: Trajectory
    environment: RecordedEnvironment
    versions: dict[str, str] = field(default_factory=lambda: dict(versions()))
    tools: str | None = None
    messages: list[dict[str, Any]] | None = None
    agent: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    model_turns: list[ModelTurn] | None = None

    @property
    def id(self) -> str:
        """The id of the episode."""
        return self.trajectory.episode_id

    @property
    def ending(self) -> str:
        """The `Ending` of the episode, or the reason that a program gave for abandoning it."""
        trajectory = self.trajectory
        if trajectory.terminated:
            return "terminated"
        return "truncated" if trajectory.truncated else trajectory.reason or "unfinished"

    def line(self) -> bytes:
        """Return the episode as one line of JSON, with its newline.

        A value without a JSON form is written as null, and `NOT_RECORDED` has its path: NaN, for example, or an object
        that a program in the same process passed as an option. So one such value does not lose the episode. The named
        rules of this process redact secrets.
        """
        text = self._text()
        if has_named():
            text = to_json(redact_named(json.loads(text)))
        return text + b"\n"

    def _text(self) -> bytes:
        if not _numbers_are_finite(self.trajectory):
            return _what_can_be_written(self)
        try:
            text = _serializer().to_json(self, fallback=plain)
        except (PydanticSerializationError, TypeError, ValueError, OverflowError, RecursionError):
            return _what_can_be_written(self)
        if b"NaN" in text or b"Infinity" in text:  # a number without a JSON form, or a text, which is written unchanged
            return _what_can_be_written(self)
        return text

    @classmethod
    def from_line(cls, line: bytes) -> RecordedEpisode:
        """Return the episode of a line.

        Raises:
            DamagedRecord: the line is damaged, or of a format that this version does not know.
        """
        try:
            try:
                episode: RecordedEpisode = _adapter().validate_json(line)
            except ValidationError as error:
                if error.error_count() > 1 or error.errors(include_input=False)[0]["type"] != "json_invalid":
                    raise
                # The JSON reader of pydantic accepts at most 200 levels, and a result may have as many itself.
                episode = _adapter().validate_python(json.loads(line))
        except (ValueError, RecursionError) as error:
            if not isinstance(error, ValidationError):
                raise DamagedRecord(f"it is no JSON: {error}") from error
            raise DamagedRecord(describe_fault(faults(error)[0], "")) from error
        if episode.format != FORMAT:
            raise DamagedRecord(f"it has format {episode.format}; this version of mcpenv reads {FORMAT}")
        return episode


@functools.cache
def _adapter() -> TypeAdapter[RecordedEpisode]:
    return TypeAdapter(RecordedEpisode)


@functools.cache
def _serializer() -> SchemaSerializer:
    """Return a serializer that writes NaN and infinity by name instead of null, so that they can be found."""
    return writer_of(_adapter().core_schema)


# -- values without a JSON form


def _numbers_are_finite(trajectory: Trajectory) -> bool:
    """Return True if all fields that are numbers are finite. The serializer would write others as null."""
    numbers = [trajectory.total_reward, trajectory.started_at, trajectory.ended_at, trajectory.end_scoring_s]
    for step in trajectory.steps:
        numbers += [step.started_at, step.outcome.duration_s, step.scoring_s]
        numbers += [number for entry in step.logs for number in (entry.progress, entry.total)]
    return all(number is None or math.isfinite(number) for number in numbers)


def _what_can_be_written(episode: RecordedEpisode) -> bytes:
    lost: list[dict[str, str]] = []
    data = _written(episode, "", lost, 0)
    total = episode.trajectory.total_reward
    if not math.isfinite(total):
        # A sum of finite rewards may be infinite, but readers need a number.
        data["trajectory"]["total_reward"] = 0.0 if math.isnan(total) else math.copysign(sys.float_info.max, total)
    if lost:
        data["extra"] = {**data["extra"], NOT_RECORDED: lost}
    return to_json(data)


def _written(value: Any, path: str, lost: list[dict[str, str]], depth: int) -> Any:
    """Return ``value`` as plain JSON data, with null for each part without a JSON form."""
    if depth < MAX_DEPTH // 2:
        inside = functools.partial(_written, lost=lost, depth=depth + 1)
        if isinstance(value, BaseModel):
            # As the serializer does, which writes most episodes.
            kept = [name for name, each in type(value).model_fields.items() if not each.exclude]
            fields = {name: getattr(value, name) for name in kept}
            value = without_unset_labels(fields) if isinstance(value, Task) else fields
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            # ToolOutcome.value is a Python object and not part of the record.
            names = [each.name for each in dataclasses.fields(value) if (type(value).__name__, each.name) != _VALUE]
            value = {name: getattr(value, name) for name in names}
        if isinstance(value, dict):
            return {_text(key): inside(item, f"{path}.{_text(key)}".lstrip(".")) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [inside(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str):
        text = _text(value)
        if text != value:
            lost.append({"path": path[:_MAX_PATH], "why": "a text with a lone surrogate, which is escaped here"})
        return text
    try:
        return to_plain(value, path)
    except NotSerializable as error:
        lost.append({"path": path[:_MAX_PATH], "why": error.reason})
        return None


_VALUE = ("ToolOutcome", "value")
_MAX_PATH = 200


def _text(value: Any) -> str:
    """Return a text or a key with lone surrogates escaped."""
    text = value if isinstance(value, str) else _key(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _key(value: Any) -> str:
    try:
        (text,) = from_json(to_json({value: None}))
    except (PydanticSerializationError, TypeError, ValueError):
        return str(value)
    return str(text)
