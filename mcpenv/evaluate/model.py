"""ModelAgent: a language model that calls tools, on any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from mcpenv_client.addresses import without_password
from mcpenv_client.errors import EpisodeDone, InvalidMessage, WireError
from mcpenv_client.tools import Tool
from mcpenv_client.values import decode, encode

from ..chat_endpoint import ChatEndpoint, MalformedAnswer, message_in, tokens_in
from ..errors import ConfigurationError, EndpointFailed
from .agent import Acted, Play
from .results import Failure

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"

MAX_MALFORMED = 5
"""Turns in a row without a call that can be read, after which the model is given up."""

MAX_QUOTED = 1000
"""Characters of a malformed call that the model gets to see again."""

_OVER = "The episode is over; this call was not made."
_CONVERSATIONS_FAULT = {400, 413, 422}
_NOBODY_GETS_IN = {401, 403, 404, 405}


@dataclass
class ModelAgent:
    """A model that plays by a chat: the task's prompt, its tool calls, their answers, until it calls no more tools.

    Calls of one message are made in their order. A call that cannot be read is answered by an error for the model.

    Args:
        model: its name at the endpoint.
        base_url: of the endpoint; "/chat/completions" is added.
        api_key_env: the environment variable that has the key; None for none.
        system: a system message before the prompt.
        temperature, max_tokens: None leaves them to the endpoint.
        max_turns: answers of the model at most.
        tries: how often one request is made, with growing pauses, where the endpoint is busy or failed.
        request_timeout_s: seconds for one try.
        extra: further fields of each request.

    Raises:
        ConfigurationError: one of them cannot be used.
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

    def __post_init__(self) -> None:
        for name in ("max_turns", "tries"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it is 1 or more")
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

    def described(self) -> dict[str, Any]:
        """What it is, without its key."""
        return {
            "kind": "model",
            "model": self.model,
            "base_url": without_password(self.base_url),
            "system": self.system,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "max_turns": self.max_turns,
            "extra": self.extra,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The connections that all its episodes share."""
        async with self._endpoint.http() as http:
            self._http = http
            try:
                yield
            finally:
                self._http = None

    async def act(self, play: Play) -> Acted:
        """Play one episode.

        Raises:
            ConfigurationError: the endpoint lets nobody in, or has not answered a single request well.
        """
        tools = _NamedTools(play.tools)
        chat = _Chat([] if self.system is None else [{"role": "system", "content": self.system}])
        chat.messages.append({"role": "user", "content": play.prompt})
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
                over = await _make(calls, play, tools, chat)
            except WireError as error:
                return chat.acted.fail(Failure.ENVIRONMENT_ERROR, f"{error.code.value}: {error.message}")
            if play.left_s == 0.0:
                return chat.acted.fail(Failure.TIMEOUT)
            if over:
                return chat.acted
            malformed_turns = 0 if chat.read > read_before else malformed_turns + 1
            if malformed_turns == MAX_MALFORMED:
                return chat.acted.fail(Failure.MALFORMED_TOOL_CALL, f"{MAX_MALFORMED} turns without a readable call")
        return chat.acted.fail(Failure.OUT_OF_TURNS, f"{self.max_turns} turns")

    async def _complete(self, chat: _Chat, tools: _NamedTools) -> tuple[dict[str, Any], Any]:
        """The model's next message, and why it stopped there."""
        assert self._http is not None, "act() is for the time of running()"
        request: dict[str, Any] = {"model": self.model, **self.extra, "messages": chat.messages}
        if tools.listed:
            request["tools"] = tools.listed
        if self.temperature is not None:
            request["temperature"] = self.temperature
        if self.max_tokens is not None:
            request["max_tokens"] = self.max_tokens
        answer = await self._endpoint.ask(self._http, encode(request), chat.read_answer)
        self._answered = True
        return answer

    def _endpoint_failed(self, error: EndpointFailed, chat: _Chat) -> Acted:
        """What it means that there is no answer: for this episode, or for all of them.

        Raises:
            ConfigurationError: for all.
        """
        if error.status in _NOBODY_GETS_IN or not self._answered:
            raise ConfigurationError(f"{without_password(self._endpoint.url)}: {error}") from error
        if error.status in _CONVERSATIONS_FAULT:
            return chat.acted.fail(Failure.CONVERSATION_REJECTED, str(error))
        return chat.acted.fail(Failure.MODEL_ERROR, str(error))


class _NamedTools:
    """The tools under names that endpoints take; MCP's may have characters that functions may not."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.listed: list[dict[str, Any]] = []
        self._own: dict[str, str] = {}
        for tool in tools:
            name = self._free(re.sub(r"[^a-zA-Z0-9_-]", "_", tool.name)[:64])
            self._own[name] = tool.name
            entry = tool.to_openai()
            entry["function"]["name"] = name
            self.listed.append(entry)

    def _free(self, name: str) -> str:
        number, free = 1, name
        while free in self._own:
            number += 1
            free = f"{name[: 64 - len(str(number)) - 1]}_{number}"
        return free

    def own(self, name: str) -> str:
        """The environment's own name; one that was not listed stays as it is, for the environment to refuse."""
        return self._own.get(name, name)


class _Call:
    """A tool call of a message.

    Attributes:
        arguments: None if they cannot be read; ``problem`` then says why.
    """

    def __init__(self, call: dict[str, Any]) -> None:
        self.id: str = call["id"]
        self.name: str = call["function"]["name"]
        self.arguments: dict[str, Any] | None = None
        self.problem = ""
        given = call["function"].get("arguments")
        try:
            value = (decode(given) if given.strip() else {}) if isinstance(given, str) else given or {}
        except ValueError as error:
            self.problem = f"Its arguments are no JSON ({error}): {given[:MAX_QUOTED]}"
        else:
            if isinstance(value, dict):
                self.arguments = value
            else:
                self.problem = f"Its arguments are no JSON object: {str(given)[:MAX_QUOTED]}"
        # Endpoints read back what they get, and many fail at what their model wrote. The text is in the problem.
        call["function"]["arguments"] = encode(self.arguments or {}).decode()


class _Chat:
    """A conversation as it grows.

    Attributes:
        messages: as the endpoint gets them.
        acted: what can be said of the play so far.
        read: calls that could be read.
    """

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.acted = Acted(turns=0, messages=messages, prompt_tokens=0, completion_tokens=0)
        self.read = 0

    def read_answer(self, answer: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The message of an answer, and why the model stopped there. What it used counts, also if it is malformed.

        Raises:
            MalformedAnswer: it has no message, or calls that cannot be answered.
        """
        self.acted.prompt_tokens = (self.acted.prompt_tokens or 0) + tokens_in(answer, "prompt_tokens")
        self.acted.completion_tokens = (self.acted.completion_tokens or 0) + tokens_in(answer, "completion_tokens")
        message, finish_reason = message_in(answer)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise MalformedAnswer("the tool calls are no list")
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise MalformedAnswer("a tool call has no function with a name")
        return message, finish_reason

    def add(self, message: dict[str, Any]) -> list[_Call]:
        """The model's message is part of the conversation; its calls."""
        assert self.acted.turns is not None
        self.acted.turns += 1
        kept = {name: value for name, value in message.items() if value not in (None, [])}
        kept = {"role": "assistant", "content": None, **kept}
        self.messages.append(kept)
        calls = kept.get("tool_calls", [])
        for number, call in enumerate(calls):
            call.setdefault("type", "function")
            if not isinstance(call.get("id"), str) or not call["id"]:
                call["id"] = f"call_{self.acted.turns}_{number}"
        return [_Call(call) for call in calls]

    def answer(self, call: _Call, text: str) -> None:
        """The answer to a call."""
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


async def _make(calls: list[_Call], play: Play, tools: _NamedTools, chat: _Chat) -> bool:
    """Make the calls of one message in their order; whether the episode is over. Each gets an answer in any case."""
    over = False
    for call in calls:
        if call.arguments is None:
            chat.acted.malformed_calls += 1
            chat.answer(call, f"Error: this call was not made. {call.problem}")
            continue
        chat.read += 1
        if over or play.left_s == 0.0:
            chat.answer(call, _OVER)
            continue
        try:
            # The server keeps the deadline: a call that is given up here would lose the session with its score.
            result = await play.env.call_tool(tools.own(call.name), call.arguments, timeout_s=play.left_s)
        except EpisodeDone:
            over = True
            chat.answer(call, _OVER)
        except InvalidMessage as error:
            chat.acted.malformed_calls += 1
            chat.answer(call, f"Error: this call was not made. {error.message}")
        else:
            over = result.done
            chat.answer(call, result.text)
    return over


def _ended(acted: Acted, message: dict[str, Any], finish_reason: Any) -> Acted:
    """How it went for a model that called no tool in its last message."""
    if message.get("refusal") or finish_reason == "content_filter":
        return acted.fail(Failure.MODEL_REFUSED)
    return acted.fail(Failure.CUT_SHORT) if finish_reason == "length" else acted
