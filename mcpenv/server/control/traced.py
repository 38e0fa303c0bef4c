"""The spans of HTTP requests of the control plane."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv import tracing

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
        # The headers that name the span of the caller.
        context = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"] if n in _CONTEXT}
        with tracing.request(self._operation, context) as span:

            async def observe(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 400:
                        tracing.failed(span, str(status))
                await send(message)

            await self._app(scope, receive, observe)
