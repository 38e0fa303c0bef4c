"""Run commands of a container engine."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping

from .box import BoxFailed, last_lines

COMMAND_TIMEOUT_S = 120.0
"""Maximum seconds of an engine command that runs no command of a task."""


async def command(*words: str, timeout_s: float, env: Mapping[str, str] | None = None) -> bytes:
    """Run a program and return its output.

    Raises:
        BoxFailed: it failed, or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError as error:
        raise BoxFailed(f"{' '.join(words[:2])} took more than {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = last_lines(stderr.strip() or stdout) or f" exit status {process.returncode}"
        raise BoxFailed(f"{' '.join(words[:2])} failed:{said}")
    return stdout
