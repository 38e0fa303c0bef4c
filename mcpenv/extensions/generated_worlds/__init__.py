"""Make worlds and tasks from a seed: rows, goals that are composed, replies, and the ladder of a scripted agent."""

from __future__ import annotations

from .composer import LEVELS, PRIVATE, VARIANT_OF, ComposedEnvironment, Composer, Shape, with_private_tasks
from .demonstration import demonstration
from .goals import (
    ANY,
    Call,
    Changes,
    Family,
    Goal,
    NoCase,
    Setting,
    Where,
    answered,
    call,
    declined,
    goals_of,
    numbered,
    random_of,
    set_to,
    where,
)
from .ladder import RATES, agents_table, measure, picture, table
from .replies import Part, PuzzleEnvironment, Replies, number_of, part_of
from .rows import MOST, Row, RowDesk, Tables, copies, write_rows

__all__ = [
    "ANY",
    "LEVELS",
    "MOST",
    "PRIVATE",
    "RATES",
    "VARIANT_OF",
    "Call",
    "Changes",
    "ComposedEnvironment",
    "Composer",
    "Family",
    "Goal",
    "NoCase",
    "Part",
    "PuzzleEnvironment",
    "Replies",
    "Row",
    "RowDesk",
    "Setting",
    "Shape",
    "Tables",
    "Where",
    "answered",
    "call",
    "copies",
    "declined",
    "demonstration",
    "goals_of",
    "agents_table",
    "measure",
    "number_of",
    "numbered",
    "part_of",
    "picture",
    "random_of",
    "set_to",
    "table",
    "where",
    "with_private_tasks",
    "write_rows",
]
