"""Rows of branches that have their common tokens once: a row names an earlier one, and has what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

SHARED: Mapping[str, tuple[str, ...]] = {
    "tokens": ("tokens", "mask", "logprobs"),
    "verl": ("prompt_ids",),
    "slime": ("tokens",),
    "trl": ("prompt_ids",),
}
"""The fields of each format of rows that begin with the first prompt, and are shortened."""

_FILLED: Mapping[str, float] = {"mask": 0, "logprobs": 0.0}
"""What the fields beside the tokens have for each token of a prompt."""

PREFIX = "prefix"
"""The field that a shortened row has: ``of``, the number of an earlier line, from 0, and ``tokens``, their number."""


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of first items that are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _tokens(row: Mapping[str, Any], form: str) -> list[int]:
    """Return all tokens of a whole row."""
    if form == "verl":
        return [*row["prompt_ids"], *row["response_ids"]]
    if form == "trl":
        return [*row["prompt_ids"], *row["completion_ids"]]
    return [*row["tokens"]]


class SharedRows:
    """Shortens the rows of one file, in their order.

    Args:
        form: the format of the rows, one of `SHARED`.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._lines = 0
        self._kept: dict[Any, tuple[int, list[int]]] = {}

    def row(self, row: dict[str, Any], prompt: int, keys: Sequence[Any], within: Sequence[Any]) -> dict[str, Any]:
        """Return a row, without the first tokens of its prompt that an earlier row has.

        Args:
            row: a whole row.
            prompt: the number of tokens before the model's first.
            keys: the names by which later rows find this one. A name that is used keeps its first row.
            within: the names of earlier rows that may have the same first tokens.
        """
        line, tokens = self._lines, _tokens(row, self._form)
        self._lines += 1
        found = [
            (common(tokens[:prompt], kept), at) for at, kept in (self._kept[key] for key in within if key in self._kept)
        ]
        length, of = max(found, key=lambda each: each[0], default=(0, 0))
        for key in keys:
            self._kept.setdefault(key, (line, tokens))
        if not length:
            return row
        cut = {name: row[name][length:] for name in SHARED[self._form] if row[name] is not None}
        return {**row, **cut, PREFIX: {"of": of, "tokens": length}}


def whole_rows(rows: Iterable[Mapping[str, Any]], form: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file whole, as an export without shared prefixes has them.

    Args:
        rows: all rows of the file, in order.
        form: the format, one of `SHARED`.
    """
    read: list[list[int]] = []
    for row in rows:
        whole = {name: value for name, value in row.items() if name != PREFIX}
        prefix = row.get(PREFIX)
        if prefix is not None:
            first = read[prefix["of"]][: prefix["tokens"]]
            for name in SHARED[form]:
                filled = first if name not in _FILLED else [_FILLED[name]] * len(first)
                if whole[name] is not None:
                    whole[name] = [*filled, *whole[name]]
        read.append(_tokens(whole, form))
        yield whole
