"""Make the command lines of bubblewrap's sandboxes, and find a bubblewrap that works on this machine.

A sandbox that root starts keeps user id 0. As the owner of files, that user needs no capability to write settings below
``/proc/sys``, read ``/proc/timer_list`` or change the permissions of ``/dev/null``. Each command line therefore covers
these files.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpenv.errors import ConfigurationError

logger = logging.getLogger("mcpenv")

PROBE_S = 10.0
"""Timeout of the check that bubblewrap works, in seconds."""

TMPFS_MB = "MCPENV_SANDBOX_TMPFS_MB"
"""The environment variable with the size of each empty folder of a sandbox, which is in memory, in MiB."""

_TRIES = 2
"""bubblewrap fails if another program, such as a container engine, unmounts a folder while it mounts the root."""

DEFAULT_TMPFS_MB, _MAX_TMPFS_MB = 1024, 1 << 30

READ_ONLY_ROOT = ("--ro-bind", "/", "/")
"""The root folder of a sandbox that reads all files of the system."""

_BASE = (
    *("--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    # With a capability, a program could unmount a mount that hides a folder.
    *("--cap-drop", "ALL"),
)

_LAUNCH = Path(__file__).with_name("inside") / "launch.py"
_RESTRICTIONS = (["devices,abstract", "abstract"] if os.geteuid() == 0 else ["abstract"]) + [""]
"""What the launcher adds, the strictest first. Root may not mount in most containers, and a bubblewrap that needs its
set user id bit does not work with Landlock."""

_USERS = (("--unshare-user", "--disable-userns"), ("--unshare-user",), ())
"""Options on user namespaces, the strictest first. Before 0.8 bubblewrap cannot forbid further namespaces. Some kernels
have no user namespaces; only root's sandboxes work without them."""

# The OCI runtimes mask these files, in addition to files that only root reads.
_MASKED = ("acpi", "asound", "interrupts", "keys", "latency_stats", "sched_debug", "scsi", "timer_stats")
_MASKED_IN_SYS = ("/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing")


@dataclass(frozen=True)
class _Level:
    """The level of isolation that this machine supports.

    Attributes:
        launcher: the program that restricts itself and starts bubblewrap; empty to start it directly.
        users: one of `_USERS`.
        sized: True if folders in memory have a limit of size. bubblewrap before 0.7 and one with a set user id bit
            cannot limit it.
    """

    launcher: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    sized: bool = False

    def tmpfs(self, mb: int) -> tuple[str, ...]:
        """Return the words before the path of a folder in memory of at most `mb` MiB."""
        return ("--size", str(mb << 20), "--tmpfs") if self.sized else ("--tmpfs",)


_strictest: dict[str, _Level] = {}


def command_line(
    bwrap: str,
    words: Sequence[str],
    *,
    root: Sequence[str],
    mounts: Sequence[str] = (),
    network: bool,
    sysfs: bool = True,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command line that runs ``words`` in a sandbox.

    It has no capabilities, its own session and its own namespaces of users, processes, IPC, host name and control
    groups. The kernel's files are read-only, and those that only root reads are masked. Devices are bubblewrap's few
    (``/dev/null``, ``/dev/urandom``, ...), and ``/dev/shm`` is an empty folder in memory; the rest of ``/dev`` is
    read-only. System calls that reach past namespaces are filtered, as are abstract Unix sockets of other programs; see
    ``inside/launch.py``. Blocks the first time until bubblewrap has run.

    Args:
        bwrap: the path of bubblewrap's program.
        root: the options that make the root folder.
        mounts: the options for all other mounts, which come after ``/dev`` and ``/proc``. Folders in memory are by
            `tmpfs`.
        network: True to share the network of this machine, and before Linux 6.12 abstract Unix sockets with it.
        sysfs: True if the root folder contains ``/sys``, which must be read-only.
        options: further options.

    Raises:
        ConfigurationError: bubblewrap does not answer, or the size of folders in memory is no number of MiB.
    """
    level = _level(bwrap)
    return [
        *(*level.launcher, bwrap, *_BASE, *level.users, *(() if network else ("--unshare-net",)), *options),
        *(*root, "--dev", "/dev", "--proc", "/proc", *tmpfs(bwrap), "/dev/shm", *mounts, "--remount-ro", "/dev"),
        *_kernel_files(sysfs),  # the last, so that no other mount uncovers them
        *("--", *words),
    ]


def tmpfs(bwrap: str) -> tuple[str, ...]:
    """Return the words before the path of a folder in memory. Blocks the first time until bubblewrap has run.

    Without a limit, such a folder could fill half of the memory of the machine.

    Raises:
        ConfigurationError: bubblewrap does not answer, or `TMPFS_MB` is no number of MiB.
    """
    text = os.environ.get(TMPFS_MB) or str(DEFAULT_TMPFS_MB)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MAX_TMPFS_MB):
        raise ConfigurationError(f"{TMPFS_MB} must be a whole number of MiB from 1 to {_MAX_TMPFS_MB}, not {text!r}")
    return _level(bwrap).tmpfs(int(text))


def find_bubblewrap(*more: str) -> str:
    """Return the path of bubblewrap's program. Blocks until it has run.

    Args:
        more: further options that it must support.

    Raises:
        ConfigurationError: bubblewrap is missing, or does not work on this machine.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ConfigurationError("bubblewrap (bwrap) is not installed")
    try:
        fault = _fault(bwrap, _level(bwrap), more)
    except OSError as error:
        raise ConfigurationError(f"bubblewrap cannot be run: {error}") from error
    if fault is not None:
        raise ConfigurationError(fault)
    return bwrap


def _level(bwrap: str) -> _Level:
    """Return the strictest level that works, or the lowest level if bubblewrap does not work.

    Raises:
        ConfigurationError: bubblewrap does not answer, which does not justify a lower level.
    """
    if bwrap not in _strictest:
        launchers: tuple[tuple[str, ...], ...] = ((),)
        if sys.executable:
            launch = (sys.executable, "-I", "-S", "-B", str(_LAUNCH))
            launchers = (*((*launch, each) for each in _RESTRICTIONS), ())
        levels = itertools.starmap(_Level, itertools.product(launchers, _USERS, (True, False)))
        try:
            working = next((level for level in levels if _fault(bwrap, level) is None), None)
        except OSError:
            working = None
        if working is None:
            return _Level()
        _strictest[bwrap] = working
        if lost := _lost_by(working):
            logger.warning("Sandboxes are weaker on this machine: %s", "; ".join(lost))
    return _strictest[bwrap]


def _lost_by(level: _Level) -> list[str]:
    """Return what a level does not have of the strictest one."""
    has = set(level.launcher[-1].split(",")) if level.launcher else set()
    lost = [] if level.launcher else ["system calls are not filtered, and crashes may start a handler outside"]
    if os.geteuid() == 0 and "devices" not in has:
        lost.append("permissions of devices can be changed")
    if "abstract" not in has:
        lost.append("abstract Unix sockets are those of the network")
    if level.users != _USERS[0]:
        lost.append("further user namespaces can be made" if level.users else "there is no user namespace")
    if not level.sized:
        lost.append("folders in memory, such as /tmp, have no limit of size")
    return lost


def _fault(bwrap: str, level: _Level, more: Sequence[str] = ()) -> str | None:
    """Return why a sandbox does not start; None if it does.

    Raises:
        OSError: bubblewrap cannot be run.
        ConfigurationError: bubblewrap does not answer.
    """
    mounts = (*READ_ONLY_ROOT, "--dev", "/dev", "--proc", "/proc", *level.tmpfs(1), "/tmp", *_kernel_files(sysfs=True))
    command = [*level.launcher, bwrap, *_BASE, *level.users, *more, *mounts, "--", "true"]
    for _ in range(_TRIES):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ConfigurationError(f"bubblewrap cannot be run: {error}") from error
        if done.returncode == 0:
            return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"bubblewrap does not work here: {lines[-1] if lines else f'exit status {done.returncode}'}"


def _kernel_files(sysfs: bool) -> Iterator[str]:
    """Yield the options that cover the kernel's files below ``/proc`` and ``/sys``."""
    yield from ("--ro-bind", "/proc/sys", "/proc/sys")  # without "try": a sandbox that cannot must not start
    for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
        if entry.name.isdecimal() or entry.name == "sys" or entry.is_symlink():
            continue
        folder, mode = entry.is_dir(), entry.stat().st_mode
        if entry.name in _MASKED or not (folder or mode & stat.S_IROTH):
            yield from _mask(entry.path)
        elif folder or mode & 0o222:
            yield from ("--ro-bind-try", entry.path, entry.path)
    if sysfs:
        for path in filter(os.path.exists, _MASKED_IN_SYS):
            yield from _mask(path)


def _mask(path: str) -> tuple[str, ...]:
    if os.path.isdir(path):
        return "--tmpfs", path, "--remount-ro", path
    return "--ro-bind", "/dev/null", path
