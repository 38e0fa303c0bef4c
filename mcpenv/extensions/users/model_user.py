"""The user who is a language model, at any endpoint with OpenAI's chat completions: `ModelUser`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpenv.errors import EndpointFailed, UserFailed
from mcpenv.extensions.models.chat_completions import ChatEndpoint, MalformedAnswer, message_in, tokens_in
from mcpenv_client.formats.model_calls import ModelCall, read_message
from mcpenv_client.formats.tool_formats import ProviderTools, tools_for
from mcpenv_client.types.users import UserCall, UserTurn
from mcpenv_client.types.values import encode

from .user_tools import UserTools

if TYPE_CHECKING:
    import httpx

STOP = "###STOP###"
"""The text with which a model ends the conversation."""

_SYSTEM = """You play a user who speaks with an agent. Stay in this role, and never do the agent's work. Write only \
what the user says next, in one short message. Tell things when the agent needs them, not all at once, and make \
nothing up that your goal does not say. When your goal is reached, or the agent cannot help you, write {stop}.

# Your goal

{goal}"""

MAX_ROUNDS = 10
"""Maximum requests with tool calls in one turn of the user."""


class ModelUser:
    """The user that a model plays, with a goal that the agent does not see.

    All turns use one seed. The conversation is kept with the environment's state: a fork continues it.

    Attributes:
        messages: the conversation from the model's side, without the system message.

    Args:
        base_url: URL of the endpoint, such as "https://api.openai.com/v1"; "/chat/completions" is appended.
        model: name of the model at the endpoint.
        goal: the user's identity and goal, for the model.
        seed: the seed of requests, such as the seed of ``reset``; None: requests have none.
        api_key_env: the environment variable that has the key; None for no key. The key itself is never stored.
        temperature, max_tokens: None leaves them to the endpoint.
        timeout_s, tries, backoff_s: as `ChatEndpoint` has them.
        stops: texts with which the user leaves. They are removed from the text for the agent.
        system: the system message, with ``{goal}`` and ``{stop}``, the first of ``stops``.
        extra: further fields of each request.

    Raises:
        ValueError: the URL cannot be used, or there is no stop.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        goal: str,
        *,
        seed: int | None = None,
        api_key_env: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout_s: float = 60.0,
        tries: int = 4,
        backoff_s: float = 1.0,
        stops: tuple[str, ...] = (STOP,),
        system: str = _SYSTEM,
        extra: dict[str, Any] | None = None,
    ) -> None:
        if not stops or not all(stops):
            raise ValueError("ModelUser: stops is empty, or has an empty text; the user could not leave")
        self.endpoint = ChatEndpoint(base_url, api_key_env, timeout_s, tries, backoff_s)
        self.endpoint.check("ModelUser: base_url")
        self.model, self.seed, self.stops = model, seed, stops
        options = {"seed": seed, "temperature": temperature, "max_tokens": max_tokens}
        self.request = {"model": model, **(extra or {}), **{k: v for k, v in options.items() if v is not None}}
        self.system = system.replace("{stop}", stops[0]).replace("{goal}", goal)
        self.messages: list[dict[str, Any]] = []

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """Return the model's answer, after the calls that it makes.

        Raises:
            UserFailed: the endpoint failed, or the model only called tools.
        """
        turn = _Turn(self, message, tools_for("openai", tools.listed))
        # A client is bound to its event loop, and environments have several: use one for each turn.
        async with self.endpoint.http() as http:
            for _ in range(MAX_ROUNDS):
                calls = await turn.ask(http)
                if not calls:
                    self.messages = turn.messages
                    return turn.over()
                for call in calls:
                    if call.action is None:
                        turn.made(call, UserCall(call.name, {}, f"Error: {call.problem}"))
                    else:
                        turn.made(call, await tools.call(call.action.tool_name, call.action.arguments))
        raise UserFailed(f"the model called tools {MAX_ROUNDS} times and said nothing", turn.failed("only tool calls"))


class _Turn:
    """One turn of the user, while it is made. The user's own conversation changes only when the turn ends."""

    def __init__(self, user: ModelUser, message: str, tools: ProviderTools) -> None:
        self._user, self._tools = user, tools
        self.messages = [*user.messages, {"role": "user", "content": message}]
        self._calls: list[UserCall] = []
        self._requests = self._prompt_tokens = self._completion_tokens = 0

    async def ask(self, http: httpx.AsyncClient) -> list[ModelCall]:
        """Request the next message, store it, and return its calls."""
        user = self._user
        request = {**user.request, "messages": [{"role": "system", "content": user.system}, *self.messages]}
        if self._tools.listed:
            request["tools"] = self._tools.listed
        try:
            kept, calls = await user.endpoint.ask(http, encode(request), self._read, self._count_request)
        except EndpointFailed as error:
            # The endpoint's own text may quote the conversation, which must not be logged.
            raise UserFailed(error.reason, self.failed(error.reason)) from error
        self.messages.append(kept)
        return calls

    def made(self, call: ModelCall, answered: UserCall) -> None:
        """Store the answer to a call."""
        self._calls.append(answered)
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": answered.result})

    def over(self) -> UserTurn:
        """Return the turn, which ends with the last message."""
        text = str(self.messages[-1]["content"])
        left = any(stop in text for stop in self._user.stops)
        for stop in self._user.stops:
            text = text.replace(stop, "")
        return self._turn(text.strip(), done=left)

    def failed(self, reason: str) -> UserTurn:
        """Return the turn without an answer."""
        return self._turn("", error=reason)

    def _turn(self, text: str, *, done: bool = False, error: str | None = None) -> UserTurn:
        user = self._user
        tokens = self._prompt_tokens, self._completion_tokens
        return UserTurn(text, done, self._calls, user.model, user.seed, self._requests, *tokens, error)

    def _count_request(self) -> None:
        self._requests += 1

    def _read(self, answer: dict[str, Any]) -> tuple[dict[str, Any], list[ModelCall]]:
        """Return the message of an answer and its calls; count its tokens, even if it is malformed.

        Raises:
            MalformedAnswer: the answer has no message, or one without text and calls.
        """
        self._prompt_tokens += tokens_in(answer, "prompt_tokens")
        self._completion_tokens += tokens_in(answer, "completion_tokens")
        message, finish_reason = message_in(answer)
        try:
            kept, calls = read_message(message, self._tools, len(self.messages))
        except ValueError as error:
            raise MalformedAnswer(str(error)) from error
        if not calls and not (isinstance(kept["content"], str) and kept["content"].strip()):
            raise MalformedAnswer("the message has neither text nor tool calls")
        if not calls and (message.get("refusal") or finish_reason in ("length", "content_filter")):
            raise MalformedAnswer("the model refused, or stopped before the end")
        return kept, calls
