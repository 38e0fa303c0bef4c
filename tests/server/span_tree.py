"""Spans as a tree of text, whether they come from the SDK's memory or from a collector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """A span that was exported."""

    id: str
    parent: str | None
    trace: str
    name: str
    kind: str
    begin: int
    failed: bool
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        error = f" !{self.attributes['error.type']}" if self.failed else ""
        reward = f" reward={self.attributes['mcpenv.reward']:g}" if "mcpenv.reward" in self.attributes else ""
        kind = "" if self.kind == "INTERNAL" else f" ({self.kind.lower()})"
        return f"{self.name}{kind}{reward}{error}"


def tree(spans: Iterable[Seen]) -> str:
    """The spans, children below their parents in order of time. A parent that is not among them is a root's."""
    ordered = sorted(spans, key=lambda span: span.begin)
    known = {span.id for span in ordered}

    def lines(parent: str | None, depth: int) -> list[str]:
        found: list[str] = []
        for span in ordered:
            above = span.parent if span.parent in known else None
            if above == parent:
                found += ["  " * depth + str(span), *lines(span.id, depth + 1)]
        return found

    return "\n".join(lines(None, 0))
