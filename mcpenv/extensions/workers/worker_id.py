"""Tags: the prefix of every id that a worker makes, which identifies the worker.

A restarted worker has the number of the one that died, but another life. So ids of the dead worker are reported as
lost, not looked up in the new one. Ids that clients choose have no dot, and so no tag.
"""

from __future__ import annotations

import re
import secrets

_TAGGED = re.compile(r"([0-9]{1,6}\.[0-9]{1,9})\.(.+)", re.DOTALL)


def tag_of(number: int, life: int) -> str:
    """Return the tag of a worker.

    Args:
        number: its place among the workers, from 0.
        life: number of workers that have been started at that place, from 1.
    """
    return f"{number}.{life}"


def split(tagged: str) -> tuple[str | None, str]:
    """Split an id into its tag and the rest; the tag is None if it has none."""
    found = _TAGGED.fullmatch(tagged)
    return (None, tagged) if found is None else (found[1], found[2])


def number_of(tag: str) -> int:
    """Return the worker's place, from its tag."""
    return int(tag.partition(".")[0])


def new_id(tag: str) -> str:
    """Return a new id of the worker: its tag and 128 random bits."""
    return f"{tag}.{secrets.token_urlsafe(16)}"
