"""Import a Python server once, and fork a process of it on each request.

    zygote_program.py DESCRIPTOR (module | script) TARGET

``DESCRIPTOR`` is a packet socket. Each packet from the parent has arguments, variables, a working directory, whether
the server gets a guard, and the file descriptors for stdin, stdout and stderr. The answers are ``{"ready": true}`` or
``{"refused": reason}`` first, then ``{"pid": id}`` for each fork and ``{"ended": id, "status": number}`` for each end,
of the guard if there is one.
"""

from __future__ import annotations

import ast
import asyncio
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

LIMIT = 1 << 20
IMPORTED_AS = "__mcpenv_zygote__"
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)
guard = runpy.run_path(os.path.join(os.path.dirname(__file__), "guard.py"))  # no module, as the server may have one


class Refused(Exception):
    """Raised if the server cannot be forked."""


def main() -> None:
    """Import the server, answer, and fork until the parent closes the socket. An import error ends it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    kind, target = sys.argv[2:4]
    os.dup2(2, 1)  # stdout of the imported code
    try:
        load(kind, target)
        check()
    except Refused as error:
        answer(control, {"refused": str(error)})
        return
    gc.collect()
    gc.freeze()  # the garbage collector of a child would write to every shared page
    answer(control, {"ready": True})
    arguments = serve(control)
    if arguments is not None:  # this is a child
        run(kind, target, arguments)


def load(kind: str, target: str) -> None:
    """Import the server without running it."""
    if kind == "module":
        sys.path[0] = os.getcwd()
        spec = importlib.util.find_spec(target)
        if spec is None:
            raise Refused(f"there is no module {target!r}")
        if spec.submodule_search_locations is not None:
            importlib.import_module(target)
            return
        if not has_guard(str(spec.origin)):
            raise Refused(f"{spec.origin} has no line: if __name__ == '__main__'")
        importlib.import_module(target)
        return
    sys.path[0] = os.path.dirname(os.path.realpath(target))
    if not has_guard(target):
        raise Refused(f"{target} has no line: if __name__ == '__main__'")
    runpy.run_path(target, run_name=IMPORTED_AS)


def has_guard(file: str) -> bool:
    """Return True if a file, as far as can be seen, only defines and imports unless it is the main program."""
    with open(file, "rb") as opened:
        tree = ast.parse(opened.read())
    return any(
        isinstance(part, ast.Name) and part.id == "__name__"
        for statement in tree.body
        if isinstance(statement, ast.If)
        for part in ast.walk(statement.test)
    )


def check() -> None:
    """Raise if the imported server has state that does not survive a fork."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise Refused(f"its import starts {threads - 1} threads, which a forked process does not have")
    loops = [each for each in gc.get_objects() if isinstance(each, asyncio.AbstractEventLoop)]
    if any(not loop.is_closed() for loop in loops):
        raise Refused("its import makes an event loop, which forked processes would share")


def serve(control: socket.socket) -> list[str] | None:
    """Fork for each packet. Return the arguments in a child; return None in this process once the parent has exited."""
    own = os.getpid()
    children: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                os.close(descriptor)
                child = children.pop(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                answer(control, {"ended": child, "status": status})
                continue
            data, pipes, _, _ = socket.recv_fds(control, LIMIT, 3)
            if not data:
                return None  # the children end with this process
            child = os.fork()
            if child == 0:
                control.close()
                for other in children:
                    os.close(other)
                return become(json.loads(data), pipes, own)
            for pipe in pipes:
                os.close(pipe)
            found = os.pidfd_open(child)
            children[found] = child
            poll.register(found, select.POLLIN)
            answer(control, {"pid": child})


def become(order: dict[str, Any], pipes: list[int], zygote: int) -> list[str]:
    """Apply the variables, working directory and descriptors that the parent requested. Return its arguments."""
    os.setsid()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    if order["guarded"]:
        guard["watch_over_child"](zygote)
    else:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != zygote:
            os._exit(1)  # the zygote ended before the line above
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True, errors="backslashreplace"
    )
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    if "numpy" in sys.modules:  # the generator of the standard library is seeded by fork itself
        sys.modules["numpy"].random.seed()
    arguments: list[str] = order["arguments"]
    return arguments


def run(kind: str, target: str, arguments: list[str]) -> None:
    """Run the server; its modules are already imported."""
    gc.unfreeze()
    if kind == "module":
        sys.argv = [target, *arguments]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [target, *arguments]
        runpy.run_path(target, run_name="__main__")


def answer(control: socket.socket, message: dict[str, Any]) -> None:
    """Send one packet. The parent may have exited."""
    try:
        control.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


if __name__ == "__main__":
    main()
