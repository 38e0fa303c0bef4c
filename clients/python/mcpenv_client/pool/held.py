"""The environments of one process that a trainer steps, by their number in the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.types.records import StepResult

from .backend import LOST, lost_result, step_failed
from .instances import Instances
from .sessions import BlockingSession


class HeldEnvironments:
    """Environments that persist between steps. A failed environment is closed, and created again at its reset.

    Args:
        instances: makes environments.
    """

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._sessions: dict[int, BlockingSession] = {}

    def reset(self, requests: Sequence[tuple[int, Mapping[str, Any]]]) -> list[StepResult[Any]]:
        """Reset environments: a number and the reset's arguments for each."""
        return [self._reset(number, options) for number, options in requests]

    def step(self, requests: Sequence[tuple[int, Any]], timeout_s: float | None) -> list[StepResult[Any]]:
        """Step environments: a number and an action for each. An environment that no longer has an episode is lost."""
        return [self._step(number, action, timeout_s) for number, action in requests]

    def close(self) -> None:
        """Close the environments."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def _reset(self, number: int, options: Mapping[str, Any]) -> StepResult[Any]:
        session = self._sessions.get(number)
        if session is None:
            session = self._sessions[number] = self._instances.blocking()
        return self._ask(number, lambda: session.reset(**options))

    def _step(self, number: int, action: Any, timeout_s: float | None) -> StepResult[Any]:
        session = self._sessions.get(number)
        if session is None:
            return lost_result(LOST, f"the episode of environment {number} was lost with its process; reset it")
        return self._ask(number, lambda: session.step(action, timeout_s=timeout_s))

    def _ask(self, number: int, call: Callable[[], StepResult[Any]]) -> StepResult[Any]:
        try:
            return call()
        except (WireError, ConnectionFailed) as error:
            result = step_failed(error)
            self._sessions.pop(number).close()
            return result
