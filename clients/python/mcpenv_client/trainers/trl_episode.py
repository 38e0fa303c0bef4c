"""The environment of one rollout slot of TRL's `GRPOTrainer`: `McpenvSpec.environment_factory` makes it."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcpenv_client.conversation import OVER, Conversation
from mcpenv_client.formats.images import block_of
from mcpenv_client.types.turns import NOT_BEGUN, Ending, Message

from .attempts import begun
from .failures import warn_of_mask
from .sessions import Sessions


class ToolSchema(dict[str, Any]):
    """The schema of a tool as chat templates take it whole, which TRL also calls as a method."""

    def __init__(self, listed: Mapping[str, Any], call: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(listed)
        self.__name__: str = listed["function"]["name"]
        self._call = call

    def __call__(self, /, **arguments: Any) -> Any:
        """Call the tool, and return the answer for the model."""
        return self._call(self.__name__, arguments)


class TrainedEpisode:
    """The episodes of one rollout slot of TRL, one after the other. `McpenvSpec.environment_factory` makes it.

    Its tools are attributes with the tools' names. After the end of an episode they answer that it is over.

    Attributes:
        ending: the end of the last episode, with its status, after `get_reward` was called.
    """

    def __init__(
        self,
        sessions: Sessions,
        tools: Sequence[Mapping[str, Any]],
        *,
        images: bool,
        retries: int,
        mask_failed_steps: bool = True,
    ) -> None:
        self._sessions = sessions
        self._retries = retries
        self._session = sessions.open()
        self._conversation = Conversation(
            self._session,
            tool_format="hf",
            max_turns=None,
            max_malformed=None,
            images=images,
            user_as_tool=True,
            mask_failed_steps=mask_failed_steps,
        )
        self.ending: Ending = NOT_BEGUN
        self._begun = False
        for listed in tools:
            self.__dict__[listed["function"]["name"]] = ToolSchema(listed, self._call)

    def reset(self, **row: Any) -> str | list[dict[str, Any]]:
        """Begin an episode, and return its prompt, which TRL appends to the row's.

        A failure not caused by the row is retried, then masked: the tools answer that the episode is over.

        Raises:
            WireError: the environment refused the row.
        """
        self.ending = NOT_BEGUN
        opening = self._sessions.run(lambda: begun(self._conversation, row, self._retries))
        self._begun = opening is not None
        return "" if opening is None else _content(opening.messages)

    def get_reward(self) -> float | None:
        """End the episode, and return its return. None masks it: nothing was scored, or the agent is not to blame."""
        if self.ending is NOT_BEGUN:
            if self._begun:
                self.ending = self._sessions.run(self._conversation.end)
            warn_of_mask(self.ending)
        return self.ending.reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        if not self._begun or self._conversation.done:
            return OVER
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        turn = self._sessions.run(lambda: self._conversation.act({"tool_calls": [call]}))
        return _content(turn.messages)


def _content(messages: Sequence[Message]) -> str | list[dict[str, Any]]:
    """Return the contents of messages as TRL takes them: one text, or parts if there are images."""
    parts: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else map(_part, content)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    block = block_of(part)
    if block is None:
        return part
    from PIL import Image  # a model that accepts images needs it

    return {"type": "image", "image": Image.open(io.BytesIO(base64.b64decode(block["data"])))}
