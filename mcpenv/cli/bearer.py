"""MCP hosts of a server that wants a token: what is printed has a placeholder where each user's token goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..hosts import Form, Host
from .tokens import AGENT_TOKEN

TOKEN = "TOKEN"
"""What a user replaces by a token."""


def with_bearer(host: Host, token: str = TOKEN) -> Host:
    """The host, for servers at a URL that want a bearer token.

    Args:
        token: what stands where the token goes. With a real one, the host's commands and texts are not for printing.
    """
    command, entry = host.command, host.entry
    header = f"Authorization: Bearer {token}"
    return replace(
        host,
        command=None if command is None else lambda server: [*command(server), "--header", header],
        entry=None if entry is None else lambda server: _authorized(entry(server), host, token),
    )


def keeps_tokens(host: Host) -> bool:
    """Whether a token may stand in the host's configuration; otherwise the host reads `AGENT_TOKEN`."""
    # Codex refuses tokens in its file.
    return host.form is not Form.TOML


def _authorized(entry: dict[str, Any], host: Host, token: str) -> dict[str, Any]:
    if not keeps_tokens(host):
        return {**entry, "bearer_token_env_var": AGENT_TOKEN}
    if "command" in entry:
        # mcp-remote fills the variable in itself; with a blank in an argument, some hosts start it wrongly.
        header = ["--header", "Authorization:${AUTHORIZATION}"]
        return {**entry, "args": [*entry["args"], *header], "env": {"AUTHORIZATION": f"Bearer {token}"}}
    return {**entry, "headers": {"Authorization": f"Bearer {token}"}}


__all__ = ["TOKEN", "keeps_tokens", "with_bearer"]
