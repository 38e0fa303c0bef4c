"""Evidence: what a verifier is given."""

from __future__ import annotations

from dataclasses import dataclass

from mcpenv_client.tasks import Task

from ..worlds import Tree


@dataclass(frozen=True)
class Evidence:
    """The world as the reset left it, and as it is at the end of the episode.

    Attributes:
        task: what the agent was to do; None if the reset began none.
        before, after: what ``env.world`` looked like; None if the environment names no world.
    """

    task: Task | None
    before: Tree | None
    after: Tree | None
