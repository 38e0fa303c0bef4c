"""The watcher: the process of the command, which watches the files and notifies the fork server of changes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mcpenv.errors import StartupError
from mcpenv.server.serve import Listening
from mcpenv.server.uvicorn_server import at_ending_signals

from .changes import Changes, Sources
from .fork_server import ForkServer
from .generation import Generation, Loaded
from .messages import Broken, End, Load, Loading, Pipe, Reloaded, received, send

Event = Loading | Reloaded | Broken
"""An event of a command: code is being loaded, is served, or is broken."""

CAN_FORK = sys.platform != "win32"


def serve_reloading(
    load: Callable[[], Loaded],
    listening: Listening,
    sources: Sources,
    *,
    shutdown_timeout_s: float,
    on_event: Callable[[Event], None],
) -> int:
    """Serve, and reload the code after each change, until a signal comes; return the exit status.

    Called before the process has threads. It returns in this process, and in each forked process: the caller must then
    do nothing but exit with the status.

    Args:
        load: loads the code in a new process.
        sources: the files to watch.
        shutdown_timeout_s: seconds that running steps may take to finish.
        on_event: called in this process.

    Raises:
        StartupError: a port is in use, the files cannot be watched, or the fork server was killed.
    """
    with listening.doors() as doors:
        ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            start = ForkServer(theirs, shutdown_timeout_s).run()
            if start is None:
                return 0
            return Generation(start, listening, doors, _folder(sources.root)).serve(load)
        theirs.close()
    return asyncio.run(Watcher(pid, ours, sources, on_event).run())


class Watcher:
    """The parent of the fork server. It has threads that watch files, and therefore does not fork.

    Args:
        pid: the fork server's.
    """

    def __init__(self, pid: int, pipe: Pipe, sources: Sources, on_event: Callable[[Event], None]) -> None:
        self._pid = pid
        self._pipe = pipe
        self._changes = Changes(sources)
        self._on_event = on_event
        self._gone = asyncio.Event()
        self._ending = False

    async def run(self) -> int:
        """Watch until a signal comes and all processes have ended; return the exit status.

        Raises:
            StartupError: the files cannot be watched, or the fork server was killed.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read)
        watching = asyncio.create_task(self._changes.watch(self._changed))
        gone = asyncio.create_task(self._gone.wait())
        with at_ending_signals(self._end):
            send(self._pipe, Load())
            await asyncio.wait({watching, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not self._gone.is_set():
                self._end()  # unwatched code must not be served
                await gone
        _, status = await asyncio.to_thread(os.waitpid, self._pid, 0)
        if watching.done():
            watching.result()
        watching.cancel()
        await asyncio.wait({watching})
        if os.waitstatus_to_exitcode(status) != 0 and not self._ending:
            raise StartupError("the process that loads changed code was ended by another one; start the command again")
        return 0

    def _changed(self, files: list[Path]) -> None:
        if not self._ending:
            send(self._pipe, Load(changed=[file.name for file in files]))

    def _read(self) -> None:
        messages = received(self._pipe)
        if messages is None:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._gone.set()
            return
        for message in messages:
            if isinstance(message, Reloaded):
                self._changes.learn(map(Path, message.sources))
            if isinstance(message, Event) and not self._ending:
                self._on_event(message)

    def _end(self, number: signal.Signals | None = None) -> None:
        """End all processes; kill them at a Ctrl-C that is not the first signal."""
        if self._ending:
            if number == signal.SIGINT:
                os.kill(self._pid, signal.SIGKILL)  # its generations end when it does
            return
        self._ending = True
        send(self._pipe, End())


def _folder(root: Path) -> Path:
    return root if root.is_dir() else root.parent
