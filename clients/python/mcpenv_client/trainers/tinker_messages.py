"""The episode as messages of a renderer of tinker-cookbook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinker_cookbook.renderers import Message, Renderer, get_text_content
from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult

from mcpenv_client.client import EnvClient
from mcpenv_client.conversation import ABANDONED, Conversation

from .failures import rest_of
from .hosted import WAIT_FOR_SLOT_S


class EpisodeMessages(MessageEnv):
    """One episode as messages of a renderer.

    The last step's reward includes the reward of the end. A failure of the environment, a judge or the connection
    raises `EpisodeFailed` or an error of the client, which the rollout strategy retries or drops. An episode that
    nothing scored raises too.

    Args:
        url: the server.
        row: the columns that identify the episode at a reset.
        renderer: the renderer, which writes tools and reads calls.
        system: a system prompt before the tools.
        max_turns: the maximum of the model's messages; None: no limit.
        client: arguments of `EnvClient`.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
    """

    def __init__(
        self,
        url: str,
        row: Mapping[str, Any],
        renderer: Renderer,
        *,
        system: str = "",
        max_turns: int | None = 50,
        client: Mapping[str, Any] | None = None,
        mask_failed_steps: bool = True,
    ) -> None:
        self._session = EnvClient(url, **{"capacity_timeout_s": WAIT_FOR_SLOT_S, **(client or {})})
        self._conversation = Conversation(self._session, max_turns=max_turns, mask_failed_steps=mask_failed_steps)
        self._row = row
        self._renderer = renderer
        self._system = system
        self._history: list[Message] = []
        self._given: list[float] = []
        self.example_id = str(row.get("task_id", row.get("seed", row.get("index"))))

    async def initial_observation(self) -> list[Message]:
        """Begin the episode, and return its tools and its prompt."""
        opening = await self._conversation.begin(self._row)
        self._given.clear()
        specs = [listed["function"] for listed in opening.tools]
        prefix = self._renderer.create_conversation_prefix_with_tools(specs, self._system)
        self._history = [*prefix, *opening.messages]
        return self._history

    async def step(self, message: Message) -> MessageStepResult:
        """Make the message's calls. At the end, the verifier's reward is part of the reward.

        Raises:
            EpisodeFailed: the episode has no reward.
        """
        calls = [call.model_dump() for call in message.get("tool_calls") or ()]
        # Calls that the renderer could not read are answered by the conversation.
        unread = [{"name": "", "arguments": call.raw_text} for call in message.get("unparsed_tool_calls") or ()]
        calls += [{"type": "function", "function": function} for function in unread]
        turn = await self._conversation.act({"content": get_text_content(message), "tool_calls": calls})
        names = {call.id: call.name for call in turn.calls}
        self._history.append(message)
        self._history += [_named(answer, names) for answer in turn.messages]
        if not turn.done:
            reward = turn.reward or 0.0
            self._given.append(reward)
            return MessageStepResult(reward, False, self._history)
        ending = await self._conversation.end()
        await self.close()
        metrics = {f"parts/{name}": value for name, value in ending.parts.items()}
        return MessageStepResult(rest_of(ending, self._given), True, self._history, metrics)

    async def observe_truncated_response(self, message: Message) -> list[Message]:
        """Add a truncated message. Its calls are not made."""
        self._history.append(message)
        return self._history

    async def add_messages(self, messages: list[Message]) -> list[Message]:
        """Add messages of the trainer."""
        self._history.extend(messages)
        return self._history

    async def close(self) -> None:
        """End the session, and an episode that is not over."""
        await self._conversation.end(truncated=True, reason=ABANDONED)
        await self._session.close()


def _named(answer: dict[str, Any], names: Mapping[str, str]) -> Message:
    """Return an answer with the name of its tool, which some renderers write."""
    message: Message = {**answer}
    if answer["role"] == "tool":
        message["name"] = names[answer["tool_call_id"]]
    return message
