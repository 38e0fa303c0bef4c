"""Let an agent keep a bank's book in SQLite, with rules that tools enforce."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from mcpenv import MCPEnvironment, TaskSet, ToolError
from mcpenv.worlds import SQLiteWorld

SCHEMA = """
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, balance INTEGER NOT NULL, status TEXT NOT NULL
);
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL, target INTEGER NOT NULL, amount INTEGER NOT NULL,
    fee INTEGER NOT NULL, memo TEXT NOT NULL
);
CREATE TABLE holds (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL, amount INTEGER NOT NULL, reason TEXT NOT NULL,
    status TEXT NOT NULL
);
CREATE TABLE reports (subject TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""

BOOK = (
    (1, "Bank", "fees", 0, "open"),
    (2, "Ana", "checking", 120_000, "open"),
    (3, "Ana", "savings", 500_000, "open"),
    (4, "Bo", "checking", 45_000, "open"),
    (5, "Bo", "savings", 20_000, "open"),
    (6, "Chidi", "checking", 8_050, "open"),
    (7, "Dana", "checking", 310_000, "frozen"),
    (8, "Dana", "savings", 75_000, "open"),
    (9, "Eli", "checking", 0, "open"),
)
"""The accounts at the start: id, owner, kind, balance in cents, status."""

HOLDS = ((8, 10_000, "insurance"),)
"""The active holds at the start: account, cents, reason."""

FEES = 1
"""The account to which fees go."""

Cents = Annotated[int, Field(ge=1, le=100_000_000, description="An amount in cents, 1 or more")]
AccountId = Annotated[int, Field(description="The number of an account, as list_accounts gives it")]


@dataclass
class Account:
    """An account. ``available`` is the balance without what active holds reserve; amounts are in cents."""

    id: int
    owner: str
    kind: str
    balance: int
    available: int
    status: str


@dataclass
class Transfer:
    """A transfer that was made. The source paid amount and fee; amounts are in cents."""

    id: int
    source: int
    target: int
    amount: int
    fee: int
    memo: str


@dataclass
class Hold:
    """The reserved money of an account: ``active``, ``released`` (available again) or ``captured`` (paid out)."""

    id: int
    account: int
    amount: int
    reason: str
    status: str


class LedgerEnvironment(MCPEnvironment):
    """A bank's ledger: accounts, transfers, holds and reports.

    Description:
        The agent keeps the book of a small bank. The tools enforce the bank's rules. Accounts cannot be overdrawn.
        Money under a hold cannot be spent. Frozen accounts neither pay nor receive. A transfer to another owner costs
        a fee of 1 %, rounded up to the cent and at least 25 cents, which the source pays in addition.

    Tools:
        list_accounts(owner?), list_transfers(account?), list_holds(account?): list rows of the book.
        quote_fee(source, target, amount): return the fee of a transfer.
        transfer(source, target, amount, memo?): move money.
        place_hold(account, amount, reason), release_hold(hold), capture_hold(hold, target): reserve money, free it, pay
        it out (without a fee).
        open_account(owner, kind), set_status(account, status): for new accounts, and to freeze, unfreeze and close.
        file_report(subject, value): record a figure.

    Observation:
        Of a reset: ``metadata.prompt``, the task. Of a step: the tool's.

    Reward:
        At the end, by the task's verifier over the book: 1.0 if it is correct, else 0.0. Steps are not scored.

    Start:
        The book of `BOOK` and `HOLDS`, with the changes that the task's options name. The seed has no effect.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "ledger"
    VERSION = "1.0.0"
    tasks = TaskSet.from_jsonl("tasks.jsonl").with_licence("Apache-2.0")

    def __init__(self) -> None:
        # Calls run one at a time, but in changing threads. (THREAD_AFFINE = True would give each instance one thread.)
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.db.row_factory = sqlite3.Row
        self.db.executescript(SCHEMA)
        self.world = SQLiteWorld(self.db)
        for tool in (
            self.list_accounts,
            self.list_transfers,
            self.list_holds,
            self.quote_fee,
            self.transfer,
            self.place_hold,
            self.release_hold,
            self.capture_hold,
            self.open_account,
            self.set_status,
            self.file_report,
        ):
            self.tool(tool)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        balances: dict[int, int] | None = None,
        holds: list[tuple[int, int, str]] | None = None,
    ) -> None:
        """Write the book.

        Args:
            balances: cents by account, instead of those of `BOOK`.
            holds: account, cents and reason of each active hold, instead of those of `HOLDS`.
        """
        balances = balances or {}
        for table in ("accounts", "transfers", "holds", "reports"):
            self.db.execute(f"DELETE FROM {table}")
        self.db.executemany(
            "INSERT INTO accounts VALUES (?, ?, ?, ?, ?)",
            [(number, owner, kind, balances.get(number, cents), status) for number, owner, kind, cents, status in BOOK],
        )
        self.db.executemany(
            "INSERT INTO holds (account, amount, reason, status) VALUES (?, ?, ?, 'active')",
            HOLDS if holds is None else holds,
        )

    def close(self) -> None:
        self.db.close()

    # -- tools

    def list_accounts(
        self, owner: Annotated[str | None, Field(description="Only this owner's")] = None
    ) -> list[Account]:
        """List accounts with their balances, in cents."""
        return [
            Account(**row)
            for row in self.db.execute(
                """
                SELECT id, owner, kind, balance, status, balance - (
                    SELECT COALESCE(SUM(amount), 0) FROM holds WHERE account = accounts.id AND status = 'active'
                ) AS available
                FROM accounts WHERE ?1 IS NULL OR owner = ?1 ORDER BY id
                """,
                (owner,),
            )
        ]

    def list_transfers(self, account: AccountId | None = None) -> list[Transfer]:
        """List the transfers made so far, or those from or to one account; oldest first."""
        query = "SELECT * FROM transfers WHERE ?1 IS NULL OR ?1 IN (source, target) ORDER BY id"
        return [Transfer(**row) for row in self.db.execute(query, (account,))]

    def list_holds(self, account: AccountId | None = None) -> list[Hold]:
        """List all holds, or those of one account; oldest first."""
        query = "SELECT * FROM holds WHERE ?1 IS NULL OR account = ?1 ORDER BY id"
        return [Hold(**row) for row in self.db.execute(query, (account,))]

    def quote_fee(self, source: AccountId, target: AccountId, amount: Cents) -> int:
        """Say what a transfer would cost, in cents: 0 between accounts of one owner."""
        return fee_of(self._account(source), self._account(target), amount)

    def transfer(
        self,
        source: AccountId,
        target: AccountId,
        amount: Cents,
        memo: Annotated[str, Field(max_length=200, description="What it is for")] = "",
    ) -> Transfer:
        """Move money from one account to another. The source pays the amount, and the fee on top."""
        payer, payee = self._open_account(source), self._open_account(target)
        if source == target:
            raise ToolError("source and target are the same account")
        fee = fee_of(payer, payee, amount)
        self._refuse_overdraft(payer, amount + fee)
        return Transfer(**self._write(self._move, source, target, amount, fee, memo))

    def place_hold(
        self,
        account: AccountId,
        amount: Cents,
        reason: Annotated[str, Field(min_length=1, max_length=200, description="What it is for")],
    ) -> Hold:
        """Reserve money of an account, so that it cannot be spent."""
        self._refuse_overdraft(self._open_account(account), amount)
        return Hold(
            **self._row(
                "INSERT INTO holds (account, amount, reason, status) VALUES (?, ?, ?, 'active') RETURNING *",
                account,
                amount,
                reason,
            )
        )

    def release_hold(self, hold: Annotated[int, Field(description="The number of an active hold")]) -> Hold:
        """End a hold: its money can be spent again."""
        self._active_hold(hold)
        return Hold(**self._row("UPDATE holds SET status = 'released' WHERE id = ? RETURNING *", hold))

    def capture_hold(
        self, hold: Annotated[int, Field(description="The number of an active hold")], target: AccountId
    ) -> Transfer:
        """Pay the money of a hold to an account, all of it and without a fee. The hold ends."""
        held = self._active_hold(hold)
        self._open_account(held.account)
        self._open_account(target)
        if held.account == target:
            raise ToolError("the target is the account that the hold is on")
        return Transfer(**self._write(self._capture, held, target))

    def open_account(
        self,
        owner: Annotated[str, Field(min_length=1, max_length=100, description="The owner's name")],
        kind: Literal["checking", "savings"],
    ) -> Account:
        """Open an account with nothing in it. An owner has at most one of each kind."""
        if any(account.kind == kind and account.status != "closed" for account in self.list_accounts(owner)):
            raise ToolError(f"{owner} has a {kind} account")
        query = "INSERT INTO accounts (owner, kind, balance, status) VALUES (?, ?, 0, 'open') RETURNING id"
        return self._account(self._row(query, owner, kind)["id"])

    def set_status(self, account: AccountId, status: Literal["open", "frozen", "closed"]) -> Account:
        """Freeze, unfreeze or close an account. To be closed it must be empty; what is closed stays closed."""
        found = self._account(account)
        if found.status == "closed":
            raise ToolError(f"account {account} is closed")
        if account == FEES:
            raise ToolError("the bank's own account stays open")
        if status == "closed" and found.balance:
            raise ToolError(f"account {account} still has {found.balance} cents; move them first")
        self.db.execute("UPDATE accounts SET status = ? WHERE id = ?", (status, account))
        return self._account(account)

    def file_report(
        self,
        subject: Annotated[str, Field(min_length=1, max_length=100, description="What the figure is")],
        value: Annotated[int, Field(description="The figure; amounts of money in cents")],
    ) -> str:
        """Write a figure down. A subject that was written down before gets the new figure."""
        self.db.execute("INSERT OR REPLACE INTO reports VALUES (?, ?)", (subject, value))
        return f"{subject}: {value}"

    # -- the book

    def _account(self, number: int) -> Account:
        found = next((account for account in self.list_accounts() if account.id == number), None)
        if found is None:
            raise ToolError(f"there is no account {number}")
        return found

    def _open_account(self, number: int) -> Account:
        account = self._account(number)
        if account.status != "open":
            raise ToolError(f"account {number} is {account.status}")
        return account

    def _active_hold(self, number: int) -> Hold:
        found = next((hold for hold in self.list_holds() if hold.id == number), None)
        if found is None:
            raise ToolError(f"there is no hold {number}")
        if found.status != "active":
            raise ToolError(f"hold {number} is {found.status}")
        return found

    def _refuse_overdraft(self, payer: Account, amount: int) -> None:
        if amount > payer.available:
            raise ToolError(f"account {payer.id} has {payer.available} cents available; {amount} are needed")

    def _move(self, source: int, target: int, amount: int, fee: int, memo: str) -> dict[str, Any]:
        for account, change in ((source, -amount - fee), (target, amount), (FEES, fee)):
            self.db.execute("UPDATE accounts SET balance = balance + ? WHERE id = ?", (change, account))
        query = "INSERT INTO transfers (source, target, amount, fee, memo) VALUES (?, ?, ?, ?, ?) RETURNING *"
        return self._row(query, source, target, amount, fee, memo)

    def _capture(self, hold: Hold, target: int) -> dict[str, Any]:
        self.db.execute("UPDATE holds SET status = 'captured' WHERE id = ?", (hold.id,))
        return self._move(hold.account, target, hold.amount, 0, hold.reason)

    def _write(self, change: Any, *arguments: Any) -> dict[str, Any]:
        """Change several rows in one transaction."""
        self.db.execute("BEGIN")
        try:
            row: dict[str, Any] = change(*arguments)
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")
        return row

    def _row(self, query: str, *values: Any) -> dict[str, Any]:
        (row,) = self.db.execute(query, values).fetchall()
        return dict(row)


def fee_of(payer: Account, payee: Account, amount: int) -> int:
    """Return the fee of a transfer, in cents."""
    return 0 if payer.owner == payee.owner else max(25, -(-amount // 100))
