"""The spans of requests of the control plane, over HTTP and on sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv import tracing
from mcpenv.server.sessions.idempotency import Answer
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import WireError
from mcpenv_client.wire.protocol import Frame

_CONTEXT = (b"traceparent", b"tracestate", b"baggage")


class Traced:
    """The ASGI application that answers a request in a span, a child of the one that ``traceparent`` names.

    Args:
        operation: the name of the operation.
    """

    def __init__(self, app: ASGIApp, operation: str) -> None:
        self._app = app
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not tracing.enabled():
            await self._app(scope, receive, send)
            return
        with tracing.request(self._operation, _context_of(scope)) as span:

            async def observe(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 400:
                        tracing.failed(span, str(status))
                await send(message)

            await self._app(scope, receive, observe)


async def traced_frame(
    session: Session, frame: Frame, answer: Callable[[Callable[[WireError], None]], Awaitable[Answer]]
) -> Answer:
    """Answer a frame in a span, a child of the one that the frame names.

    Args:
        answer: answers the frame; it calls the function that it is given with the error, if it refuses.
    """
    with tracing.request(frame.type.value, frame.trace or {}) as span:
        span.set_attribute("mcpenv.session_id", session.label)
        answered = await answer(lambda error: tracing.failed(span, error.code.value))
        span.set_attribute("mcpenv.episode_id", session.execution.episode.id or "")
        return answered


def _context_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request that name the span of its caller."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT}


__all__ = ["Traced", "traced_frame"]
