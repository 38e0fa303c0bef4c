"""The agent for trainers that record a model's calls behind a base URL, such as AReaL, rLLM and slime.

Needs no library: these trainers give an agent the URL of an endpoint of chat completions, and take a reward back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx

from mcpenv_client.client import EnvClient
from mcpenv_client.conversation import Conversation
from mcpenv_client.formats.text_calls import TextCalls
from mcpenv_client.rows import COLUMNS
from mcpenv_client.types.turns import Ending, Turn

from .failures import EndpointFailed, reward_of
from .hosted import WAIT_FOR_SLOT_S

TOKEN_LIMIT = "token_limit"
LENGTH = "length"
"""The reasons for an episode's end at a limit of tokens: the agent's limit, and the limit of the last message."""

_BODY_SHOWN = 300
"""Maximum characters of an error's body in `EndpointFailed`."""


class EpisodeAgent:
    """An agent that plays episodes of a server with the model at a base URL. It can be pickled.

    Args:
        url: the server.
        model: the model's name in requests.
        request: other fields of requests, such as ``temperature``.
        text_calls: how the model writes calls as text, as `Conversation` takes it. None: the endpoint reads them, so
            that messages have ``tool_calls``.
        system: a system message before the prompt.
        max_turns: the maximum of the model's messages.
        token_limit: the tokens of a prompt and its answer, by the endpoint's ``usage``, at which the episode ends as
            truncated. Endpoints refuse a prompt that is too long, and then there is no reward: leave room for one
            result of a tool and one answer. None: no limit.
        timeout_s: the deadline of a request, in seconds.
        client: arguments of `EnvClient`.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "default",
        request: Mapping[str, Any] | None = None,
        text_calls: TextCalls | None = None,
        system: str | None = None,
        max_turns: int = 50,
        token_limit: int | None = None,
        timeout_s: float = 600.0,
        client: Mapping[str, Any] | None = None,
        mask_failed_steps: bool = True,
    ) -> None:
        self.url = url
        self.model = model
        self.request = dict(request or {})
        self.text_calls: TextCalls | None = text_calls
        self.system = system
        self.max_turns = max_turns
        self.token_limit = token_limit
        self.timeout_s = timeout_s
        self.mask_failed_steps = mask_failed_steps
        self.client = {"capacity_timeout_s": WAIT_FOR_SLOT_S, **(client or {})}

    async def play(
        self,
        row: Mapping[str, Any],
        base_url: str,
        *,
        api_key: str = "none",
        http_client: httpx.AsyncClient | None = None,
    ) -> Ending:
        """Play one episode, and return its end. Its reward is None if it failed, or nothing scored it.

        Args:
            row: ``task``, or ``split`` and ``index``; ``seed``. Other columns are ignored. Equal rows are one group.
            base_url: the endpoint; ``/chat/completions`` is added.
            api_key: its key.
            http_client: the client for requests; None: a new client.

        Raises:
            WireError, ConnectionFailed: the episode cannot begin.
            EndpointFailed: the endpoint failed. The episode is ended as abandoned.
        """
        named = {name: row[name] for name in COLUMNS if row.get(name) is not None}
        address, headers = f"{base_url.rstrip('/')}/chat/completions", {"Authorization": f"Bearer {api_key}"}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient()) if http_client is None else http_client
            session = await stack.enter_async_context(EnvClient(self.url, **self.client))
            conversation = Conversation(
                session,
                text_calls=self.text_calls,
                system=self.system,
                max_turns=self.max_turns,
                mask_failed_steps=self.mask_failed_steps,
            )
            await stack.enter_async_context(conversation)
            opening = await conversation.begin(named or None)
            turn, cut = Turn([], done=opening.done), None
            while not turn.done and cut is None:
                tools = conversation.tools.listed  # a user's turn may change them
                body = {"model": self.model, "messages": conversation.visible, "tools": tools, **self.request}
                answer = await self._ask(http, address, body, headers)
                turn = await conversation.act(answer["choices"][0]["message"])
                cut = self._cut_of(address, answer, turn)
            return await conversation.end() if cut is None else await conversation.end(truncated=True, reason=cut)

    async def _ask(
        self, http: httpx.AsyncClient, address: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        try:
            answer = await http.post(address, json=body, headers=headers, timeout=self.timeout_s)
        except httpx.HTTPError as error:
            raise EndpointFailed(address, f"{type(error).__name__}: {error}") from error
        if not answer.is_success:
            raise EndpointFailed(address, f"HTTP {answer.status_code}: {answer.text[:_BODY_SHOWN]}", answer.status_code)
        found: dict[str, Any] = answer.json()
        return found

    def _cut_of(self, address: str, answer: Mapping[str, Any], turn: Turn) -> str | None:
        """Return the reason why the episode ends as truncated after an answer; None if it does not."""
        if turn.done:
            stopped = not turn.calls and turn.limit is None
            return LENGTH if stopped and answer["choices"][0].get("finish_reason") == LENGTH else None
        if self.token_limit is None:
            return None
        used = (answer.get("usage") or {}).get("total_tokens")
        if used is None:
            raise EndpointFailed(address, "its answer has no usage.total_tokens, which token_limit needs")
        return TOKEN_LIMIT if used >= self.token_limit else None

    async def run(self, data: Mapping[str, Any], **given: Any) -> float:
        """Play one episode, and return its return, in the form in which AReaL calls an agent.

        Args:
            data: the row.
            given: ``base_url``, ``api_key`` and ``http_client``; without the first two, ``OPENAI_BASE_URL`` and
                ``OPENAI_API_KEY`` of the process.

        Raises:
            EpisodeFailed: the episode has no reward: it failed, or nothing scored it. AReaL rejects the trajectory.
            EndpointFailed, WireError, ConnectionFailed: as `play` raises them.
            ValueError: no base URL is given.
        """
        base_url = given.get("base_url") or os.environ.get("OPENAI_BASE_URL")
        if not base_url:
            raise ValueError("there is no base_url: the trainer gives it, or OPENAI_BASE_URL has it")
        api_key = given.get("api_key") or os.environ.get("OPENAI_API_KEY") or "none"
        ending = await self.play(data, base_url, api_key=api_key, http_client=given.get("http_client"))
        return reward_of(ending)
