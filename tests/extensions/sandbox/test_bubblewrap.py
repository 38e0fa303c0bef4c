"""Test in the sandboxes of bubblewrap that programs change nothing of the kernel, in particular those of root."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import harbor_task

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.evaluation.isolation import Isolation
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.mcp_proxy.sandbox import ServerSandbox
from mcpenv.extensions.sandbox import bubblewrap
from mcpenv.extensions.sandbox.bubblewrap import command_line, find_bubblewrap
from mcpenv.extensions.sandbox.mounts import Mount, mount_arguments
from mcpenv.extensions.sandbox.process import Limits, Sandbox

In = Callable[[str, Path], str]

PROBE = Path(__file__).with_name("probe.py").read_text(encoding="utf-8")

# The probes that succeed, by sandbox. security.md names each.
OPEN = {
    "a port of the loopback": {"an agent", "a server with network"},
    "a socket in another folder": {"an agent", "a server", "a server with network"},
    "a file in the home folder": {"an agent", "a server", "a server with network"},
    "a file in the home folder is written": {"an agent"},
    "a file that only root reads": {"an agent", "a server", "a server with network"} if os.geteuid() == 0 else set(),
}


def of_an_agent(script: str, folder: Path) -> str:
    isolation = Isolation.choose("bubblewrap")
    with isolation.command(["python3", "-c", script], folder, [], []) as (command, files):
        return ran(command, files)


def of_a_server(script: str, folder: Path, *, network: bool = False) -> str:
    sandbox = ServerSandbox(find_bubblewrap("--unshare-net"), network, [])
    return ran(sandbox.command(["python3", "-c", script], folder, None))


def of_a_server_with_network(script: str, folder: Path) -> str:
    return of_a_server(script, folder, network=True)


def of_a_task(script: str, folder: Path) -> str:
    with HarborEnvironment.from_folder(harbor_task(folder / "hello"), base_image="host")() as env:
        env.reset()
        env.call_tool("write_file", {"path": "/root/tries.py", "content": script})
        result = env.call_tool("execute", {"command": "/usr/bin/env python3 /root/tries.py"}).result.structured_content
    assert result["exit_code"] == 0, result["stderr"]
    return str(result["stdout"])


def ran(command: list[str], files: tuple[int, ...] | list[int] = ()) -> str:
    done = subprocess.run(
        command,
        pass_fds=files,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_a_verifier(script: str, folder: Path) -> str:
    """Run code that defines ``verify``."""
    about: dict[str, Any] = {"task": None, "before": None, "after": None, "changes": []}
    return json.dumps(Sandbox(Limits()).run(json.dumps({"code": script, "about": about}).encode()))


SANDBOXES: dict[str, In] = {
    "an agent": of_an_agent,
    "a server": of_a_server,
    "a server with network": of_a_server_with_network,
    "a task": of_a_task,
    "a verifier": of_a_verifier,
}

each_sandbox = pytest.mark.parametrize("run_in", [of_an_agent, of_a_server, of_a_server_with_network, of_a_task])


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a sandbox should not reach: sockets, files, keys, memory and a process of this machine."""
    secret, seconds = secrets.token_hex(8), 10_000 + secrets.randbelow(1_000_000)
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN", secret)
    libc = ctypes.CDLL(None)
    keyctl, add_key = (219, 217) if platform.machine() == "aarch64" else (250, 248)
    libc.syscall(keyctl, 1, None)  # a session keyring of this process
    libc.syscall(add_key, b"user", secret.encode(), b"secret", 6, -3)
    ipc = 1 + secrets.randbelow(1 << 30)
    memory, queue = libc.shmget(ipc, 4096, 0o1600), libc.msgget(ipc, 0o1600)
    shared = Path("/dev/shm", secret)
    shared.write_text("x")
    (tmp_path / "file").write_text("x")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home(), prefix=".probe-")))
        (home / "file").write_text("x")
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in (f"\0{secret}", str(tmp_path / "socket"), str(home / "socket")):
            made = stack.enter_context(socket.socket(socket.AF_UNIX))
            made.bind(address)
            made.listen()
        process = stack.enter_context(subprocess.Popen(["sleep", str(seconds)]))
        stack.callback(process.kill)
        inheritable = stack.enter_context((tmp_path / f"open-{secret}").open("w"))
        os.set_inheritable(inheritable.fileno(), True)
        yield {
            "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "user")],
            **dict.fromkeys(("token", "mark", "key", "abstract"), secret),
            "ipc": ipc,
            "pid": process.pid,
            "seconds": seconds,
            "port": server.getsockname()[1],
            "socket": str(tmp_path / "socket"),
            "other_socket": str(home / "socket"),
            "file": str(tmp_path / "file"),
            "home_file": str(home / "file"),
        }
    libc.shmctl(memory, 0, None)
    libc.msgctl(queue, 0, None)
    shared.unlink()


def probed(run_in: In, folder: Path, outside: dict[str, Any]) -> set[str]:
    script = PROBE.replace("sys.argv[1]", repr(json.dumps(outside))).replace("found(task)", f"found({outside!r})")
    result = json.loads(run_in(script, folder))
    assert "only" in outside or result["failed"] > 100
    return set(result["done"])


@pytest.mark.world
@pytest.mark.parametrize("place", SANDBOXES)
def test_of_all_probes_only_those_succeed_that_are_named(place: str, tmp_path: Path, outside: dict[str, Any]) -> None:
    (tmp_path / "work").mkdir()
    named = {name for name, places in OPEN.items() if place in places}
    assert probed(SANDBOXES[place], tmp_path / "work", outside) == named


def test_probes_of_what_is_outside_succeed_there(tmp_path: Path, outside: dict[str, Any]) -> None:
    only = {
        "a port of the loopback",
        "an abstract socket outside",
        "a socket in a temporary folder",
        "a file in a temporary folder",
        "shared memory of System V",
        "a queue of System V",
        "shared memory of POSIX",
        "a socket in another folder",
        "a file in the home folder",
        "another process is found",
        "another process is signalled",
    }

    def alone(script: str, folder: Path) -> str:
        return ran([sys.executable, "-c", script])

    assert probed(alone, tmp_path, outside | {"only": sorted(only)}) == only
    with pytest.raises(AssertionError, match="not in a sandbox"):
        probed(alone, tmp_path, outside)


@pytest.mark.world
@each_sandbox
def test_a_program_shares_no_namespace_but_the_network_that_it_is_given(run_in: In, tmp_path: Path) -> None:
    names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    links = f"[os.readlink('/proc/self/ns/' + name) for name in {names}]"
    there, session = json.loads(run_in(f"import json, os; print(json.dumps([{links}, os.getsid(0)]))", tmp_path))
    shared = {name for name, own in zip(names, there, strict=True) if os.readlink(f"/proc/self/ns/{name}") == own}
    assert shared == ({"net"} if run_in in (of_an_agent, of_a_server_with_network) else set())
    assert session > 0  # 0 is a session outside


@pytest.mark.world
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes work without a user namespace")
def test_without_user_namespaces_the_kernel_is_covered_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    older(tmp_path, "--unshare-user", monkeypatch)
    (tmp_path / "work").mkdir()
    done = probed(of_an_agent, tmp_path / "work", outside) - OPEN.keys()
    # Here the machine has user namespaces after all. What is mounted in one changes nothing outside.
    assert done <= {"a user namespace", "mount in a user namespace"}
    weaker = [each for each in caplog.messages if "there is no user namespace" in each]
    assert len(weaker) == 1 and weaker[0].startswith("Sandboxes are weaker on this machine: ")


# Fills each folder in memory, and makes a file in each folder at the top and in /dev.
FILL = """
import errno, json, os
full, made = {}, []
for line in open("/proc/self/mounts"):
    _, folder, kind, options, *_ = line.split()
    if kind == "tmpfs" and "ro" not in options.split(","):
        written = 0
        with open(folder + "/filler", "wb", buffering=0) as file:
            try:
                while written < 64 << 20:
                    written += file.write(bytes(1 << 16))
            except OSError as error:
                full[folder] = [written, errno.errorcode[error.errno]]
        os.unlink(folder + "/filler")
for folder in ("/", "/dev", "/dev/pts", "/proc", "/sys"):
    try:
        os.close(os.open(folder + "/made", os.O_CREAT | os.O_WRONLY))
        made.append(folder)
    except OSError:
        pass
for device in ("null", "zero", "full", "random", "tty"):
    os.stat("/dev/" + device)
open("/dev/null", "w").write("x")
os.close(os.openpty()[0])
print(json.dumps([full, made]))
"""


@pytest.mark.world
@each_sandbox
def test_each_folder_in_memory_is_full_at_its_size(run_in: In, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_SANDBOX_TMPFS_MB", "3")
    full, made = json.loads(run_in(FILL, tmp_path))
    assert {"/dev/shm", "/run"} <= full.keys()
    assert all(ended == [3 << 20, "ENOSPC"] for ended in full.values()), full
    assert made == (["/"] if run_in is of_a_task else [])  # the root of a task is on the disk


@pytest.mark.world
def test_without_a_setting_a_folder_in_memory_has_a_gibibyte(tmp_path: Path) -> None:
    size = "import os; found = os.statvfs('/dev/shm'); print(found.f_blocks * found.f_frsize)"
    assert int(of_an_agent(size, tmp_path)) == 1 << 30


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "1G", "9999999999999", "\u0661"])
def test_a_size_that_is_none_is_no_reason_to_run_without_isolation(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_SANDBOX_TMPFS_MB", size)
    with pytest.raises(ConfigurationError, match="MCPENV_SANDBOX_TMPFS_MB must be a whole number of MiB from 1 to"):
        Isolation.choose("auto")


@pytest.mark.world
def test_a_bubblewrap_that_cannot_limit_the_size_is_used_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older(tmp_path, "--size", monkeypatch)
    for _ in range(2):
        assert of_an_agent("print(1)", tmp_path) == "1\n"
    weaker = [each for each in caplog.messages if "have no limit of size" in each]
    assert len(weaker) == 1 and weaker[0].startswith("Sandboxes are weaker on this machine: ")


@pytest.mark.world
def test_a_failure_that_passes_is_no_reason_for_a_weaker_sandbox(tmp_path: Path) -> None:
    real, program, failed = find_bubblewrap(), tmp_path / "bwrap", tmp_path / "failed"
    program.write_text(f'#!/bin/sh\nmkdir {failed} 2>/dev/null && exit 1\nexec {real} "$@"\n')
    program.chmod(0o755)
    assert bubblewrap._level(str(program)) == bubblewrap._level(real)
    assert failed.exists()


def older(folder: Path, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a bubblewrap on the path that refuses an option."""
    program = folder / "bwrap"
    program.write_text(
        f'#!/bin/sh\nfor each; do [ "$each" != {lacking} ] || {{ echo "Unknown option" >&2; exit 1; }}; done\n'
        f'exec {find_bubblewrap()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.world
def test_a_sandbox_has_the_variables_and_signals_that_it_was_started_with() -> None:
    words = ["cat", "/proc/self/environ", "/proc/self/status"]
    command = command_line(find_bubblewrap(), words, root=bubblewrap.READ_ONLY_ROOT, network=False)
    given = {"PATH": "/usr/bin:/bin", "my.key": "1"}
    done = subprocess.run(command, env=given, cwd="/", capture_output=True, text=True, check=True)
    *variables, status = done.stdout.split("\0")
    assert set(variables) == {"PATH=/usr/bin:/bin", "my.key=1", "PWD=/"}
    ignored = re.search(r"SigIgn:\t(\w+)", Path("/proc/self/status").read_text())
    of_python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert ignored is not None and f"SigIgn:\t{int(ignored[1], 16) & ~of_python:016x}\n" in status


def test_a_bubblewrap_that_does_not_answer_is_no_reason_for_a_weaker_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "PROBE_S", 0.2)
    with pytest.raises(ConfigurationError, match=r"bubblewrap cannot be run: .* timed out"):
        command_line(str(program), ["true"], root=bubblewrap.READ_ONLY_ROOT, network=True)


def test_a_folder_out_of_reach_needs_no_mount(tmp_path: Path) -> None:
    folder = tmp_path / "closed" / "hidden"
    folder.mkdir(parents=True)
    assert list(mount_arguments({folder: Mount.EMPTY}, ["--tmpfs"])) == [("--tmpfs", str(folder))]
    if os.geteuid() == 0:
        folder.parent.chmod(0)
        assert list(mount_arguments({folder: Mount.EMPTY}, ["--tmpfs"])) == []
