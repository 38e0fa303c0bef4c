"""The end of a process with code that does not load: it serves the failure until other code replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence

from mcpenv.server.uvicorn_server import HTTPServer


class FaultEnding:
    """Ends the servers of a failure. Like `Ending`, but without sessions to finish."""

    def __init__(self, servers: Sequence[HTTPServer], admitted: asyncio.Future[bool]) -> None:
        self._servers = servers
        self._admitted = admitted

    def begin(self) -> None:
        """End, even if the servers were never admitted."""
        for server in self._servers:
            server.should_exit = True
        if not self._admitted.done():
            self._admitted.set_result(False)

    @contextlib.contextmanager
    def at_signals(self) -> Iterator[None]:
        """End at Ctrl-C and SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.begin)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
