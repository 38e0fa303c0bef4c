"""Run bubblewrap with the restrictions that it has no options for: ``launch.py RESTRICTIONS BWRAP ARGUMENT...``.

Always: system calls that reach past namespaces (keyrings, the kernel's log, sockets of the hypervisor) are filtered,
and a crash in the sandbox starts no handler of core dumps outside. The comma-separated restrictions add more:

- ``devices``, for root: the devices that a sandbox shares with the machine get read-only inodes. Root owns
  ``/dev/null``, and could change its permissions for the whole machine. Writing to the device still works.
- ``abstract``: no abstract Unix socket outside of the sandbox can be reached. Does nothing before Linux 6.12.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys

sys.path.insert(0, os.path.dirname(__file__))
import bpf  # type: ignore[import-not-found]  # an isolated interpreter does not have the script's folder

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")  # as bubblewrap's --dev makes them
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
KEPT = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC  # have the values of their MS_ namesakes

LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
ABI_OF_SCOPES, SCOPE_ABSTRACT_UNIX_SOCKET = 6, 1
PR_SET_NO_NEW_PRIVS = 38

ENOSYS, EAFNOSUPPORT = 38, 97
FAMILIES = (0, 1, 2, 10, 16)
"""The families of sockets that belong to a network namespace: none, Unix, IPv4, IPv6, netlink."""

IO_URING = (425, 426, 427)  # makes sockets without the system call `socket`
FILTERED = {
    # by architecture: add_key, request_key, keyctl, syslog, bpf, perf_event_open, socketcall; and `socket`
    0xC000003E: ((248, 249, 250, 103, 321, 298), 41),  # x86-64
    0x40000003: ((286, 287, 288, 103, 357, 336, 102), 359),  # x86, 32 bits
    0xC00000B7: ((217, 218, 219, 116, 280, 241), 198),  # ARM, 64 bits
    0x40000028: ((309, 310, 311, 103, 386, 364, 102), 281),  # ARM, 32 bits
}
MACHINES = {"x86_64": (0xC000003E, 0x40000003), "aarch64": (0xC00000B7, 0x40000028)}


def main(restrictions: set[str], command: list[str]) -> None:
    """Restrict this process, and become bubblewrap."""
    libc = ctypes.CDLL(None, use_errno=True)
    if "devices" in restrictions:
        make_inodes_of_devices_read_only(libc)
    if "abstract" in restrictions:
        scope_abstract_sockets(libc)
    with open("/proc/sys/kernel/core_pattern", "rb") as file:
        if file.read(1) in (b"|", b"@"):
            resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # with 0 the handler is started all the same
    if platform.machine() in MACHINES:
        descriptor = os.memfd_create("seccomp", 0)
        os.write(descriptor, b"".join(seccomp_filter(MACHINES[platform.machine()])))
        os.lseek(descriptor, 0, os.SEEK_SET)
        command = [command[0], "--seccomp", str(descriptor), *command[1:]]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    with open("/proc/self/environ", "rb") as file:  # os.environ may have a locale that Python has chosen
        variables = dict(each.split(b"=", 1) for each in file.read().split(b"\0") if b"=" in each)
    os.execve(command[0], command, variables)


def make_inodes_of_devices_read_only(libc: ctypes.CDLL) -> None:
    """Mount the devices read-only, for this process and what it starts."""

    def mount(source: bytes, target: bytes, flags: int) -> None:
        if libc.mount(source, target, None, ctypes.c_ulong(flags), None):
            fail(target.decode())

    if libc.unshare(CLONE_NEWNS):
        fail("mount namespace")
    mount(b"none", b"/", MS_REC | MS_PRIVATE)
    for name in DEVICES:
        path = f"/dev/{name}".encode()
        if os.path.exists(path):
            mount(path, path, MS_BIND)
            mount(b"none", path, MS_REMOUNT | MS_BIND | MS_RDONLY | os.statvfs(path).f_flag & KEPT)


def scope_abstract_sockets(libc: ctypes.CDLL) -> None:
    """Refuse connections to abstract Unix sockets of processes that this process has not started, by Landlock."""
    if libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1) < ABI_OF_SCOPES:
        return
    attributes = struct.pack("=QQQ", 0, 0, SCOPE_ABSTRACT_UNIX_SOCKET)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0 or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0):
        fail("Landlock")
    os.close(ruleset)


def seccomp_filter(architectures: tuple[int, ...]) -> list[bytes]:
    """Return a filter that answers like a kernel without what it refuses."""
    made = []
    for architecture in architectures:
        numbers, opening = FILTERED[architecture]
        part = [bpf.instruction(bpf.LOAD, bpf.NUMBER)]
        if architecture == 0xC000003E:
            part += bpf.answer_if(bpf.JUMP_IF_GREATER_OR_EQUAL, bpf.FIRST_OF_X32, bpf.ERRNO | ENOSYS)
        for number in (*numbers, *IO_URING):
            part += bpf.answer_if(bpf.JUMP_IF_EQUAL, number, bpf.ERRNO | ENOSYS)
        part += bpf.answer_by_argument(opening, bpf.FIRST_ARGUMENT, FAMILIES, bpf.ERRNO | EAFNOSUPPORT)
        part.append(bpf.instruction(bpf.RETURN, bpf.ALLOW))
        made += [bpf.instruction(bpf.LOAD, bpf.ARCHITECTURE)]
        made += [bpf.instruction(bpf.JUMP_IF_EQUAL, architecture, if_not=len(part)), *part]
    return [*made, bpf.instruction(bpf.RETURN, bpf.KILL_PROCESS)]


def fail(place: str) -> None:
    """End with the reason why the last call of the C library failed."""
    sys.exit(f"{place}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(set(filter(None, sys.argv[1].split(","))), sys.argv[2:])
