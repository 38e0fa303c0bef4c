"""The fixtures of tests with an agent's token."""

from __future__ import annotations

from agent_tokens import cli, given, home, url

__all__ = ["cli", "given", "home", "url"]
