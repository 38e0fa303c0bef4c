"""Exactly once: a request that is repeated under the same id gets the first answer and never runs twice.

Replies are kept by count and by size, ids for longer; both outlive resets. What may be tried again with another outcome
(a refusal for lack of room, say) is not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mcpenv_client.errors import (
    CapacityReached,
    InvalidMessage,
    OperationCancelled,
    RateLimited,
    ReplyGone,
    Unauthorized,
)

MAX_REPLIES = 256
MAX_REPLY_BYTES = 8 * 1024 * 1024
MAX_IDS = 8192


@dataclass(slots=True)
class Answer:
    """A reply: ``type`` and ``data`` of a frame, encoded; ``status`` for HTTP."""

    text: str
    status: int = 200
    final: bool = True
    """False for a refusal that may be tried again under the same id."""


class _Entry:
    __slots__ = ("answer", "body", "running")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.running: asyncio.Task[Answer] | None = None
        self.answer: Answer | None = None


class Replies:
    """The answers of one session (or of one route without sessions) by request id."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._kept: deque[str] = deque()
        self._bytes = 0

    async def once(self, request_id: str, body: bytes, run: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of the first request of this id; runs it if this is the first.

        The run is a task of its own: who asked may go away and ask again. Cancelling the caller does not cancel it.

        Args:
            request_id: what the client chose.
            body: what it asked; the same id with another body is refused.
            run: does it; must not raise.

        Raises:
            InvalidMessage: the id was used for something else.
            ReplyGone: it ran, but its answer is no longer kept.
        """
        digest = hashlib.blake2b(body, digest_size=16).digest()
        entry = self._entries.get(request_id)
        if entry is None:
            entry = self._entries[request_id] = _Entry(digest)
            entry.running = asyncio.ensure_future(self._run(request_id, entry, run))
        elif entry.body != digest:
            raise InvalidMessage(
                f"request_id {request_id[:40]!r} was used for another request",
                errors=[{"loc": ["request_id"], "msg": "used for another request", "type": "value_error"}],
            )
        running = entry.running
        if running is not None:
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                asking = asyncio.current_task()
                if not running.cancelled() or asking is None or asking.cancelling():
                    raise
                raise OperationCancelled("the request was cancelled before it began") from None
        if entry.answer is None:
            raise ReplyGone(f"request {request_id[:40]!r} was answered, but the answer is no longer kept")
        return entry.answer

    def running(self, request_id: str) -> asyncio.Task[Answer] | None:
        """The run under way for this id."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry.running

    def cancel_all(self) -> list[asyncio.Task[Answer]]:
        """Cancel every run under way; gives them, to be waited for."""
        running = [entry.running for entry in self._entries.values() if entry.running is not None]
        for task in running:
            task.cancel()
        return running

    async def _run(self, request_id: str, entry: _Entry, run: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            answer = await run()
        except BaseException:
            self._entries.pop(request_id, None)
            raise
        finally:
            entry.running = None
        if not answer.final:
            self._entries.pop(request_id, None)
            return answer
        entry.answer = answer
        self._kept.append(request_id)
        self._bytes += len(answer.text)
        self._trim()
        return answer

    def _trim(self) -> None:
        """Let go of the oldest answers, never of the newest; of the oldest ids only when there are very many."""
        while len(self._kept) > MAX_REPLIES or (self._bytes > MAX_REPLY_BYTES and len(self._kept) > 1):
            entry = self._entries.get(self._kept.popleft())
            if entry is not None and entry.answer is not None:
                self._bytes -= len(entry.answer.text)
                entry.answer = None
        while len(self._entries) > MAX_IDS:
            oldest = next(iter(self._entries))
            if self._entries[oldest].running is not None:
                break
            del self._entries[oldest]


def is_final(error: Exception) -> bool:
    """Whether a refusal stays the answer of its request id."""
    return not isinstance(error, CapacityReached | RateLimited | Unauthorized)
