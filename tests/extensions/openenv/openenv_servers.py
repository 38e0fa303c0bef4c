"""OpenEnv as programs: its clients and its own server, in the Python that has it installed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "openenv_programs"
ECHO = HERE / "openenv_echo"
"""An environment in OpenEnv's style."""

TIMEOUT_S = 200


def openenv_python() -> Path:
    """The interpreter of the virtual environment that has OpenEnv."""
    named = os.environ.get("MCPENV_OPENENV")
    assert named, "MCPENV_OPENENV names no Python that has openenv; .ci/run makes one and sets it"
    return Path(os.path.abspath(named))


def run(*arguments: str | Path, cwd: Path = HERE) -> str:
    """Return the output of a Python program with OpenEnv that ends with status 0."""
    ended = run_to_end(*arguments, cwd=cwd)
    assert ended.returncode == 0, f"{ended.args} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def run_to_end(*arguments: str | Path, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    """A Python program that has OpenEnv, however it ends."""
    command = [str(openenv_python()), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def program(name: str, *arguments: str) -> str:
    """Return the output of one of the programs beside."""
    return run(PROGRAMS / f"{name}.py", *arguments)


@contextmanager
def openenvs_own_server(folder: Path, **variables: str) -> Iterator[str]:
    """The base URL of OpenEnv's server of the environment in ``folder``; it ends with the block."""
    command = [str(openenv_python()), "-m", "uvicorn", "server.app:app", "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
                if found:
                    break
            else:
                raise AssertionError("OpenEnv's server ended:\n" + "".join(said))
            # A server whose output nobody reads stops when the pipe is full.
            Thread(target=process.stdout.read, daemon=True).start()
            yield found.group(1)
        finally:
            process.terminate()
