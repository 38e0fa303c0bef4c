"""The fixtures of tests with an agent's token, and of an environment on which commands run."""

from __future__ import annotations

from agent_tokens import cli, given, home, url
from command_worlds import world, world_url

__all__ = ["cli", "given", "home", "url", "world", "world_url"]
