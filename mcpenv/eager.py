"""Eager: what is only needed while a coroutine waits is made when it first waits, and most never do.

A timer, or the name of the running task, costs as much as the whole step of a tool that answers at once.
"""

from __future__ import annotations

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
