"""The company's database as tools see it."""

from __future__ import annotations

import sqlite3

from mcpenv.extensions.generated_worlds import Row, RowDesk

FINDERS = {
    "people": "search_people",
    "rooms": "list_rooms",
    "mails": "search_mails",
    "events": "list_events",
    "accounts": "search_accounts",
    "contacts": "search_contacts",
    "tickets": "search_tickets",
    "documents": "search_documents",
    "channels": "list_channels",
    "messages": "read_channel",
    "projects": "list_projects",
    "tasks": "list_tasks",
    "leaves": "list_leave",
    "expenses": "list_expenses",
    "products": "search_products",
    "orders": "search_orders",
}
"""The tool that finds the ids of a table."""

NOUNS = {"people": "person", "leaves": "leave"}


class Desk(RowDesk):
    """The company's database in one episode.

    Args:
        db: the connection, which is reset with each episode.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__(db, FINDERS, NOUNS)

    @property
    def today(self) -> str:
        """The day of the episode, as "2026-03-04"."""
        return self._fact("today")

    @property
    def user(self) -> Row:
        """The person for whom the agent works."""
        return self.row("people", int(self._fact("user")))

    def person_of_mail(self, address: str) -> Row | None:
        """Return the colleague with an address; None if it belongs to nobody here."""
        found = self.find("people", email=address.strip().lower())
        return found[0] if found else None

    def _fact(self, key: str) -> str:
        value: str = self.db.execute("SELECT value FROM company WHERE key = ?", (key,)).fetchone()[0]
        return value
