"""A server's processes end with it, also those in sessions of their own."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_bench import is_over, until

from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment

SERVER = """
import os, subprocess, sys
from fastmcp import FastMCP

server = FastMCP("server")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@server.tool
def start() -> list[int]:
    child = subprocess.Popen(SLEEP)
    apart = subprocess.Popen(SLEEP, start_new_session=True)
    read, write = os.pipe()
    if os.fork() == 0:  # a daemon, whose parent ends at once
        os.setsid()
        daemon = subprocess.Popen(SLEEP, start_new_session=True)
        os.write(write, str(daemon.pid).encode())
        os._exit(0)
    os.wait()
    return [os.getpid(), child.pid, apart.pid, int(os.read(read, 20))]


@server.tool
def end(status: int) -> None:
    os._exit(status)


if __name__ == "__main__":
    server.run(show_banner=False)
"""


def config(folder: Path, per_episode: str = "start") -> dict[str, Any]:
    (folder / "server.py").write_text(SERVER)
    server = {"command": sys.executable, "args": [str(folder / "server.py")], "per_episode": per_episode}
    return {"mcpServers": {"one": server}}


WITHOUT_SUBREAPERS = """
import ctypes, struct, sys

# Answer prctl(PR_SET_CHILD_SUBREAPER, ...) with EPERM, as a sandbox may do.
number = {"x86_64": 157, "aarch64": 167}[sys.argv.pop(1)]
load, equal, returned = 0x20, 0x15, 0x06
steps = [(load, 0, 0, 0), (equal, 0, 3, number), (load, 0, 0, 16), (equal, 0, 1, 36), (returned, 0, 0, 0x50001),
         (returned, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
described = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, described, 0, 0) == 0, ctypes.get_errno()
"""


@contextlib.contextmanager
def ending(processes: list[int]) -> Any:
    try:
        yield
        for process in processes:
            until(lambda: is_over(process), f"the end of {process}")  # noqa: B023 - called at once
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


EACH_WAY_TO_START = pytest.mark.parametrize("per_episode", ["start", "fork"])


@EACH_WAY_TO_START
@pytest.mark.parametrize("way", ["close", "a reset", "the server ends", "the server is killed"])
def test_nothing_of_a_server_outlives_it(tmp_path: Path, per_episode: str, way: str) -> None:
    env: Any = ProxyEnvironment.from_config(config(tmp_path, per_episode))()
    with contextlib.closing(env):
        env.reset()
        processes = env.call_tool("start", {}).result.data
        assert len(processes) == 4 and not any(map(is_over, processes))
        with ending(processes):
            if way == "close":
                env.close()
            elif way == "a reset":
                env.reset()
            elif way == "the server ends":
                env.call_tool("end", {"status": 3})
            else:
                os.kill(processes[0], signal.SIGKILL)


@EACH_WAY_TO_START
def test_nothing_of_a_server_outlives_a_process_that_is_killed(tmp_path: Path, per_episode: str) -> None:
    program = (
        "import sys\n"
        "from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment\n"
        f"env = ProxyEnvironment.from_config({config(tmp_path, per_episode)!r})()\n"
        "env.reset()\n"
        "print(*env.call_tool('start', {}).result.data, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        with ending(processes):
            assert len(processes) == 4
            parent.kill()


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the numbers of system calls differ")
@EACH_WAY_TO_START
def test_where_no_orphans_can_be_adopted_the_first_start_says_so(tmp_path: Path, per_episode: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        WITHOUT_SUBREAPERS
        + "from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment\n"
        + f"cls = ProxyEnvironment.from_config({config(tmp_path, per_episode)!r})\n"
        + "for _ in range(2):\n"
        + "    with cls() as env:\n"
        + "        env.reset()\n"
        + "        print(*env.call_tool('start', {}).result.data)\n"
    )
    ended = subprocess.run([sys.executable, program, platform.machine()], capture_output=True, text=True, check=True)
    said = "processes that a command starts in sessions of their own may outlive it"
    assert ended.stderr.count(said) == 1
    for line in ended.stdout.splitlines():
        server, child, *apart = map(int, line.split())
        until(lambda: is_over(server) and is_over(child), "the end of the server's group")  # noqa: B023
        for process in apart:
            os.kill(process, signal.SIGKILL)
