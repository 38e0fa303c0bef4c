"""Plays: one episode of a task, as somebody plays it, with what was seen and what it was worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.errors import McpenvError
from mcpenv_client.observations import CallToolObservation, Observation
from mcpenv_client.tasks import Task
from mcpenv_client.values import to_plain

from ..environment import MCPEnvironment
from ..rubrics import score_of
from .random_player import RandomPlayer

Call = tuple[str, dict[str, Any]]
Player = Callable[[MCPEnvironment, Observation], Iterator[Call]]
"""Gives the calls of an episode one by one; what it is sent back is the observation of each."""


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
        score: the sum of its rewards; None if it was not scored.
        steps: calls that were made.
        seen: everything that was observed, in order.
        failed: calls of tools that came to nothing, as sentences.
        left: calls that were still to be made when the episode was over.
        error: what the environment's own code raised; the play ends with it.
    """

    score: float | None = None
    steps: int = 0
    seen: list[Seen] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: int = 0
    error: str | None = None


def play(env: MCPEnvironment, task: Task, player: Any = None) -> Play:
    """Play one episode of a task to its end; without a player nothing is done.

    Args:
        env: is reset, and left at the end of the episode.
        player: a function of the environment and the reset's observation that gives a generator of calls.
    """
    played = Play()
    try:
        observation = env.reset(task=task)
        played.seen.append(Seen("the reset", _plain(observation)))
        calls = None if player is None else player(env, observation)
        if calls is not None:
            observation = _make_calls(env, calls, played, observation)
        if not observation.done:
            played.seen.append(Seen("the end", _plain(env.end())))
    except McpenvError as error:
        played.error = said(error)
        return played
    trajectory = env.trajectory
    assert trajectory is not None
    played.score = score_of(trajectory)
    return played


def oracle(task: Task) -> Any:
    """The player who makes the calls of a task's oracle."""

    def calls(env: MCPEnvironment, observation: Observation) -> Iterator[Call]:
        for call in task.oracle or ():
            yield call.tool_name, call.arguments

    return calls


def at_random(task: Task, seed: int, max_steps: int) -> Any:
    """The player who calls tools at random, at most ``max_steps`` times."""

    def calls(env: MCPEnvironment, observation: Observation) -> Any:
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


def _make_calls(env: MCPEnvironment, calls: Any, played: Play, observation: Observation) -> Observation:
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
        played.left = 1 + sum(1 for _ in calls)
    except StopIteration:
        pass
    return observation


def _plain(observation: Observation) -> dict[str, Any]:
    data: dict[str, Any] = to_plain(observation, "observation", exclude={"info"})
    parts = observation.info.get("reward")
    return data if parts is None else {**data, "reward parts": to_plain(parts)}
