"""Plays: one episode of a task, as somebody plays it, with what was seen and what it was worth."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.errors import McpenvError
from mcpenv_client.observations import CallToolObservation, Observation
from mcpenv_client.tasks import Task
from mcpenv_client.values import to_plain

from ..environment import MCPEnvironment
from ..rubrics import score_of, worth_of
from ..worlds import Tree, capture
from .random_player import RandomPlayer

Call = tuple[str, dict[str, Any]]
Calls = Generator[Call, Observation, None]
"""The calls of an episode one by one; it is sent the observation of each."""
Player = Callable[[MCPEnvironment, Observation], Calls]
"""Plays an episode of an environment, from the observation of its reset on."""


@dataclass(slots=True)
class Seen:
    """What an orchestrator saw of a reset, a call or the end.

    Attributes:
        label: which one, for a reader.
        data: the observation and its reward, without what is the framework's and new each time.
    """

    label: str
    data: dict[str, Any]


@dataclass(slots=True)
class Play:
    """One episode that was played.

    Attributes:
        score: by what it counts as solved (`worth_of`); None if it was not scored.
        earned: the sum of its rewards; None if it was not scored.
        said: why it was verified to be worth no more, as sentences.
        steps: calls that were made.
        seen: everything that was observed, in order.
        world: what the reset left, if the environment names a world.
        failed: calls of tools that came to nothing, as sentences.
        error: what the environment's own code raised; the play ends with it.
    """

    score: float | None = None
    earned: float | None = None
    said: list[str] = field(default_factory=list)
    steps: int = 0
    seen: list[Seen] = field(default_factory=list)
    world: Tree | None = None
    failed: list[str] = field(default_factory=list)
    error: str | None = None


def play(env: MCPEnvironment, task: Task, player: Player | None = None) -> Play:
    """Play one episode of a task to its end; without a player nothing is done. ``env`` is reset first."""
    played = Play()
    try:
        observation = env.reset(task=task)
        played.seen.append(Seen("the reset", _plain(observation)))
        if env.world is not None:
            played.world = capture(env.world)
        if player is not None:
            observation = _make_calls(env, player(env, observation), played, observation)
        if not observation.done:
            played.seen.append(Seen("the end", _plain(env.end())))
    except McpenvError as error:
        played.error = said(error)
        return played
    trajectory = env.trajectory
    assert trajectory is not None
    played.score, played.earned = worth_of(trajectory), score_of(trajectory)
    played.said = env._execution.said_of_end
    return played


def oracle(task: Task) -> Player:
    """The player who makes the calls of a task's oracle."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        for call in task.oracle or ():
            yield call.tool_name, call.arguments

    return calls


def at_random(task: Task, seed: int, max_steps: int) -> Player:
    """The player who calls tools at random, at most ``max_steps`` times."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        player = RandomPlayer(seed)
        player.read(task.prompt)
        player.read(_plain(observation).get("metadata"))
        for _ in range(max_steps):
            call = player.call(env.list_tools())
            if call is None:
                return
            observation = yield call
            if isinstance(observation, CallToolObservation) and observation.result is not None:
                player.read(observation.result.text)
                player.read(to_plain(observation.result.structured_content))

    return calls


def said(error: BaseException) -> str:
    """An error with its cause, on one line."""
    cause = error.__cause__
    text = f"{error}" if cause is None or str(cause) in str(error) else f"{error}: {type(cause).__name__}: {cause}"
    return " ".join(text.split())


def _make_calls(env: MCPEnvironment, calls: Calls, played: Play, observation: Observation) -> Observation:
    try:
        call = next(calls)
        while not observation.done:
            name, arguments = call
            observation = env.call_tool(name, arguments)
            played.steps += 1
            label = f"call {played.steps} ({name})"
            played.seen.append(Seen(label, _plain(observation)))
            if observation.error is not None:
                played.failed.append(f"{label} failed: {' '.join(observation.error.message.split())}")
            elif isinstance(observation, CallToolObservation) and observation.result and observation.result.is_error:
                played.failed.append(f"{label} failed: {' '.join(observation.result.text.split())}")
            call = calls.send(observation)
    except StopIteration:  # it has no more
        pass
    return observation


def _plain(observation: Observation) -> dict[str, Any]:
    data: dict[str, Any] = to_plain(observation, "observation", exclude={"info"})
    parts = observation.info.get("reward")
    return data if parts is None else {**data, "reward parts": to_plain(parts)}
