"""The spaces of Gymnasium for texts and for JSON objects."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


class AnyText(spaces.Space[str]):
    """The space of all texts. `spaces.Text` needs an alphabet. A sample is empty, which is not a call."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__((), str, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return an empty text."""
        return ""

    def contains(self, x: Any) -> bool:
        """Return True for every text."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = None  # type: ignore[assignment]


class AnyJSON(AnyText):
    """The space of JSON objects, with any fields."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Return an empty object."""
        return {}

    def contains(self, x: Any) -> bool:
        """Return True for every object."""
        return isinstance(x, dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyJSON)

    __hash__ = None
