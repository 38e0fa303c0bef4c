"""The idempotency of requests: one that is repeated under the same id gets the first answer and never runs twice.

Replies are limited in count and in size, and ids are kept for longer. Both outlive resets. Refusals that may be retried
with another outcome (such as a lack of room) are not kept.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from mcpenv_client.errors import (
    CapacityReached,
    InvalidMessage,
    OperationCancelled,
    RateLimited,
    ReplyGone,
    Unauthorized,
)

logger = logging.getLogger("mcpenv")

MAX_REPLIES = 256
MAX_REPLY_BYTES = 8 * 1024 * 1024
MAX_IDS = 8192


@dataclass(slots=True)
class Answer:
    """The encoded reply to a request: a frame, or the body of an HTTP response.

    Attributes:
        status: of the HTTP response.
        final: False for a refusal that may be retried under the same id.
        code: the wire code of a refusal; None for a result.
    """

    text: str
    status: int = 200
    final: bool = True
    code: str | None = None


class Run:
    """The run of a request.

    Attributes:
        task: the task that runs it.
        cancels: the number of cancellations by request id.
    """

    __slots__ = ("_waiting", "cancels", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.cancels = 0
        self._waiting: asyncio.Future[Answer | None] | None = None

    def cancel(self) -> bool:
        """Cancel the run. Return True unless it had already ended."""
        if not self.task.cancel():
            return False
        self.cancels += 1
        return True

    def take_back(self) -> int:
        """Undo these cancellations, so that they do not reach later work of the task. Return how many others remain."""
        left = self.task.cancelling()
        for _ in range(self.cancels):
            left = self.task.uncancel()
        return left

    def result(self) -> asyncio.Future[Answer | None]:
        """Return a future of the answer, or of None without an answer. Do not cancel it, because callers share it."""
        if self._waiting is None:
            self._waiting = self.task.get_loop().create_future()
        return self._waiting

    def end(self, answer: Answer | None) -> None:
        """Resolve the future of the answer."""
        if self._waiting is not None:
            self._waiting.set_result(answer)


REQUEST: ContextVar[tuple[str, bytes] | None] = ContextVar("request", default=None)
"""The id and the digest of the body of the request that runs; None for one without an id."""


class _Entry:
    __slots__ = ("answer", "body", "run")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.run: Run | None = None
        self.answer: Answer | None = None


class IdempotencyCache:
    """The answers of one session (or of one route without sessions) by request id."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._kept: deque[str] = deque()
        self._bytes = 0

    async def once(self, request_id: str, body: bytes, run: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of the first request of this id. Run it if this is the first.

        The run has a task of its own, so that a client can disconnect and ask again. Cancelling the caller does not
        cancel the run.

        Args:
            request_id: the id that the client chose.
            body: the request as it came. Another one under the same id is refused.
            run: runs the request.

        Raises:
            InvalidMessage: the id was used for another request.
            ReplyGone: the request ran, but its answer has been dropped.
            OperationCancelled: the request was cancelled.
        """
        entry, begun = self._entry(request_id, body)
        if not begun:
            REQUEST.set((request_id, entry.body))
            task = asyncio.ensure_future(run())
            entry.run = Run(task)
            task.add_done_callback(functools.partial(self._ran, request_id, entry))
        return await self._answer_of(request_id, entry)

    async def once_here(
        self,
        request_id: str,
        body: bytes,
        run: Callable[[], Awaitable[Answer]],
        task: asyncio.Task[Any],
        if_cancelled: Callable[[], Answer],
    ) -> Answer:
        """Do the same as `once` in the caller's task, which runs to its end also if the client disconnects.

        Args:
            task: the caller's task.
            if_cancelled: returns the answer of a run that was cancelled by its id.

        Raises:
            as `once`.
        """
        entry, begun = self._entry(request_id, body)
        if begun:
            return await self._answer_of(request_id, entry)
        here = entry.run = Run(task)
        before = task.cancelling()
        token = REQUEST.set((request_id, entry.body))
        try:
            answer = await run()
        except asyncio.CancelledError:
            if not here.cancels or here.take_back() > before:
                self._end(request_id, entry, None)
                raise
            answer = if_cancelled()
        except BaseException:
            self._end(request_id, entry, None)
            raise
        else:
            here.take_back()  # the cancellation came too late, or the run has handled it
        finally:
            REQUEST.reset(token)
        self._end(request_id, entry, answer)
        return answer

    def answered(self, request_id: str, digest: bytes, text: str) -> None:
        """Keep the answer of a request that another server has run."""
        entry = self._entries[request_id] = _Entry(digest)
        entry.answer = Answer(text)
        self._kept.append(request_id)
        self._bytes += len(text)

    def known(self, request_id: str) -> bool:
        """Return True if there was a request of this id."""
        return request_id in self._entries

    def running(self, request_id: str) -> Run | None:
        """Return the run in flight for this id, or None."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry.run

    def cancel_all(self) -> list[asyncio.Future[Answer | None]]:
        """Cancel all runs in flight. Return the futures of their answers."""
        running = [entry.run for entry in self._entries.values() if entry.run is not None]
        results = [run.result() for run in running]
        for run in running:
            run.cancel()
        return results

    def _entry(self, request_id: str, body: bytes) -> tuple[_Entry, bool]:
        """Return the entry of an id, and True if it existed."""
        digest = hashlib.blake2b(body, digest_size=16).digest()
        entry = self._entries.get(request_id)
        if entry is None:
            entry = self._entries[request_id] = _Entry(digest)
            return entry, False
        if entry.body != digest:
            raise InvalidMessage(
                f"request_id {request_id[:40]!r} was used for another request",
                errors=[{"loc": ["request_id"], "msg": "used for another request", "type": "value_error"}],
            )
        return entry, True

    async def _answer_of(self, request_id: str, entry: _Entry) -> Answer:
        answer = entry.answer
        if entry.run is not None:
            answer = await asyncio.shield(entry.run.result())
            if answer is None:
                raise OperationCancelled("the request was cancelled")
        if answer is None:
            raise ReplyGone(f"request {request_id[:40]!r} was answered, but the answer is no longer kept")
        return answer

    def _ran(self, request_id: str, entry: _Entry, task: asyncio.Task[Answer]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request could not be answered", exc_info=error)
        self._end(request_id, entry, None if error is not None or task.cancelled() else task.result())

    def _end(self, request_id: str, entry: _Entry, answer: Answer | None) -> None:
        run, entry.run = entry.run, None
        assert run is not None
        run.end(answer)
        if answer is None or not answer.final:
            self._entries.pop(request_id, None)
            return
        entry.answer = answer
        self._kept.append(request_id)
        self._bytes += len(answer.text)
        if len(self._kept) > MAX_REPLIES or self._bytes > MAX_REPLY_BYTES or len(self._entries) > MAX_IDS:
            self._trim()

    def _trim(self) -> None:
        """Evict the oldest answers, but never the newest, and the oldest ids above `MAX_IDS`."""
        while len(self._kept) > MAX_REPLIES or (self._bytes > MAX_REPLY_BYTES and len(self._kept) > 1):
            entry = self._entries.get(self._kept.popleft())
            if entry is not None and entry.answer is not None:
                self._bytes -= len(entry.answer.text)
                entry.answer = None
        while len(self._entries) > MAX_IDS:
            oldest = next(iter(self._entries))
            if self._entries[oldest].run is not None:
                break
            del self._entries[oldest]


def is_final(error: Exception) -> bool:
    """Return True if a refusal stays the answer of its request id."""
    return not isinstance(error, CapacityReached | RateLimited | Unauthorized)
