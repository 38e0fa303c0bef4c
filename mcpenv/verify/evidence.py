"""Evidence: what a verifier is given."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from mcpenv_client.tasks import Task

from ..errors import Misuse
from ..worlds import Tree
from .changes import Changes


@dataclass(frozen=True)
class Evidence:
    """The world as the reset left it, and as it is at the end of the episode.

    Attributes:
        task: what the agent was to do; None if the reset began none.
        before, after: what ``env.world`` looked like; None if the environment names no world.
        named: ``env.world`` is several worlds, by name.
        said: sentences of why it is worth no more, where a verdict had some; for those who try tasks out.
    """

    task: Task | None
    before: Tree | None
    after: Tree | None
    named: bool = False
    said: list[str] = field(default_factory=list, compare=False, repr=False)

    @functools.cached_property
    def changes(self) -> Changes:
        """What is different in ``after``.

        Raises:
            Misuse: the environment names no world, so that nobody knows.
            ValueError: the world is nested too deeply.
        """
        if self.before is None or self.after is None:
            raise Misuse("there is no world to see changes of: set env.world in __init__ or reset")
        return Changes(self.before, self.after, named=self.named)
