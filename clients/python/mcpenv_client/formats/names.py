"""The names of tools that a model's API accepts, and the way back to the tools' own names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class NameRule:
    """The rule of a format for the names of functions.

    Attributes:
        first, other: the characters allowed at the first position, and after it, as the inside of a regular
            expression's set.
        longest: maximum number of characters.
    """

    first: str
    other: str
    longest: int

    def admits(self, name: str) -> bool:
        """Return True if the rule allows this name."""
        return len(name) <= self.longest and re.fullmatch(f"[{self.first}][{self.other}]*", name) is not None

    def made_legal(self, name: str) -> str:
        """Return a legal name similar to ``name``: other characters become ``_``, and the end is cut off."""
        legal = re.sub(f"[^{self.other}]", "_", name)
        if not re.match(f"[{self.first}]", legal):
            legal = f"_{legal}"
        return legal[: self.longest]


WORDS = NameRule("A-Za-z0-9_-", "A-Za-z0-9_-", 64)
"""The rule of OpenAI's and Anthropic's APIs."""

GEMINI = NameRule("A-Za-z_", "A-Za-z0-9_.:-", 128)
"""The rule of Gemini's API."""


class NameMap:
    """The names of a set of tools for one format, each with its own name.

    A legal name stays unchanged. Names that become equal are numbered, in the order of the tools.

    Args:
        names: the tools' own names, each once.
        rule: the format's rule; None admits all names.
    """

    def __init__(self, names: Iterable[str], rule: NameRule | None) -> None:
        names = list(names)
        self._own = {name: name for name in names if rule is None or rule.admits(name)}
        for name in names:
            if rule is not None and not rule.admits(name):
                self._own[self._free(rule.made_legal(name), rule.longest)] = name
        self._legal = {own: legal for legal, own in self._own.items()}

    def _free(self, name: str, longest: int) -> str:
        number, free = 1, name
        while free in self._own:
            number += 1
            ending = f"_{number}"
            free = name[: longest - len(ending)] + ending
        return free

    def legal(self, own: str) -> str:
        """Return the format's name of a tool of the set."""
        return self._legal[own]

    def own(self, name: str) -> str:
        """Return a tool's own name. An unknown name is returned unchanged, for the environment to refuse."""
        return self._own.get(name, name)
