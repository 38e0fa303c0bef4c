"""The adapter for Gymnasium: an environment of mcpenv as a `gymnasium.Env`.

Needs the package gymnasium. Importing this module registers ``mcpenv/Env-v0``, which takes the arguments of
`McpenvEnv`; `register` adds ids of your own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium

from mcpenv_client.formats.text_calls import TextCalls

from .failures import EpisodeFailed
from .gymnasium_episode import Call, GymnasiumEpisode, Rules, Step
from .sessions import Place, Sessions

ID = "mcpenv/Env-v0"

_VECTOR = "mcpenv_client.trainers.gymnasium_vector:McpenvVectorEnv"


class McpenvEnv(gymnasium.Env[Any, Any]):
    """An environment of mcpenv, or one session of a server, for Gymnasium.

    An action is a text in which a model calls tools, or the number of a call in ``actions``. The episode ends when the
    environment ends it, at ``max_steps``, or at an action without a call: a text without one, or the number
    ``len(actions)``. If the episode has a user, a text without a call goes to the user. The verifier runs at every end,
    and its reward is part of the last step's reward.

    ``info`` of the last step has ``status``, ``retryable``, ``reason``, ``return`` and the ``parts`` of the rewards.
    ``info`` of a reset has ``tools`` with whole schemas. If the environment, a judge or the connection failed, the
    reward is NaN and the episode truncated, or `EpisodeFailed` is raised. If nothing scored the episode, the reward is
    NaN too, or `EpisodeFailed` is raised. An episode whose reset failed has an empty observation and fails at its
    first step.

    Args:
        target: servers or an environment in this process, as `Sessions` takes it.
        actions: a call for each number of a `Discrete` action space; None: actions are texts.
        text_calls: how texts call tools, as `Conversation` takes it.
        observations: ``"text"``: the prompt, then the answers to the calls; ``"structured"``: an object with this
            ``text``, the ``data`` of the last result (at first the fields of the reset), and ``images``.
        split: the split from which a reset takes a task, by the seed or ``options={"index": ...}``; None: no task.
        max_steps: the maximum of actions in an episode.
        on_failure: ``"nan"`` or ``"raise"``.
        retries: the number of retries of a reset after the environment or the connection failed.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
        settings: settings of the target, in this process.
        client: arguments of `EnvClient`, for a URL.

    Raises (reset):
        ValueError: ``actions`` has a tool that the environment has not.
        WireError: the environment refused.
        EpisodeFailed: the environment or the connection failed each time; see ``on_failure``.
        ConnectionFailed, PoolError: there is no session.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        target: Place,
        *,
        actions: Sequence[Call] | None = None,
        text_calls: TextCalls = "hermes",
        observations: Literal["text", "structured"] = "text",
        split: str | None = None,
        max_steps: int = 50,
        on_failure: Literal["nan", "raise"] = "nan",
        retries: int = 2,
        mask_failed_steps: bool = True,
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
        render_mode: None = None,
    ) -> None:
        self.rules = Rules(actions, text_calls, observations, split, max_steps, on_failure, retries, mask_failed_steps)
        self.sessions = Sessions(target, settings, client)
        self.render_mode = render_mode
        self.action_space = self.rules.action_space
        self.observation_space = self.rules.observation_space
        self._episode: GymnasiumEpisode | None = None
        self._size: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seeds `np_random`, which selects the task, or without tasks gives the seed of each episode.
            options: the options of the environment's reset, such as ``index`` or ``task``.
        """
        super().reset(seed=seed)
        if self._episode is None:
            session = self.sessions.open()
            self._episode = GymnasiumEpisode(session, self.rules)
            self._size = None if self.rules.split is None else self.sessions.num_tasks(self.rules.split)
        episode, row = self._episode, self.rules.row(options, self.np_random, self._size)
        return self.sessions.run(lambda: episode.reset(row))

    def step(self, action: Any) -> Step:
        """Make the calls of an action.

        Raises:
            EpisodeFailed: see ``on_failure``.
        """
        episode = self._episode
        if episode is None or episode.over:
            raise gymnasium.error.ResetNeeded("no episode is running; call reset() first")
        return self.sessions.run(lambda: episode.step(action))

    def close(self) -> None:
        """End the episode and the session. Safe to call twice."""
        episode, self._episode = self._episode, None
        if episode is not None:
            self.sessions.run(episode.close)


def register(env_id: str, target: Place, **arguments: Any) -> None:
    """Register an environment for ``gymnasium.make(env_id)``.

    Args:
        env_id: its id, such as ``mcpenv/Ledger-v0``.
        target: as `McpenvEnv` takes it.
        arguments: arguments of `McpenvEnv`.
    """
    gymnasium.register(
        env_id, entry_point=f"{__name__}:McpenvEnv", vector_entry_point=_VECTOR, kwargs={"target": target, **arguments}
    )


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:McpenvEnv", vector_entry_point=_VECTOR)

__all__ = ["ID", "EpisodeFailed", "McpenvEnv", "register"]
