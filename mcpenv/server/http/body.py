"""The body of an HTTP request, read up to a limit."""

from __future__ import annotations

from starlette.types import Message, Receive


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


class Replay:
    """The ASGI ``receive`` that first returns messages that were already read."""

    def __init__(self, messages: list[Message], receive: Receive) -> None:
        self._messages = messages[::-1]
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the next message."""
        return self._messages.pop() if self._messages else await self._receive()
