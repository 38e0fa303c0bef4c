"""Add servers to Claude Code with its own command."""

from __future__ import annotations

import subprocess

from fastmcp.cli.install.claude_code import find_claude_command
from fastmcp.cli.install.shared import run_cli_command

from mcpenv.errors import ConfigurationError

from .hosts import Host, Server


def add(host: Host, server: Server, snippet: str, *, force: bool, token: str | None = None) -> bool:
    """Run ``claude mcp add``, and return False if Claude Code has the same server already.

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
        return True
    except subprocess.CalledProcessError as error:
        if _has(claude, server, token):
            return False
        message = (error.stderr or error.stdout or "").strip() or f"exit status {error.returncode}"
        if token is not None:
            message = message.replace(token, "...")
        # `from None`: the error contains the whole command, and with it the token.
        raise ConfigurationError(f"claude mcp add: {message}") from None


def _has(claude: str, server: Server, token: str | None) -> bool:
    """Return True if Claude Code has this server under its name."""
    done = subprocess.run([claude, "mcp", "get", server.name], capture_output=True, text=True, check=False)
    lines = {line.strip() for line in done.stdout.splitlines()}
    if server.url is None:
        command, *arguments = server.command
        return {f"Command: {command}", f"Args: {' '.join(arguments)}"} <= lines
    if token is None:
        return f"URL: {server.url}" in lines and "Headers:" not in lines
    return {f"URL: {server.url}", f"Authorization: Bearer {token}"} <= lines
