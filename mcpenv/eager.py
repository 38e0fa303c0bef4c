"""Eager: what is only needed while a coroutine waits is made when it first waits, and most never do.

A timer, or the name of the running task, costs as much as the whole step of a tool that answers at once.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def eager(work: Coroutine[Any, Any, T], on_wait: Callable[[], object]) -> Generator[Any, Any, T]:
    """Await ``work``.

    Args:
        on_wait: called once, in the running task, if and when ``work`` waits for the first time.
    """
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    on_wait()
    return (yield from go_on(work, awaited))


def go_on(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Await ``work``, which has been begun and waits for ``awaited``: as ``await`` does from there on (PEP 380)."""
    try:
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - handed to the work
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result


class Begun:
    """Work that was begun outside of the task that is to go on with it, and waits for something.

    Whoever awaits a future marks it, until a task has seen that; another one who awaits it meanwhile would be refused.
    So the mark is taken off, and is there again when the task gets it.

    Args:
        work: has been begun.
        awaited: what it waits for.
    """

    __slots__ = ("_awaited", "_marked", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._work, self._awaited = work, awaited
        self._marked = getattr(awaited, "_asyncio_future_blocking", None) is True
        if self._marked:
            awaited._asyncio_future_blocking = False

    @types.coroutine
    def rest(self, cancelled: asyncio.CancelledError | None) -> Generator[Any, Any, None]:
        """Await it, in its task.

        Args:
            cancelled: the task was cancelled since it was begun.
        """
        awaited = self._awaited
        if self._marked:
            awaited._asyncio_future_blocking = True
        # As a task does it: what is waited for is cancelled, and only if that cannot be, the waiting itself.
        if cancelled is not None and (awaited is None or not awaited.cancel()):
            try:
                awaited = self._work.throw(cancelled)
            except StopIteration:
                return
        yield from go_on(self._work, awaited)
