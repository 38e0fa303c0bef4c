"""Run the desk of a library: a world in SQLite, tools that keep its rules, tasks checked by what changed in it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Annotated

from mcpenv import MCPEnvironment, TaskSet, ToolError
from mcpenv.worlds import SQLiteWorld
from pydantic import Field

SCHEMA = """
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL, author TEXT NOT NULL, copies INTEGER NOT NULL);
CREATE TABLE readers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, most INTEGER NOT NULL);
CREATE TABLE loans (
    book INTEGER NOT NULL REFERENCES books, reader INTEGER NOT NULL REFERENCES readers, PRIMARY KEY (book, reader)
);
"""

BOOKS = (
    (1, "The Sea Chart", "I. Marlow", 2),
    (2, "Rivers of Glass", "I. Marlow", 1),
    (3, "A Field of Clocks", "T. Okoye", 1),
    (4, "Salt and Signal", "R. Lindqvist", 3),
)
"""The books: id, title, author, copies that the library has."""

READERS = ((1, "Ana", 2), (2, "Bo", 1), (3, "Chidi", 3))
"""The readers: id, name, the most books that they may have at a time."""

LOANS = ((2, 1), (4, 2))
"""The loans at the start: book, reader."""

BookId = Annotated[int, Field(description="The number of a book, as find_books gives it")]
ReaderId = Annotated[int, Field(description="The number of a reader, as list_readers gives it")]


@dataclass
class Book:
    """A book. ``available`` is the number of copies that are not lent."""

    id: int
    title: str
    author: str
    available: int


@dataclass
class Reader:
    """A reader, with the numbers of the books that they have."""

    id: int
    name: str
    most: int
    books: list[int]


class MyEnv(MCPEnvironment):
    """Run the desk of a small library.

    Description:
        The agent lends books and takes them back. The tools keep the rules: a book is lent while there is a copy, and
        a reader has no more books than allowed, and no book twice.

    Tools:
        find_books(text?): list books by title or author.
        list_readers(): list readers and what they have.
        lend(book, reader): lend a copy.
        take_back(book, reader): take it back.

    Observation:
        Of a reset: ``metadata.prompt``, the task. Of a step: the tool's.

    Reward:
        At the end, by the task's verifier over the tables: 1.0 if they are as asked, else 0.0. Steps are not scored.

    Start:
        `BOOKS`, `READERS`, and the loans that the task's options name. The seed has no effect.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"
    tasks = TaskSet.from_jsonl("tasks.jsonl")

    def __init__(self) -> None:
        # Calls run one at a time, but in changing threads.
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.db.executescript(SCHEMA)
        # Verifiers compare the tables before and after the episode.
        self.world = SQLiteWorld(self.db)
        for tool in (self.find_books, self.list_readers, self.lend, self.take_back):
            self.tool(tool)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        loans: list[tuple[int, int]] | None = None,
    ) -> None:
        """Write the tables.

        Args:
            loans: book and reader of each loan, instead of `LOANS`.
        """
        for table in ("loans", "readers", "books"):
            self.db.execute(f"DELETE FROM {table}")
        self.db.executemany("INSERT INTO books VALUES (?, ?, ?, ?)", BOOKS)
        self.db.executemany("INSERT INTO readers VALUES (?, ?, ?)", READERS)
        self.db.executemany("INSERT INTO loans VALUES (?, ?)", LOANS if loans is None else loans)

    def close(self) -> None:
        """Close the database."""
        self.db.close()

    # -- tools

    def find_books(self, text: Annotated[str, Field(description="A part of the title or author")] = "") -> list[Book]:
        """List the books whose title or author has a text; all books without one."""
        query = """
            SELECT id, title, author, copies - (SELECT COUNT(*) FROM loans WHERE book = books.id)
            FROM books WHERE instr(lower(title || ' ' || author), lower(?)) ORDER BY id
        """
        return [Book(*row) for row in self.db.execute(query, (text,))]

    def list_readers(self) -> list[Reader]:
        """List all readers, and the books that they have."""
        found = []
        for number, name, most in self.db.execute("SELECT id, name, most FROM readers ORDER BY id").fetchall():
            books = self.db.execute("SELECT book FROM loans WHERE reader = ? ORDER BY book", (number,))
            found.append(Reader(number, name, most, [book for (book,) in books]))
        return found

    def lend(self, book: BookId, reader: ReaderId) -> str:
        """Lend a copy of a book to a reader."""
        lent, borrower = self._book(book), self._reader(reader)
        if not lent.available:
            raise ToolError(f"every copy of {lent.title} is lent")
        if book in borrower.books:
            raise ToolError(f"{borrower.name} has {lent.title} already")
        if len(borrower.books) >= borrower.most:
            raise ToolError(f"{borrower.name} has {len(borrower.books)} books, and may have {borrower.most}")
        self.db.execute("INSERT INTO loans VALUES (?, ?)", (book, reader))
        return f"{lent.title} is lent to {borrower.name}"

    def take_back(self, book: BookId, reader: ReaderId) -> str:
        """Take a book back from a reader."""
        returned, borrower = self._book(book), self._reader(reader)
        if book not in borrower.books:
            raise ToolError(f"{borrower.name} does not have {returned.title}")
        self.db.execute("DELETE FROM loans WHERE book = ? AND reader = ?", (book, reader))
        return f"{returned.title} is back"

    def _book(self, number: int) -> Book:
        found = next((book for book in self.find_books() if book.id == number), None)
        if found is None:
            raise ToolError(f"there is no book {number}")
        return found

    def _reader(self, number: int) -> Reader:
        found = next((reader for reader in self.list_readers() if reader.id == number), None)
        if found is None:
            raise ToolError(f"there is no reader {number}")
        return found
