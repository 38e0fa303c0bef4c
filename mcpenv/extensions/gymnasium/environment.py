"""Text environments of Gymnasium: one tool ``act``, for action spaces of text or of discrete choices.

Needs the package gymnasium. Rewards and ends are the environment's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import gymnasium
from gymnasium import spaces
from pydantic import Field

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import ToolCall, ToolOutcome

DRAWN = "ansi"
"""The render mode that gives text."""


class GymnasiumEnvironment(MCPEnvironment):
    """A text environment of Gymnasium. `load` makes the class.

    Attributes:
        gym_id: the environment's id.
        options: the arguments of ``gymnasium.make``.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    THREAD_AFFINE = True

    gym_id: ClassVar[str]
    options: ClassVar[Mapping[str, Any]]

    def __init__(self) -> None:
        self._gym: gymnasium.Env[Any, Any] = gymnasium.make(self.gym_id, **self.options)
        self._reward: float | None = None

        def act(action: Any) -> dict[str, Any]:
            return self._act(action)

        act.__annotations__ = {"action": _annotation(self._gym.action_space), "return": dict[str, Any]}
        self.tool(act, description="Take an action. Returns the observation and whether the episode is over.")

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Begin an episode. Its first observation is in the metadata and in the prompt."""
        observation, _ = self._gym.reset(seed=seed)
        shown = self._shown(observation)
        text = shown["text"] if "text" in shown else shown["observation"]
        return Observation(metadata={"prompt": f"{self.instructions()}\n\nThe first observation:\n{text}", **shown})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        """Return the reward of the environment's own step."""
        reward, self._reward = self._reward, None
        return reward

    def close(self) -> None:
        """Close the environment."""
        self._gym.close()

    def _act(self, action: Any) -> dict[str, Any]:
        observation, reward, terminated, truncated, _ = self._gym.step(action)
        self._reward = float(reward)
        if terminated or truncated:
            self.finish(truncated=not terminated)
        return {**self._shown(observation), "done": terminated or truncated}

    def _shown(self, observation: Any) -> dict[str, Any]:
        shown = {"observation": _plain(self._gym.observation_space, observation)}
        return {**shown, "text": self._gym.render()} if self._gym.render_mode == DRAWN else shown


def load(gym_id: str, /, **options: Any) -> type[GymnasiumEnvironment]:
    """Return the class of an environment.

    Args:
        gym_id: its id, or ``module:id`` if a module registers it.
        options: the arguments of ``gymnasium.make``. The default of ``render_mode`` is text, if there is such a mode.

    Raises:
        ConfigurationError: there is no such environment, or its spaces are neither text nor discrete.
    """
    try:
        made = gymnasium.make(gym_id, **options)
        if "render_mode" not in options and DRAWN in made.metadata.get("render_modes", ()):
            options["render_mode"] = DRAWN
        _annotation(made.action_space)
        _refuse(made.observation_space)
        about = (type(made.unwrapped).__doc__ or "").strip()
        made.close()
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigurationError(f"Gymnasium cannot make it: {error}") from error
    return type(
        "GymnasiumEnvironment",
        (GymnasiumEnvironment,),
        {
            "__doc__": f"{gym_id}, an environment of Gymnasium. Act with the tool act.\n\n{about}",
            "__module__": __name__,
            "EXPOSED_NAME": gym_id.rpartition(":")[2],
            "gym_id": gym_id,
            "options": options,
        },
    )


def _annotation(space: spaces.Space[Any]) -> Any:
    """Return the type of the argument of ``act``.

    Raises:
        ConfigurationError: it is neither text nor discrete.
    """
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        return Annotated[int, Field(ge=first, le=last, description=f"The number of an action, {first} to {last}.")]
    if isinstance(space, spaces.Text):
        letters = "".join(sorted(space.character_set))
        return Annotated[
            str,
            Field(
                min_length=space.min_length,
                max_length=space.max_length,
                description=f"Text of these characters: {letters}",
            ),
        ]
    raise ConfigurationError(f"its actions are a {type(space).__name__} space; only Text and Discrete can be served")


def _refuse(space: spaces.Space[Any]) -> None:
    """Raise if observations have a part that is neither text nor discrete."""
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            _refuse(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            _refuse(part)
    elif not isinstance(space, spaces.Discrete | spaces.Text | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ConfigurationError(
            f"its observations have a {type(space).__name__} space; only text and discrete ones can be served"
        )


def _plain(space: spaces.Space[Any], value: Any) -> Any:
    """Return an observation as JSON data."""
    if isinstance(space, spaces.Dict):
        return {name: _plain(part, value[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [_plain(part, item) for part, item in zip(space.spaces, value, strict=True)]
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return value.tolist()
    return int(value) if isinstance(space, spaces.Discrete) else str(value)
