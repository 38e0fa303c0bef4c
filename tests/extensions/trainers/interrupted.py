"""Ctrl-C for a trainer's program, as a terminal sends it, and what must hold afterwards."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from trainer_worlds import Stuck

PROGRAM = Path(__file__).with_name("interrupted_program_of_trainers.py")

LIMIT_S = 5.0
"""The maximum seconds from Ctrl-C to the end of a program, beside those of its library's own exit."""

_ERROR = re.compile(r"^\S*(?:Error|Exception|Interrupt|Lost|Failed|Exit)\b.*|.*never.*", re.MULTILINE)


@functools.cache
def exit_of(python: str, modules: str) -> float:
    """Return the seconds in which Python ends after `KeyboardInterrupt` where nothing but these modules was imported.

    Libraries that load torch need most of the time that a program needs to end, and differ by the machine's load.
    """
    program = f"import time, {modules}\nprint(time.monotonic(), flush=True)\nraise KeyboardInterrupt"
    ran = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    ended = time.monotonic()
    assert ran.stderr.endswith("KeyboardInterrupt\n"), ran.stderr
    return ended - float(ran.stdout.split()[-1])


def interrupted(
    command: Sequence[str],
    url: str,
    ready: Callable[[float], bool] | None = None,
    environ: Mapping[str, str] = {},
    *,
    modules: str = "asyncio",
    python: str | None = None,
) -> str:
    """Interrupt a program once it is ready; check that it and its sessions end, and return its stderr.

    The program may take `LIMIT_S` to end, and twice as long as its library's own exit.

    Args:
        command: the program. It prints ``ready`` as the first word of a line, unless ``ready`` is given.
        url: the server whose sessions must end.
        ready: waits at most that many seconds until the program is where it must be; False: it is not.
        environ: variables beside those of this process.
        modules: what the program imports of its library, separated by commas.
        python: the interpreter that has the library; None: that beside the program.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **environ}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        try:
            there = any(line.startswith("ready") for line in program.stdout) if ready is None else ready(300)
            assert there and program.poll() is None, program.communicate(timeout=60)
            began = time.monotonic()
            os.killpg(program.pid, signal.SIGINT)
            _, err = program.communicate(timeout=200)
            took_s = time.monotonic() - began
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    own_s = exit_of(python or str(Path(command[0]).with_name("python")), modules)
    print(f"ended {took_s:.1f} s after Ctrl-C; {modules} alone ends in {own_s:.1f} s")
    assert took_s < LIMIT_S + 2 * own_s, err
    with pytest.raises(ProcessLookupError):
        os.killpg(program.pid, 0)
    deadline = time.monotonic() + 20  # the server sees the end of a connection a moment later
    while (sessions := httpx.get(f"{url}/sessions").json()["sessions"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sessions == []
    return err


def ends_at_ctrl_c(python: str, trainer: str, url: str, by: str, *more: str, modules: str = "asyncio") -> None:
    """Interrupt a trainer of `PROGRAM` and check that it ends with one `KeyboardInterrupt`, and so do its sessions.

    Args:
        python: the interpreter that has the trainer's library.
        trainer: the trainer's name.
        url: a server of `Stuck`.
        by: what does not answer: "tool", or else the model.
        more: further arguments of the trainer.
        modules: as for `interrupted`.
    """
    ready = Stuck.called.wait if by == "tool" else None
    err = interrupted([python, str(PROGRAM), trainer, url, by, *more], url, ready, modules=modules)
    assert errors_in(err) == ["KeyboardInterrupt"], err


def errors_in(err: str) -> list[str]:
    """Return the errors that a program printed, without the cancellation that Ctrl-C is for a coroutine."""
    return [found for found in _ERROR.findall(err) if not found.endswith("CancelledError")]
