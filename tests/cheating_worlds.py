"""The world whose agents may change everything, and tasks for it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mcpenv import MCPEnvironment, ToolError
from mcpenv.worlds import ObjectWorld
from mcpenv_client.types.tasks import OracleCall, Task

FilesWorld = pytest.importorskip("mcpenv.extensions.files_world").FilesWorld
SQLiteWorld = pytest.importorskip("mcpenv.extensions.sqlite_world").SQLiteWorld

ANSWER = "heron-4711"
NEEDLE = "walrus-metadata"
CODE_NEEDLE = "zebra_in_the_code"
TELLTALES = (ANSWER, NEEDLE, CODE_NEEDLE, "expect_", "oracle", "verifier", "reward", "reward_range")
"""Words that stand in no answer to an agent."""


class Office(MCPEnvironment):
    """A ledger, a folder and notes."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.folder = Path(tempfile.mkdtemp(prefix="office-"))
        self.notes: dict[str, Any] = {}
        self.world = {
            "db": SQLiteWorld(self.database),
            "files": FilesWorld(self.folder),
            "notes": ObjectWorld(lambda: self.notes),
        }

        @self.tool
        def sql(statement: str) -> list[list[Any]]:
            """Run one statement."""
            return [list(row) for row in self.database.execute(statement)]

        @self.tool
        def write(path: str, text: str) -> str:
            """Write a file."""
            file = self.folder / path
            if not file.parent.resolve().is_relative_to(self.folder) or file.is_symlink():
                raise ToolError(f"{path} is outside of your folder")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            return "written"

        @self.tool
        def grow(path: str, size: int) -> None:
            """Make a sparse file."""
            with (self.folder / Path(path).name).open("wb") as file:
                file.truncate(size)

        @self.tool
        def link(path: str, target: str) -> str:
            """Make a link."""
            os.symlink(target, self.folder / path)
            return "linked"

        @self.tool
        def remember(key: str, value: Any) -> str:
            """Keep a note."""
            self.notes.setdefault("kept", {})[key] = value
            return "kept"

        @self.tool
        def nest(depth: int) -> str:
            """Put a note into a note, and so on."""
            deep: dict[str, Any] = {}
            for _ in range(depth):
                deep = {"in": deep}
            self.notes["deep"] = deep
            return "nested"

        @self.tool(terminal=True)
        def submit(answer: str = "") -> str:
            """Hand in."""
            self.notes["answer"] = answer
            return "handed in"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            self.database.execute(f'DROP TABLE "{name}"')
        self.database.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)")
        self.database.execute("INSERT INTO accounts VALUES ('ann', 100), ('bob', 0)")
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        (self.folder / "todo.txt").write_text("Write report.txt.")
        self.notes.clear()
        self.notes["kept"] = {}

    def close(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)


PAYMENT = [
    "UPDATE accounts SET balance = balance - 10 WHERE name = 'ann'",
    "UPDATE accounts SET balance = balance + 10 WHERE name = 'bob'",
]
PAY = Task(
    id="pay",
    prompt="Pay 10 from ann to bob.",
    metadata={"note": NEEDLE},
    verifier={
        "kind": "expect_exactly",
        "changes": {"db/accounts/ann/balance": 90, "db/accounts/bob/balance": 10},
    },
    oracle=[OracleCall(tool_name="sql", arguments={"statement": statement}) for statement in PAYMENT],
)
REPORT = Task(
    id="report",
    prompt="Write 'done' into report.txt.",
    verifier={"kind": "expect_exactly", "changes": {"files/report.txt": {"text": "done"}}},
    oracle=[OracleCall(tool_name="write", arguments={"path": "report.txt", "text": "done"})],
)
NESTED = Task(
    id="nested",
    prompt="Write 'done' into out/march/report.txt.",
    verifier={"kind": "expect_exactly", "changes": {"files/out/*/report.txt": {"text": "done"}}},
    oracle=[OracleCall(tool_name="write", arguments={"path": "out/march/report.txt", "text": "done"})],
)
GUESS = Task(
    id="guess",
    prompt="Which word?",
    metadata={"answer": ANSWER, "note": NEEDLE},
    verifier={
        "kind": "python",
        "code": "def verify(task, before, after, changes):\n"
        f"    # {CODE_NEEDLE}\n"
        "    return after['notes'].get('answer') == task['metadata']['answer']\n",
    },
    oracle=[OracleCall(tool_name="submit", arguments={"answer": ANSWER})],
)
