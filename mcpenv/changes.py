"""Changes: what an environment's instance tells those who subscribed to it, and when that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mcp.shared.subscriptions import ServerEvent, event_from_wire
from mcp_types import ResourceUpdatedNotification, ServerNotification

MAX_STREAMS = 64
"""Streams of changes that one instance serves."""

Callback = Callable[[], None]


class Changes:
    """One instance's subscribers; an `mcp` ``SubscriptionBus``. Told from whichever thread the author's code runs in.

    Nothing is kept for later: an event says "list or read it again", and whoever comes later does so anyway.
    """

    __slots__ = ("_ends", "_listeners")

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[ServerEvent], None]]] = {}
        self._ends: dict[object, tuple[asyncio.AbstractEventLoop, Callback]] = {}

    @property
    def full(self) -> bool:
        """Whether no more streams are served."""
        return len(self._ends) >= MAX_STREAMS

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callback:
        """Have ``listener`` called on the running loop; what is returned ends that."""
        token = object()
        self._listeners[token] = (asyncio.get_running_loop(), listener)
        return lambda: _forget(self._listeners, token)

    def at_end(self, callback: Callback) -> Callback:
        """Have ``callback`` called on the running loop by `end`; what is returned ends that."""
        token = object()
        self._ends[token] = (asyncio.get_running_loop(), callback)
        return lambda: _forget(self._ends, token)

    async def publish(self, event: ServerEvent) -> None:
        """`tell`, as `mcp` spells it."""
        self.tell(event)

    def tell(self, event: ServerEvent) -> None:
        """Tell the subscribers."""
        for loop, listener in list(self._listeners.values()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(listener, event)

    def announce(self, notification: ServerNotification) -> bool:
        """Tell the subscribers what an author's code sends to its client; whether it is a change at all."""
        params = notification.params if isinstance(notification, ResourceUpdatedNotification) else None
        event = event_from_wire(notification.method, None if params is None else {"uri": str(params.uri)})
        if event is None:
            return False
        self.tell(event)
        return True

    def end(self) -> None:
        """End every subscription, orderly."""
        for loop, callback in list(self._ends.values()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)


def _forget(entries: dict[object, tuple[asyncio.AbstractEventLoop, Callable[..., None]]], token: object) -> None:
    entries.pop(token, None)
