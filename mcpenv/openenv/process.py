"""The process that hosts an OpenEnv environment, as this side sees it: requests out, replies in, a JSON object a line.

Works from threads and from any event loop: a request is a `concurrent.futures.Future`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO

from mcpenv_client.errors import InvalidMessage, McpenvError, SessionLost

logger = logging.getLogger("mcpenv")

CHILD = Path(__file__).with_name("child.py")
STOP_TIMEOUT_S = 15.0


class OpenEnvRefusal(McpenvError):
    """The process cannot do what it was asked; ``kind`` says which: target, unsupported, index."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class OpenEnvProcess:
    """A process of the Python that has OpenEnv. Started at the first request, again if it died; any thread may ask.

    Args:
        python: the interpreter.
        place: what it is to load, as `child.hosted` takes it.
        folder: its working directory, None for this process's.
    """

    def __init__(self, python: Path, place: Mapping[str, Any], folder: Path | None) -> None:
        self._python = python
        self._place = dict(place)
        self._folder = folder
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)

    def describe(self) -> dict[str, Any]:
        """What the environment is; blocks while OpenEnv is imported, which takes seconds.

        Raises:
            OpenEnvRefusal: no environment is found there.
            Exception: of the type that loading it raised.
        """
        described: dict[str, Any] = self.request("describe", place=self._place).result()
        return described

    def request(self, op: str, **fields: Any) -> Future[Any]:
        """Ask; the future has the answer, or what `error_of` makes of a refusal."""
        return self._send(op, fields)[1]

    async def ask(self, op: str, **fields: Any) -> Any:
        """Ask and wait. Cancelling it cancels what runs there, as far as it can be."""
        number, future = self._send(op, fields)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._send("cancel", {"number": number})
            raise

    def stop(self) -> None:
        """End the process: its environments are closed, then it exits; it is killed if that takes too long."""
        with self._mutex:
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("an OpenEnv environment would not close; its process is killed")
            process.kill()
            process.wait()

    def _send(self, op: str, fields: Mapping[str, Any]) -> tuple[int, Future[Any]]:
        future: Future[Any] = Future()
        number = next(self._numbers)
        line = json.dumps({"id": number, "op": op, **fields}).encode() + b"\n"
        with self._mutex:
            process = self._started()
            if op != "cancel":
                self._waiting[number] = future
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except (BrokenPipeError, ValueError):
                self._waiting.pop(number, None)
                future.set_exception(SessionLost("the process of the OpenEnv environment has ended"))
        return number, future

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [str(self._python), str(CHILD)], cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            threading.Thread(
                target=self._hear, args=(self._process.stdout,), name="mcpenv-openenv", daemon=True
            ).start()
            # Whatever is asked first, a process begins with loading its environment.
            self._process.stdin.write(json.dumps({"id": 0, "op": "describe", "place": self._place}).encode() + b"\n")
        return self._process

    def _hear(self, replies: BinaryIO) -> None:
        with replies:
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
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(SessionLost("the process of the OpenEnv environment has ended"))


def error_of(error: Mapping[str, Any]) -> Exception:
    """The exception for an error of the process: of the author's type by name, or what the framework has for it."""
    kind, message = error["kind"], str(error["message"])
    if kind == "raised":
        raised: Exception = type(str(error["type"]), (Exception,), {})(message)
        raised.add_note(f"in the process of the OpenEnv environment:\n{error['traceback']}")
        return raised
    if kind == "invalid":
        return InvalidMessage(message, errors=error.get("errors"))
    if kind in ("lost", "cancelled"):
        return SessionLost(message)
    return OpenEnvRefusal(kind, message)
