"""Play one episode of a task with a player, and record observations and rewards."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.arguments import arguments_for, wrong_arguments
from mcpenv.extensions.contract.walk import Crashes, error_text
from mcpenv.rewards.rubrics import score_of, worth_of
from mcpenv.rewards.verifiers import Changes
from mcpenv.worlds import Tree, capture
from mcpenv_client.errors import ExecutionError, McpenvError
from mcpenv_client.fingerprint import digest, without_incidents
from mcpenv_client.types.observations import CallToolObservation, Observation
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.values import to_plain

from .random_player import RandomPlayer

Call = tuple[str, dict[str, Any]]
Calls = Generator[Call, Observation, None]
"""A generator of the calls of an episode. It is sent the observation of each call."""
Player = Callable[[MCPEnvironment, Observation], Calls]
"""A function that plays an episode of an environment, given the observation of its reset."""


@dataclass(slots=True)
class Seen:
    """The orchestrator's view of a reset, a call or the end.

    Attributes:
        label: its name, for a reader.
        data: the observation and its reward, without fields that the framework generates for each episode.
    """

    label: str
    data: dict[str, Any]


@dataclass(slots=True)
class Play:
    """The record of one played episode.

    Attributes:
        score: the value that decides whether it is solved (`worth_of`); None if it was not scored.
        earned: the sum of its rewards; None if it was not scored.
        reasons: the verifier's reasons for a lower value, as sentences.
        steps: the number of calls.
        seen: all observations, in order.
        world: the world after the reset, if the environment sets one.
        left: the world after the end of a play that has a player.
        changed: True if the verified world differs from the one after the reset.
        failed: failed tool calls, as sentences.
        crashes: the exceptions that tools raised instead of a ToolError, with file and line, by the tool's name.
        error: the error in the environment's own code that ended the play, with file and line.
        stage: the author's method that raised it, such as reset or verify; None if it is another error.
    """

    score: float | None = None
    earned: float | None = None
    reasons: list[str] = field(default_factory=list)
    steps: int = 0
    seen: list[Seen] = field(default_factory=list)
    world: Tree | None = None
    left: Tree | None = None
    changed: bool = False
    failed: list[str] = field(default_factory=list)
    crashes: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    stage: str | None = None

    @property
    def digest(self) -> str:
        """The hash of all observations and rewards. It is equal for equal plays."""
        return digest({"seen": [seen.data for seen in self.seen]})


def play(env: MCPEnvironment, task: Task, player: Player | None = None, seed: int | None = None) -> Play:
    """Play one episode of a task to its end, after a reset.

    Args:
        env: the instance.
        task: the task.
        player: makes the calls; None for no call.
        seed: the seed of the reset; None for the task's own.
    """
    played = Play()
    try:
        observation = env.reset(seed, task=task)
        played.seen.append(Seen("the reset", plain_of(observation)))
        if env.world is not None:
            played.world = capture(env.world)
        if player is not None:
            observation = _make_calls(env, player(env, observation), played, observation)
        if not observation.done:
            played.seen.append(Seen("the end", plain_of(env.end())))
        if env.world is not None and player is not None:
            played.left = capture(env.world)
    except McpenvError as error:
        played.error = error_text(error)
        played.stage = error.data.get("stage") if isinstance(error, ExecutionError) else None
        return played
    trajectory = env.trajectory
    assert trajectory is not None
    played.score, played.earned = worth_of(trajectory), score_of(trajectory)
    played.reasons = env._execution.said_of_end
    played.changed = bool(trajectory.changes)
    return played


def oracle(task: Task, without: int | None = None) -> Player:
    """Return a player that makes the calls of a task's oracle, but for the one of a 0-based number."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        for number, call in enumerate(task.oracle or ()):
            if number != without:
                yield call.tool_name, call.arguments

    return calls


def at_random(task: Task, seed: int, max_steps: int) -> Player:
    """Return a player that calls tools at random, at most ``max_steps`` times."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        player = RandomPlayer(seed)
        player.read(task.prompt)
        player.read(plain_of(observation).get("metadata"))
        for _ in range(max_steps):
            call = player.call(env.list_tools())
            if call is None:
                return
            observation = yield call
            if isinstance(observation, CallToolObservation) and observation.result is not None:
                player.read(observation.result.text)
                player.read(to_plain(observation.result.structured_content))

    return calls


NO_SUCH_TOOL = "mcpenv_no_such_tool"


def malformed(task: Task, max_steps: int) -> Player:
    """Return a player that makes calls which do not fit, at most ``max_steps``: wrong arguments, and unknown tools."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        left = max_steps
        for name, arguments in _wrong_calls(env):
            if left == 0:
                return
            left -= 1
            yield name, arguments

    return calls


def _wrong_calls(env: MCPEnvironment) -> Iterator[Call]:
    yield NO_SUCH_TOOL, {}
    for tool in env.list_tools():
        for arguments in wrong_arguments(tool.input_schema, arguments_for(tool.input_schema) or {}):
            yield tool.name, arguments


def _make_calls(env: MCPEnvironment, calls: Calls, played: Play, observation: Observation) -> Observation:
    try:
        call = next(calls)
        while not observation.done:
            name, arguments = call
            with Crashes() as crashes:
                observation = env.call_tool(name, arguments)
            played.steps += 1
            label = f"call {played.steps} ({name})"
            played.seen.append(Seen(label, plain_of(observation)))
            if (said := failure_of(observation)) is not None:
                if crashes.first is not None:
                    said = played.crashes[name] = error_text(crashes.first)
                played.failed.append(f"{label} failed: {' '.join(said.split())}")
            call = calls.send(observation)
    except StopIteration:  # the calls have ended
        pass
    return observation


def failure_of(observation: Observation) -> str | None:
    """Return the text of a failed call; None if it succeeded."""
    if observation.error is not None:
        return observation.error.message
    result = observation.result if isinstance(observation, CallToolObservation) else None
    return result.text if result is not None and result.is_error else None


def difference_of(one: Any, other: Any, ignore: Iterable[str] = (), *, named: bool = False) -> str:
    """Return in what ``other`` differs first from ``one``, such as "without mails/1"; empty if they are equal.

    Args:
        one, other: plain JSON data of two plays.
        ignore, named: as `Changes` takes them.
    """
    for change in Changes(one, other, ignore, named=named):
        what = str(change) if change.kind == "changed" else change.where
        return f"{'without' if change.kind == 'removed' else 'with'} {what}"
    return ""


def plain_of(observation: Observation) -> dict[str, Any]:
    """Return an observation and the parts of its reward, without fields that the framework generates for each run."""
    data: dict[str, Any] = without_incidents(to_plain(observation, "observation", exclude={"info"}))
    parts = observation.info.get("reward")
    return data if parts is None else {**data, "reward parts": to_plain(parts)}
