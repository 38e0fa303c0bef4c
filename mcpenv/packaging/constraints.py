"""Pin the versions of a distribution and of everything that it needs, as they are installed here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = "constraints.txt"
"""The file of the pins, for ``pip install --constraint``."""


def constraints(distribution: str) -> str:
    """Return the text of a constraints file for an installed distribution."""
    pinned: dict[str, str] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(distribution, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        name, extras = wanted
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # not installed here, such as a build for another system; it stays free
        pinned[canonicalize_name(name)] = found.version.partition("+")[0]
        waiting.extend(_needs(found, extras))
    lines = [f"{name}=={version}" for name, version in sorted(pinned.items())]
    return "\n".join(["# The versions with which this folder was made. Change them on purpose, and test.", *lines, ""])


def _needs(found: importlib.metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in found.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement.name, frozenset(requirement.extras)


__all__ = ["CONSTRAINTS", "constraints"]
