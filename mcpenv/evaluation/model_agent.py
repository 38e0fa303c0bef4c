"""The agent that is a language model with tool calls, at an endpoint with OpenAI's chat completions API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from mcpenv.chat_completions import ChatEndpoint, MalformedAnswer, message_in, tokens_in
from mcpenv.errors import ConfigurationError, EndpointFailed
from mcpenv_client.connection.addresses import without_password
from mcpenv_client.context_manager import ContextManager
from mcpenv_client.errors import EpisodeDone, InvalidMessage, MalformedToolCall, ToolNotExpressible, WireError
from mcpenv_client.formats.images import image_parts, images_within
from mcpenv_client.formats.tool_formats import ProviderTools, read_arguments, tools_for
from mcpenv_client.types.actions import CallToolAction
from mcpenv_client.types.observations import CallToolObservation
from mcpenv_client.types.tools import OUTPUT_META
from mcpenv_client.types.values import encode

from .agent import Acted, Play
from .results import Failure

logger = logging.getLogger("mcpenv")

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"

MAX_MALFORMED = 5
"""The number of consecutive turns without a call that can be parsed after which the episode fails."""

_OVER = "The episode is over; this call was not made."
_CONVERSATIONS_FAULT = {400, 413, 422}
_NOBODY_GETS_IN = {401, 403, 404, 405}


@dataclass
class ModelAgent:
    """The agent that lets a model play in a chat: prompt, tool calls and their results, until it calls no more tools.

    The calls of one message are made in order. A call that cannot be parsed is answered with an error for the model.

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
        images: send images of observations and results to the model. They follow in a user message, because results of
            tools are text in this API. False: the model reads ``[image]``.

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
            ConfigurationError: the endpoint denies access, or has not answered any request yet; or the format of the
                tools cannot express one of them.
        """
        context = ContextManager(self.context_tokens)
        tools = self._tools(play, context)
        chat = _Chat(context, tools)
        if self.system is not None:
            chat.keep({"role": "system", "content": self.system})
        chat.keep(_with_images(play.prompt, image_parts(play.images) if self.images else []))
        if self.context_tokens is not None:
            chat.acted.context = context.to_plain()
        malformed_turns = 0
        for _ in range(self.max_turns):
            try:
                async with asyncio.timeout(play.left_s):
                    message, finish_reason = await self._complete(chat, tools)
            except TimeoutError:
                return chat.acted.fail(Failure.TIMEOUT)
            except EndpointFailed as error:
                return self._endpoint_failed(error, chat)
            calls = chat.add(message)
            if not calls:
                return _ended(chat.acted, message, finish_reason)
            read_before = chat.read
            try:
                over, results = await _make(calls, play, chat)
            except WireError as error:
                return chat.acted.fail_with(error)
            if play.left_s == 0.0:
                return chat.acted.fail(Failure.TIMEOUT)
            if over:
                return chat.acted
            self._show_images(results, chat)
            malformed_turns = 0 if chat.read > read_before else malformed_turns + 1
            if malformed_turns == MAX_MALFORMED:
                return chat.acted.fail(Failure.MALFORMED_TOOL_CALL, f"{MAX_MALFORMED} turns without a readable call")
        return chat.acted.fail(Failure.OUT_OF_TURNS, f"{self.max_turns} turns")

    def _show_images(self, results: Sequence[tuple[_Call, CallToolObservation]], chat: _Chat) -> None:
        """Add the images of a turn's results to the conversation, after all of its results."""
        found = [
            (call, images_within(observation.result.content)) for call, observation in results if observation.result
        ]
        if not any(images for _, images in found):
            return
        if not self.images:
            if not self._warned:
                self._warned = True
                logger.warning("results have images, and the model reads [image] instead: set images (--images)")
            return
        for call, images in found:
            if images:
                chat.keep(_with_images(f"The images of the result of {call.name} ({call.id}):", image_parts(images)))

    def _tools(self, play: Play, context: ContextManager) -> ProviderTools:
        """Return the tools for the model.

        Raises:
            ConfigurationError: the format cannot express one of them, or two have one name.
        """
        tools = list(play.tools)
        if self.context_tokens is not None:
            for tool in tools:
                if context.owns(tool.name):
                    raise ConfigurationError(
                        f"the environment has a tool {tool.name!r}, as context_tokens would add; rename it, or leave "
                        "context_tokens out"
                    )
            tools += context.tools
        try:
            return tools_for(self.tool_format, tools)
        except ToolNotExpressible as error:
            raise ConfigurationError(str(error)) from error

    async def _complete(self, chat: _Chat, tools: ProviderTools) -> tuple[dict[str, Any], Any]:
        """Return the model's next message and its finish reason."""
        assert self._http is not None, "call act() inside running()"
        request: dict[str, Any] = {"model": self.model, **self.extra, "messages": chat.context.visible}
        if tools.listed:
            request["tools"] = tools.listed
        if self.temperature is not None:
            request["temperature"] = self.temperature
        if self.max_tokens is not None:
            request["max_tokens"] = self.max_tokens
        prompt_tokens = chat.acted.prompt_tokens or 0
        answer = await self._endpoint.ask(self._http, encode(request), chat.read_answer)
        chat.context.used((chat.acted.prompt_tokens or 0) - prompt_tokens)
        self._answered = True
        return answer

    def _endpoint_failed(self, error: EndpointFailed, chat: _Chat) -> Acted:
        """Return the episode's outcome for a request that failed.

        Raises:
            ConfigurationError: requests of any episode would fail.
        """
        if error.status in _NOBODY_GETS_IN or not self._answered:
            raise ConfigurationError(f"{without_password(self._endpoint.url)}: {error}") from error
        if error.status in _CONVERSATIONS_FAULT:
            return chat.acted.fail(Failure.CONVERSATION_REJECTED, str(error))
        return chat.acted.fail(Failure.MODEL_ERROR, str(error))


class _Call:
    """The tool call of a message.

    Attributes:
        action: the action; None if the arguments cannot be parsed. ``problem`` then says why.
    """

    def __init__(self, call: dict[str, Any], tools: ProviderTools) -> None:
        function = call["function"]
        self.id: str = call["id"]
        self.name: str = function["name"]
        self.action: CallToolAction | None = None
        self.problem = ""
        sent: dict[str, Any] = {}
        try:
            sent = read_arguments(self.name, function.get("arguments"))
            self.action = tools.action(self.name, sent)
        except MalformedToolCall as error:
            self.problem = error.reason
        # Many endpoints fail on malformed calls in a conversation. The original text is in `problem`.
        function["arguments"] = encode(sent).decode()


class _Chat:
    """The conversation of an episode.

    Attributes:
        context: the messages, of which the endpoint is sent the visible ones.
        acted: the outcome so far.
        read: number of calls that could be parsed.
    """

    def __init__(self, context: ContextManager, tools: ProviderTools) -> None:
        self.context = context
        self._tools = tools
        self._messages: list[dict[str, Any]] = []
        self.acted = Acted(turns=0, messages=self._messages, prompt_tokens=0, completion_tokens=0)
        self.read = 0

    def keep(self, message: dict[str, Any], output: Mapping[str, Any] | None = None) -> None:
        """Add a message to the conversation."""
        self._messages.append(message)
        self.context.add(message, output)

    def read_answer(self, answer: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the message of an answer and its finish reason; count its tokens, even if it is malformed.

        Raises:
            MalformedAnswer: the answer has no message, or has calls that cannot be answered.
        """
        self.acted.prompt_tokens = (self.acted.prompt_tokens or 0) + tokens_in(answer, "prompt_tokens")
        self.acted.completion_tokens = (self.acted.completion_tokens or 0) + tokens_in(answer, "completion_tokens")
        message, finish_reason = message_in(answer)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise MalformedAnswer("the tool calls are not a list")
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise MalformedAnswer("a tool call has no function with a name")
        return message, finish_reason

    def add(self, message: dict[str, Any]) -> list[_Call]:
        """Add the model's message to the conversation and return its calls."""
        assert self.acted.turns is not None
        self.acted.turns += 1
        kept = {name: value for name, value in message.items() if value not in (None, [])}
        kept = {"role": "assistant", "content": None, **kept}
        calls = kept.get("tool_calls", [])
        for number, call in enumerate(calls):
            call.setdefault("type", "function")
            if not isinstance(call.get("id"), str) or not call["id"]:
                call["id"] = f"call_{self.acted.turns}_{number}"
        self.keep(kept)
        return [_Call(call, self._tools) for call in calls]

    def answer(self, call: _Call, text: str, output: Mapping[str, Any] | None = None) -> None:
        """Add the answer to a call to the conversation."""
        self.keep({"role": "tool", "tool_call_id": call.id, "content": text}, output)


def _with_images(text: str, images: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message of the user: a plain text if there is no image."""
    return {"role": "user", "content": [{"type": "text", "text": text}, *images] if images else text}


async def _make(calls: list[_Call], play: Play, chat: _Chat) -> tuple[bool, list[tuple[_Call, CallToolObservation]]]:
    """Make the calls of one message in order and answer each; return True if the episode is over, and the results."""
    over = False
    results: list[tuple[_Call, CallToolObservation]] = []
    for call in calls:
        if call.action is None:
            chat.acted.malformed_calls += 1
            chat.answer(call, f"Error: this call was not made. {call.problem}")
            continue
        if chat.acted.context is not None and chat.context.owns(call.action.tool_name):
            _ask_context(call, call.action, chat)
            continue
        chat.read += 1
        if over or play.left_s == 0.0:
            chat.answer(call, _OVER)
            continue
        try:
            # The server enforces the deadline: cancelling the call here would lose the session and its score.
            result = await play.env.call_tool(call.action.tool_name, call.action.arguments, timeout_s=play.left_s)
        except EpisodeDone:
            over = True
            chat.answer(call, _OVER)
        except InvalidMessage as error:
            chat.acted.malformed_calls += 1
            chat.answer(call, f"Error: this call was not made. {error.message}")
        else:
            over = result.done
            chat.answer(call, result.text, _output_of(result.observation))
            if isinstance(result.observation, CallToolObservation):
                results.append((call, result.observation))
    return over, results


def _ask_context(call: _Call, action: CallToolAction, chat: _Chat) -> None:
    """Answer a call of a tool of the context. It is no step of the environment."""
    try:
        answer = chat.context.answer(action.tool_name, action.arguments)
    except MalformedToolCall as error:
        chat.acted.malformed_calls += 1
        chat.answer(call, f"Error: this call was not made. {error.reason}")
    else:
        chat.read += 1
        chat.answer(call, answer)


def _output_of(observation: Any) -> Mapping[str, Any] | None:
    """Return what the environment says about the long output of which the model sees a part, if it does."""
    result = observation.result if isinstance(observation, CallToolObservation) else None
    about = None if result is None or result.meta is None else result.meta.get(OUTPUT_META)
    return about if isinstance(about, Mapping) else None


def _ended(acted: Acted, message: dict[str, Any], finish_reason: Any) -> Acted:
    """Return the outcome after a message without tool calls."""
    if message.get("refusal") or finish_reason == "content_filter":
        return acted.fail(Failure.MODEL_REFUSED)
    return acted.fail(Failure.CUT_SHORT) if finish_reason == "length" else acted
