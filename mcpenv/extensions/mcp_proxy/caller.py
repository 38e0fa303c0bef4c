"""The caller of a proxied tool, which receives the server's progress, log messages and questions."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_context
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    ClientCapabilities,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpenv.execution.context import RecordSession

_OF_CONNECTION = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        "progressToken",
        "progress_token",
        "io.modelcontextprotocol/logLevel",
    }
)
"""Keys of a request's metadata that concern the caller's own connection."""

NO_CLIENT = "this call did not come from an MCP client, so nobody can answer"
NOT_DECLARED = "the client has not declared that it answers questions (the capability 'elicitation')"
CLIENT_IS_LATER = (
    "the client speaks 2026-07-28, in which nobody is asked during a call; the server speaks an earlier version"
)
CLIENT_IS_EARLIER = (
    "the client has connected by handshake, and the server asks as it is done from 2026-07-28 on, by its answer"
)
ONLY_ELICITATION = "only questions to a user (elicitation) pass, and it asked for {method}"


class Caller:
    """The caller of one tool call: an agent, or an orchestrator. Created on the caller's loop, inside the step.

    Messages of the server go through the step's `Context`, so that the record has them too.

    Attributes:
        answers: the answers to questions of an earlier part of the call (2026-07-28), or None.
        request_state: the state that the server gave to an earlier part, or None.
        unanswered: the reason why a question of the server was refused, or None.
    """

    def __init__(self) -> None:
        self._context = get_context()
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()  # the context finds the agent's request there
        self._passed: list[asyncio.Task[None]] = []
        requested = self._context.request_context is not None
        self.answers: InputResponses | None = self._context.input_responses if requested else None
        self.request_state: str | None = self._context.request_state if requested else None
        self.unanswered: str | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the agent's request, without the keys of its connection."""
        request = self._context.request_context
        meta = {} if request is None else dict(request.meta or {})
        return {key: value for key, value in meta.items() if key not in _OF_CONNECTION}

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on a progress message. Called on the loop of the upstreams."""
        self._pass(partial(self._context.report_progress, progress, total, message))

    def log(self, level: str, text: str) -> None:
        """Pass on a log message. Called on the loop of the upstreams."""
        self._pass(partial(self._context.log, text, level=level))  # type: ignore[arg-type]

    async def arrived(self) -> None:
        """Wait until all messages so far have been passed on."""
        passed, self._passed = self._passed, []
        await asyncio.gather(*passed)

    async def ask(self, question: ElicitRequestParams) -> ElicitResult:
        """Return the client's answer to a question that a handshake-era server asks during the call.

        Called on the loop of the upstreams. Cancelling withdraws the question.

        Raises:
            ToolError: the client cannot be asked. The reason is in `unanswered` too.
        """
        asked = self._variables.copy().run(asyncio.run_coroutine_threadsafe, self._ask(question), self._loop)
        return await asyncio.wrap_future(asked)

    def pass_on(self, asked: InputRequiredResult) -> InputRequiredResult:
        """Return the request for input with which a 2026-07-28 server answered, if the client can fulfil it.

        Raises:
            ToolError: the client cannot fulfil it. The reason is in `unanswered` too.
        """
        for question in (asked.input_requests or {}).values():
            if not isinstance(question, ElicitRequest):
                raise self._refused(ONLY_ELICITATION.format(method=question.method))
        self._refuse_unless(modern=True)
        return asked

    async def _ask(self, question: ElicitRequestParams) -> ElicitResult:
        self._refuse_unless(modern=False)
        session, request_id = self._context.session, self._context.request_id
        if isinstance(question, ElicitRequestFormParams):
            return await session.elicit(question.message, question.requested_schema, related_request_id=request_id)
        if question.elicitation_id is None:
            raise self._refused("its question by URL has no id")
        return await session.elicit_url(
            question.message, question.url, question.elicitation_id, related_request_id=request_id
        )

    def _refuse_unless(self, *, modern: bool) -> None:
        session = self._context.session
        if isinstance(session, RecordSession):
            raise self._refused(NO_CLIENT)
        if (session.protocol_version in MODERN_PROTOCOL_VERSIONS) is not modern:
            raise self._refused(CLIENT_IS_EARLIER if modern else CLIENT_IS_LATER)
        if not session.check_client_capability(ClientCapabilities(elicitation=ElicitationCapability())):
            raise self._refused(NOT_DECLARED)

    def _refused(self, reason: str) -> ToolError:
        self.unanswered = reason
        return ToolError(f"The server asked for input, but {reason}.")

    def _pass(self, message: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def begin() -> None:
            self._passed.append(self._loop.create_task(message()))

        self._loop.call_soon_threadsafe(begin, context=self._variables)
