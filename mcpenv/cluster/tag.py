"""Tags: the name of a worker's life, at the head of every id that it makes, so that each id says whose it is.

A worker that is started anew has the number of the one that died and another life: what belonged to the dead one is
found to be lost, not looked for in the new one. Ids that clients choose have no dot in them, and so no tag.
"""

from __future__ import annotations

import re
import secrets

_TAGGED = re.compile(r"([0-9]{1,6}\.[0-9]{1,9})\.(.+)", re.DOTALL)


def tag_of(number: int, life: int) -> str:
    """The tag of a worker.

    Args:
        number: its place among the workers, from 0.
        life: how many there have been at that place, from 1.
    """
    return f"{number}.{life}"


def split(tagged: str) -> tuple[str | None, str]:
    """The tag of an id, and the rest; no tag if it has none."""
    found = _TAGGED.fullmatch(tagged)
    return (None, tagged) if found is None else (found[1], found[2])


def number_of(tag: str) -> int:
    """The worker's place."""
    return int(tag.partition(".")[0])


def new_id(tag: str) -> str:
    """A new id of that worker: its tag and 192 random bits."""
    return f"{tag}.{secrets.token_urlsafe(24)}"
