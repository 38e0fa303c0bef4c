"""Define `Candidate`, the environment to judge, with the tasks to play."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.arguments import arguments_for
from mcpenv.extensions.contract.contract import GROUND, SET_LIVE, Contract
from mcpenv.extensions.contract.findings import ContractViolation, Finding, Verdict
from mcpenv.extensions.contract.subject import PASS_FACTORY, Subject
from mcpenv_client.errors import McpenvError, WireError
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
        source: the file of the tasks, or words for what makes them; empty without tasks.
        folder: the folder of its code; None if it has none.
        deterministic: False for a live world: no two episodes are equal.
        remedies: remedies by the name of the check, in place of those for authors: `MCPEnvironment.REMEDIES`.

    Attributes:
        contract: the contract kit's checks of the environment.
        on_check: called with the name of each check before it runs, in the thread of the part.
        plays_oracles: False if the part that plays the oracles is left out.
    """

    def __init__(
        self,
        make: Callable[[], MCPEnvironment],
        tasks: Sequence[Task] = (),
        *,
        size: int | None = None,
        source: str = "",
        folder: Path | None = None,
        deterministic: bool = True,
        remedies: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.make = make
        self.tasks = tuple(tasks)
        self.size = len(self.tasks) if size is None else size
        self.source = source
        self.folder = folder
        self.remedies = remedies
        self.on_check: Callable[[str], None] = lambda check: None
        self.plays_oracles = True
        self._found: dict[str, Finding] = {}
        # An environment with tasks may need one for a reset.
        options = {"task": self.tasks[0]} if self.tasks else {}
        self.contract = Contract(
            Subject(make, {}, (), options, 0, deterministic, block_limit_s=BLOCK_LIMIT_S, call_timeout_s=CALL_TIMEOUT_S)
        )
        self.subject = self.contract.subject

    def find(self, check: str) -> Finding:
        """Return the finding of a check of the contract kit, with the command's options as remedies.

        A check runs once. Several parts depend on some, and each run starts new instances.
        """
        if check not in self._found:
            self.on_check(check)
            self._found[check] = self._run(check)
        return self._found[check]

    def _run(self, check: str) -> Finding:
        finding = self.contract.find(check)
        if finding.verdict in (Verdict.FAILED, Verdict.WARNING) and check in self.remedies:
            return replace(finding, remedy=self.remedies[check])
        remedy = finding.remedy.replace(SET_LIVE, "use --live")
        return replace(finding, remedy=remedy.replace(PASS_FACTORY, "or set them by --set NAME=VALUE"))

    @functools.cached_property
    def not_standing(self) -> str | None:
        """The reason why instances cannot be made or reset, without which no check makes sense; None if they can."""
        findings = map(self.find, GROUND)
        return next((finding.text for finding in findings if finding.verdict is Verdict.FAILED), None)

    def stands(self, into: Judged) -> bool:
        """Return True if instances can be created and reset. Otherwise add that the part was skipped."""
        if self.not_standing is not None:
            into.skipped(into.part, f"not run: {self.not_standing}")
        return self.not_standing is None

    def prepare(self, on_task: Callable[[Task], None]) -> None:
        """Reset once for each task, if resets may take longer than calls, so that no part waits for its build.

        Errors are left to the parts.

        Args:
            on_task: called before each reset.
        """
        for task in self.tasks:
            on_task(task)
            with suppress(McpenvError, ContractViolation), self.instance() as env:
                if env.RESET_TIMEOUT_S is None:
                    return
                self.reset(env, task)

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

    def reset(self, env: MCPEnvironment, task: Task | None = None, seed: int = 0) -> Any:
        """Start an episode of a task: of the first one, if none is given. Without tasks it has this seed."""
        task = task or (self.tasks[0] if self.tasks else None)
        return env.reset(seed) if task is None else env.reset(task=task)

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
