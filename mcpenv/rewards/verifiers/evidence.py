"""Define `Evidence`, the input of a verifier."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from mcpenv.errors import Misuse
from mcpenv.worlds import Tree
from mcpenv_client.types.checked import CheckedChange
from mcpenv_client.types.tasks import Task

from .diff import Changes, Verdict


@dataclass(frozen=True)
class Evidence:
    """The state of the world after the reset and at the end of the episode.

    Attributes:
        task: the task of the episode; None if the reset started none.
        before, after: captured states of ``env.world``; None if the environment sets no world.
        named: True if ``env.world`` is a dict of worlds by name.
        said: reasons of a verdict for a lower value, one sentence each; for orchestrators and people.
        checked: the changes beside the expected ones, from a verdict that compared them; for the same.
    """

    task: Task | None
    before: Tree | None
    after: Tree | None
    named: bool = False
    said: list[str] = field(default_factory=list, compare=False, repr=False)
    checked: list[CheckedChange] = field(default_factory=list, compare=False, repr=False)

    def take(self, verdict: Verdict) -> None:
        """Keep what a verdict says."""
        self.said.extend(verdict.problems)
        self.checked.extend(verdict.evidence)

    @functools.cached_property
    def changes(self) -> Changes:
        """The differences between ``before`` and ``after``.

        Raises:
            Misuse: if the environment sets no world.
            ValueError: if the world is nested too deeply.
        """
        if self.before is None or self.after is None:
            raise Misuse("there is no world to compare. Set env.world in __init__ or reset")
        return Changes(self.before, self.after, named=self.named)
