"""Pin the versions of a distribution and of all its dependencies, as installed here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = "constraints.txt"
"""The file of the pins, for ``pip install --constraint``."""


def constraints(*distributions: str) -> str:
    """Return the text of a constraints file for distributions.

    A distribution that is not installed here is not pinned.
    """
    pinned = {canonicalize_name(found.name): found.version.partition("+")[0] for found in installed(*distributions)}
    lines = [f"{name}=={version}" for name, version in sorted(pinned.items())]
    return "\n".join(["# The versions with which this folder was made. Change them on purpose, and test.", *lines, ""])


def installed(*distributions: str) -> list[importlib.metadata.Distribution]:
    """Return distributions and all their dependencies, each once, as far as they are installed here.

    A missing one may belong to another system.

    Args:
        distributions: names, with extras if they are wanted, such as ``mcpenv[eval]``.
    """
    there: dict[str, importlib.metadata.Distribution] = {}
    wanted_first = map(Requirement, distributions)
    waiting = [(requirement.name, frozenset(requirement.extras)) for requirement in wanted_first]
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
            continue
        there[canonicalize_name(name)] = found
        waiting.extend(_needs(found, extras))
    return list(there.values())


def dependencies_of(found: importlib.metadata.Distribution) -> set[str]:
    """Return the canonical names of the distributions that one depends on here, without those of its extras."""
    return {canonicalize_name(name) for name, _ in _needs(found, frozenset())}


def _needs(found: importlib.metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in found.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement.name, frozenset(requirement.extras)
