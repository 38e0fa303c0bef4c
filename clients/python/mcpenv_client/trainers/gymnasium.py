"""The adapter for Gymnasium: an environment of mcpenv as a `gymnasium.Env`.

Needs the package gymnasium. Importing this module registers ``mcpenv/Env-v0``, which takes the arguments of
`McpenvEnv`; `register` adds ids of your own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
from gymnasium import spaces

from mcpenv_client.conversation import Conversation
from mcpenv_client.formats.model_calls import TextCalls
from mcpenv_client.pool.episode import Session
from mcpenv_client.pool.instances import Target
from mcpenv_client.types.turns import Ending, Turn

from .failures import EpisodeFailed
from .sessions import Sessions
from .text_spaces import AnyJSON, AnyText

ID = "mcpenv/Env-v0"

Call = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""


class McpenvEnv(gymnasium.Env[Any, Any]):
    """An environment of mcpenv, or one session of a server, for Gymnasium.

    An action is a text in which a model calls tools, or the number of a call in ``actions``. The episode ends when the
    environment ends it, at ``max_steps``, or at an action without a call: a text without one, or the number
    ``len(actions)``. The verifier is asked at every end, and its reward is part of the last step's.

    ``info`` of the last step has ``status``, ``retryable``, ``reason``, ``return`` and the ``parts`` of the rewards.
    ``info`` of a reset has ``tools`` with whole schemas. If the environment, a judge or the connection failed, the
    reward is NaN and the episode truncated, or `EpisodeFailed` is raised.

    Args:
        target: the URL of a server or an environment in this process, as `Sessions` takes it.
        actions: a call for each number of a `Discrete` action space; None: actions are texts.
        text_calls: how texts call tools, as `Conversation` takes it.
        observations: ``"text"``: the prompt, then the answers to the calls; ``"structured"``: an object with this
            ``text``, the ``data`` of the last result (at first the fields of the reset), and ``images``.
        split: the split from which a reset takes a task, by the seed or ``options={"index": ...}``; None: no task.
        max_steps: the maximum of actions in an episode.
        on_failure: ``"nan"`` or ``"raise"``.
        settings: settings of the target, in this process.
        client: arguments of `EnvClient`, for a URL.

    Raises (reset):
        ValueError: ``actions`` has a tool that the environment has not.
        WireError, ConnectionFailed, PoolError: the environment cannot begin an episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        target: Target,
        *,
        actions: Sequence[Call] | None = None,
        text_calls: TextCalls = "hermes",
        observations: Literal["text", "structured"] = "text",
        split: str | None = None,
        max_steps: int = 50,
        on_failure: Literal["nan", "raise"] = "nan",
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
        render_mode: None = None,
    ) -> None:
        if observations not in ("text", "structured") or on_failure not in ("nan", "raise"):
            raise ValueError('observations is "text" or "structured"; on_failure is "nan" or "raise"')
        self.sessions = Sessions(target, settings, client)
        self.actions = None if actions is None else [(name, dict(arguments)) for name, arguments in actions]
        self.render_mode = render_mode
        self.action_space = AnyText() if self.actions is None else spaces.Discrete(len(self.actions) + 1)
        self.observation_space = AnyText() if observations == "text" else AnyJSON()
        self.split = split
        self._structured = observations == "structured"
        self._text_calls = text_calls if self.actions is None else None
        self._max_steps = max_steps
        self._on_failure = on_failure
        self._session: Session | None = None
        self._conversation: Conversation
        self._size: int | None = None
        self._given = 0.0
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seeds `np_random`, which selects the task, or without tasks gives the seed of each episode.
            options: the options of the environment's reset, such as ``index`` or ``task``.
        """
        super().reset(seed=seed)
        if self._session is None:
            self._session = self.sessions.open()
            self._conversation = Conversation(
                self._session, text_calls=self._text_calls, max_turns=self._max_steps, max_malformed=None
            )
        row = self._row(self._session, dict(options or {}))
        opening = self.sessions.run(lambda: self._conversation.begin(row))
        unknown = {name for name, _ in self.actions or ()} - set(self._conversation.tools.names.values())
        if unknown:
            raise ValueError(f"the environment has no tool {', '.join(sorted(unknown))}; it is in actions")
        self._given, self._over = 0.0, False
        text = "\n".join(str(message["content"]) for message in opening.messages)
        return self._observed(text, dict(opening.fields), []), {"tools": opening.tools}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make the calls of an action.

        Raises:
            EpisodeFailed: see ``on_failure``.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("no episode is running; call reset() first")
        turn = self.sessions.run(lambda: self._conversation.act(self._message(action)))
        results = [observation.result for observation in turn.observations]
        data = results[-1].data if results and results[-1] is not None else None
        images = [block for result in results if result for block in result.content if block.get("type") == "image"]
        observed = self._observed(_text(turn), data, images)
        reward = 0.0 if turn.reward is None else turn.reward
        if not turn.done:
            self._given += reward
            return observed, reward, False, False, {}
        self._over = True
        ending = self.sessions.run(self._conversation.end)
        if not ending.status.usable and self._on_failure == "raise":
            raise EpisodeFailed(ending.status, ending.reason)
        truncated = ending.truncated or not ending.status.usable
        return observed, self._last_reward(ending), not truncated, truncated, _told(ending)

    def close(self) -> None:
        """End the episode and the session. Safe to call twice."""
        if self._session is not None:
            session, self._session, self._over = self._session, None, True
            self.sessions.run(lambda: self._conversation.end(truncated=True, reason="closed"))
            self.sessions.close(session)

    # -- parts

    def _row(self, session: Session, options: dict[str, Any]) -> dict[str, Any]:
        """Return the row of the next episode."""
        named: dict[str, Any] = {name: options.pop(name) for name in ("task", "index") if name in options}
        if self.split is None:
            return {**named, "seed": int(self.np_random.integers(2**31)), "options": options}
        if not named:
            if self._size is None:
                self._size = self.sessions.num_tasks(session, self.split)
            named["index"] = int(self.np_random.integers(self._size))
        return {**named, "split": self.split, "options": options}

    def _message(self, action: Any) -> Mapping[str, Any] | str:
        """Return the model's message that an action stands for."""
        if self.actions is None:
            return str(action)
        if int(action) == len(self.actions):
            return ""
        name, arguments = self.actions[int(action)]
        listed = next(each for each, own in self._conversation.tools.names.items() if own == name)
        return {"tool_calls": [{"type": "function", "function": {"name": listed, "arguments": arguments}}]}

    def _observed(self, text: str, data: Any, images: list[dict[str, Any]]) -> Any:
        return {"text": text, "data": data, "images": images} if self._structured else text

    def _last_reward(self, ending: Ending) -> float:
        """Return what is left of the return; NaN if the status says that rewards are not about the agent."""
        if not ending.status.usable:
            return math.nan
        return (ending.reward or 0.0) - self._given


def register(env_id: str, target: Target, **arguments: Any) -> None:
    """Register an environment for ``gymnasium.make(env_id)``.

    Args:
        env_id: its id, such as ``mcpenv/Ledger-v0``.
        target: as `McpenvEnv` takes it.
        arguments: arguments of `McpenvEnv`.
    """
    gymnasium.register(env_id, entry_point=f"{__name__}:McpenvEnv", kwargs={"target": target, **arguments})


def _text(turn: Turn) -> str:
    return "\n".join(str(message["content"]) for message in turn.messages)


def _told(ending: Ending) -> dict[str, Any]:
    """Return what ``info`` says of an episode's end. Ids and addresses are left out: equal seeds give equal infos."""
    return {
        "status": ending.status.code.value,
        "retryable": ending.status.retryable,
        "reason": ending.reason,
        "return": ending.reward,
        "parts": dict(ending.parts),
    }


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:McpenvEnv")

__all__ = ["ID", "EpisodeFailed", "McpenvEnv", "register"]
