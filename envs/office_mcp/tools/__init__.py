"""The tools of the office, in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..desk import Desk
from .calendar import CalendarTools
from .customers import CustomerTools
from .documents import ChatTools, DocumentTools
from .mail import MailTools
from .money import ExpenseTools, LeaveTools
from .orders import OrderTools
from .projects import ProjectTools
from .replies import ReplyTools
from .tickets import TicketTools


class Group(Protocol):
    """A group of tools."""

    @property
    def tools(self) -> tuple[Callable[..., Any], ...]:
        """The functions."""
        ...


GROUPS: dict[str, Callable[[Desk], Group]] = {
    "mail": MailTools,
    "calendar": CalendarTools,
    "people and customers": CustomerTools,
    "tickets": TicketTools,
    "documents": DocumentTools,
    "chat": ChatTools,
    "projects": ProjectTools,
    "leave": LeaveTools,
    "expenses": ExpenseTools,
    "orders and stock": OrderTools,
    "replies": ReplyTools,
}


def tools_of(desk: Desk) -> dict[str, Callable[..., Any]]:
    """Return all tools by name."""
    return {tool.__name__: tool for group in GROUPS.values() for tool in group(desk).tools}
