"""The snapshots of an episode for its journal: when one is due, and what is written of it."""

from __future__ import annotations

import logging
import math
import pickle
import time
from dataclasses import replace

from mcpenv.execution.execution import Execution
from mcpenv.execution.restore import take_snapshot
from mcpenv_client.errors import NotSupported, WireError

from .store import SNAPSHOT, Entry, Settings

logger = logging.getLogger("mcpenv")


def way_of(execution: Execution) -> str:
    """Return how the episodes of an environment are continued: ``export``, ``rerun`` or ``restart``."""
    return type(execution.env).DURABILITY or ("export" if execution.hooks.saves_state else "rerun")


class JournalSnapshots:
    """The snapshots of the episodes of one session.

    Args:
        told: the names of the classes of which the log says already that they cannot be saved.

    Attributes:
        exports: True if the class has its state saved, whatever the settings say.
    """

    def __init__(self, settings: Settings, execution: Execution, told: set[str]) -> None:
        self.exports = way_of(execution) == "export"
        self._asked = settings.snapshot_steps is not None or settings.snapshot_s < math.inf
        self._steps: float = settings.snapshot_steps or (math.inf if self._asked else 1)
        self._seconds = settings.snapshot_s
        self._told = told
        self.begin(execution)

    def begin(self, execution: Execution) -> None:
        """Count from the beginning of an episode."""
        self._execution = execution
        self._possible = self.exports or self._asked
        self._last, self._last_at = 0, time.monotonic()

    async def taken(self, *, at_once: bool = False) -> list[Entry]:
        """Return the entry of a snapshot if one is due and can be taken. Its steps are in the journal already.

        Args:
            at_once: it is due whatever the settings say.
        """
        step, now = self._execution.episode.step_count, time.monotonic()
        due = at_once or step - self._last >= self._steps or now - self._last_at >= self._seconds
        if not due or not self._possible:
            return []
        try:
            snapshot = await take_snapshot(self._execution, None)
            trajectory = replace(snapshot.episode.trajectory, steps=[])
            held = replace(snapshot.episode, trajectory=trajectory, spilled=None)
            body = pickle.dumps(replace(snapshot, episode=held), protocol=5)
        except NotSupported as error:
            self._refused(error)
            return []
        except (WireError, pickle.PicklingError, TypeError) as error:
            # What follows the last snapshot is played again.
            logger.warning("the state of an episode could not be saved: %s", error)
            return []
        self._last, self._last_at = step, now
        return [Entry(SNAPSHOT, body)]

    def _refused(self, error: NotSupported) -> None:
        cls = type(self._execution.env)
        if cls.DURABILITY == "export":
            logger.warning("an episode cannot be saved: %s", error)
            return
        # Its episodes are played again, also if it has said nothing of it.
        self.exports = self._possible = False
        if cls.__qualname__ not in self._told:
            self._told.add(cls.__qualname__)
            level = logging.WARNING if self._asked else logging.INFO
            logger.log(level, "no snapshots: an episode cannot be saved, and is played again as a whole: %s", error)
