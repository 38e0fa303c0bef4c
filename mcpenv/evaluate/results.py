"""Results: what became of each episode, a line of JSON each, appended when it is over."""

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

from mcpenv_client.wire import describe_faults

from ..errors import ConfigurationError
from .plan import Key

if sys.platform != "win32":
    import fcntl

RESULTS = "results.jsonl"


class Failure(StrEnum):
    """Why an episode did not come to a good end by itself."""

    AGENT_CRASHED = "agent_crashed"
    """The agent's program could not be run, or ended with another status than 0."""
    MALFORMED_TOOL_CALL = "malformed_tool_call"
    """The model made one call after the other that cannot be read."""
    MODEL_REFUSED = "model_refused"
    """The model would not answer, or its endpoint would not let it."""
    CUT_SHORT = "cut_short"
    """An answer of the model ended at its limit of tokens."""
    CONVERSATION_REJECTED = "conversation_rejected"
    """The endpoint did not take the conversation as it had become; mostly because it is too long."""
    OUT_OF_TURNS = "out_of_turns"
    """The model still called tools in its last turn."""
    TIMEOUT = "timeout"
    """The agent was not done in time."""
    TRUNCATED = "truncated"
    """A limit of the environment or of the task ended it."""
    MODEL_ERROR = "model_error"
    """The endpoint did not answer. There is no score."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment's own code failed, or its session was lost. There is no score."""


UNSCORED = frozenset({Failure.MODEL_ERROR, Failure.ENVIRONMENT_ERROR})
"""Failures that say nothing of the agent: such episodes are in no figure, and may be played again."""


@dataclass(frozen=True)
class EpisodeResult:
    """What became of one episode.

    Attributes:
        score: its return; None if nothing scored it, or one of `UNSCORED` happened.
        verified: what its end was verified to be worth; None if nothing verified it.
        full_reward: the worth of a solved task, None without a task.
        digest: of the task as it was.
        components: sums of the named parts of its rewards.
        steps: of the environment, calls that it refused included.
        turns: answers of the model; None for a program.
        malformed_calls: calls that could not be read; the model was told so, and they are no steps.
        detail: of the failure, in one line.
        started_at: seconds since the epoch, UTC.
        duration_s: seconds from the reset to the end.
        prompt_tokens, completion_tokens: as the endpoint counts them; None for a program.
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

    @property
    def key(self) -> Key:
        """Which episode of the plan it is; the seed of a task's episode is no part of that."""
        return Key(self.split, self.task, self.seed if self.task is None else None, self.sample)

    @property
    def unscored(self) -> bool:
        """Whether it says nothing of the agent."""
        return self.failure in UNSCORED

    def passed(self, threshold: float | None) -> bool | None:
        """Whether its return reaches the threshold; None if nobody knows.

        By default: whether what its end was verified to be worth, or else its return, reaches the task's full reward.
        """
        wanted = self.full_reward if threshold is None else threshold
        if wanted is None or self.score is None or self.unscored:
            return None
        worth = self.score if threshold is not None or self.verified is None else self.verified
        # Sums of rewards are seldom exact.
        return worth >= wanted - 1e-9

    def to_plain(self) -> dict[str, Any]:
        """As it stands in the file."""
        plain = asdict(self)
        return {"return" if name == "score" else name: value for name, value in plain.items()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> EpisodeResult:
        """The result of `to_plain`.

        Raises:
            pydantic.ValidationError: it does not fit.
        """
        return _ADAPTER.validate_python({"score" if name == "return" else name: plain[name] for name in plain})


_ADAPTER = TypeAdapter(EpisodeResult)


def read_results(directory: Path) -> list[EpisodeResult]:
    """The results in a folder, in the order in which episodes ended; the later one of an episode played again.

    A last line without its end is the work of a crash, and no result.

    Raises:
        ConfigurationError: a line is no result.
    """
    file = directory / RESULTS
    latest: dict[Key, EpisodeResult] = {}
    for number, line in enumerate(_whole_lines(file), 1):
        try:
            result = EpisodeResult.from_plain(json.loads(line))
        except ValidationError as error:
            raise ConfigurationError(f"{file}:{number}: {describe_faults(error)}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{file}:{number}: is no result of mcpenv eval") from error
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
    """Appends results, each by one write. One at a time has the file open.

    Raises:
        ConfigurationError: another evaluation writes there.
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
        """What is appended must begin a line of its own."""
        os.ftruncate(self._descriptor, file.read_bytes().rfind(b"\n") + 1)

    def append(self, result: EpisodeResult) -> None:
        """One more line, on the disk when this returns."""
        line = json.dumps(result.to_plain(), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"{written} of {len(line)} bytes were written; is the disk full?")
        os.fsync(self._descriptor)

    def clear(self) -> None:
        """Drop all lines."""
        os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Let others write."""
        os.close(self._descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(f"{directory}: another evaluation writes there; use another folder") from error
