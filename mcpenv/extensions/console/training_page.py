"""The page of a run while it trains, as charts and tables that the console draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from mcpenv.extensions.exports.page.charts import lines
from mcpenv.extensions.exports.page.markup import plain_of
from mcpenv.extensions.exports.page.overview import number_text
from mcpenv.extensions.records.record_index import MAX_INDEXED
from mcpenv.extensions.records.training import (
    Bucket,
    Row,
    alarms_of,
    buckets_of,
    calls_of,
    mean_of,
    present_of,
    repeated_in,
)
from mcpenv.extensions.records.where import All, Condition, parse, quoted

TOOLS = 6
"""Maximum tools of the chart; the table has all."""

_MEANS = ("Episodes", "Mean return", "Verified", "Mean steps", "Errors")
_KEYS = ("return", "verified", "n_steps", "errors")


def training_page(rows: Sequence[Row], shown: Condition, older: int = 0) -> dict[str, Any]:
    """Return ``total``, ``notes``, ``charts`` as of `plain_of`, and the tables ``alarms`` and ``tables``.

    A table has ``title``, ``heads`` and ``rows``. A cell is a text, or a list of links, each with its ``text`` and
    ``where``, the condition of its episodes, and with ``sort`` and ``style`` if it has those.

    Args:
        rows: the matching rows, the newest first.
        shown: the condition of the page, which its links keep.
        older: the number of the oldest episodes of the record, which have no rows.
    """
    buckets = buckets_of(rows)
    by_version = any(row["policy_version"] is not None for row in rows)
    name = "Policy version" if by_version else "Started (UTC)"
    alarms = [
        [_linked(shown, alarm.text, alarm.where, sort=alarm.sort, style="warn")] for alarm in alarms_of(rows, buckets)
    ]
    left_out = [f"The oldest episodes of the record ({older}) are left out, because {MAX_INDEXED} are shown."]
    return {
        "total": len(rows),
        "notes": [
            *(left_out if older else []),
            *_notes(rows, buckets, by_version),
            *([] if alarms or not rows else ["No alarm."]),
        ],
        "alarms": [{"title": "Alarms", "heads": ["Alarm, with its episodes"], "rows": alarms}] if alarms else [],
        "charts": [plain_of(chart) for chart in _charts(buckets, name.lower())] if buckets else [],
        "tables": list(_tables(rows, buckets, name, shown)) if rows else [],
    }


def _notes(rows: Sequence[Row], buckets: Sequence[Bucket], by_version: bool) -> Iterator[str]:
    if rows and not by_version:
        yield "No episode has a policy version, so that they stand by the time of their start."
    if missing := len(rows) - sum(len(bucket.rows) for bucket in buckets):
        yield f"{missing} of {len(rows)} episodes have no {'policy version' if by_version else 'time'} and no point."


def _charts(buckets: Sequence[Bucket], name: str) -> Iterator[Any]:
    labels = [bucket.label for bucket in buckets]
    means = {key: [mean_of(bucket.rows, key) for bucket in buckets] for key in _KEYS}
    rewards = [("return", means["return"])]
    if any(value is not None for value in means["verified"]):
        rewards.append(("verified", means["verified"]))
    yield lines(labels, rewards, name, "Mean return, and mean of the verified value where episodes are verified.")
    yield lines(labels, [("steps", means["n_steps"])], name, "Mean steps of an episode.")
    yield lines(labels, [("errors", means["errors"])], name, "Mean failed calls of an episode.")
    calls = [calls_of(bucket.rows) for bucket in buckets]
    most = list(calls_of([row for bucket in buckets for row in bucket.rows]))[:TOOLS]
    tools = [
        (tool, [each.get(tool, (0, 0))[0] / len(bucket.rows) for each, bucket in zip(calls, buckets, strict=True)])
        for tool in most
    ]
    if tools:
        yield lines(labels, tools, name, f"Calls of an episode to the {len(tools)} tools that are called most.")


def _tables(rows: Sequence[Row], buckets: Sequence[Bucket], name: str, shown: Condition) -> Iterator[dict[str, Any]]:
    yield {
        "title": "By policy version" if name.startswith("Policy") else "By time",
        "heads": [name, *_MEANS, "Repeated"],
        "rows": [
            [
                _linked(shown, bucket.label, bucket.where),
                *_means(bucket.rows),
                f"{sum(map(len, repeated_in(bucket.rows))) / len(bucket.rows):.0%}",
            ]
            for bucket in reversed(buckets)
        ],
        "style": "number",
    }
    now = calls_of([row for bucket in present_of(buckets) for row in bucket.rows]) if buckets else {}
    yield {
        "title": "Tools",
        "heads": ["Tool", "Calls", "Failed", "Newest calls", "Failed of those"],
        "rows": [
            [_linked(shown, tool, f"tool({quoted(tool)})"), *map(number_text, (*counts, *now.get(tool, (0, 0))))]
            for tool, counts in calls_of(rows).items()
        ],
        "style": "number",
    }
    servers: dict[str, list[Row]] = {}
    for row in rows:
        servers.setdefault(row["server"], []).append(row)
    yield {
        "title": "Servers",
        "heads": ["Server", *_MEANS, "Last episode (UTC)"],
        "rows": [[server, *_means(inside), _moment(inside)] for server, inside in sorted(servers.items())],
        "style": "number",
    }


def _linked(shown: Condition, text: str, where: str, **more: str) -> list[dict[str, str]]:
    whole = All((*(shown.parts if isinstance(shown, All) else (shown,)), parse(where)))
    return [{"text": text, "where": str(whole), **more}]


def _means(rows: Sequence[Row]) -> list[str]:
    return [number_text(len(rows)), *(number_text(mean_of(rows, key)) for key in _KEYS)]


def _moment(rows: Sequence[Row]) -> str:
    last = max((row["ended_at"] or 0.0 for row in rows), default=0.0)
    return datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M:%S") if last else "-"
