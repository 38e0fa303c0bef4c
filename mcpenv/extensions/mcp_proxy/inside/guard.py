"""Run a server, and when it ends, every process that it has started, also in sessions of their own. Linux only.

    guard.py PARENT PROGRAM ARGUMENT...

``PARENT`` is the id of the process that starts this. When that is killed, or this gets SIGUSR1, the server is killed.
SIGTERM is passed on to the server's process group. The exit status is the server's, also if a signal ended it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HANDLED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}

libc = ctypes.CDLL(None)


def main() -> None:
    """Run the server until it ends."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    watch_over_child(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def watch_over_child(parent: int) -> None:
    """Fork. Return in the child, which is the server, in a session of its own. This process ends when that does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1):  # orphans become children of this process
        os.write(2, b"processes in sessions of their own may outlive this server\n")
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    own = os.getpid()
    server = os.fork()
    if server == 0:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        if os.getppid() != own:
            os._exit(1)
        return
    empty = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # so that the parent sees when the server closes its own
        os.dup2(empty, number)
    os.closerange(3, 256)
    if os.getppid() != parent:
        signal_group(server, signal.SIGKILL)
    status = wait_for(server)
    end_others()
    end_like(status)


def wait_for(server: int) -> int:
    """Return the status with which the server ends, and reap orphans until then."""
    while True:
        number = signal.sigwait(HANDLED)
        if number == signal.SIGTERM:
            signal_group(server, signal.SIGTERM)
        elif number == signal.SIGUSR1:
            signal_group(server, signal.SIGKILL)
        else:
            ended = 1
            while ended > 0:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if ended == server:
                    return status


def end_others() -> None:
    """Kill the children of this process until there are none. Each one's children become this process's."""
    try:
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


def end_like(status: int) -> None:
    """End with a status as from ``waitpid``."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to the server and its process group, which it may not have made yet."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        os.kill(group, number)


if __name__ == "__main__":
    main()
