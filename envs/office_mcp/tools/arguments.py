"""The types of arguments that several groups of tools have."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

Id = Annotated[int, Field(ge=1, le=1_000_000_000)]
Short = Annotated[str, Field(min_length=1, max_length=200)]
Long = Annotated[str, Field(min_length=1, max_length=4000)]
Day = Annotated[str, Field(examples=["2030-03-04"])]
Hour = Annotated[str, Field(description="UTC", examples=["09:30"])]
Words = Annotated[str | None, Field(max_length=200, description="Words that it has; none for all")]
Rows = list[Row]


def day_of(text: str) -> datetime.date:
    """Return the day that an agent wrote.

    Raises:
        ToolError: it is none.
    """
    try:
        if len(text) == 10:
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise ToolError(f"{text[:20]!r} is no day. Write it as 2026-03-04.")


def minutes_of(text: str) -> int:
    """Return the minutes since midnight of an hour that an agent wrote.

    Raises:
        ToolError: it is none.
    """
    hour, colon, minute = text.partition(":")
    well_formed = colon and len(hour) == 2 == len(minute) and f"{hour}{minute}".isdecimal() and text.isascii()
    if well_formed and int(hour) < 24 and int(minute) < 60:
        return int(hour) * 60 + int(minute)
    raise ToolError(f"{text[:20]!r} is no time. Write it as 09:30.")


def clean(text: str, what: str) -> str:
    """Return a text without spaces around it.

    Raises:
        ToolError: nothing is left.
    """
    if not text.strip():
        raise ToolError(f"The {what} is empty. Write it.")
    return text.strip()
