"""Notify waiting coroutines of an episode's end, and subscribers of changes of tools, prompts and resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from mcp.shared.subscriptions import ServerEvent, event_from_wire
from mcp_types import ResourceUpdatedNotification, ServerNotification

MAX_STREAMS = 64
"""Maximum streams of changes that one instance serves."""

Callback = Callable[[], None]


class Ending(Enum):
    """The outcome for a coroutine that waits for an episode's end."""

    DONE = "done"
    """The episode terminated or was truncated."""
    SUPERSEDED = "superseded"
    """A reset began another episode."""
    CLOSED = "closed"
    """The session ended."""


class Watchers:
    """The coroutines that wait for the running episode to end. `tell` may be called in any thread."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Ending]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    async def ending(self, timeout_s: float | None) -> Ending | None:
        """Return how the running episode ends, or None if it has not ended within ``timeout_s`` seconds."""
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def tell(self, ending: Ending) -> None:
        """Wake all coroutines that wait for the running episode."""
        # A new list: a coroutine that calls `ending` from here on waits for the next end.
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future, ending)


class Subscribers:
    """The subscribers of one instance; an `mcp` ``SubscriptionBus``. `tell` may be called in any thread.

    Events are not stored. An event means "list or read again", and a later subscriber does so anyway.
    """

    __slots__ = ("_ends", "_listeners")

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[ServerEvent], None]]] = {}
        self._ends: dict[object, tuple[asyncio.AbstractEventLoop, Callback]] = {}

    @property
    def full(self) -> bool:
        """True if the maximum number of streams is served."""
        return len(self._ends) >= MAX_STREAMS

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callback:
        """Call ``listener`` on the running loop for each event. Return a function that ends the subscription."""
        token = object()
        self._listeners[token] = (asyncio.get_running_loop(), listener)
        return lambda: _forget(self._listeners, token)

    def at_end(self, callback: Callback) -> Callback:
        """Call ``callback`` on the running loop when `end` is called. Return a function that undoes this."""
        token = object()
        self._ends[token] = (asyncio.get_running_loop(), callback)
        return lambda: _forget(self._ends, token)

    async def publish(self, event: ServerEvent) -> None:
        """Call `tell`, under the name that `mcp` uses."""
        self.tell(event)

    def tell(self, event: ServerEvent) -> None:
        """Pass an event to the subscribers."""
        # A copy, as other threads may subscribe or leave meanwhile.
        for loop, listener in list(self._listeners.values()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(listener, event)

    def announce(self, notification: ServerNotification) -> bool:
        """Pass on a notification that user code sends. Return True if it announces a change."""
        params = notification.params if isinstance(notification, ResourceUpdatedNotification) else None
        event = event_from_wire(notification.method, None if params is None else {"uri": str(params.uri)})
        if event is None:
            return False
        self.tell(event)
        return True

    def end(self) -> None:
        """End every subscription in order."""
        for loop, callback in list(self._ends.values()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)


def _forget(entries: dict[object, tuple[asyncio.AbstractEventLoop, Callable[..., None]]], token: object) -> None:
    entries.pop(token, None)


def _settle(future: asyncio.Future[Ending], ending: Ending) -> None:
    if not future.done():  # the timeout may have cancelled it in the meantime
        future.set_result(ending)
