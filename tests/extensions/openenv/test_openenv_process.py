"""What an OpenEnv environment starts ends with its process, also in sessions of its own. Needs no OpenEnv."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cluster_bench import is_over, until

from mcpenv.extensions.openenv import process as openenv_process
from mcpenv.extensions.openenv.process import OpenEnvProcess
from mcpenv_client import SessionLost

PYTHON = f"""#!{sys.executable}
import json, os, subprocess, sys

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "end":
        sys.exit(3)
    if request["op"] == "hang":
        sys.stdin.close()
        import time
        time.sleep(600)
    child = subprocess.Popen(SLEEP)
    apart = subprocess.Popen(SLEEP, start_new_session=True)
    read, write = os.pipe()
    if os.fork() == 0:  # a daemon, whose parent ends at once
        os.setsid()
        daemon = subprocess.Popen(SLEEP, start_new_session=True)
        os.write(write, str(daemon.pid).encode())
        os._exit(0)
    os.wait()
    pids = [os.getpid(), child.pid, apart.pid, int(os.read(read, 20))]
    print(json.dumps({{"id": request["id"], "ok": {{"pids": pids}}}}), flush=True)
"""
"""A program in place of a Python that has OpenEnv."""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    file = tmp_path / "python"
    file.write_text(PYTHON)
    file.chmod(0o755)
    return file


@contextlib.contextmanager
def ending(processes: Sequence[int]) -> Iterator[None]:
    assert len(processes) == 4
    try:
        yield
        for process in processes:
            until(lambda: is_over(process), f"the end of {process}")  # noqa: B023 - called at once
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@pytest.mark.smoke
@pytest.mark.parametrize("way", ["stop", "stop of one that hangs", "it ends", "it is killed"])
def test_nothing_of_an_openenv_environment_outlives_it(python: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv_process, "STOP_TIMEOUT_S", 1.0)
    process = OpenEnvProcess(python, {}, None)
    pids = process.describe()["pids"]
    with ending(pids):
        assert not any(map(is_over, pids))
        if way == "it is killed":
            os.kill(pids[0], signal.SIGKILL)
        elif way == "it ends":
            with pytest.raises(SessionLost):
                process.request("end").result(60)
        else:
            if way == "stop of one that hangs":
                process.request("hang")
            process.stop()
    process.stop()


@pytest.mark.process
def test_nothing_of_an_openenv_environment_outlives_a_process_that_is_killed(python: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from mcpenv.extensions.openenv.process import OpenEnvProcess\n"
        f"process = OpenEnvProcess(pathlib.Path({str(python)!r}), {{}}, None)\n"
        "print(*process.describe()['pids'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        with ending([int(word) for word in parent.stdout.readline().split()]):
            parent.kill()
