"""Manage the process that hosts an OpenEnv environment: write requests, read replies, one JSON object a line.

It works from threads and from any event loop, because a request is a `concurrent.futures.Future`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import queue
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from mcpenv.extensions.mcp_proxy.process import GUARD_KILL, GUARDS, guard
from mcpenv_client.errors import InvalidMessage, McpenvError, SessionLost
from mcpenv_client.wire.faults import plain_faults

logger = logging.getLogger("mcpenv")

CHILD = Path(__file__).with_name("child.py")
STOP_TIMEOUT_S = 15.0


class OpenEnvRefusal(McpenvError):
    """The error that the process cannot serve a request; ``kind`` is "target", "unsupported" or "index"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class OpenEnvProcess:
    """A process of the Python that has OpenEnv. It starts on demand. Safe to use from any thread.

    Args:
        python: the interpreter.
        place: the environment to load, as `child.hosted` accepts it.
        folder: its working directory; None for the current one.
    """

    def __init__(self, python: Path, place: Mapping[str, Any], folder: Path | None) -> None:
        self._python = python
        self._place = dict(place)
        self._folder = folder
        self._mutex = threading.Lock()
        self._running: _Running | None = None
        self._numbers = itertools.count(1)

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        running = self._running
        return None if running is None or running.ended else running.process.pid

    def describe(self) -> dict[str, Any]:
        """Return the description of the environment. Blocks while OpenEnv is imported, which takes seconds.

        Raises:
            OpenEnvRefusal: if no environment is found there.
            Exception: of the type that loading it raised.
        """
        described: dict[str, Any] = self.request("describe", place=self._place).result()
        return described

    def request(self, op: str, **fields: Any) -> Future[Any]:
        """Send a request and return a future of the answer. An error becomes the exception of `error_of`."""
        return self._send(op, fields)[1]

    async def ask(self, op: str, **fields: Any) -> Any:
        """Send a request and await the answer. Cancelling it cancels the request in the process, if possible."""
        number, future = self._send(op, fields)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._send("cancel", {"number": number})
            raise

    def stop(self) -> None:
        """Close the environments and end the process. It is killed after a timeout."""
        with self._mutex:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _send(self, op: str, fields: Mapping[str, Any]) -> tuple[int, Future[Any]]:
        number = next(self._numbers)
        with self._mutex:
            if (self._running is None or self._running.ended) and op in ("describe", "make"):
                self._running = _Running(self._python, self._folder)
                if op != "describe":
                    self._running.send(0, {"op": "describe", "place": self._place})
            running = self._running
        future: Future[Any] = Future()
        if running is None:
            future.set_exception(_lost())
        else:
            future = running.send(number, {"op": op, **fields})
        return number, future


class _Running:
    """A process, from its start to its end. Callers do not block on writing to it."""

    def __init__(self, python: Path, folder: Path | None) -> None:
        self.ended = False
        self._mutex = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        started: Future[subprocess.Popen[bytes]] = Future()
        # In the thread that hears it to its end, because the system ends it with the thread that started it.
        hearing = functools.partial(self._run, [*guard(), str(python), str(CHILD)], folder, started)
        threading.Thread(target=hearing, name="mcpenv-openenv", daemon=True).start()
        self.process = started.result()
        threading.Thread(target=self._write, name="mcpenv-openenv", daemon=True).start()

    def send(self, number: int, request: Mapping[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._mutex:
            if self.ended:
                future.set_exception(_lost())
                return future
            if request["op"] != "cancel":  # a cancel request has no answer
                self._waiting[number] = future
            self._lines.put(json.dumps({"id": number, **request}).encode() + b"\n")
        return future

    def stop(self) -> None:
        self._lines.put(None)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("an OpenEnv environment did not close in time; killing its process")
            if GUARDS:
                self.process.send_signal(GUARD_KILL)
            else:
                self.process.kill()
            self.process.wait()

    def _write(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the end of the replies fails all pending requests
            with self.process.stdin as requests:
                while (line := self._lines.get()) is not None:
                    requests.write(line)
                    requests.flush()

    def _run(self, command: list[str], folder: Path | None, started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        self._hear(process)

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as replies:
            for line in replies:
                reply = json.loads(line)
                with self._mutex:
                    future = self._waiting.pop(reply["id"], None)
                if future is None or not future.set_running_or_notify_cancel():
                    continue
                if "error" in reply:
                    future.set_exception(error_of(reply["error"]))
                else:
                    future.set_result(reply["ok"])
        with self._mutex:
            self.ended = True
            waiting, self._waiting = self._waiting, {}
        self._lines.put(None)
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(_lost())


def _lost() -> SessionLost:
    return SessionLost("the process of the OpenEnv environment has ended")


def error_of(error: Mapping[str, Any]) -> Exception:
    """Return the exception for an error of the process, with the name of the original type if user code raised it."""
    kind, message = error["kind"], str(error["message"])
    if kind == "raised":
        raised: Exception = type(str(error["type"]), (Exception,), {})(message)
        raised.add_note(f"in the process of the OpenEnv environment:\n{error['traceback']}")
        return raised
    if kind == "invalid":
        return InvalidMessage(message, errors=plain_faults(error.get("errors") or ()))
    if kind in ("lost", "cancelled"):
        return SessionLost(message)
    return OpenEnvRefusal(kind, message)
