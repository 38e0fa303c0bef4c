"""A server whose state is in the files of a folder, its argument."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fastmcp import FastMCP

server = FastMCP("files")
root = Path(sys.argv[1])


@server.tool
def read(name: str) -> str:
    """Read a file."""
    return (root / name).read_text()


@server.tool
def read_at(folder: str, name: str) -> str:
    """Read a file of a folder."""
    return (Path(folder) / name).read_text()


@server.tool
def write(name: str, text: str) -> str:
    """Write a file."""
    (root / name).write_text(text)
    return "written"


@server.tool(name="process")
def own_process() -> int:
    """Return the id of the process."""
    return os.getpid()


if __name__ == "__main__":
    server.run(show_banner=False)
