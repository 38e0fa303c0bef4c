"""Add servers to Claude Code with its own command."""

from __future__ import annotations

import subprocess

from fastmcp.cli.install.claude_code import find_claude_command
from fastmcp.cli.install.shared import run_cli_command

from mcpenv.errors import ConfigurationError

from .hosts import Host, Server


def add(host: Host, server: Server, snippet: str, *, force: bool, token: str | None = None) -> None:
    """Run ``claude mcp add``.

    Args:
        host: Claude Code, with the server's token if the server requires one.
        snippet: the command that a user may run instead, for error messages.
        force: replace a server of the same name.
        token: the token to remove from error messages.

    Raises:
        ConfigurationError: the command is not installed, or it failed.
    """
    assert host.command is not None
    claude = find_claude_command()
    if claude is None:
        raise ConfigurationError(f"Claude Code's command, claude, is not installed. Where it is, run: {snippet}")
    if force:
        # Exits with an error if there is no such server, which is harmless.
        subprocess.run([claude, "mcp", "remove", server.name], capture_output=True, check=False)
    try:
        run_cli_command([claude, *host.command(server)[1:]])
    except subprocess.CalledProcessError as error:
        message = (error.stderr or error.stdout or "").strip() or f"exit status {error.returncode}"
        if token is not None:
            message = message.replace(token, "...")
        # `from None`: the error contains the whole command, and with it the token.
        raise ConfigurationError(f"claude mcp add: {message}") from None
