"""The families of goals, of which tasks are composed."""

from __future__ import annotations

from . import calendar, customers, documents, mail, money, orders, projects, tickets
from .goal import FAMILIES, Family, Goal

__all__ = [
    "FAMILIES",
    "Family",
    "Goal",
    "calendar",
    "customers",
    "documents",
    "mail",
    "money",
    "orders",
    "projects",
    "tickets",
]
