"""A server that goes on when its stdin is closed, and at SIGTERM."""

from __future__ import annotations

import os
import signal
import threading

from fastmcp import FastMCP

server = FastMCP("stubborn")


@server.tool
def process() -> int:
    """Return the id of the process."""
    return os.getpid()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=threading.Event().wait).start()
    server.run(show_banner=False)
