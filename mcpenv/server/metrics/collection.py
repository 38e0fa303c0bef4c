"""The collection of metrics at a scrape: the counters, and what the server has at the moment."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from mcpenv import __version__
from mcpenv.server.config import ServerConfig
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Origin
from mcpenv_client.wire.protocol import EpisodeState

from .exposition import Samples, sample

_STATM = Path("/proc/self/statm")


class Collection:
    """The metrics of one process."""

    def __init__(self, pool: SessionPool, source: EnvironmentFactory, config: ServerConfig) -> None:
        self._pool = pool
        self._source = source
        self._config = config

    def of_process(self) -> Samples:
        """Return the samples of this process, which are added to those of the other workers."""
        pool, recorder = self._pool, self._source.recorder
        sessions = pool.sessions()
        origins = Counter(session.origin for session in sessions)
        samples: Samples = {
            "mcpenv_workers": 1,
            **{sample("mcpenv_sessions", origin=origin.value): origins[origin] for origin in Origin},
            "mcpenv_episodes_running": sum(
                session.origin.orchestrated and session.execution.episode.state is EpisodeState.RUNNING
                for session in sessions
            ),
        }
        if recorder is not None:
            counts = recorder.counts
            pool.counters.recorded(counts.written, counts.lost)
            samples["mcpenv_records_waiting"] = counts.waiting
        if (resident := resident_bytes()) is not None:
            samples["process_resident_memory_bytes"] = resident
        return {**samples, **pool.counters.samples()}

    async def of_server(self) -> Samples:
        """Return the samples of the whole server, which exist once."""
        status = await self._pool.slots.status()
        info = {"version": __version__, "environment": self._source.name, "mode": self._config.mode.value}
        return {
            sample("mcpenv_info", **info): 1,
            "mcpenv_ready": int(status.ready),
            "mcpenv_sessions_taken": status.active_sessions,
            "mcpenv_sessions_max": status.max_sessions,
            "mcpenv_sessions_waiting": status.waiting,
            "mcpenv_quarantined": status.quarantined,
            "mcpenv_quarantined_max": self._config.max_quarantined,
        }


def resident_bytes() -> int | None:
    """Return the resident memory of this process; None where the system does not tell it."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
