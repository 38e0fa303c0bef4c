"""A server that writes to stdout what is no message."""

from __future__ import annotations

import sys

from fastmcp import FastMCP

server = FastMCP("noisy")


@server.tool
def speak() -> str:
    """Speak."""
    sys.stdout.write("this is no message\n\n{}\n")
    sys.stdout.flush()
    return "spoken"


if __name__ == "__main__":
    print("starting")
    server.run(show_banner=False)
