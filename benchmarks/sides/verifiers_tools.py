"""The same tools as a toolset of verifiers', served by verifiers: ``python verifiers_tools.py TOOLS async|sync``."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
import uvloop
import verifiers.v1 as vf


async def add(self: Any, by: int = 1) -> int:
    """Add to the counter."""
    self.count += by
    return int(self.count)


def add_sync(self: Any, by: int = 1) -> int:
    """Add to the counter."""
    self.count += by
    return int(self.count)


def another(number: int) -> Callable[..., Any]:
    """Return a tool that is listed and never called."""

    async def again(self: Any, text: str, times: int = 1) -> str:
        """Give a text back several times."""
        return text * times

    again.__name__ = f"tool_{number}"
    return again


class Tools(vf.Toolset[vf.ToolsetConfig]):  # type: ignore[misc]
    """Count."""

    count = 0


class SayingServer(uvicorn.Server):
    """The server that prints its URL when it answers. The one of verifiers prints none."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        self.config.timeout_keep_alive = 75  # connections idle while the other sides play
        await super().startup(sockets)
        assert sockets is not None
        print(f"http://127.0.0.1:{sockets[0].getsockname()[1]}", flush=True)


def main() -> None:
    tools, kind = int(sys.argv[1]), sys.argv[2]
    called: Any = add_sync if kind == "sync" else add
    called.__name__ = "add"
    Tools.add = vf.tool(called)
    for number in range(1, tools):
        setattr(Tools, f"tool_{number}", vf.tool(another(number)))
    os.environ["VF_CONFIG"] = "{}"
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    logging.disable(logging.INFO)  # a line for each request, which nobody reads here
    uvicorn.Server = SayingServer  # type: ignore[misc]
    Tools.run()


if __name__ == "__main__":
    main()
