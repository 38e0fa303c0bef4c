"""The episodes of one environment as Gymnasium counts them: observations, rewards, ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium import spaces

from mcpenv_client.conversation import Conversation
from mcpenv_client.formats.text_calls import TextCalls
from mcpenv_client.pool.sessions import Session
from mcpenv_client.types.turns import Ending, Turn

from .attempts import UNBEGUN, begun
from .failures import EpisodeFailed, rest_of
from .text_spaces import AnyJSON, AnyText

Call = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""

Step = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""


@dataclass(frozen=True)
class Rules:
    """The rules by which Gymnasium's environment is derived from episodes. The fields are arguments of `McpenvEnv`.

    Raises:
        ValueError: a field has a value that is not allowed.
    """

    actions: Sequence[Call] | None = None
    text_calls: TextCalls = "hermes"
    observations: Literal["text", "structured"] = "text"
    split: str | None = None
    max_steps: int = 50
    on_failure: Literal["nan", "raise"] = "nan"
    retries: int = 2
    mask_failed_steps: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.observations not in ("text", "structured") or self.on_failure not in ("nan", "raise"):
            raise ValueError('observations is "text" or "structured"; on_failure is "nan" or "raise"')

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space of one environment's actions."""
        return AnyText() if self.actions is None else spaces.Discrete(len(self.actions) + 1)

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of one environment's observations."""
        return AnyText() if self.observations == "text" else AnyJSON()

    def row(self, options: Mapping[str, Any] | None, random: Any, size: int | None) -> dict[str, Any]:
        """Return the row of the next episode.

        Args:
            options: the options of the environment's reset, such as ``index`` or ``task``.
            random: the generator of numpy that selects the task, or without tasks gives the seed.
            size: the number of tasks in the split.
        """
        own = dict(options or {})
        named: dict[str, Any] = {name: own.pop(name) for name in ("task", "index") if name in own}
        if self.split is None:
            return {**named, "seed": int(random.integers(2**31)), "options": own}
        if not named:
            named["index"] = int(random.integers(size))
        return {**named, "split": self.split, "options": own}


class GymnasiumEpisode:
    """One session's episodes, one after the other.

    Attributes:
        session: the session, which `close` ends.
        over: True if no episode runs.
    """

    def __init__(self, session: Session, rules: Rules) -> None:
        self.session = session
        self.over = True
        self._rules = rules
        self._conversation = Conversation(
            session,
            text_calls=rules.text_calls if rules.actions is None else None,
            max_turns=rules.max_steps,
            max_malformed=None,
            user_as_tool=rules.actions is not None,
            mask_failed_steps=rules.mask_failed_steps,
        )
        self._given: list[float] = []
        self._begun = False

    async def reset(self, row: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return its observation and info.

        Raises:
            ValueError: ``actions`` names a tool that the environment does not have.
            WireError: the environment refused the row.
            EpisodeFailed: the environment or the connection failed each time, with ``on_failure="raise"``.
        """
        opening = await begun(self._conversation, row, self._rules.retries)
        self._given, self.over, self._begun = [], opening is None and self._raises, opening is not None
        if opening is None:
            if self._raises:
                raise EpisodeFailed(UNBEGUN.status, UNBEGUN.reason)
            return self._observed("", None, []), {}
        unknown = {name for name, _ in self._rules.actions or ()} - set(self._conversation.tools.names.values())
        if unknown:
            raise ValueError(f"the environment has no tool {', '.join(sorted(unknown))}; it is in actions")
        text = "\n".join(str(message["content"]) for message in opening.messages)
        return self._observed(text, dict(opening.fields), []), {"tools": opening.tools}

    async def step(self, action: Any) -> Step:
        """Make the calls of an action. At the end of the episode the verifier runs.

        Raises:
            EpisodeFailed: the episode has no reward, with ``on_failure="raise"``.
        """
        if not self._begun:
            self.over = True
            return self._observed("", None, []), math.nan, False, True, _told(UNBEGUN)
        turn = await self._conversation.act(self._message(action))
        results = [observation.result for observation in turn.observations]
        data = results[-1].data if results and results[-1] is not None else None
        images = [block for result in results if result for block in result.content if block.get("type") == "image"]
        observed = self._observed(_text(turn), data, images)
        reward = 0.0 if turn.reward is None else turn.reward
        if not turn.done:
            self._given.append(reward)
            return observed, reward, False, False, {}
        self.over = True
        ending = await self._conversation.end()
        try:
            left = rest_of(ending, self._given)
        except EpisodeFailed:
            if self._raises:
                raise
            left = math.nan
        truncated = ending.truncated or not ending.status.usable
        return observed, left, not truncated, truncated, _told(ending)

    async def close(self) -> None:
        """End the episode and the session."""
        self.over = True
        await self._conversation.end(truncated=True, reason="closed")
        await self.session.close()

    @property
    def _raises(self) -> bool:
        return self._rules.on_failure == "raise"

    def _message(self, action: Any) -> Mapping[str, Any] | str:
        """Return the model's message for an action."""
        actions = self._rules.actions
        if actions is None:
            return str(action)
        if int(action) == len(actions):
            return ""
        name, arguments = actions[int(action)]
        listed = next(each for each, own in self._conversation.tools.names.items() if own == name)
        return {"tool_calls": [{"type": "function", "function": {"name": listed, "arguments": dict(arguments)}}]}

    def _observed(self, text: str, data: Any, images: list[dict[str, Any]]) -> Any:
        return text if self._rules.observations == "text" else {"text": text, "data": data, "images": images}


def _text(turn: Turn) -> str:
    return "\n".join(str(message["content"]) for message in turn.messages)


def _told(ending: Ending) -> dict[str, Any]:
    """Return the part of ``info`` about an episode's end.

    Ids and addresses are omitted: equal seeds give equal infos.
    """
    return {
        "status": ending.status.code.value,
        "retryable": ending.status.retryable,
        "reason": ending.reason,
        "return": ending.reward,
        "parts": dict(ending.parts),
    }
