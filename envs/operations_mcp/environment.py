"""Let an agent respond to incidents in a simulated system of services that need each other."""

from __future__ import annotations

import sqlite3
from typing import Any

from pydantic import SecretStr

from mcpenv.extensions.generated_worlds import ComposedEnvironment, with_private_tasks, write_rows
from mcpenv.worlds import SQLiteWorld

from .desk import Desk
from .schema import COLUMNS, PASSING
from .system import database_of
from .tasks import OperationsTasks
from .tools import tools_of


class OperationsEnvironment(ComposedEnvironment):
    """The operations of a company: 20 services, their deployments, logs, metrics, alerts, runbooks, flags and on-call.

    Description:
        The agent is on call for one of four teams. Up to five faults are in the system at once. A symptom travels
        from the service at fault to those that need it. Logs, metrics and alerts follow from the state of the system
        and from the time. Each change takes a minute. Some changes make it worse: a restart empties a cache, a
        rollback does not undo a migration, a purge loses messages, a late standby loses writes. The runbook
        "Operations policy" has rules with figures of this system. The tools do not enforce them: the agent gets
        approvals, pages the owners of what belongs to others, and declines what a rule forbids. Texts may hold
        instructions that nobody gave.

    Tools:
        More than 70 in 12 groups, such as read_logs, roll_back, set_flag, page_on_call, wait.
        answer(text, part?): answer a question. decline(rule, reason, part?): refuse a request that a rule forbids.
        They are noted, and the episode goes on.

    Observation:
        Of a reset: ``metadata.prompt``, the requests. Of a step: the rows that were found or written.

    Reward:
        At the end, 1.0 if exactly the right rows have changed and each service is as well as it then must be, else
        0.0. Steps are not scored.

    Start:
        The system of the task's options, with the faults that the task adds. Without a task, that of the seed.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Arguments:
        system, canary, rows, onsets: reset options, which tasks set.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "operations"
    VERSION = "1.0.0"
    COMPOSER = OperationsTasks
    tasks = OperationsTasks().tasks().with_licence("Apache-2.0")

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database = self.world = SQLiteWorld(self.db, ignore=PASSING)
        self._desk = Desk(self.db)
        self._start(1, "", {}, [])
        for tool in tools_of(self._desk).values():
            self.tool(tool)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        system: int | None = None,
        canary: str = "",
        rows: dict[str, list[dict[str, Any]]] | None = None,
        onsets: list[tuple[int, str, dict[str, Any]]] | None = None,
    ) -> None:
        """Start a watch over a system.

        Args:
            system: the seed of the system; None for the seed of the reset.
            canary: a line at the end of each text.
            rows: rows that are added or replaced, by table.
            onsets: the faults: the minute of each, its table, and its row as it was before.
        """
        self._start((seed or 1) if system is None else system, canary, rows or {}, onsets or [])
        self._desk.requests = None if self.task is None else len(self.task.metadata.get("families", ())) or None

    def close(self) -> None:
        self.db.close()

    def _start(
        self,
        system: int,
        canary: str,
        rows: dict[str, list[dict[str, Any]]],
        onsets: list[tuple[int, str, dict[str, Any]]],
    ) -> None:
        self._database.load(database_of(system, canary))
        for table, added in rows.items():
            write_rows(self.db, COLUMNS[table], table, added)
        self._desk.begin(onsets)


def operations(private_seed: SecretStr | None = None) -> OperationsEnvironment:
    """Return a system of services.

    Args:
        private_seed: a secret of the operator. With it there is a split ``private``, which nobody else can make.
    """
    return with_private_tasks(OperationsEnvironment, private_seed)()
