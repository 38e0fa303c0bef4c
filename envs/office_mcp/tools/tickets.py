"""The tickets of customers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Id, Long, Rows, Short, Words, clean

Priority = Literal["low", "normal", "high", "urgent"]
Status = Literal["open", "pending", "closed"]


class TicketTools:
    """Tools of tickets and their comments."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.search_tickets,
            self.get_ticket,
            self.create_ticket,
            self.assign_ticket,
            self.set_ticket_priority,
            self.set_ticket_status,
            self.comment_ticket,
        )

    def search_tickets(
        self,
        words: Words = None,
        account: Id | None = None,
        assignee: Id | None = None,
        status: Status | None = None,
    ) -> Rows:
        """Find tickets by words of subject or text, account, assignee and status. Texts are left out."""
        columns = "id, account, subject, priority, status, assignee, order_id, opened"
        return self.desk.find(
            "tickets", columns, like=("subject body", words), account=account, assignee=assignee, status=status
        )

    def get_ticket(self, ticket: Id) -> Row:
        """Show a ticket with its text and comments."""
        return {**self.desk.row("tickets", ticket), "comments": self.desk.find("comments", ticket=ticket)}

    def create_ticket(
        self,
        account: Id,
        subject: Short,
        body: Long,
        priority: Priority,
        assignee: Id,
        order: Annotated[int | None, Field(description="The order that it is about")] = None,
    ) -> Row:
        """Open a ticket for a customer."""
        self.desk.row("accounts", account)
        self.desk.row("people", assignee)
        if order is not None:
            self.desk.row("orders", order)
        return self.desk.insert(
            "tickets",
            account=account,
            subject=clean(subject, "subject"),
            body=clean(body, "body"),
            priority=priority,
            status="open",
            assignee=assignee,
            order_id=order,
            opened=self.desk.today,
        )

    def assign_ticket(self, ticket: Id, assignee: Id) -> Row:
        """Give a ticket to a colleague."""
        self.desk.row("people", assignee)
        return self.desk.update("tickets", ticket, assignee=assignee)

    def set_ticket_priority(self, ticket: Id, priority: Priority) -> Row:
        """Change the priority of a ticket."""
        return self.desk.update("tickets", ticket, priority=priority)

    def set_ticket_status(self, ticket: Id, status: Status) -> Row:
        """Open, close or suspend a ticket."""
        return self.desk.update("tickets", ticket, status=status)

    def comment_ticket(self, ticket: Id, body: Long) -> Row:
        """Add a comment to a ticket."""
        self.desk.row("tickets", ticket)
        return self.desk.insert("comments", ticket=ticket, author=self.desk.user["id"], body=clean(body, "body"))
