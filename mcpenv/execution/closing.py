"""Close an instance: run the user's close once, also after code that could not be stopped."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

from mcpenv_client.errors import SessionLost

from .concurrency.event_loop import without_loop
from .current_step import current
from .ending import hand_over
from .instance import Instance


async def close(instance: Instance, reason: str) -> None:
    """Close an instance in which no code runs. The caller holds the lock.

    Raises:
        ExecutionError: the user's close raised; the instance is closed regardless.
    """
    _close_episode(instance, reason)
    await _close_now(instance)


async def close_stuck(instance: Instance, reason: str) -> None:
    """Close an instance that runs abandoned code. The user's close runs after that code has returned."""
    _close_episode(instance, reason)
    loop = None if instance.user_code.runner.inline else asyncio.get_running_loop()
    # False: the code has returned since, and nothing would call `_close_late`.
    if not instance.user_code.when_returned(lambda: _close_late(instance, loop)):
        await _close_now(instance)


def _close_episode(instance: Instance, reason: str) -> None:
    hand_over(instance, reason)
    instance.episode.close()


async def _close_now(instance: Instance) -> None:
    user_code, body = instance.user_code, _close_of(instance)
    try:
        if body is not None:
            await user_code.stage("close", lambda: user_code.call(body))
    finally:  # also if the user's close raised
        if instance.mounted is not None:
            await instance.mounted.leave()
        _forget(instance)


def _close_of(instance: Instance) -> Callable[[], Any] | None:
    """Return the user's close; None if the class has none."""
    close = instance.hooks.close
    return None if close is None else partial(close, instance.env)


def _close_late(instance: Instance, loop: asyncio.AbstractEventLoop | None) -> None:
    """Close in the thread that was abandoned, after its code has returned.

    Args:
        loop: the server's event loop, which runs a coroutine function; None in process.
    """
    close = _close_of(instance) or (lambda: None)
    if loop is not None and loop.is_closed():
        loop = None  # the server has ended
    # The server's loop entered the lifespan, so it has to leave it.
    if loop is not None and instance.mounted is not None:
        asyncio.run_coroutine_threadsafe(instance.mounted.leave(), loop)
    if loop is not None and inspect.iscoroutinefunction(close):
        asyncio.run_coroutine_threadsafe(_close_on_loop(instance, close), loop)
        return
    token = current.set(instance)
    try:
        # On a loop of its own: the loop that the instance used may be closed.
        without_loop((lambda: asyncio.run(close())) if inspect.iscoroutinefunction(close) else close)
    finally:
        current.reset(token)
        _forget(instance)


async def _close_on_loop(instance: Instance, close: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    try:
        await instance.user_code.stage("close", close)
    finally:
        _forget(instance)


def _forget(instance: Instance) -> None:
    """Drop the references to the environment and to closures that hold it, so that it is freed at once."""
    instance.tools.clear()
    instance.episode.kept.clear()
    instance.scoring = None
    instance.user_code.forget_owner()
    instance.env = _CLOSED


class _Closed:
    """The replacement of a closed environment."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SessionLost("the environment is closed")


_CLOSED: Any = _Closed()
