"""The note in the store that the record has an episode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mcpenv.execution.execution import Execution
from mcpenv_client.errors import SessionLost

from .store import RECORDED, Entry
from .writing import SessionWriter

logger = logging.getLogger("mcpenv")


class RecordNote:
    """Writes, once the record has an episode, which is over, that it does: no other server records it again.

    Args:
        execution: what plays the episode.
        writer: of its session.
        patience_s: maximum seconds for which its end waits for the store.
    """

    def __init__(self, execution: Execution, writer: SessionWriter, patience_s: float) -> None:
        self._execution = execution
        self._writer = writer
        self._patience_s = patience_s
        self._noting: asyncio.Task[None] | None = None
        self._is_recorded = False

    def begin(self, episode_id: str) -> None:
        """Wait for the record in a task, and write the note."""
        sink = self._execution.sink
        if sink is not None and self._noting is None:
            self._noting = asyncio.ensure_future(self._note(lambda: sink.written(episode_id)))

    async def over(self, *, wait: bool) -> None:
        """Return once the note is written.

        Args:
            wait: False if the record has the episode already: cut short what has not begun to write.
        """
        noting, self._noting = self._noting, None
        if noting is None:
            return
        if not (wait or self._is_recorded):
            noting.cancel()
        await asyncio.wait({noting}, timeout=self._patience_s)
        if not noting.done():
            noting.cancel()
            logger.warning("an episode may be recorded twice: the store of durable sessions does not answer")
            await asyncio.wait({noting})
        self._is_recorded = False

    async def drop(self) -> None:
        """Leave the note unwritten."""
        noting, self._noting = self._noting, None
        if noting is not None:
            noting.cancel()
            await asyncio.wait({noting})

    async def _note(self, written: Callable[[], Awaitable[bool]]) -> None:
        await self._execution.wait_idle()  # then the sink has the episode
        if not await written():
            return
        self._is_recorded = True
        try:
            await self._writer.note(Entry(RECORDED, b"1"))
        except SessionLost as lost:
            logger.warning("an episode may be recorded twice: %s", lost)
