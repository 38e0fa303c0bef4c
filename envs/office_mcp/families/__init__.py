"""The families of goals, of which tasks are composed."""

from __future__ import annotations

from . import calendar, customers, documents, mail, money, orders, projects, tickets
from .goal import FAMILIES

__all__ = [
    "FAMILIES",
    "calendar",
    "customers",
    "documents",
    "mail",
    "money",
    "orders",
    "projects",
    "tickets",
]
