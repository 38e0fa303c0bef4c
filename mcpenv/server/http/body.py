"""The body of an HTTP request, read up to a limit."""

from __future__ import annotations

from mcp_types import INVALID_PARAMS
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv_client.types.values import MAX_PARTS, excess_parts


async def read_body(receive: Receive, limit: int) -> tuple[list[Message], bytes]:
    """Read a request's body.

    Args:
        limit: maximum bytes. Reading stops after them, and the caller refuses the longer body.

    Returns:
        The ASGI messages, for `Replay`, and the bytes. The last message is a disconnect if the client disconnected.
    """
    messages: list[Message] = []
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False) or size > limit:
            break
    return messages, b"".join(parts)


def too_large(text: bytes, limit: int) -> str | None:
    """Return what is too large about a message to the server: its bytes or its parts; None if it may be read."""
    if len(text) > limit:
        return f"more than {limit} bytes; send less at once"
    if len(text) > MAX_PARTS and (count := excess_parts(text)):
        return f"{count} lists, objects and commas, more than {MAX_PARTS}; send less at once"
    return None


class Replay:
    """The ASGI ``receive`` that first returns messages that were already read."""

    def __init__(self, messages: list[Message], receive: Receive) -> None:
        self._messages = messages[::-1]
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the next message."""
        return self._messages.pop() if self._messages else await self._receive()


async def with_few_parts(inner: ASGIApp, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request of JSON-RPC whose body comes as one message, or refuse it if the body is `too_large`."""
    message = await receive()
    excess = too_large(message.get("body", b""), limit)
    if excess is None:
        replayed = Replay([message], receive)
        del message  # a stream must not keep it
        await inner(scope, replayed, send)
        return
    error = {"code": INVALID_PARAMS, "message": f"the request has {excess}"}
    # To read the id of the request would cost what this refuses.
    await JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 413)(scope, receive, send)
