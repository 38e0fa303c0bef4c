"""One episode as the tokens that TRL trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trl.chat_template_utils import parse_response

from mcpenv_client.conversation import Conversation
from mcpenv_client.samples import Sample, SampledTurn, samples_of
from mcpenv_client.types.turns import NOT_BEGUN, Ending, Message

from .attempts import begun
from .failures import warn_of_mask
from .sessions import Sessions

FULL = "max_completion_length"
"""The reason for the end of an episode without room for another turn, or after an answer that was cut."""


class Rollout:
    """One episode, and the tokens of its model's turns.

    Attributes:
        sessions: where it is played.
        prompt: all tokens before the model's next turn.
        done: True if the model's turns are over.
        ending: the end of the episode, after `end`.
    """

    def __init__(self, sessions: Sessions, conversation: Conversation, retries: int) -> None:
        self.sessions = sessions
        self._conversation = conversation
        self._retries = retries
        self._turns: list[SampledTurn] = []
        self._room = 0
        self.prompt: list[int] = []
        self.done = True
        self.ending: Ending = NOT_BEGUN

    @property
    def sample(self) -> Sample:
        """The tokens of the episode, with its return and status. Without a turn, there is nothing to train on."""
        ending = self.ending
        about: dict[str, Any] = {"reward": ending.reward, "parts": ending.parts, "truncated": ending.truncated}
        about |= {"status": ending.status.code.value, "usable": ending.reward is not None}
        made = samples_of(self._turns, **about)  # one: each prompt continues the tokens before it
        return made[0] if made and made[0].tokens else Sample(self.prompt, [0] * len(self.prompt), **about)

    async def begin(self, row: Mapping[str, Any], trainer: Any) -> None:
        """Begin an episode. A failure not caused by the row is retried, then masked.

        Raises:
            WireError: the environment refused the row.
        """
        self._turns, self._room, self.ending = [], trainer.max_completion_length, NOT_BEGUN
        opening = await begun(self._conversation, row, self._retries)
        messages, tools = (
            ([{"role": "user", "content": ""}], None) if opening is None else (opening.messages, opening.tools)
        )
        self.done = opening is None or opening.done
        self.prompt = _tokens(trainer, messages, tools)

    async def act(self, tokens: list[int], trainer: Any) -> None:
        """Make the calls in the model's tokens, and append the messages that follow."""
        before, kept = self.prompt, tokens[: self._room]
        self._turns.append(SampledTurn(before, kept, index=len(self._turns)))
        self._room -= len(kept)
        if len(kept) < len(tokens) or not _complete(tokens, trainer):
            await self._stop()
            return
        tools = self._conversation.tools.listed
        message = parse_response(trainer.processing_class, tokens, before, tools)
        turn = await self._conversation.act(message)
        self.done = turn.done
        if self.done:
            return
        answer = _answer_tokens(trainer, message, turn.messages, tools)
        self.prompt = [*before, *kept, *answer]
        self._room -= len(answer)
        if self._room <= 0:
            await self._stop()

    async def end(self) -> None:
        """End the episode, which runs the verifier."""
        if self.ending is NOT_BEGUN:
            self.ending = await self._conversation.end()
        warn_of_mask(self.ending)

    async def _stop(self) -> None:
        self.done = True
        self.ending = await self._conversation.end(truncated=True, reason=FULL)


def _complete(tokens: Sequence[int], trainer: Any) -> bool:
    """Return True if an answer has an end, as TRL sees it, or the model has none."""
    marks = trainer.generation_config.eos_token_id
    ends = {*marks} if isinstance(marks, list | tuple) else {marks}
    ends |= {trainer.processing_class.eos_token_id}
    ends.discard(None)
    return not ends or (bool(tokens) and tokens[-1] in ends)


def _tokens(trainer: Any, messages: Sequence[Any], tools: Any, prompt: bool = True) -> list[int]:
    tokens: list[int] = trainer.processing_class.apply_chat_template(
        [dict(message) for message in messages],
        tools=tools,
        add_generation_prompt=prompt,
        tokenize=True,
        return_dict=False,
        **(trainer.args.chat_template_kwargs or {}),
    )
    return tokens


def _answer_tokens(trainer: Any, message: Mapping[str, Any], answers: Sequence[Message], tools: Any) -> list[int]:
    """Return the tokens that the template adds to the model's message for the answers of tools."""
    asked = [{"role": "user", "content": ""}, {"content": "", **message}]
    before, after = _tokens(trainer, asked, tools, prompt=False), _tokens(trainer, [*asked, *answers], tools)
    end = trainer.processing_class.eos_token_id
    # Some templates write the model's message differently once others follow, for example without its thoughts. It ends
    # with as many end marks as before.
    marks = before.count(end)
    if marks:
        return after[[at for at, token in enumerate(after) if token == end][marks - 1] + 1 :]
    if after[: len(before)] != before:
        raise ValueError("the chat template has no end marks, and writes the model's message anew; use McpenvSpec")
    return after[len(before) :]
