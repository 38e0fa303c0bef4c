"""Run a Python verifier in a process that can access only its input and its output."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mcpenv.errors import VerifierFailed
from mcpenv_client.types.values import decode

CHILD = Path(__file__).with_name("inside") / "child.py"
START_LIMIT_S = 60.0
"""Maximum seconds for starting the interpreter and setting up its isolation."""
MAX_ANSWER = 64 * 1024
"""Maximum bytes of an answer."""


class Limits(BaseModel):
    """The resource limits of a Python verifier.

    Attributes:
        time_s: seconds, both wall time and processor time, without the start of the sandbox.
        memory_mb: MiB. For "process" it includes the interpreter's own 30 or so.
        files_mb: MiB that it may write into its folder, which is deleted afterwards; "process" only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    time_s: float = Field(default=10.0, gt=0, le=600)
    memory_mb: int = Field(default=256, ge=16, le=16_384)
    files_mb: int = Field(default=0, ge=0, le=4_096)


class Sandbox:
    """A single run of a verifier. `run` blocks; `stop` may be called from another thread.

    Args:
        limits: the resource limits of the verifier.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, payload: bytes) -> Any:
        """Return the result of ``verify`` as plain data.

        Args:
            payload: JSON of the code and of its arguments.

        Raises:
            VerifierFailed: if there is no result, or no sandbox on this machine.
        """
        if sys.platform != "linux":
            raise _refused(f"Linux, and this is {sys.platform}")
        if not sys.executable:
            raise _refused("a Python that can start a child process (sys.executable is empty)")
        with tempfile.TemporaryDirectory(prefix="mcpenv-verify-") as folder:
            process = self._start(folder)
            try:
                return self._result(process, payload)
            finally:
                self._end(process)

    def stop(self) -> None:
        """Kill the process."""
        with self._mutex:
            self._stopped = True
            if self._process is not None:
                _kill(self._process)

    def _start(self, folder: str) -> subprocess.Popen[bytes]:
        limits = self._limits.model_dump()
        command = [sys.executable, "-s", "-S", "-B", "-X", "utf8", str(CHILD)]
        with self._mutex:
            if self._stopped:
                raise VerifierFailed("the verifier was stopped")
            self._process = subprocess.Popen(
                [*command, json.dumps({"folder": folder, "limits": limits})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={"PYTHONHASHSEED": "0"},  # deterministic runs
                close_fds=True,
                start_new_session=True,
            )
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._mutex:
            self._process = None
            _kill(process)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _result(self, process: subprocess.Popen[bytes], payload: bytes) -> Any:
        talk = _Talk(process)
        ready = talk.line(START_LIMIT_S)
        if ready is None:
            lines = talk.errors.decode(errors="replace").strip().splitlines()
            raise VerifierFailed(f"the process sandbox did not start: {lines[-1] if lines else _end_of(process)}")
        if "refused" in ready:
            raise _refused(str(ready["refused"]))
        talk.send(payload)
        try:
            answer = talk.line(self._limits.time_s)
        except TimeoutError:
            raise VerifierFailed(f"the verifier exceeded its limit of {self._limits.time_s:g} s") from None
        if answer is None:
            raise VerifierFailed("the verifier was stopped" if self._stopped else f"the verifier {_end_of(process)}")
        if "failed" in answer:
            raise VerifierFailed(f"the verifier {answer['failed']}")
        if "value" not in answer:
            raise VerifierFailed("the verifier's answer has no value")
        return answer["value"]


class _Talk:
    """The pipes to and from the process. Reading and writing do not block each other, and input sizes are bounded."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._input, self._output, self._error = process.stdin, process.stdout, process.stderr
        self._to_send = memoryview(b"")
        self._answered = bytearray()
        self.errors = bytearray()
        for stream in (self._input, self._output, self._error):
            os.set_blocking(stream.fileno(), False)

    def send(self, data: bytes) -> None:
        """Queue ``data`` and the end of input, to be written while `line` waits."""
        self._to_send = memoryview(data)

    def line(self, limit_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None at the end of the output.

        Raises:
            TimeoutError: if the answer did not come in time.
            VerifierFailed: if the answer is too long, or not a JSON object.
        """
        until = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._error, selectors.EVENT_READ)
            if self._to_send:
                selector.register(self._input, selectors.EVENT_WRITE)
            while b"\n" not in self._answered:
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready and time.monotonic() >= until:
                    raise TimeoutError
                for key, _ in ready:
                    if not self._move(selector, key.fileobj):
                        return None
        text, _, rest = bytes(self._answered).partition(b"\n")
        self._answered = bytearray(rest)
        try:
            answer = decode(text)
        except ValueError as error:
            raise VerifierFailed("the verifier's answer is not JSON") from error
        if not isinstance(answer, dict):
            raise VerifierFailed("the verifier's answer is not an object")
        return answer

    def _move(self, selector: selectors.BaseSelector, stream: Any) -> bool:
        """Read from or write to a stream that is ready. Return False at the end of the output."""
        if stream is self._input:
            try:
                self._to_send = self._to_send[os.write(stream.fileno(), self._to_send[:65536]) :]
            except BrokenPipeError:
                self._to_send = memoryview(b"")
            if not self._to_send:
                selector.unregister(stream)
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
            return True
        data = os.read(stream.fileno(), 65536)
        if stream is self._error:
            self.errors = (self.errors + data)[-MAX_ANSWER:]
            if not data:
                selector.unregister(stream)
            return True
        self._answered += data
        if len(self._answered) > MAX_ANSWER:
            raise VerifierFailed(f"the verifier answered more than {MAX_ANSWER} bytes")
        return bool(data)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    status = process.wait()
    if status == -signal.SIGXCPU or status == -signal.SIGKILL:
        return "was killed because it exceeded a limit"
    if status < 0:
        return f"crashed ({signal.Signals(-status).name})"
    return f"ended without a result (exit status {status})"


def _refused(what: str) -> VerifierFailed:
    return VerifierFailed(f'the process sandbox needs {what}. Set "sandbox": "monty" if pure logic is enough')
