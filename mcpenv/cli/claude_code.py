"""Claude Code's own command, which adds servers to it."""

from __future__ import annotations

import subprocess

from fastmcp.cli.install.claude_code import find_claude_command
from fastmcp.cli.install.shared import run_cli_command

from ..errors import ConfigurationError
from ..hosts import CLAUDE_CODE, Server


def add(server: Server, snippet: str, *, force: bool) -> None:
    """Run ``claude mcp add``.

    Args:
        snippet: what a user may run instead.
        force: replace a server of the same name.

    Raises:
        ConfigurationError: there is no such command, or it refused.
    """
    assert CLAUDE_CODE.command is not None
    claude = find_claude_command()
    if claude is None:
        raise ConfigurationError(f"Claude Code's command, claude, is not here; where it is, run: {snippet}")
    if force:
        # It fails where there is nothing to remove.
        subprocess.run([claude, "mcp", "remove", server.name], capture_output=True, check=False)
    try:
        run_cli_command([claude, *CLAUDE_CODE.command(server)[1:]])
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip() or f"exit status {error.returncode}"
        raise ConfigurationError(f"claude mcp add: {said}") from error
