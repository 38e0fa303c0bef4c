"""OpenEnv as programs: its clients and its own server, in the Python that has it installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import cast

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "openenv_programs"
ECHO = HERE / "openenv_echo"
"""An environment in OpenEnv's style."""

TIMEOUT_S = 200

WITHOUT_GRADIO = "import sys; sys.modules['gradio'] = None\n"
"""A Python without Gradio, which OpenEnv needs for its web page only, and which takes most of the time of a start."""

EACH = f"""{WITHOUT_GRADIO}
import contextlib, io, json, runpy
printed = []
for command in json.loads(sys.argv[1]):
    sys.argv = command
    run = runpy.run_path if command[0].endswith(".py") else runpy.run_module
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        run(command[0], run_name="__main__")
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


def openenv_python() -> Path:
    """The interpreter of the virtual environment that has OpenEnv."""
    named = os.environ.get("MCPENV_OPENENV")
    assert named, "MCPENV_OPENENV names no Python that has openenv; .ci/run makes one and sets it"
    return Path(os.path.abspath(named))


def run(code: str, *arguments: str | Path, cwd: Path = HERE) -> str:
    """Return the output of Python code with OpenEnv that ends with status 0."""
    command = [str(openenv_python()), "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, f"{ended.args} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def run_each(*commands: list[str], cwd: Path = HERE) -> list[str]:
    """Return the output of each of several programs, which one process runs because importing OpenEnv takes seconds.

    Args:
        commands: a program's file, or the name of its module, and its arguments.
    """
    return cast(list[str], json.loads(run(EACH, json.dumps(commands), cwd=cwd)))


def program(name: str, *arguments: str) -> list[str]:
    """Return the command of one of the programs beside."""
    return [str(PROGRAMS / f"{name}.py"), *arguments]


@contextmanager
def openenvs_own_server(folder: Path, **variables: str) -> Iterator[str]:
    """The base URL of OpenEnv's server of the environment in ``folder``; it ends with the block.

    Args:
        variables: of its process. It has Gradio if ``ENABLE_WEB_INTERFACE`` is among them.
    """
    code = ("" if "ENABLE_WEB_INTERFACE" in variables else WITHOUT_GRADIO) + "import uvicorn; uvicorn.main()"
    command = [str(openenv_python()), "-c", code, "server.app:app", "--port", "0"]
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
