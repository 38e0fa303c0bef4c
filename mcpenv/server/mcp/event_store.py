"""The store of events sent to handshake clients, from which a client whose stream broke gets the rest.

MCP 2025-11-25, basic/transports, "Resumability and Redelivery". A tool may also close its stream itself
(``ctx.close_sse_stream()``). Then the client reconnects for the result.

The transport sends a returning client the stored events first, and listens for new ones afterwards. An event stored in
between would reach nobody, so it waits (`Resumption`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakValueDictionary

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

RETRY_MS = 500
"""The delay after which clients reconnect, in milliseconds."""


class Resumption:
    """The request of a client that resumes a stream; `RESUMED` has it while it is served.

    The transport sends the stored events, then an event that begins the stream anew, which clients before 2025-11-25 do
    not get. It receives new events as soon as the last of these is taken from its queue.

    Attributes:
        answered: set when the answer of the stream's request was sent, with which the stream ends.
    """

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self._answer: bytes | None = None
        self._last = b""
        self._receives = asyncio.Event()
        self._receives.set()

    def sends(self, event_id: EventId) -> None:
        """Note the last event that will be sent before new ones are received."""
        self._last = f"id: {event_id}\r\n".encode()
        self._receives.clear()

    def answers(self, event_id: EventId | None) -> None:
        """Note the event with the answer of the stream's request; None if the client has it already."""
        self._answer = b"" if event_id is None else f"id: {event_id}\r\n".encode()

    def sent(self, body: bytes) -> None:
        """Note that a part of the response was sent."""
        if self._answer is not None and self._answer in body:
            self.answered.set()
        if self._last and self._last in body:
            # It was taken from the transport's queue before: the transport runs before a callback that is added now.
            asyncio.get_running_loop().call_soon(self._sent, self._last)

    def end(self) -> None:
        """Let no event wait any more. Idempotent."""
        self._last = b""
        self._receives.set()

    async def receiving(self) -> None:
        """Wait until new events are received, or the request has ended."""
        await self._receives.wait()

    def _sent(self, last: bytes) -> None:
        if last == self._last:
            self.end()


RESUMED: Final[ContextVar[Resumption | None]] = ContextVar("mcpenv_resumed", default=None)
"""The resumption that the request of this context may be."""


class RecentEvents(EventStore):
    """The most recent events of all connections together. FastMCP distinguishes their streams.

    FastMCP's own store writes each event through JSON and keeps it for an hour.

    Args:
        max_events: maximum number of events; the oldest are evicted first.
        max_size: approximate maximum size of all events together, in characters.
    """

    def __init__(self, *, max_events: int = 4096, max_size: int = 32 * 1024 * 1024) -> None:
        self._max_events = max_events
        self._max_size = max_size
        self._size = 0
        self._events: OrderedDict[EventId, tuple[StreamId, JSONRPCMessage | None, int]] = OrderedDict()
        self._streams: dict[StreamId, deque[EventId]] = {}
        self._resuming: WeakValueDictionary[StreamId, Resumption] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._events)

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Store an event, and wait while a client resumes the stream. None begins a stream, or resumes it."""
        # Nobody can guess it: who knows it can make later events of the stream wait.
        event_id = secrets.token_urlsafe(12)
        size = 0 if message is None else _size_of(message)
        self._events[event_id] = (stream_id, message, size)
        self._streams.setdefault(stream_id, deque()).append(event_id)
        self._size += size
        while len(self._events) > self._max_events or (self._size > self._max_size and len(self._events) > 1):
            self._drop_oldest()
        resumption = RESUMED.get() if message is None else self._resuming.get(stream_id)
        if resumption is not None and message is None:
            resumption.sends(event_id)
        elif resumption is not None:
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                resumption.answers(event_id)
            await resumption.receiving()
        return event_id

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send the events after that one in its stream. Return the stream; None if the event was evicted."""
        event = self._events.get(last_event_id)
        if event is None:
            return None
        stream_id = event[0]
        stored = list(self._streams[stream_id])
        ids = stored[stored.index(last_event_id) + 1 :]
        later = [(message, event_id) for event_id in ids if (message := self._events[event_id][1]) is not None]
        if (resumption := RESUMED.get()) is not None:
            if (before := self._resuming.get(stream_id)) is not None:
                before.end()  # its client may be gone; what waits for it is among the stored events
            self._resuming[stream_id] = resumption
            if later:
                resumption.sends(later[-1][1])
            for each, event_id in ((event[1], None), *later):
                if isinstance(each, JSONRPCResponse | JSONRPCError):
                    resumption.answers(event_id)
        for message, event_id in later:
            await send_callback(EventMessage(message, event_id))
        return stream_id

    def _drop_oldest(self) -> None:
        _, (stream_id, _, size) = self._events.popitem(last=False)
        self._size -= size
        stream = self._streams[stream_id]
        stream.popleft()  # events of a stream are in order, too
        if not stream:
            del self._streams[stream_id]


def _size_of(message: JSONRPCMessage) -> int:
    if isinstance(message, JSONRPCResponse):
        return _characters(message.result)
    return 0 if isinstance(message, JSONRPCError) else _characters(message.params)


def _characters(value: Any) -> int:
    """Return the approximate size of a JSON value. Long texts take no more time than short ones."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _characters(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(map(_characters, value))
    return 8
