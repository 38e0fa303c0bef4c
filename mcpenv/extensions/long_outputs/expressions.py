"""Regular expressions of models: RE2, which takes linear time and bounded memory, line by line and until a deadline.

Python's ``re`` cannot be stopped. The ``regex`` package has a timeout, but before it passes a short pattern can take
all memory. RE2 has no backreferences and no lookaround, and refuses patterns that take too much memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import re2

from .pages import OutOfTime

MAX_PATTERN = 1000
"""Maximum characters of a pattern."""

MAX_MEMORY = 1 << 20
"""Maximum bytes of a compiled pattern."""

WINDOW, OVERLAP = 4000, 500
"""Characters of a long line that are searched at a time, and by which the next part begins earlier. The worst pattern
takes some tenths of a second for one part. A match longer than the overlap may be found only in part."""


class Refused(Exception):
    """Raised if a pattern cannot be searched for. The text gives the model the reason."""


class Expression:
    """The compiled pattern.

    Raises:
        Refused: the pattern is too long, too large, or not of RE2's syntax.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise Refused(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN} are allowed")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_MEMORY
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            raise Refused(
                f"the pattern cannot be used ({reason}); the syntax is RE2's, without lookaround and backreferences"
            ) from error

    def matches(self, text: str, start: int, deadline: float) -> Iterator[tuple[int, int]]:
        """Yield the matches from character ``start`` on, as pairs of begin and end. A match never spans lines.

        Args:
            deadline: by ``time.monotonic``, in seconds.

        Raises:
            OutOfTime: the deadline has passed.
        """
        line = text.rfind("\n", 0, start) + 1
        while line <= len(text):
            end = text.find("\n", line)
            end = len(text) if end < 0 else end
            for begin in range(line, max(end, line + 1), WINDOW):
                if time.monotonic() > deadline:
                    raise OutOfTime(max(begin, start))
                if begin + WINDOW + OVERLAP > start:
                    yield from self._in_window(text, line, begin, end, start)
            line = end + 1

    def _in_window(self, text: str, line: int, begin: int, end: int, start: int) -> Iterator[tuple[int, int]]:
        # One character before, so that ^ and \b do not match where only the window begins.
        first = max(begin - 1, line)
        part = text[first : min(begin + WINDOW + OVERLAP, end)]
        last = begin + WINDOW if begin + WINDOW < end else end + 1
        for match in self._compiled.finditer(part):
            found = first + match.start()
            if max(begin, start) <= found < last:
                yield found, first + match.end()
