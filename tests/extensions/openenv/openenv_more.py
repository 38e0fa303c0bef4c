"""OpenEnv environments of several kinds, as its users write them. Imported only by the Python that has OpenEnv."""

import threading
from typing import Any, Literal

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics.base import Rubric


class Closeness(Rubric):  # type: ignore[misc]
    """1 for the number itself."""

    def forward(self, action: Any, observation: Any) -> float:
        return 1.0 if observation.hint == "yes" else 0.0


class Guess(Action):  # type: ignore[misc]
    """A number between 1 and 10."""

    type: Literal["guess"] = "guess"
    number: int


class Hint(Observation):  # type: ignore[misc]
    """The position of the number."""

    hint: str = ""


class GuessState(State):  # type: ignore[misc]
    """The progress of the game."""

    guesses: list[int] = []


class GuessEnvironment(Environment[Guess, Hint, GuessState]):  # type: ignore[misc]
    """Guess a number. Scores in its step, as OpenEnv asks for."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, number: int = 7) -> None:
        super().__init__(rubric=Closeness())
        self.number = number
        self.thread = threading.get_ident()
        self._state = GuessState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        self._state = GuessState(episode_id=episode_id, same_thread=self.thread == threading.get_ident())
        return Hint(hint=f"1 to {kwargs.get('limit', 10)}")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        if action.number < 0:
            raise ArithmeticError("the file /srv/secret/numbers.txt has no such number")
        self._state.guesses.append(action.number)
        self._state.step_count += 1
        right = action.number == self.number
        said = Hint(hint="yes" if right else "higher" if action.number < self.number else "lower", done=right)
        said.reward = self._apply_rubric(action, said)
        return said

    @property
    def state(self) -> GuessState:
        return self._state


class CountingEnvironment(MCPEnvironment):  # type: ignore[misc]
    """Counts and scores in a ``step`` that OpenEnv's server never calls."""

    def __init__(self) -> None:
        mcp = FastMCP("counting")

        @mcp.tool
        def add(by: int) -> int:
            """Add."""
            self.count += by
            return self.count

        @mcp.tool
        def wait() -> None:
            """Never return."""
            threading.Event().wait()

        super().__init__(mcp)
        self.count = self.stepped = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.count = self.stepped = 0
        return Observation()

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self.stepped += 1
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        observation.reward = float(self.count)
        observation.done = self.count >= 5
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.stepped)


class OddlyNamedEnvironment(Environment[Guess, Hint, State]):  # type: ignore[misc]
    """An environment whose reset has options with names that mean something elsewhere."""

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: Any = None,
        asynchronous: Any = None,
        synchronous: Any = None,
        task: Any = None,
        mode: Any = None,
        schema: Any = None,
        instance: Any = None,
        **kwargs: Any,
    ) -> Hint:
        named = [options, asynchronous, synchronous, task, mode, schema, instance]
        return Hint(hint=repr([value for value in named if value is not None] + sorted(kwargs)))

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        return Hint()

    @property
    def state(self) -> State:
        return State()
