"""Test in the sandboxes of bubblewrap that programs change nothing of the kernel, in particular those of root."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor_tasks import harbor_task

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.evaluation.isolation import Isolation
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.mcp_proxy.sandbox import ServerSandbox
from mcpenv.extensions.sandbox import bubblewrap
from mcpenv.extensions.sandbox.bubblewrap import command_line, find_bubblewrap
from mcpenv.extensions.sandbox.mounts import Mount, mount_arguments

In = Callable[[str, Path], str]

# A file is opened without truncation and written the value that it has. No name of a device is in use on a machine.
TRIES = r"""
import ctypes, json, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
done, failed = [], []

def attempt(name, action):
    try:
        action()
    except OSError:
        failed.append(name)
    else:
        done.append(name)

def rewrite(path):
    with open(path, "rb") as file:
        value = file.read()
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, value)
    os.close(descriptor)

def system(function, *arguments):
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)

def in_child(*calls):
    child = os.fork()
    if child == 0:
        try:
            for call in calls:
                system(*call)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise OSError("failed in the child")

def all_of_the_kernel():
    for top in ("/proc", "/sys"):
        for folder, folders, files in os.walk(top):
            if folder == "/proc":
                folders[:] = [each for each in folders if not each.isdecimal() and each not in ("self", "thread-self")]
            for path in (os.path.join(folder, each) for each in files):
                if not os.path.islink(path):
                    yield path

def opens(flags, paths):
    for path in paths:
        try:
            os.close(os.open(path, flags | os.O_NONBLOCK))
        except OSError:
            continue
        done.append(path)

for name in ("printk_ratelimit", "core_pattern"):
    attempt(f"write {name}", lambda: rewrite(f"/proc/sys/kernel/{name}"))
attempt("write sysrq-trigger", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)))
attempt("make a file in /sys", lambda: open("/sys/left", "x"))
for place in ("/tmp", "/dev"):
    attempt(f"block device in {place}", lambda: os.mknod(f"{place}/disk", 0o600 | stat.S_IFBLK, os.makedev(7, 250)))
    attempt(f"character device in {place}", lambda: os.mknod(f"{place}/mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1)))
for device in ("null", "zero", "full", "random", "urandom", "tty"):
    attempt(f"permissions of {device}", lambda: os.chmod(f"/dev/{device}", 0o666))
    attempt(f"times of {device}", lambda: os.utime(f"/dev/{device}"))
tmpfs, proc = ((b"none", b"/tmp", kind, 0, None) for kind in (b"tmpfs", b"proc"))
attempt("mount", lambda: in_child(("mount", *tmpfs)))
attempt("remount /proc/sys", lambda: in_child(("mount", None, b"/proc/sys", None, 4096 | 32, None)))
attempt("unmount /proc/sys", lambda: in_child(("umount2", b"/proc/sys", 2)))
attempt("mount in a user namespace", lambda: in_child(("unshare", 0x10000000 | 0x20000), ("mount", *tmpfs)))
attempt("new /proc", lambda: in_child(("unshare", 0x10000000 | 0x20000 | 0x20000000), ("mount", *proc)))
attempt("host name", lambda: system("sethostname", b"x", 1))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("terminal", lambda: open("/dev/tty"))
opens(os.O_WRONLY, all_of_the_kernel())
opens(os.O_RDONLY, (f"/proc/{each}" for each in ("kcore", "kmsg", "keys", "timer_list", "slabinfo", "vmallocinfo")))
with open("/dev/null", "w") as file:
    file.write("x")
with open("/proc/self/status") as file:
    capabilities = {line.split()[1] for line in file if line.startswith(("CapPrm", "CapEff", "CapAmb"))}
print(json.dumps([done, len(failed), os.getuid(), sorted(capabilities), os.readlink("/proc/self/ns/user")]))
"""


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


each_sandbox = pytest.mark.parametrize("run_in", [of_an_agent, of_a_server, of_a_server_with_network, of_a_task])


@pytest.mark.world
@each_sandbox
def test_a_program_changes_nothing_of_the_kernel(run_in: In, tmp_path: Path) -> None:
    done, failed, user, capabilities, namespace = json.loads(run_in(TRIES, tmp_path))
    assert done == []
    assert failed >= 25
    assert user == (0 if run_in is of_a_task else os.getuid())
    assert capabilities == ["0000000000000000"]
    assert namespace != os.readlink("/proc/self/ns/user")


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
def test_without_user_namespaces_the_kernel_is_covered_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        '#!/bin/sh\nfor each; do [ "$each" != --unshare-user ] || { echo no user namespaces >&2; exit 1; }; done\n'
        f'exec {find_bubblewrap()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done, _, user, capabilities, _ = json.loads(of_an_agent(TRIES, tmp_path))
    # Here the machine has user namespaces after all. What is mounted in one changes nothing outside.
    assert set(done) <= {"mount in a user namespace"}
    assert (user, capabilities) == (0, ["0000000000000000"])


@pytest.mark.world
def test_a_sandbox_has_the_variables_and_signals_that_it_was_started_with() -> None:
    words = ["cat", "/proc/self/environ", "/proc/self/status"]
    command = command_line(find_bubblewrap(), words, root=bubblewrap.READ_ONLY_ROOT, network=False)
    given = {"PATH": "/usr/bin:/bin", "my.key": "1"}
    done = subprocess.run(command, env=given, cwd="/", capture_output=True, text=True, check=True)
    *variables, status = done.stdout.split("\0")
    assert set(variables) == {"PATH=/usr/bin:/bin", "my.key=1", "PWD=/"}
    assert "SigIgn:\t0000000000000000\n" in status


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
    assert list(mount_arguments({folder: Mount.EMPTY})) == [("--tmpfs", str(folder))]
    if os.geteuid() == 0:
        folder.parent.chmod(0)
        assert list(mount_arguments({folder: Mount.EMPTY})) == []
