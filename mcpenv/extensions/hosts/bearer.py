"""Configurations of MCP hosts for a server that requires a token. Printed ones have a placeholder for the token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcpenv.cli.tokens import AGENT_TOKEN

from .hosts import Form, Host

TOKEN = "TOKEN"
"""The placeholder that a user replaces with a token."""


def with_bearer(host: Host, token: str = TOKEN) -> Host:
    """Return the host, configured for servers at a URL that require a bearer token.

    Args:
        token: the text in the token's place. With a real token, do not print the host's commands and texts.
    """
    command, entry = host.command, host.entry
    header = f"Authorization: Bearer {token}"
    return replace(
        host,
        command=None if command is None else lambda server: [*command(server), "--header", header],
        entry=None if entry is None else lambda server: _authorized(entry(server), host, token),
    )


def keeps_tokens(host: Host) -> bool:
    """Return True if the host's configuration may contain a token; otherwise the host reads `AGENT_TOKEN`."""
    # Codex refuses tokens in its file.
    return host.form is not Form.TOML


def _authorized(entry: dict[str, Any], host: Host, token: str) -> dict[str, Any]:
    if not keeps_tokens(host):
        return {**entry, "bearer_token_env_var": AGENT_TOKEN}
    if "command" in entry:
        # Some hosts break an argument at a space. mcp-remote substitutes the variable itself.
        header = ["--header", "Authorization:${AUTHORIZATION}"]
        return {**entry, "args": [*entry["args"], *header], "env": {"AUTHORIZATION": f"Bearer {token}"}}
    return {**entry, "headers": {"Authorization": f"Bearer {token}"}}
