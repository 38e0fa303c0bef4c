"""The fork server: a process without threads that has imported everything but the author's code, and forks.

Each change forks a generation. One generation serves at a time:

    load ──> ready ──> (the one before stops accepting) ──> serving ──> (stops accepting) ──> ends
      └────> failed: the one before goes on serving; without one, its process serves the failure

Connections that come between two generations wait in the backlog of the listening socket, which all of them share.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import multiprocessing
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .failure import Failure
from .messages import (
    Admit,
    Broken,
    End,
    Failed,
    Load,
    Loading,
    Message,
    Pipe,
    Ready,
    Reloaded,
    Serving,
    StopAccepting,
    Stopped,
    received,
    send,
)

STOP_S = 1.0
"""Maximum seconds for a generation to stop accepting; after that, both it and the next one accept connections."""

LEAVE_S = 5.0
"""Seconds in addition to the shutdown timeout after which a generation is killed."""

DISMISS_S = 2.0
"""Seconds after which a generation that was never admitted is killed."""


@dataclass(frozen=True)
class Start:
    """The initial data of a forked process.

    Attributes:
        pipe: to the fork server.
        server: the random name of this run of the fork server.
        number: of the generation, from 1.
        changed: the names of the changed files that it loads; empty at the start.
        first: True if no generation has served yet.
        began: the monotonic time at which the change was reported.
    """

    pipe: Pipe
    server: str
    number: int
    changed: list[str]
    first: bool
    began: float


@dataclass(eq=False)
class _Process:
    """The process of a generation.

    Attributes:
        ready: True once it has loaded.
        failed: True once it has reported that it does not load.
        report: the report of its failure, sent once it answers requests with that failure.
        leaving: True once it was told to end.
        silent: True once its end of the pipe is closed.
        kill_at: the monotonic time at which it is killed; None if it is not.
    """

    pid: int
    number: int
    changed: list[str]
    pipe: Pipe
    ready: bool = False
    failed: bool = False
    report: Broken | None = None
    leaving: bool = False
    silent: bool = False
    kill_at: float | None = None


class ForkServer:
    """The fork server. It waits for messages, signals and deadlines in one loop.

    Args:
        watcher: the pipe to the process that watches the files.
        shutdown_timeout_s: seconds that running steps of a generation may take to finish.
    """

    def __init__(self, watcher: Pipe, shutdown_timeout_s: float) -> None:
        self._watcher = watcher
        self._leave_s = shutdown_timeout_s + LEAVE_S
        self._server = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._processes: list[_Process] = []
        self._loading: _Process | None = None
        self._waiting: _Process | None = None  # loaded, and waiting until the serving generation has stopped
        self._stopping: _Process | None = None
        self._serving: _Process | None = None
        self._stop_by = 0.0
        self._has_served = False
        self._ending = False
        self._libraries = frozenset(name.partition(".")[0] for name in sys.modules) | sys.stdlib_module_names

    def run(self) -> Start | None:
        """Fork until the watcher ends, or SIGTERM comes.

        Returns:
            In each forked process, return its start; in the fork server, return None after all others have ended.
        """
        _freeze()
        with _signals() as woken:
            while not self._ending or self._processes:
                readable = self._wait(woken)
                if woken in readable and signal.SIGTERM in woken.recv(4096):
                    self._end()
                if self._watcher in readable:
                    start = self._read_watcher()
                    if start is not None:
                        return start
                for process in self._processes:
                    if process.pipe in readable:
                        self._read(process)
                self._remove_ended()
                self._expire()
        return None

    # -- waiting

    def _wait(self, woken: socket.socket) -> list[object]:
        heard = [process.pipe for process in self._processes if not process.silent]
        waited: list[socket.socket | Pipe] = [woken, *heard]
        if not self._ending:
            waited.append(self._watcher)
        times = [process.kill_at for process in self._processes if process.kill_at is not None]
        if self._stopping is not None:
            times.append(self._stop_by)
        timeout_s = max(0.0, min(times) - time.monotonic()) if times else None
        return list(select.select(waited, [], [], timeout_s)[0])

    def _expire(self) -> None:
        now = time.monotonic()
        for process in self._processes:
            if process.kill_at is not None and process.kill_at <= now:
                process.kill_at = None
                os.kill(process.pid, signal.SIGKILL)
        if self._stopping is not None and self._stop_by <= now:
            self._admit()

    # -- the watcher

    def _read_watcher(self) -> Start | None:
        messages = received(self._watcher)
        if messages is None:
            self._abandon()
            return None
        for message in messages:
            if isinstance(message, End):
                self._end()
            elif isinstance(message, Load) and not self._ending:
                start = self._fork(message.changed)
                if start is not None:
                    return start
        return None

    def _fork(self, changed: list[str]) -> Start | None:
        """Fork a generation. Return its start in the new process, None in this one."""
        if self._loading is not None:
            self._dismiss(self._loading)
        number, began = next(self._numbers), time.monotonic()
        self._tell(Loading(generation=number, changed=changed))
        ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            # An inherited end that stays open would hide the end of this process's peer from the others.
            ours.close()
            self._watcher.close()
            for process in self._processes:
                process.pipe.close()
            return Start(theirs, self._server, number, changed, not self._has_served, began)
        theirs.close()
        self._loading = _Process(pid, number, changed, ours)
        self._processes.append(self._loading)
        return None

    def _tell(self, message: Message) -> None:
        """Send a message to the watcher, and to the serving generation for its pages."""
        send(self._watcher, message)
        if self._serving is not None:
            send(self._serving.pipe, message)

    # -- generations

    def _read(self, process: _Process) -> None:
        messages = received(process.pipe)
        if messages is None:
            process.silent = True
            return
        for message in messages:
            match message:
                case Ready():
                    self._ready(process)
                case Stopped() if process is self._stopping:
                    self._admit()
                case Serving():
                    first, self._has_served = not self._has_served, True
                    fields = {name: value for name, value in vars(message).items() if name != "modules"}
                    send(
                        self._watcher,
                        Reloaded(generation=process.number, changed=process.changed, first=first, **fields),
                    )
                    self._import(message.modules)
                case Failed():
                    process.failed = True
                    self._failed(process, message)

    def _failed(self, process: _Process, message: Failed) -> None:
        """Report that code does not load. Let its process answer with the failure, unless other code is served."""
        dismissed, served = process is not self._loading, self._code_serves()
        if dismissed or served:
            self._break(process, message.failure)
            send(process.pipe, End())
        else:
            # Report the failure only on admission: until then another process may answer, with an earlier failure.
            process.report = Broken(
                generation=process.number,
                changed=process.changed,
                failure=message.failure,
                serving=False,
                url=message.url,
            )
            self._ready(process)

    def _code_serves(self) -> bool:
        return any(each is not None and not each.failed for each in (self._serving, self._waiting))

    def _ready(self, process: _Process) -> None:
        process.ready = True
        if process is not self._loading:  # dismissed meanwhile
            send(process.pipe, End())
            return
        self._loading = None
        if self._waiting is not None:
            self._dismiss(self._waiting)
        self._waiting = process
        if self._stopping is not None:
            return
        if self._serving is None:
            self._admit()
            return
        send(self._serving.pipe, StopAccepting())
        self._serving.leaving = True
        self._serving.kill_at = time.monotonic() + self._leave_s
        self._stopping, self._stop_by = self._serving, time.monotonic() + STOP_S

    def _admit(self) -> None:
        """Let the waiting generation accept connections."""
        self._stopping = None
        self._serving, self._waiting = self._waiting, None
        if self._serving is not None:
            send(self._serving.pipe, Admit())
            if self._serving.report is not None:
                send(self._watcher, self._serving.report)

    def _break(self, process: _Process, failure: Failure) -> None:
        """Report that a generation has failed, and that no process serves the failure."""
        if process.leaving:
            return
        if process is self._loading:
            self._loading = None
        serving = self._code_serves()
        self._tell(Broken(generation=process.number, changed=process.changed, failure=failure, serving=serving))

    def _remove_ended(self) -> None:
        """Forget ended processes."""
        for process in list(self._processes):
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid == 0:
                continue
            # Children of the author's code may hold the pipe open, so waiting for its end could block.
            while not process.silent and select.select([process.pipe], [], [], 0)[0]:
                self._read(process)
            self._processes.remove(process)
            process.pipe.close()
            if process is self._serving:
                self._serving = None
            if process is self._loading:
                self._loading = None
            if process is self._waiting:
                self._waiting = None
                if process.report is not None:
                    send(self._watcher, replace(process.report, url=None))
            if process is self._stopping:
                self._admit()
            if not process.failed and not self._ending:
                self._break(process, Failure(message=_ending_of(status)))

    def _dismiss(self, process: _Process) -> None:
        """End a generation that was not admitted."""
        self._ask_to_leave(process, DISMISS_S)

    def _end(self) -> None:
        self._ending = True
        for process in self._processes:
            self._ask_to_leave(process, self._leave_s if process.ready else DISMISS_S)

    def _abandon(self) -> None:
        """End because the watcher was killed, without waiting for running steps."""
        self._ending = True
        for process in self._processes:
            self._ask_to_leave(process, DISMISS_S)

    def _ask_to_leave(self, process: _Process, within_s: float) -> None:
        process.leaving = True
        process.kill_at = time.monotonic() + within_s
        if process.ready:
            send(process.pipe, End())
        else:
            os.kill(process.pid, signal.SIGTERM)  # code that is loading receives no messages

    def _import(self, modules: list[str]) -> None:
        """Import the library modules that a generation has needed, so that the next one inherits them."""
        for name in modules:
            if name.partition(".")[0] in self._libraries and name not in sys.modules:
                with contextlib.suppress(ImportError):  # not every name in sys.modules can be imported
                    importlib.import_module(name)
        _freeze()


def _freeze() -> None:
    """Exclude imported objects from garbage collection, which would write to their memory and so copy it."""
    gc.collect()
    gc.freeze()


def _ending_of(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"the server's process was ended by {signal.Signals(-code).name}"
    return f"the server's process ended with status {code}"


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket that has a byte for each SIGTERM and each child process that ends; ignore Ctrl-C and SIGHUP.

    The watcher and the generations receive these from the terminal themselves.
    """
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    with woken, waker:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
        for number in (signal.SIGTERM, signal.SIGCHLD):
            before[number] = signal.signal(number, lambda *_: None)
        fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)
