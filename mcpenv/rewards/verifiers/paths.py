"""Parse paths in the tree of a world, and match them against patterns.

A path has "/" between its keys: ``accounts/1/balance``. The keys of a world's first level may contain slashes
themselves, as the paths of files do, and are written as they are: ``out/report.txt/text``. Below that level a slash in
a key is written "~1" and "~" is written "~0" (RFC 6901, section 3). So a row with the key "1/balance" cannot be
mistaken for a column of row 1.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

ONE = "*"
"""Matches exactly one part."""
ANY_NUMBER = "**"
"""Matches any number of parts, also none."""


class Pattern:
    """A pattern of paths: parts between slashes, where ``*`` matches one part and ``**`` any number of parts.

    Args:
        text: the pattern, such as "transfers/*" or "accounts/1/balance".

    Raises:
        ValueError: if the pattern is empty, has an empty part, or a star next to other characters.
    """

    __slots__ = ("_fixed", "parts", "text")

    def __init__(self, text: str) -> None:
        parts = tuple(text.split("/")) if isinstance(text, str) else ()
        if not all(parts) or not parts:
            raise ValueError(
                f"{text!r} is not a path. Write parts with one slash between them, as in 'accounts/1/balance'"
            )
        for part in parts:
            if "*" in part and part not in (ONE, ANY_NUMBER):
                raise ValueError(
                    f"{text!r}: part {part!r} has a star next to other characters. Use '*' or '**' as a whole part"
                )
        self.text = text
        self.parts = parts
        self._fixed = ANY_NUMBER not in parts

    def matches(self, parts: Sequence[str]) -> bool:
        """Return True if the pattern matches a path, as `parts_of` gives it."""
        if self._fixed:
            return len(parts) == len(self.parts) and all(map(_fits, self.parts, parts))
        # reached[i]: the first i parts of the pattern match what was read so far.
        reached = [True] + [False] * len(self.parts)
        for i, wanted in enumerate(self.parts):
            reached[i + 1] = reached[i] and wanted == ANY_NUMBER
        for part in parts:
            then = [False] * len(reached)
            for i, wanted in enumerate(self.parts):
                if wanted == ANY_NUMBER:
                    then[i + 1] = then[i] or reached[i + 1] or reached[i]
                else:
                    then[i + 1] = reached[i] and _fits(wanted, part)
            reached = then
        return reached[-1]

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def parts_of(key: str, beside: Container[str] | None) -> tuple[str, ...]:
    """Return a key as the parts of a path.

    Args:
        key: one key of a tree.
        beside: the keys of the same level, if keys of that level may contain slashes (paths of files); None for lower
            levels. A key stays whole if one of its prefixes is a key too, because it would read as a place inside that
            prefix.
    """
    if "/" in key and beside is not None:
        parts = key.split("/")
        if not any("/".join(parts[:n]) in beside for n in range(1, len(parts))):
            return tuple(parts)
    return (key.replace("~", "~0").replace("/", "~1"),) if beside is None or "/" in key else (key,)


def _fits(wanted: str, part: str) -> bool:
    return wanted in (ONE, part)
