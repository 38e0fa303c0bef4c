"""The model's side of an episode: the requests of its agent to a model, and the model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Api = Literal["chat_completions", "responses", "messages", "generate_content"]
"""The APIs that are recorded: OpenAI's chat completions and responses, Anthropic's messages, and Gemini's."""

CONVERSATION: dict[Api, str] = {
    "chat_completions": "messages",
    "responses": "input",
    "messages": "messages",
    "generate_content": "contents",
}
"""The field of a request that has the conversation, by API."""


@dataclass(slots=True)
class TurnCall:
    """A tool call in an answer of a model.

    Attributes:
        id: the call's id in the model's API; None if it has none.
        name: the tool's name as the model wrote it, often with a prefix of the agent (``mcp__env__add``).
        arguments: the arguments as an object; their text if it is not a JSON object.
        step: the number of the episode's step that made this call; None if none did, as for the agent's own tools.
    """

    id: str | None
    name: str
    arguments: dict[str, Any] | str
    step: int | None = None


@dataclass(slots=True)
class TurnTokens:
    """The tokens of one answer, as far as the endpoint gives them; None where it does not.

    Attributes:
        ids: the ids of the sampled tokens.
        logprobs: their log-probabilities, each None or finite.
        texts: their texts.
    """

    ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    texts: list[str] | None = None

    def __len__(self) -> int:
        """Return the number of tokens."""
        return max(len(each or ()) for each in (self.ids, self.logprobs, self.texts))


@dataclass(slots=True)
class TurnUsage:
    """The usage of one answer, as the endpoint counted it; None for missing counts.

    Attributes:
        input_tokens: the tokens of the prompt, with those that were read from a cache or written to it.
        output_tokens: the sampled tokens.
        cached_tokens: the tokens of the prompt that were read from a cache.
        cost: the price in the endpoint's own unit, US dollars at OpenRouter.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None


@dataclass(slots=True)
class Repeated:
    """The part of a request that is equal to a part of an earlier one, and is stored only there.

    Attributes:
        turn: the index of the earlier turn in the episode's list.
        messages: the number of first messages of the conversation that are equal.
        fields: the names of further fields that are equal.
    """

    turn: int
    messages: int = 0
    fields: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ModelTurn:
    """One request to a model, and its answer.

    Attributes:
        api: the API.
        path: the path of the request, without its query.
        request: the request's body without the parts that ``repeated`` names; `request_of` returns it whole.
        repeated: the parts that an earlier turn of the episode has; None if there are none.
        started_at: the arrival of the request, in seconds since the epoch, UTC.
        first_byte_s: seconds until the answer's head; None without an answer.
        duration_s: seconds until the answer's end.
        status: the HTTP status; None if the endpoint gave no answer.
        streamed: True if the answer was an event stream. ``answer`` is then assembled from its events.
        answer: the body of the answer, without the data in ``tokens`` and ``prompt_ids``; text if it is not a JSON
            object.
        error: the reason for a missing answer, or the error in the answer.
        cut: the side that closed the connection before the answer's end; None if the answer is complete.
        model: the model that answered, or else the requested one.
        finish_reason: why the model stopped, in the words of the API.
        calls: the tool calls in the answer, in order.
        usage: the usage; None if the endpoint gave none.
        prompt_ids: the token ids of the prompt; None if the endpoint gave none.
        tokens: the tokens of each answer (``n`` in the request) of which the endpoint gave ids or log-probabilities.
        policy_version: the version of the weights that sampled it, as the endpoint said it; None if it did not.
    """

    api: Api
    path: str
    request: dict[str, Any]
    repeated: Repeated | None = None
    started_at: float = 0.0
    first_byte_s: float | None = None
    duration_s: float = 0.0
    status: int | None = None
    streamed: bool = False
    answer: dict[str, Any] | str | None = None
    error: str | None = None
    cut: Literal["agent", "endpoint"] | None = None
    model: str | None = None
    finish_reason: str | None = None
    calls: list[TurnCall] = field(default_factory=list)
    usage: TurnUsage | None = None
    prompt_ids: list[int] | None = None
    tokens: list[TurnTokens] = field(default_factory=list)
    policy_version: int | None = None

    @property
    def ended_at(self) -> float:
        """The end of the answer, in seconds since the epoch, UTC."""
        return self.started_at + self.duration_s


def request_of(turns: Sequence[ModelTurn], index: int) -> dict[str, Any]:
    """Return the whole body of a request.

    Args:
        turns: the turns of an episode, in their order.
        index: the index of the turn.
    """
    turn = turns[index]
    if turn.repeated is None:
        return dict(turn.request)
    before, conversation = request_of(turns, turn.repeated.turn), CONVERSATION[turn.api]
    whole = {name: before[name] for name in turn.repeated.fields} | turn.request
    if turn.repeated.messages:
        whole[conversation] = [*before[conversation][: turn.repeated.messages], *turn.request.get(conversation, ())]
    return whole
