"""Membership of one worker among several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config import ServerConfig
from ..slots import Slots
from . import tag
from .channel import Channel
from .slots import SharedSlots


class Member:
    """What is for the whole server is asked of the hub."""

    def __init__(self, channel: Channel, worker: str) -> None:
        self._channel = channel
        self._tag = worker
        self.shared_slots: SharedSlots | None = None

    def new_id(self) -> str:
        """A new id, which says that it is of this worker."""
        return tag.new_id(self._tag)

    def slots(self, limit: Callable[[], int], config: ServerConfig) -> Slots:
        """The slots of the whole server."""
        self.shared_slots = SharedSlots(self._channel, limit, config)
        return self.shared_slots

    async def spend(self, agent: str) -> None:
        """Count a request of an agent.

        Raises:
            RateLimited: it sent too many.
        """
        await self._channel.call("spend", agent)

    async def sessions(self, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What there is to know of all sessions."""
        others: list[dict[str, Any]] = await self._channel.call("sessions")
        return sorted([*own, *others], key=lambda session: float(session["created_at"]))

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """What became of all episodes that are recorded, by the workers that run."""
        others: list[dict[str, int]] = await self._channel.call("recorded")
        return {name: sum(each[name] for each in (own, *others)) for name in own}

    async def reserve(self, session_id: str) -> bool:
        """Whether nobody has that id."""
        free: bool = await self._channel.call("reserve", session_id)
        return free

    def hold(self, session_id: str) -> None:
        """A session has that id."""
        self._channel.tell("hold", session_id)

    def let_go(self, session_id: str) -> None:
        """It has it no more."""
        self._channel.tell("let_go", session_id)
