"""Run the command line of mcpenv until the parent process closes stdin or ends in any way.

The first line of stdin is the control token. `LocalProvider` starts this file by its path in the Python of its choice,
which has mcpenv but perhaps no mcpenv_client of the same version.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from typing import TextIO

STOP_TIMEOUT_S = 15.0


def main() -> None:
    """Serve as ``mcpenv`` with the arguments of this process."""
    owner = owner_stream()
    # Set here, so that the environment of the process, which its tools can read in /proc, does not have it.
    os.environ["MCPENV_CONTROL_TOKEN"] = owner.readline().rstrip("\n")
    threading.Thread(target=end_with, args=(owner,), name="mcpenv-owner", daemon=True).start()
    sys.argv[0] = "mcpenv"
    runpy.run_module("mcpenv", run_name="__main__", alter_sys=True)


def owner_stream() -> TextIO:
    """Return this process's stdin, and give user code the null device instead."""
    owner = os.fdopen(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return owner


def end_with(owner: TextIO) -> None:
    """Wait until the owner closes the stream or ends, then end this process."""
    owner.read()
    os.kill(os.getpid(), signal.SIGTERM)
    # An environment that blocks in close must not outlive the owner.
    threading.Event().wait(STOP_TIMEOUT_S)
    os._exit(1)


if __name__ == "__main__":
    main()
