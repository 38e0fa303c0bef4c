"""The records: a step as the core saw it, and the trajectory of an episode.

The core fills a `StepRecord` for every step on every plane, so that recording only has to write it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from mcpenv_client.errors import status_of_code

from .checked import CheckedChange
from .observations import CallToolObservation, Observation
from .status import (
    CANCELLED_CALL,
    COMPLETED,
    REFUSED_CALL,
    TIMED_OUT,
    Stage,
    Status,
    StatusCode,
    read_status,
)
from .tasks import Task
from .texts import well_formed
from .tools import ToolErrorType, ToolFailure, ToolResult, wrapped_data
from .values import encode, to_plain

if TYPE_CHECKING:
    from typing_extensions import Self

ObsT = TypeVar("ObsT")


class Plane(str, Enum):
    """The origin of a call."""

    PROCESS = "process"
    """``env.step`` in the same process."""
    CONTROL = "control"
    """An orchestrator: ``/ws`` or ``/step``."""
    AGENT = "agent"
    """An MCP client: ``/mcp`` or stdio."""


_set = object.__setattr__


@dataclass(frozen=True, slots=True, init=False)
class Reward:
    """The reward of a step.

    Attributes:
        value: finite; an int or bool becomes a float.
        components: named parts for logs and plots; they need not sum to the value.

    Raises:
        ValueError: a part is NaN or infinite.
    """

    value: float
    components: dict[str, float] = field(default_factory=dict)

    def __init__(self, value: float, components: Mapping[str, float] | None = None) -> None:
        parts = {}
        if components:
            for name, part in components.items():
                usual = type(part) is float and math.isfinite(part)
                parts[well_formed(name)] = part if usual else finite(f"reward component {name!r}", part)
        usual = type(value) is float and math.isfinite(value)
        _set(self, "value", value if usual else finite("reward", value))
        _set(self, "components", parts)


def finite(what: str, value: Any) -> float:
    """Return ``value`` as a finite float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is NaN, infinite, or too large for a float.
    """
    if not isinstance(value, float) and (isinstance(value, str | bytes) or not hasattr(value, "__float__")):
        raise TypeError(f"{what} is a {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{what} is too large for a float; rewards are finite numbers or None") from error
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; rewards are finite numbers or None")
    return number


def reward_of(value: Any) -> Reward | None:
    """Convert None, a bool, a number or a `Reward` to a `Reward` or None.

    Raises:
        TypeError, ValueError: if it is not a finite number.
    """
    if value is None or isinstance(value, Reward):
        return value
    return Reward(value)


def summed(values: Iterable[float]) -> float:
    """Return the correctly rounded sum; infinite or NaN if it is too large for a float."""
    values = list(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large, or both infinities
        return sum(values)


def total(*parts: Any) -> Reward | None:
    """Return the sum of the parts that are not None, each as `reward_of` converts it; None if all are None.

    Components of the same name add up.

    Raises:
        TypeError, ValueError: a part, or the sum, is not a finite number.
    """
    given = [part if isinstance(part, Reward) else Reward(part) for part in parts if part is not None]
    if len(given) <= 1:
        return given[0] if given else None
    return Reward(summed(reward.value for reward in given), components_of(given))


def components_of(rewards: Iterable[Reward]) -> dict[str, float]:
    """Return the sums of the named components."""
    parts: dict[str, list[float]] = {}
    for reward in rewards:
        for name, value in reward.components.items():
            parts.setdefault(name, []).append(value)
    return {name: summed(values) for name, values in parts.items()}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call as it was sent.

    Attributes:
        name: the tool, or the ``type`` of an own action.
        arguments: the JSON as sent, before validation.
        step: 1-based number within the episode.
        plane: the origin of the call.
        principal: the authenticated caller; None without authentication.
    """

    name: str
    arguments: dict[str, Any]
    step: int
    plane: Plane = Plane.PROCESS
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call: a ``result`` or an ``error``.

    An outcome made by `returned` keeps only the value, and builds its ``result`` at each access. An episode holds
    thousands of outcomes, and a result takes more memory than the rest of its step.

    Attributes:
        value: the Python object that the tool returned (or an own action's observation); never on the wire. A copy or
            a pickle has it only if it is an observation or a plain value: any other may have no copy.
        duration_s: seconds spent in the tool.
    """

    result: ToolResult | None = None
    error: ToolFailure | None = None
    value: Annotated[Any, Field(exclude=True)] = None
    duration_s: float = 0.0

    @classmethod
    def returned(cls, value: str | int | bool, duration_s: float) -> Self:
        """Return the outcome of a plain value. Its ``result`` is `ToolResult.wrapping` of the value."""
        outcome = cls.__new__(cls)  # without `result`, for which `__getattr__` stands in
        _set(outcome, "error", None)
        _set(outcome, "value", value)
        _set(outcome, "duration_s", duration_s)
        return outcome

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Return the ``result`` of an outcome that `returned` made. Called for attributes that are not set."""
            if name == "result":
                return ToolResult.wrapping(self.value)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts for a pickle or a copy."""
        value = self.value if isinstance(self.value, Observation | str | int | float) else None
        try:
            return ToolOutcome, (_RESULT.__get__(self), self.error, value, self.duration_s)
        except AttributeError:  # made by `returned`
            return ToolOutcome.returned, (value, self.duration_s)

    def result_data(self) -> dict[str, Any] | None:
        """Return the ``result`` as plain JSON data. Faster than reading ``result``, because no model is built."""
        try:
            result: ToolResult | None = _RESULT.__get__(self)
        except AttributeError:  # made by `returned`
            return wrapped_data(self.value)
        return None if result is None else result.to_plain()

    @property
    def observation(self) -> Observation | None:
        """The value if it is an observation, else None."""
        return None if type(self.value) in PLAIN_TYPES or not isinstance(self.value, Observation) else self.value


_RESULT: Any = vars(ToolOutcome)["result"]
"""The descriptor of the attribute. Reading by it raises AttributeError, and builds nothing."""

PLAIN_TYPES = frozenset({str, int, float, bool, type(None), list, dict})
"""The types of the values that most tools return. No observation has one of them, which pydantic is slow to find."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A message or a progress report of a tool: ``level`` is an MCP logging level or "progress"."""

    level: str
    message: str | None = None
    progress: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        """Make the message a text that can be written as UTF-8."""
        if self.message is not None:
            _set(self, "message", well_formed(self.message))


class _Stored:
    """The conversion of a record to plain JSON data and back, for files and for the wire."""

    __slots__ = ()

    def to_plain(self) -> dict[str, Any]:
        """Return plain JSON data. `ToolOutcome.value`, a Python object, is omitted.

        Raises:
            NotSerializable: naming the field.
        """
        data: dict[str, Any] = to_plain(_adapter(type(self)).dump_python(self), type(self).__name__)
        return data

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Return the record for the data that `to_plain` returned.

        Raises:
            pydantic.ValidationError: the data does not fit.
        """
        record: Self = _adapter(cls).validate_json(encode(data))
        return record


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """Return the type adapter. It is built on first use, because few programs that import this module read records."""
    adapter = _ADAPTERS.get(cls)
    if adapter is None:
        adapter = _ADAPTERS[cls] = TypeAdapter(cls)
    return adapter


@dataclass(slots=True)
class StepRecord(_Stored):
    """The record of one step.

    Attributes:
        started_at: seconds since the epoch, UTC.
        reason: the reason of the episode's end, if it ended with this step and a reason was given.
        fault: the wire code of the error with which the environment's own code, such as scoring, failed the step; None
            without such an error. With a fault, a reward of None means that the reward is unknown.
        logs: the messages and progress reports of the tool.
        status: the status of the step. If it is not given, as in records of older versions, it is derived from the
            outcome and the fault. A tool that raised then counts as one that refused the call.
        scoring_s: seconds from the tool's end until the step had its reward, including the reward of an end; 0 in
            records of older versions.
    """

    call: ToolCall
    outcome: ToolOutcome
    reward: Reward | None = None
    terminated: bool = False
    truncated: bool = False
    reason: str | None = None
    started_at: float = 0.0
    logs: list[LogEntry] = field(default_factory=list)
    fault: str | None = None
    status: Status = None  # type: ignore[assignment]  # `__post_init__` derives it
    scoring_s: float = 0.0

    def __post_init__(self) -> None:
        """Derive the status if it is not given."""
        if self.status is None:
            self.status = _status_of_step(self.outcome, self.fault)

    @property
    def done(self) -> bool:
        """True if the episode ended with this step."""
        return self.terminated or self.truncated


_BY_ERROR_TYPE = {
    ToolErrorType.EXECUTION_ERROR: REFUSED_CALL,
    ToolErrorType.INVALID_ARGS: REFUSED_CALL,
    ToolErrorType.TOOL_NOT_FOUND: REFUSED_CALL,
    ToolErrorType.TIMEOUT: TIMED_OUT,
    ToolErrorType.TRANSPORT_ERROR: CANCELLED_CALL,
}


def status_of_failure(failure: ToolFailure) -> Status:
    """Return the status of a step with this failure, derived from its ``error_type``."""
    return _BY_ERROR_TYPE[failure.error_type]


def _status_of_step(outcome: ToolOutcome, fault: str | None) -> Status:
    if fault is not None:
        return status_of_code(fault)
    if outcome.error is not None:
        return status_of_failure(outcome.error)
    return REFUSED_CALL if outcome.result is not None and outcome.result.is_error else COMPLETED


class ToolCalled(NamedTuple):
    """The step of a tool call, and the framework's part of its observation.

    Attributes:
        info: plain JSON data.
    """

    record: StepRecord
    info: dict[str, Any]


def call_data(result: ToolCalled) -> dict[str, Any]:
    """Return the ``data`` of the observation frame of a tool call: plain JSON data, without building an observation."""
    record, info = result
    outcome, reward = record.outcome, record.reward
    ending = ending_data(None if reward is None else reward.value, record, info)
    error = None if outcome.error is None else outcome.error.to_wire()
    body = {"metadata": {}, "tool_name": record.call.name, "result": outcome.result_data(), "error": error}
    return {"observation": body, **ending}


def ending_data(
    reward: float | None, ending: Observation | StepRecord, info: dict[str, Any], metadata: Any = None
) -> dict[str, Any]:
    """Return the ``data`` of an observation frame beside the observation itself.

    Args:
        ending: has ``terminated`` and ``truncated``.
        info, metadata: plain JSON data, left out if empty.
    """
    data: dict[str, Any] = {"reward": reward, "done": ending.terminated or ending.truncated}
    if ending.terminated:
        data["terminated"] = True
    if ending.truncated:
        data["truncated"] = True
    if info:
        data["info"] = info
    if metadata:
        data["metadata"] = metadata
    return data


@dataclass(frozen=True, slots=True)
class Fork:
    """The origin of an episode that continues another one.

    Attributes:
        episode_id: the id of the other episode.
        step: the number of steps that both have in common.
    """

    episode_id: str
    step: int


@dataclass(slots=True)
class Trajectory(_Stored):
    """The record of one episode so far.

    Attributes:
        seed: the seed that the environment's ``reset`` got: the orchestrator's, or the task's.
        options: the other arguments of ``reset`` except the episode id, including the task's options.
        implicit_reset: True if the first step reset the environment, because no reset came before it.
        dropped: the number of steps dropped because the episode is longer than the environment stores.
        total_reward: the sum of all rewards so far, including `end_reward` and the reset's reward. It is 0.0 also
            without any reward, a case that `earned` distinguishes.
        reason: the reason of its end, if one was given. For an episode that was abandoned before its end, one of
            "reset", "closed", "disconnected", "idle", "restored" and "shutdown".
        started_at, ended_at: seconds since the epoch, UTC; ``ended_at`` is None while the episode runs.
        task: the agent's task; None if the reset named none.
        observation: the observation of the reset, as plain data without ``info``; None if it has no JSON form.
        end_reward: the reward of an end that was not a step.
        end_scoring_s: seconds that scoring such an end took.
        verified: the reward that verification gave at the end; None before the end, and if nothing verifies it.
        problems: the reasons for a lower value of the end, one sentence each. They are not for agents.
        changes: the first changes of the world between the reset and a verified end, one sentence each.
        evidence: the same changes beside what the verifier expected: first those that it did not, and missing ones, at
            most `MAX_CHECKED`. They are not for agents.
        fault: the wire code of the error with which scoring or verifying such an end failed.
        forked_from: the episode that this one continues. The steps up to that point are copies of its steps.
        status: the status of the episode; None while it runs, unless a step was not scored. If it is not given, as in
            records of older versions, it is derived from the other fields.
    """

    episode_id: str
    seed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    implicit_reset: bool = False
    steps: list[StepRecord] = field(default_factory=list)
    dropped: int = 0
    total_reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    reason: str | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    task: Task | None = None
    observation: dict[str, Any] | None = None
    end_reward: Reward | None = None
    verified: Reward | None = None
    fault: str | None = None
    forked_from: Fork | None = None
    status: Status | None = None
    end_scoring_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    evidence: list[CheckedChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Derive the status if it is not given."""
        if self.status is None:
            self.status = self.ending_status()

    @property
    def done(self) -> bool:
        """True if the episode has ended."""
        return self.terminated or self.truncated

    @property
    def earned(self) -> float | None:
        """The sum of all rewards; None if nothing was scored. Dropped steps count as scored if they earned anything."""
        return self.total_reward if self.reward_values or (self.dropped and self.total_reward) else None

    @property
    def reward_values(self) -> list[float]:
        """The recorded rewards of the reset, the steps and the end, without those that are None."""
        of_reset = (self.observation or {}).get("reward")
        rewards = (*(step.reward for step in self.steps), self.end_reward)
        values = [reward.value for reward in rewards if reward is not None]
        return [of_reset, *values] if isinstance(of_reset, int | float) else values

    def ending_status(self) -> Status | None:
        """Return the status that follows from the other fields; None while the episode runs.

        An episode of which a step or the end was not scored has the status of that failure, because its return is
        unknown.
        """
        failed = next((step.status for step in self.steps if step.fault is not None), None)
        if failed is not None:
            return failed
        if self.fault is not None:
            return status_of_code(self.fault)
        if self.terminated:
            return COMPLETED
        if self.truncated:
            return self._truncated_status()
        if self.ended_at is None:
            return None
        lost = self.reason is None or self.reason in _LOST
        return Status(StatusCode.TRANSPORT_LOST if lost else StatusCode.CANCELLED, None, True)

    def _truncated_status(self) -> Status:
        if self.reason == TRANSPORT_LOST:
            return Status(StatusCode.TRANSPORT_LOST, Stage.TOOL, True)
        if self.reason == CASSETTE_MISS:
            return MISSED
        if self.reason in _CUT_BY_TOOL:
            # An author or an orchestrator may give the same reason for a limit of its own.
            ending = next((step for step in reversed(self.steps) if step.truncated), None)
            if ending is not None and not ending.status.usable:
                return Status(StatusCode.TRUNCATED, Stage.TOOL, True, self.reason)
        return Status(StatusCode.TRUNCATED, None, self.reason in _CUT_BESIDE, self.reason)


TRANSPORT_LOST = "transport_lost"
"""The reason for the end of an episode after a server behind its environment was lost, perhaps with its world."""

CASSETTE_MISS = "cassette_miss"
"""The reason for the end of an episode after a call that the recorded environment does not have."""

MISSED = Status(StatusCode.ENV_ERROR, Stage.TOOL, False, CASSETTE_MISS)
"""The status of such a call and of its episode: the outcome for the agent is unknown."""

_CUT_BY_TOOL = frozenset({"timeout", "a tool could not be stopped"})
_CUT_BESIDE = frozenset(
    {"state could not be stopped", "a snapshot could not be stopped", "a restore could not be stopped"}
)
"""The reasons of truncated episodes with a world that could not continue, after a step and without one."""

_LOST = frozenset({"disconnected", "idle", "shutdown"})
"""The reasons of episodes that lost their orchestrator or their server."""


@dataclass(slots=True)
class StepResult(Generic[ObsT]):
    """The result of `EnvClient.reset` and `EnvClient.step`. The fields are the same as in `Observation`.

    ``done`` is derived here too (``terminated`` or ``truncated``); ``done=True`` alone means terminated.
    """

    observation: ObsT
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.terminated or self.truncated:
            self.done = True
        elif self.done:
            self.terminated = True

    @property
    def status(self) -> Status | None:
        """The status of the step: ``info["status"]``. None after a reset, and from other servers."""
        return read_status(self.info.get("status"))

    @property
    def episode_status(self) -> Status | None:
        """The status of the episode: ``info["episode_status"]``. None before its end, and from other servers."""
        return read_status(self.info.get("episode_status"))

    @property
    def text(self) -> str:
        """The observation's text; empty for observations without one."""
        read = _readable(self.observation)
        return "" if read is None else read.text

    @property
    def prompt(self) -> str:
        """The task's prompt after a reset that began a task; else empty."""
        prompt = self.metadata.get("prompt")
        return prompt if isinstance(prompt, str) else ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The observation's metadata: the author's own, and the task's prompt."""
        if isinstance(self.observation, Observation):
            return self.observation.metadata
        given = self.observation.get("metadata") if isinstance(self.observation, dict) else None
        return given if isinstance(given, dict) else {}

    @property
    def result(self) -> ToolResult | None:
        """The value that the tool returned; None if the tool failed, and for observations that are not a tool's."""
        found = getattr(self.observation, "result", None)
        return found if isinstance(found, ToolResult) else None

    @property
    def error(self) -> ToolFailure | None:
        """The reason why the tool call has no result."""
        read = _readable(self.observation)
        return None if read is None else read.error


def _readable(observation: Any) -> Observation | None:
    """Return the observation, or a model of a tool's observation that arrived as a dict (`GenericEnvClient`)."""
    if isinstance(observation, Observation):
        return observation
    if isinstance(observation, Mapping) and "tool_name" in observation:
        kept = {name: observation.get(name) for name in ("tool_name", "result", "error")}
        try:
            return CallToolObservation.model_validate(kept)
        except ValidationError:
            return None  # another environment's class of that name
    return None
