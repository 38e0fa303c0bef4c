"""Run sync tools of a mounted server in the threads of the environment, as its own tools.

FastMCP would run a sync function in a thread that it abandons when the call is cancelled. The function would then run
at the same time as the next call of the environment. Several threads would enter a `THREAD_AFFINE` environment.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from fastmcp.server.transforms import GetToolNext, Transform
from fastmcp.tools import FunctionTool, Tool
from fastmcp.utilities.versions import VersionSpec

RunSync = Callable[..., Awaitable[Any]]
"""Runs a sync function with arguments, where the environment's sync code runs."""

run_sync: ContextVar[RunSync | None] = ContextVar("mcpenv_run_sync", default=None)
"""Set during a call by an environment; None if the mounted server is served without one."""


class ThreadsOfEnvironment(Transform):
    """The transform that makes sync tools of a server run where the calling environment's sync code runs."""

    def __init__(self) -> None:
        # One wrapper for each function: FastMCP's caches keep every function that they parse.
        self._wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}

    async def get_tool(self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None) -> Tool | None:
        """Return the tool; a sync one with a function that runs it by `run_sync`."""
        tool = await call_next(name, version=version)
        if run_sync.get() is None or not isinstance(tool, FunctionTool) or not _is_sync(tool):
            return tool
        wrapped = self._wrapped.get(tool.fn)
        if wrapped is None:
            wrapped = self._wrapped[tool.fn] = _handed_over(tool.fn)
        return tool.model_copy(update={"fn": wrapped})


def _is_sync(tool: FunctionTool) -> bool:
    fn = tool.fn
    while isinstance(fn, functools.partial):
        fn = fn.func
    is_async = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    return tool.run_in_thread and not is_async


def _handed_over(fn: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        value = fn(*args, **kwargs)
        return list(value) if inspect.isgenerator(value) else value

    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        runner = run_sync.get()
        assert runner is not None
        value = await runner(called, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return run
