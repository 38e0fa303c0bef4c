"""Serve FastMCP servers, and other applications, over HTTP, for environments that proxy them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import uvicorn
from fastmcp import FastMCP


def http_server(server: FastMCP, port: int = 0) -> AbstractContextManager[str]:
    """Serve a FastMCP server in a thread."""
    return served(server.http_app(), port)


@contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an application in a thread."""
    listening = socket.create_server(("127.0.0.1", port))
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        thread.join(20)
