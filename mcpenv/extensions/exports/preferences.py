"""Formats of preferences that people stated in reviews: pairs (DPO) and single completions (KTO), as TRL has them."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.records.reviews import Said

from .files import Episodes, ExportFormat, ExportOptions, write_lines
from .openai import openai_row

GOOD, BAD = 4, 2
"""The least mean rating of a desirable completion, and the largest one of an undesirable completion."""


def _rated(episodes: Episodes, said: Said) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield each rated episode: the text of its prompt and tools, its mean rating, and its row."""
    for episode, tools in episodes:
        ratings = [each.rating for each in said.get(episode.id, ()) if each.rating is not None]
        messages = openai_row(episode, tools)["messages"] if ratings else []
        start = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), None)
        if start is None:
            continue  # not rated, or the agent said nothing
        listed = [tool.to_openai() for tool in tools]
        row = {"prompt": messages[:start], "answer": messages[start:], "tools": json.dumps(listed, ensure_ascii=False)}
        yield json.dumps([row["prompt"], row["tools"]]), statistics.fmean(ratings), row


def _pairs(episodes: Episodes, said: Said) -> Iterator[dict[str, Any]]:
    """Yield, for each prompt, each pair of the best rated episodes with one that is rated lower."""
    groups: dict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for prompt, rating, row in _rated(episodes, said):
        groups[prompt].append((rating, row))
    for group in groups.values():
        best, chosen = max(group, key=lambda each: each[0])
        for rating, rejected in group:
            if rating < best:
                answers = {"chosen": chosen["answer"], "rejected": rejected["answer"]}
                about = {"tools": chosen["tools"], "chosen_rating": best, "rejected_rating": rating}
                yield {"prompt": chosen["prompt"], **answers, **about}


def _labelled(episodes: Episodes, said: Said) -> Iterator[dict[str, Any]]:
    """Yield each episode that is rated well or badly, with its label."""
    for _, rating, row in _rated(episodes, said):
        if rating >= GOOD or rating <= BAD:
            about = {"label": rating >= GOOD, "tools": row["tools"], "rating": rating}
            yield {"prompt": row["prompt"], "completion": row["answer"], **about}


Rows = Callable[[Episodes, Said], Iterator[Mapping[str, Any]]]


def _writer(rows: Rows) -> Callable[[Episodes, Path | None, ExportOptions], int]:
    def write(episodes: Episodes, out: Path | None, options: ExportOptions) -> int:
        if not options.reviews:
            raise ConfigurationError(
                "this record has no reviews; rate episodes in the console, or make pairs of rewards as "
                "examples/preference_pairs.py does"
            )
        return write_lines(rows(episodes, options.reviews), out)

    return write


DPO = ExportFormat(write=_writer(_pairs), suffix=".jsonl")
"""Rows of TRL's conversational preference format: ``prompt``, ``chosen`` and ``rejected`` are lists of messages."""
KTO = ExportFormat(write=_writer(_labelled), suffix=".jsonl")
"""Rows of TRL's unpaired preference format: ``prompt``, ``completion``, and ``label``."""
