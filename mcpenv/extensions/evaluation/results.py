"""Results: one line of JSON for each episode, appended when the episode is over."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcpenv.errors import ConfigurationError
from mcpenv_client.scores import passes
from mcpenv_client.types.status import COMPLETED, Status, StatusCode
from mcpenv_client.wire.faults import describe_faults

from .plan import Key

if sys.platform != "win32":
    import fcntl

RESULTS = "results.jsonl"


class Failure(StrEnum):
    """The kind of failure that ended an episode."""

    AGENT_CRASHED = "agent_crashed"
    """The agent's program could not be run, or exited with a status other than 0."""
    MALFORMED_TOOL_CALL = "malformed_tool_call"
    """The model made no call that can be parsed in several turns in a row."""
    MODEL_REFUSED = "model_refused"
    """The model refused to answer, or its endpoint's content filter stopped it."""
    CUT_SHORT = "cut_short"
    """An answer of the model reached the limit of tokens."""
    CONVERSATION_REJECTED = "conversation_rejected"
    """The endpoint rejected the conversation, usually because it is too long."""
    OUT_OF_TURNS = "out_of_turns"
    """The model still called tools in the last turn that it had."""
    TIMEOUT = "timeout"
    """The agent was not done before the deadline."""
    TRUNCATED = "truncated"
    """A limit of the environment or of the task ended the episode."""
    MODEL_ERROR = "model_error"
    """The endpoint did not answer. There is no score."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment's own code failed, or its session was lost. There is no score."""


UNSCORED = frozenset({Failure.MODEL_ERROR, Failure.ENVIRONMENT_ERROR})
"""Failures not caused by the agent. Such episodes have no score and may be played again."""


_AGENTS = frozenset(
    {
        Failure.AGENT_CRASHED,
        Failure.MALFORMED_TOOL_CALL,
        Failure.MODEL_REFUSED,
        Failure.CONVERSATION_REJECTED,
    }
)
_LIMITS = frozenset({Failure.CUT_SHORT, Failure.OUT_OF_TURNS, Failure.TIMEOUT, Failure.TRUNCATED})


def status_of(failure: Failure | None) -> Status:
    """Return the status of an episode with this failure if the environment's own status is unknown."""
    if failure is None:
        return COMPLETED
    if failure in _LIMITS:
        return Status(StatusCode.TRUNCATED, limit=failure.value)
    if failure in _AGENTS:
        return Status(StatusCode.AGENT_ERROR)
    if failure is Failure.MODEL_ERROR:
        return Status(StatusCode.TRANSPORT_LOST, retryable=True)
    return Status(StatusCode.ENV_ERROR, retryable=True)


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one episode.

    Attributes:
        score: its return; None if it was not scored, or if `UNSCORED` contains its failure.
        verified: the value of the verifier at its end; None if there was no verifier.
        full_reward: the worth of a solved task; None without a task.
        digest: the hash of the task's definition when it was played, without its labels.
        level, family, tags: the labels of the task.
        components: sums of the named components of its rewards.
        steps: number of steps, including calls that the environment refused.
        turns: number of answers of the model; None for a program without a recorded model.
        malformed_calls: number of calls that could not be parsed. They are answered with an error and are not steps.
        detail: the failure's details, in one line.
        problems: the reasons of the verifier for a lower value, one sentence each.
        status: the episode's status: the environment's answer, unless the agent failed. If it is not given, as in
            results of older versions, it is derived from the failure.
        started_at: seconds since the epoch, UTC.
        duration_s: seconds from the reset to the end.
        prompt_tokens, completion_tokens: as counted by the endpoint; None for a program without a recorded model.
        cost: the price of the model's answers in the endpoint's own unit; None if it reports none.
        user_prompt_tokens, user_completion_tokens: of the model that played the environment's user; None without one.
    """

    split: str | None
    task: str | None
    seed: int | None
    sample: int
    episode_id: str | None = None
    score: float | None = None
    verified: float | None = None
    full_reward: float | None = None
    digest: str | None = None
    components: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    turns: int | None = None
    malformed_calls: int = 0
    terminated: bool = False
    truncated: bool = False
    reason: str | None = None
    failure: Failure | None = None
    detail: str | None = None
    started_at: float = 0.0
    duration_s: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    user_prompt_tokens: int | None = None
    user_completion_tokens: int | None = None
    status: Status = None  # type: ignore[assignment]  # `__post_init__` derives it
    problems: list[str] = field(default_factory=list)
    level: int | None = None
    family: str | None = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Derive the status if it is not given."""
        if self.status is None:
            object.__setattr__(self, "status", status_of(self.failure))

    @property
    def key(self) -> Key:
        """The key of the episode in the plan, without the seed if it has a task."""
        return Key(self.split, self.task, self.seed if self.task is None else None, self.sample)

    @property
    def unscored(self) -> bool:
        """True if the episode has a failure that the agent did not cause."""
        return self.failure in UNSCORED

    def passed(self, threshold: float | None) -> bool | None:
        """Return True if the return reaches the threshold; None if the episode has no score or no threshold.

        Without a threshold, the verified value, or else the return, is compared with the task's full reward.
        """
        return passes(None if self.unscored else self.score, self.verified, self.full_reward, threshold)

    def to_plain(self) -> dict[str, Any]:
        """Return the result as plain JSON data, as in the file."""
        plain = asdict(self)
        plain["status"] = self.status.to_plain()
        return {"return" if name == "score" else name: value for name, value in plain.items()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> EpisodeResult:
        """Convert the output of `to_plain` to a result.

        Raises:
            pydantic.ValidationError: the data is not a result.
        """
        return _ADAPTER.validate_python({"score" if name == "return" else name: plain[name] for name in plain})


_ADAPTER = TypeAdapter(EpisodeResult)


def read_results(directory: Path) -> list[EpisodeResult]:
    """Return the results in a folder, in the order in which the episodes ended.

    Of an episode that was played again, only the latest result is returned. A last line without a newline, left by a
    crash, is ignored.

    Raises:
        ConfigurationError: a line is not a result.
    """
    file = directory / RESULTS
    latest: dict[Key, EpisodeResult] = {}
    for number, line in enumerate(_whole_lines(file), 1):
        try:
            result = EpisodeResult.from_plain(json.loads(line))
        except ValidationError as error:
            raise ConfigurationError(f"{file}:{number}: {describe_faults(error)}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{file}:{number}: not a result of mcpenv eval") from error
        latest.pop(result.key, None)
        latest[result.key] = result
    return list(latest.values())


def _whole_lines(file: Path) -> Iterator[bytes]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return
    yield from data[: data.rfind(b"\n") + 1].splitlines()


class ResultsFile:
    """The file of results, locked while it is open. Each result is appended by one write.

    Raises:
        ConfigurationError: another evaluation has the file open.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / RESULTS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(self._descriptor, directory)
            self._cut_torn_line(directory / RESULTS)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _cut_torn_line(self, file: Path) -> None:
        """Remove an incomplete last line, so that the next result starts a line."""
        os.ftruncate(self._descriptor, file.read_bytes().rfind(b"\n") + 1)

    def append(self, result: EpisodeResult) -> None:
        """Append a result; it is on disk when this returns."""
        line = json.dumps(result.to_plain(), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"{written} of {len(line)} bytes were written; is the disk full?")
        os.fsync(self._descriptor)

    def clear(self) -> None:
        """Remove all lines."""
        os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(f"{directory}: another evaluation is using this folder; use another --out") from error
