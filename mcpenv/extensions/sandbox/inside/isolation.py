"""Isolate a Linux process irrevocably before it runs untrusted code.

Standard library only, because this runs in a bare interpreter. Two mechanisms are always used, and suffice by
themselves: Landlock (no files except the listed ones) and a seccomp filter (no system calls except the listed ones: no
socket, no process, no signal). Where the kernel allows it for this user, namespaces are added: a network without an
interface, and private mounts.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import resource
import struct
from collections.abc import Iterable

import bpf  # type: ignore[import-not-found]  # a script finds modules in its own folder

MIB = 1 << 20


class NoIsolation(Exception):
    """The error that this machine lacks a requirement. The text names the requirement."""


def put_up(folder: str, readable: Iterable[str], *, time_s: float, memory_mb: int, files_mb: int) -> list[str]:
    """Isolate this process irrevocably.

    Args:
        folder: its working folder.
        readable: files and folders that it may read besides ``folder``.
        time_s: seconds of processor time from now.
        memory_mb: MiB of address space.
        files_mb: MiB that it may write into its folder.

    Returns:
        The mechanisms in use, for the record.

    Raises:
        NoIsolation: if the isolation cannot be set up.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8:
        raise NoIsolation(f"Linux on {' or '.join(_MACHINES)}, 64 bits, and this is {platform.machine()}")
    abi = _landlock_abi()
    standing = ["landlock", "seccomp"]
    if _enter_namespaces():
        standing.append("namespaces")
        if files_mb:
            _mount_folder(folder, files_mb)
    elif files_mb:
        raise NoIsolation("user namespaces, for writable files")
    os.chdir(folder)
    _set_limits(time_s, memory_mb, files_mb)
    _drop_privileges()
    _landlock(abi, folder if files_mb else None, [folder, *readable])
    _seccomp(machine)
    _try_them()
    return standing


# -- limits


def _set_limits(time_s: float, memory_mb: int, files_mb: int) -> None:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(spent.ru_utime + spent.ru_stime + time_s) + 2  # whole seconds; the parent enforces wall time
    for what, limit in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_mb * MIB),
        (resource.RLIMIT_FSIZE, files_mb * MIB),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _, hard = resource.getrlimit(what)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))


# -- namespaces

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 16384, 1 << 18


def _enter_namespaces() -> bool:
    """Return True if namespaces are available. Containers and some distributions do not allow them for every user."""
    user, group = os.getuid(), os.getgid()
    flags = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNS
    if _libc.unshare(flags) != 0:
        return False
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{file}", "w", encoding="ascii") as opened:
                opened.write(text)
    except OSError:
        return False
    return True


def _mount_folder(folder: str, files_mb: int) -> None:
    """Mount an empty folder in memory, with fixed limits of size and number of files."""
    options = f"size={files_mb}m,nr_inodes={64 + 16 * files_mb},mode=700".encode()
    apart = _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    if apart != 0 or _libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options) != 0:
        raise NoIsolation(f"permission to mount in a user namespace, for writable files ({_last_error()})")


# -- privileges

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9


def _drop_privileges() -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _must("give up privileges", _libc.capset(header, bytes(24)))
    _must("give up privileges", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _must("give up privileges", _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    _must("end with its parent", _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))


# -- Landlock: include/uapi/linux/landlock.h

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE, _MAKE_FILE_OR_FOLDER = 1 << 4 | 1 << 5, 1 << 7 | 1 << 8
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file rights that each version of the ABI has; 16 from version 5 on."""


def _landlock_abi() -> int:
    abi = int(_libc.syscall(_CREATE_RULESET, None, 0, 1))
    if abi < 1:
        raise NoIsolation(f"Landlock, in Linux 5.13 or later and enabled ({_last_error()})")
    return abi


def _landlock(abi: int, writable: str | None, readable: Iterable[str]) -> None:
    every = (1 << _RIGHTS_BY_ABI.get(abi, 16)) - 1
    attributes = struct.pack("=Q", every)
    if abi >= 4:
        attributes += struct.pack("=Q", 0b11)  # TCP: neither bind nor connect
    if abi >= 6:
        attributes += struct.pack("=Q", 0b11)  # neither abstract sockets nor signals to the outside
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    _must("make rules of Landlock", min(ruleset, 0))
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    if writable is not None:
        _allow(ruleset, writable, (_WRITE_FILE | _REMOVE | _MAKE_FILE_OR_FOLDER | _TRUNCATE) & every)
    _must("apply Landlock", _libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= ~_READ_DIR
    _must("apply Landlock", _libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, opened), 0))
    os.close(opened)


# -- seccomp: include/uapi/linux/seccomp.h, and the numbers of arch/x86/entry/syscalls and asm-generic/unistd.h

_EPERM, _ENOSYS = 1, 38
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
"""Copies, flags and locks; not F_SETOWN and F_SETSIG, which send signals."""
_IOCTL = (0x5401, 0x5450, 0x5451, 0x5421, 0x541B)
"""TCGETS, FIONCLEX, FIOCLEX, FIONBIO, FIONREAD."""

_ON_BOTH = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291),
    "faccessat": (269, 48), "faccessat2": (439, 439), "openat": (257, 56), "getdents64": (217, 61), "getcwd": (79, 17),
    "readlinkat": (267, 78), "chdir": (80, 49), "mkdirat": (258, 34), "unlinkat": (263, 35), "renameat": (264, 38),
    "renameat2": (316, 276), "ftruncate": (77, 46), "fsync": (74, 82), "fdatasync": (75, 83), "flock": (73, 32),
    "fallocate": (285, 47), "fadvise64": (221, 223), "umask": (95, 166),
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214),
    "dup": (32, 23), "dup3": (292, 24), "pipe2": (293, 59), "ppoll": (271, 73), "pselect6": (270, 72),
    "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "times": (100, 153), "getrusage": (98, 165),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "uname": (63, 160), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_ON_X86_64 = {
    "stat": 4, "lstat": 6, "access": 21, "open": 2, "creat": 85, "readlink": 89, "mkdir": 83, "unlink": 87, "rmdir": 84,
    "rename": 82, "dup2": 33, "pipe": 22, "poll": 7, "select": 23, "time": 201,
}  # fmt: skip


class _Machine:
    """The parameters of a filter for one machine architecture."""

    def __init__(self, audit: int, allowed: Iterable[int], fcntl: int, ioctl: int) -> None:
        self.audit = audit
        self.allowed = sorted(allowed)
        self.fcntl = fcntl
        self.ioctl = ioctl


_MACHINES = {
    "x86_64": _Machine(0xC000003E, [*(x86 for x86, _ in _ON_BOTH.values()), *_ON_X86_64.values()], fcntl=72, ioctl=16),
    "aarch64": _Machine(0xC00000B7, [arm for _, arm in _ON_BOTH.values()], fcntl=25, ioctl=29),
}
_CLONE3 = 435


def _seccomp(machine: _Machine) -> None:
    program = b"".join(_filter(machine))
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    _must("apply a seccomp filter", _libc.prctl(_PR_SET_SECCOMP, 2, described, 0, 0))


def _filter(machine: _Machine) -> Iterable[bytes]:
    """Yield the filter: everything that is not listed is refused."""
    refuse = bpf.ERRNO | _EPERM
    yield bpf.instruction(bpf.LOAD, bpf.ARCHITECTURE)
    yield bpf.instruction(bpf.JUMP_IF_EQUAL, machine.audit, if_so=1)
    yield bpf.instruction(bpf.RETURN, bpf.KILL_PROCESS)
    yield bpf.instruction(bpf.LOAD, bpf.NUMBER)
    yield from bpf.answer_if(bpf.JUMP_IF_GREATER_OR_EQUAL, bpf.FIRST_OF_X32, bpf.KILL_PROCESS)
    # ENOSYS, so that the C library falls back to clone, which is refused.
    yield from bpf.answer_if(bpf.JUMP_IF_EQUAL, _CLONE3, bpf.ERRNO | _ENOSYS)
    for number in machine.allowed:
        yield from bpf.answer_if(bpf.JUMP_IF_EQUAL, number, bpf.ALLOW)
    for number, commands in ((machine.fcntl, _FCNTL), (machine.ioctl, _IOCTL)):
        yield from bpf.answer_by_argument(number, bpf.SECOND_ARGUMENT, commands, refuse)
    yield bpf.instruction(bpf.RETURN, refuse)


# -- the C library


def _must(what: str, answered: int) -> None:
    if answered != 0:
        raise NoIsolation(f"permission to {what} ({_last_error()})")


def _last_error() -> str:
    return os.strerror(ctypes.get_errno())


def _try_them() -> None:
    """Raise if a forbidden operation succeeds, so that the reported mechanisms are known to work."""
    if _libc.socket(2, 1, 0) >= 0 or _libc.socket(1, 1, 0) >= 0:
        raise NoIsolation("working isolation, but it could open a socket")
    if _libc.kill(os.getpid(), 0) == 0:
        raise NoIsolation("working isolation, but it could send a signal")
    child = _libc.fork()
    if child >= 0:
        if child == 0:
            os._exit(0)
        raise NoIsolation("working isolation, but it could start a process")
    for path in ("/", "/proc/self/environ"):
        opened = _libc.open(path.encode(), os.O_RDONLY)
        if opened >= 0:
            raise NoIsolation(f"working isolation, but it could open {path}")


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.syscall.restype = ctypes.c_long
