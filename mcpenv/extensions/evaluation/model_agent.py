"""The agent that is a language model with tool calls, at an endpoint with OpenAI's chat completions API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from mcpenv.errors import ConfigurationError, EndpointFailed
from mcpenv.extensions.models.chat_completions import ChatEndpoint, MalformedAnswer, message_in, tokens_in
from mcpenv_client.connection.addresses import without_password
from mcpenv_client.conversation import MALFORMED, MAX_MALFORMED, MAX_TURNS, Conversation
from mcpenv_client.errors import ConnectionFailed, ToolNotExpressible
from mcpenv_client.types.values import encode

from .agent import Acted, Play
from .results import Failure

logger = logging.getLogger("mcpenv")

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"

_CONVERSATIONS_FAULT = {400, 413, 422}
_NOBODY_GETS_IN = {401, 403, 404, 405}


@dataclass
class ModelAgent:
    """The agent that lets a model play in a chat: prompt, tool calls and their results, until it stops calling tools.

    In an environment with a user, messages without calls go to the user, until the user leaves. The calls of one
    message are made in order. A call that cannot be parsed is answered with an error for the model.

    Args:
        model: the model's name at the endpoint.
        base_url: the endpoint's URL; "/chat/completions" is added.
        api_key_env: the environment variable with the key; None if no key is needed.
        system: a system message before the prompt.
        temperature, max_tokens: None for the endpoint's defaults.
        max_turns: maximum answers of the model in an episode.
        tries: maximum tries of a request when the endpoint is busy or fails.
        request_timeout_s: timeout of one try, in seconds.
        backoff_s: as `ChatEndpoint.backoff_s`.
        extra: further fields of each request.
        context_tokens: the tokens of the model's context. The model gets tools that drop old turns and find them again.
            None: without such tools.
        tool_format: the format of the tools: "openai", or "openai-strict" for calls that always fit their schemas.
        images: True to send images of observations and results to the model. They follow in a user message, because
            results of tools are text in this API. False: the model reads ``[image]``.

    Raises:
        ConfigurationError: an argument cannot be used.
    """

    model: str
    base_url: str = DEFAULT_URL
    api_key_env: str | None = None
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_turns: int = 50
    tries: int = 6
    request_timeout_s: float = 600.0
    backoff_s: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)
    context_tokens: int | None = None
    tool_format: Literal["openai", "openai-strict"] = "openai"
    images: bool = False

    def __post_init__(self) -> None:
        for name in ("max_turns", "tries", "context_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        self._endpoint = ChatEndpoint(
            self.base_url, self.api_key_env, self.request_timeout_s, self.tries, self.backoff_s
        )
        try:
            self._endpoint.check("base_url")
            self._endpoint.api_key()
        except (ValueError, EndpointFailed) as error:
            raise ConfigurationError(str(error)) from error
        self._http: httpx.AsyncClient | None = None
        self._answered = False
        self._warned = False

    def described(self) -> dict[str, Any]:
        """Return the agent's settings as plain JSON data, without the key."""
        return {
            "kind": "model",
            "model": self.model,
            "base_url": without_password(self.base_url),
            "system": self.system,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "max_turns": self.max_turns,
            "extra": self.extra,
            **({} if self.context_tokens is None else {"context_tokens": self.context_tokens}),
            **({} if self.tool_format == "openai" else {"tool_format": self.tool_format}),
            **({"images": True} if self.images else {}),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the HTTP client that all episodes share; close it at the end."""
        async with self._endpoint.http() as http:
            self._http = http
            try:
                yield
            finally:
                self._http = None

    async def act(self, play: Play) -> Acted:
        """Play one episode.

        Raises:
            ConnectionFailed: the connection to the server is lost.
            ConfigurationError: the endpoint denies access, or has not answered any request yet; or the format of the
                tools cannot express one of them.
        """
        conversation = Conversation(
            play.env,
            tool_format=self.tool_format,
            system=self.system,
            max_turns=self.max_turns,
            images=self.images,
            context_tokens=self.context_tokens,
        )
        acted = Acted(turns=0, messages=conversation.messages, prompt_tokens=0, completion_tokens=0)
        try:
            conversation.join(play.prompt, play.tools, play.images)
        except (ToolNotExpressible, ValueError) as error:
            raise ConfigurationError(str(error)) from error
        acted.messages = conversation.messages
        acted.context = None if conversation.context is None else conversation.context.to_plain()
        while not conversation.done:
            try:
                async with asyncio.timeout(play.left_s):
                    message, finish_reason = await self._complete(conversation, acted)
            except TimeoutError:
                return acted.fail(Failure.TIMEOUT)
            except EndpointFailed as error:
                return self._endpoint_failed(error, acted)
            turn = await conversation.act(message, timeout_s=play.left_s)
            acted.turns, acted.malformed_calls = conversation.turns, conversation.malformed_calls
            if isinstance(turn.error, ConnectionFailed):
                raise turn.error
            if turn.error is not None:
                return acted.fail_with(turn.error)
            stopped = None if turn.calls else _failure_of(message, finish_reason)
            if stopped is not None:
                return acted.fail(stopped)
            if play.left_s == 0.0 and (turn.calls or not turn.done):
                return acted.fail(Failure.TIMEOUT)
            if turn.images and not self.images and not self._warned:
                self._warned = True
                logger.warning("results have images, and the model reads [image] instead: set images (--images)")
            if turn.limit == MALFORMED:
                return acted.fail(Failure.MALFORMED_TOOL_CALL, f"{MAX_MALFORMED} turns without a readable call")
            if turn.limit == MAX_TURNS:
                return acted.fail(Failure.OUT_OF_TURNS, f"{self.max_turns} turns")
        return acted

    async def _complete(self, conversation: Conversation, acted: Acted) -> tuple[dict[str, Any], Any]:
        """Return the model's next message and its finish reason."""
        before = acted.prompt_tokens or 0
        answer = await self.complete(conversation.visible, conversation.tools.listed, acted)
        if conversation.context is not None:
            conversation.context.used((acted.prompt_tokens or 0) - before)
        self._answered = True
        return answer

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        acted: Acted,
        told: Callable[[dict[str, Any], dict[str, Any]], None] = lambda request, answer: None,
    ) -> tuple[dict[str, Any], Any]:
        """Return the model's next message and its finish reason. Call it inside `running`.

        Args:
            messages: the conversation so far, in the format of chat completions.
            tools: the tools in that format.
            acted: counts the tokens.
            told: called with the request and the body of each answer; a malformed answer is asked for again.

        Raises:
            EndpointFailed: the endpoint refused, or gave no answer that can be used.
        """
        assert self._http is not None, "call it inside running()"
        request: dict[str, Any] = {"model": self.model, **self.extra, "messages": messages}
        if tools:
            request["tools"] = tools
        if self.temperature is not None:
            request["temperature"] = self.temperature
        if self.max_tokens is not None:
            request["max_tokens"] = self.max_tokens

        def read(answer: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            told(request, answer)
            return _read(answer, acted)

        return await self._endpoint.ask(self._http, encode(request), read)

    def _endpoint_failed(self, error: EndpointFailed, acted: Acted) -> Acted:
        """Return the episode's outcome for a request that failed.

        Raises:
            ConfigurationError: requests of any episode would fail.
        """
        if error.status in _NOBODY_GETS_IN or not self._answered:
            raise ConfigurationError(f"{without_password(self._endpoint.url)}: {error}") from error
        if error.status in _CONVERSATIONS_FAULT:
            return acted.fail(Failure.CONVERSATION_REJECTED, str(error))
        return acted.fail(Failure.MODEL_ERROR, str(error))


def _read(answer: dict[str, Any], acted: Acted) -> tuple[dict[str, Any], Any]:
    """Return the message of an answer and its finish reason; count its tokens, even if it is malformed.

    Raises:
        MalformedAnswer: the answer has no message, or has calls that cannot be answered.
    """
    acted.prompt_tokens = (acted.prompt_tokens or 0) + tokens_in(answer, "prompt_tokens")
    acted.completion_tokens = (acted.completion_tokens or 0) + tokens_in(answer, "completion_tokens")
    message, finish_reason = message_in(answer)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise MalformedAnswer("the tool calls are not a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MalformedAnswer("a tool call has no function with a name")
    return message, finish_reason


def _failure_of(message: dict[str, Any], finish_reason: Any) -> Failure | None:
    """Return the failure that a message without tool calls represents; None if it is a regular answer."""
    if message.get("refusal") or finish_reason == "content_filter":
        return Failure.MODEL_REFUSED
    return Failure.CUT_SHORT if finish_reason == "length" else None
