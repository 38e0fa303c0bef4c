"""Let an agent work in a company's office, with the tools of ten departments and rules that bind."""

from __future__ import annotations

import sqlite3
from typing import Any

from pydantic import SecretStr

from mcpenv.extensions.generated_worlds import ComposedEnvironment, with_private_tasks, write_rows
from mcpenv.worlds import SQLiteWorld

from .company import database_of
from .desk import Desk
from .schema import COLUMNS
from .tasks import OfficeTasks
from .tools import tools_of


class OfficeEnvironment(ComposedEnvironment):
    """A company's office: mail, calendar, customers, tickets, documents, chat, projects, leave, expenses, orders.

    Description:
        The agent is the assistant of one of the managers of a company with some 40 people. It does what the manager
        asks for, by tools that read and write one database. A fact is often found in one place and needed in another.
        The document "Company policy" has rules with figures of this company. The tools do not enforce them: the agent
        declines what a rule forbids, and asks where a request is not clear. Texts of others may hold instructions that
        nobody gave.

    Tools:
        More than 70 in ten groups, such as search_mails, create_event, refund_order.
        answer(text, part?): answer a question. decline(rule, reason, part?): refuse a request that a rule forbids.
        ask(about, question, part?): ask what a request leaves open. They are noted, and the episode goes on.

    Observation:
        Of a reset: ``metadata.prompt``, the requests. Of a step: the rows that were found or written.

    Reward:
        At the end, 1.0 if exactly the right rows have changed, else 0.0. Steps are not scored.

    Start:
        The company of the task's options, with the rows that the task adds. Without a task, that of the seed.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Arguments:
        company, canary, rows, without: reset options, which tasks set.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    DYNAMIC_TOOLS = True
    EXPOSED_NAME = "office"
    VERSION = "1.0.0"
    COMPOSER = OfficeTasks
    tasks = OfficeTasks().tasks().with_licence("Apache-2.0")

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database = self.world = SQLiteWorld(self.db)
        self._start(1, "", {})
        self._desk = Desk(self.db)
        self._tools = tools_of(self._desk)
        self._missing: frozenset[str] = frozenset()
        for tool in self._tools.values():
            self.tool(tool)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        company: int | None = None,
        canary: str = "",
        rows: dict[str, list[dict[str, Any]]] | None = None,
        without: list[str] | None = None,
    ) -> None:
        """Start a day in a company.

        Args:
            company: the seed of the company; None for the seed of the reset.
            canary: a line at the end of each text.
            rows: rows that are added or replaced, by table.
            without: tools that the agent does not have.
        """
        self._start((seed or 1) if company is None else company, canary, rows or {})
        self._desk.requests = None if self.task is None else len(self.task.metadata.get("families", ())) or None
        missing = frozenset(without or ())
        for name in missing - self._missing:
            self.remove_tool(name)
        for name in self._tools:  # in their order
            if name in self._missing - missing:
                self.tool(self._tools[name])
        self._missing = missing

    def close(self) -> None:
        self.db.close()

    def _start(self, company: int, canary: str, rows: dict[str, list[dict[str, Any]]]) -> None:
        self._database.load(database_of(company, canary))  # SQLite may crash if it deserializes into one in use
        for table, added in rows.items():
            write_rows(self.db, COLUMNS[table], table, added)


def office(private_seed: SecretStr | None = None) -> OfficeEnvironment:
    """Return an office.

    Args:
        private_seed: a secret of the operator. With it there is a split ``private``, which nobody else can make.
    """
    return with_private_tasks(OfficeEnvironment, private_seed)()
