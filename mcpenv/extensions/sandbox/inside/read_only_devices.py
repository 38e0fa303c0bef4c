"""Run bubblewrap where the devices that it shares with the sandbox have read-only inodes.

A sandbox has the machine's own ``/dev/null``. Root owns it, and could change its permissions for the whole machine. A
read-only mount prevents that; writing to the device still works. bubblewrap has no option for it.
"""

import ctypes
import os
import signal
import sys

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")  # as bubblewrap's --dev makes them
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
KEPT = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC  # have the values of their MS_ namesakes


def main() -> None:
    """Make the inodes read-only for this process, and become bubblewrap."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: bytes, target: bytes, flags: int) -> None:
        if libc.mount(source, target, None, ctypes.c_ulong(flags), None):
            fail(target.decode())

    def fail(place: str) -> None:
        sys.exit(f"{place}: {os.strerror(ctypes.get_errno())}")

    if libc.unshare(CLONE_NEWNS):
        fail("mount namespace")
    mount(b"none", b"/", MS_REC | MS_PRIVATE)
    for name in DEVICES:
        path = f"/dev/{name}".encode()
        if os.path.exists(path):
            mount(path, path, MS_BIND)
            mount(b"none", path, MS_REMOUNT | MS_BIND | MS_RDONLY | os.statvfs(path).f_flag & KEPT)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    with open("/proc/self/environ", "rb") as file:  # os.environ may have a locale that Python has chosen
        variables = dict(each.split(b"=", 1) for each in file.read().split(b"\0") if b"=" in each)
    os.execve(sys.argv[1], sys.argv[1:], variables)


main()
