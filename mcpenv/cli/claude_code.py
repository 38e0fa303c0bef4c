"""Claude Code's own command, which adds servers to it."""

from __future__ import annotations

import subprocess

from fastmcp.cli.install.claude_code import find_claude_command
from fastmcp.cli.install.shared import run_cli_command

from ..errors import ConfigurationError
from ..hosts import Host, Server


def add(host: Host, server: Server, snippet: str, *, force: bool, token: str | None = None) -> None:
    """Run ``claude mcp add``.

    Args:
        host: Claude Code, with the token for the server where it wants one.
        snippet: what a user may run instead.
        force: replace a server of the same name.
        token: what no message repeats.

    Raises:
        ConfigurationError: there is no such command, or it refused.
    """
    assert host.command is not None
    claude = find_claude_command()
    if claude is None:
        raise ConfigurationError(f"Claude Code's command, claude, is not here; where it is, run: {snippet}")
    if force:
        # It fails where there is nothing to remove.
        subprocess.run([claude, "mcp", "remove", server.name], capture_output=True, check=False)
    try:
        run_cli_command([claude, *host.command(server)[1:]])
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip() or f"exit status {error.returncode}"
        if token is not None:
            said = said.replace(token, "...")
        # The error has the whole command in it, and with that the token.
        raise ConfigurationError(f"claude mcp add: {said}") from None
