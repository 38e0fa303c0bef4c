"""Run Python programs in forks of one interpreter that has imported what they need, which takes a second each time."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMPORTED = (
    "mcpenv.server.app",
    "mcpenv.server.serve",
    "mcpenv.targets.target",
    "mcpenv.cli",
    "mcpenv_client.sync",
    "fastmcp.client",
    "httpx",
    "jsonschema",
    "uvicorn",
)
MCPENV = Path(sys.executable).with_name("mcpenv")
"""The installed command, which is a Python program."""
LIMIT_S = 100
"""How long a program may take."""
FORKING = [sys.executable, __file__]
"""The command of the interpreter that forks."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """The interpreter that forks. Each program has a process, a working directory and an output of its own."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def run(
        self,
        program: Path,
        *arguments: str,
        cwd: Path,
        path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        imports: Sequence[str] = (),
    ) -> Ended:
        """Run a file as ``python FILE ARGUMENTS`` with ``path`` in ``PYTHONPATH``, and wait for its end.

        ``imports`` are modules that several programs import; they are imported once, in the interpreter that forks.
        """
        files = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        order = {
            "argv": [str(program), *arguments],
            "cwd": str(cwd),
            "env": {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})},
            "imports": imports,
            **files,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        returncode = int(self._process.stdout.readline())
        return Ended(returncode, *(Path(file).read_text(encoding="utf-8") for file in files.values()))


@contextmanager
def forks(folder: Path, *imported: str) -> Iterator[Forks]:
    """Start the interpreter that forks, and end it. Outputs are kept in ``folder``.

    It imports ``imported``, or mcpenv and what that needs.
    """
    with subprocess.Popen([*FORKING, *imported], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Forks(process, folder)  # Popen closes its input, which ends it


def _serve() -> None:
    for name in sys.argv[1:] or IMPORTED:
        __import__(name)
    _freeze()
    orders, answers = os.dup(0), os.dup(1)
    for line in os.fdopen(orders, encoding="utf-8"):
        order = json.loads(line)
        if new := [name for name in order["imports"] if name not in sys.modules]:
            for name in new:
                with contextlib.suppress(ImportError):  # the program reports it
                    __import__(name)
            _freeze()
        child = os.fork()
        if child == 0:
            os.close(answers)
            _become(order)
            return  # and the interpreter ends as that of any program
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _freeze() -> None:
    """Leave what was imported out of the collections of programs, the last of which is at their end."""
    gc.collect()
    gc.freeze()


def _become(order: dict[str, Any]) -> None:
    sources = [os.open(os.devnull, os.O_RDONLY)]
    sources += [os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("stdout", "stderr")]
    for number, source in enumerate(sources):
        os.dup2(source, number)
        os.close(source)
    signal.alarm(LIMIT_S)  # without a handler, it ends the program
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["argv"]
    program = Path(sys.argv[0])
    sys.path[:1] = [str(program.parent), *filter(None, order["env"]["PYTHONPATH"].split(os.pathsep))]
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    _serve()
