"""MCP hosts of a server that wants a token: what they are told has a placeholder where each user's token goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..hosts import Form, Host

TOKEN = "TOKEN"
"""What a user replaces by a token."""

VARIABLE = "MCPENV_AGENT_TOKEN"
"""The environment variable of hosts that keep tokens out of their files."""


def with_bearer(host: Host) -> Host:
    """The host, for servers at a URL that want a bearer token."""
    command, entry = host.command, host.entry
    header = f"Authorization: Bearer {TOKEN}"
    return replace(
        host,
        command=None if command is None else lambda server: [*command(server), "--header", header],
        entry=None if entry is None else lambda server: _authorized(entry(server), host.form),
    )


def _authorized(entry: dict[str, Any], form: Form) -> dict[str, Any]:
    if form is Form.TOML:
        # Codex refuses tokens in its file.
        return {**entry, "bearer_token_env_var": VARIABLE}
    if "command" in entry:
        # mcp-remote fills the variable in itself; with a blank in an argument, some hosts start it wrongly.
        header = ["--header", "Authorization:${AUTHORIZATION}"]
        return {**entry, "args": [*entry["args"], *header], "env": {"AUTHORIZATION": f"Bearer {TOKEN}"}}
    return {**entry, "headers": {"Authorization": f"Bearer {TOKEN}"}}


__all__ = ["TOKEN", "VARIABLE", "with_bearer"]
