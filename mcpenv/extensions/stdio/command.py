"""Serve what ``mcpenv run --transport stdio`` was asked for."""

from __future__ import annotations

import sys
from dataclasses import replace

from mcpenv.cli.output import Page
from mcpenv.cli.run_request import RunRequest
from mcpenv.cli.serving import prepare
from mcpenv.server.config import ServerConfig
from mcpenv.server.extension import installed, load
from mcpenv.targets.target import Target

from .serving import claimed, serve_stdio


def run_over_stdio(request: RunRequest) -> int:
    """Serve until stdin ends or a signal comes, and return the exit status.

    Raises:
        StartupError: an option cannot be used, or the environment does not load or start.
    """
    with claimed() as wire:  # before user code is imported, which may print
        prepared = prepare(request)
        if isinstance(prepared, int):
            return prepared
        target = prepared.request.load()
        config = replace(prepared.config, console=False)
        introduce(target, config)
        serve_stdio(
            target.factory,
            config,
            log_level=request.log_level,
            log_format=request.log_format,
            access_log=request.access_log,
            wire=wire,
        )
    return 0


def introduce(target: Target, config: ServerConfig) -> None:
    """Print one line for the host's log; on a terminal, also instructions to configure a host."""
    page = Page(sys.stderr)
    name = target.name if target.environment_class is None else target.environment_class.exposed_name()
    page.line((name, "bold"), f" in {config.mode.value} mode: MCP on stdin and stdout")
    if sys.stdin.isatty():
        if "hosts" in installed():
            page.line()
            load("hosts")(page, target.name, target.spec, config.mode)
        page.line(("Ctrl-D stops the server.", "dim"))
