"""One object of a manifest, with the comment above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KubeObject:
    """An object as written to a file.

    Attributes:
        body: its fields.
        comment: lines that explain its purpose.
    """

    body: dict[str, Any]
    comment: str = ""

    @property
    def kind(self) -> str:
        """The kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """The name."""
        return str(self.body["metadata"]["name"])
