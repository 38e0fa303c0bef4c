"""Define `Candidate`, the environment to judge, with the tasks to play."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.testing.arguments import arguments_for
from mcpenv.testing.contract import GROUND, Contract
from mcpenv.testing.findings import Verdict
from mcpenv.testing.subject import Subject
from mcpenv_client.errors import WireError
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode, Tool

from .judged import Judged

BLOCK_LIMIT_S = 0.5
CALL_TIMEOUT_S = 30.0


class Candidate:
    """The environment to judge. All parts share it, so that one part can use the results of another.

    Args:
        make: returns an instance.
        tasks: the tasks to play.
        size: the total number of tasks.
        folder: the folder of its code; None if it has none.
        deterministic: False for a live world: no two episodes are equal.

    Attributes:
        contract: the contract kit's checks of the environment.
    """

    def __init__(
        self,
        make: Callable[[], MCPEnvironment],
        tasks: Sequence[Task] = (),
        *,
        size: int | None = None,
        folder: Path | None = None,
        deterministic: bool = True,
    ) -> None:
        self.make = make
        self.tasks = tuple(tasks)
        self.size = len(self.tasks) if size is None else size
        self.folder = folder
        # An environment with tasks may need one for a reset.
        options = {"task": self.tasks[0]} if self.tasks else {}
        self.contract = Contract(
            Subject(make, {}, (), options, 0, deterministic, block_limit_s=BLOCK_LIMIT_S, call_timeout_s=CALL_TIMEOUT_S)
        )
        self.subject = self.contract.subject

    @functools.cached_property
    def failed_ground(self) -> str | None:
        """The name of a failed check without which no other check makes sense; None if there is none."""
        return next((check for check in GROUND if self.contract.find(check).verdict is Verdict.FAILED), None)

    def stands(self, into: Judged) -> bool:
        """Return True if instances can be created and reset. Otherwise add that the part was skipped."""
        if self.failed_ground is not None:
            into.skipped(into.part, f"not run, because {self.failed_ground} failed")
        return self.failed_ground is None

    @contextmanager
    def instance(self) -> Iterator[MCPEnvironment]:
        """Yield a new instance, and close it. Sync code runs in the calling thread."""
        env = self.subject.make()
        try:
            yield env
        finally:
            with suppress(WireError):  # the check of close covers this
                env.close()

    @contextmanager
    def episode(self, task: Task | None = None) -> Iterator[MCPEnvironment]:
        """Yield a new instance, reset."""
        with self.instance() as env:
            self.reset(env, task)
            yield env

    def reset(self, env: MCPEnvironment, task: Task | None = None) -> Any:
        """Start an episode of a task: of the first one, if none is given. Without tasks the seed is 0."""
        task = task or (self.tasks[0] if self.tasks else None)
        return env.reset(0) if task is None else env.reset(task=task)

    @property
    def tools(self) -> list[Tool]:
        """The tools of simulation, as listed after a reset."""
        return self.subject.tools[Mode.SIMULATION]

    def examples(self, tool: Tool, most: int = 3) -> list[dict[str, Any]]:
        """Return arguments for a tool: generated from its schema, and from the calls of oracles."""
        made = arguments_for(tool.input_schema)
        by_oracles = [
            call.arguments for task in self.tasks for call in task.oracle or () if call.tool_name == tool.name
        ]
        found: list[dict[str, Any]] = []
        for arguments in ([] if made is None else [made]) + by_oracles:
            if len(found) < most and arguments not in found:
                found.append(arguments)
        return found
