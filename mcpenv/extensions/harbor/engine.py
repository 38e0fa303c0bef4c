"""Run commands of a container engine."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from .box import BoxFailed, last_lines

COMMAND_TIMEOUT_S = 120.0
"""Maximum seconds of an engine command that runs no command of a task."""


async def command(*words: str, timeout_s: float, env: Mapping[str, str] | None = None) -> bytes:
    """Run a program and return its output.

    Raises:
        BoxFailed: it failed, or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError as error:
        raise BoxFailed(f"{' '.join(words[:2])} took more than {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            # With its children: they hold its outputs open, for whose end `wait` waits.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        said = last_lines(stderr.strip() or stdout) or f" exit status {process.returncode}"
        raise BoxFailed(f"{' '.join(words[:2])} failed:{said}")
    return stdout


async def pipe(source: Sequence[str], target: Sequence[str], most: int) -> int:
    """Pass the output of a program to another one, and return its number of bytes.

    Raises:
        BoxFailed: there are more than ``most`` bytes, or one of the two failed or took too long.
    """
    # The count of `wc` leaves by descriptor 4, while `tee` writes to the pipe to the target, which is 3.
    parts = (
        shlex.join(source),
        f"head -c {most + 1}",
        "{ tee /dev/fd/3 | wc -c >&4; } 3>&1",
        f"{shlex.join(target)} >&2",
    )
    script = (
        f"count=$({{ {' | '.join(parts)}; }} 4>&1); status=$?; "
        f'[ "$count" -le {most} ] || {{ echo more than {most} bytes >&2; exit 1; }}; echo "$count"; exit $status'
    )
    return int(await command("bash", "-o", "pipefail", "-c", script, timeout_s=COMMAND_TIMEOUT_S))
