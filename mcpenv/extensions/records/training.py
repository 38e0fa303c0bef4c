"""A run while it trains: the rows of a record by policy version or by time, and the alarms that they raise.

An alarm is a pure function of buckets; it compares the first third of them with the last third, which is the present.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mcpenv_client.scores import equal

from .where import quoted

Row = dict[str, Any]
"""A row as `row_of` returns it, with its ``place`` and ``server``."""

BUCKETS = 60
"""Maximum buckets. Of more policy versions, several that follow each other are one."""

SIGMAS_UP, SIGMAS_FLAT = 3.0, 1.0
"""The mean return rises if it does by more than so many standard errors, and the verified value does not rise if it
does by less."""

MIN_SIDE = 20
"""Minimum episodes on each side of a comparison."""

MIN_CALLS = 10
"""Minimum calls of a tool, before it is said to fail only."""

REPEATED, MIN_REPEATED = 0.5, 20
"""The share of the present episodes that make the calls of another one, and their minimum number, for an alarm."""

NAMED = 50
"""Maximum episodes that a condition names."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The episodes of one or more policy versions, or of a span of time.

    Attributes:
        label: the versions, or the beginning of the span.
        where: the condition of its episodes.
        since: the condition of its episodes and of all later ones.
        rows: their rows.
    """

    label: str
    where: str
    since: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a person should look at.

    Attributes:
        text: the fact, in one line.
        where: the condition of the episodes that show it.
        sort: the field to sort them by; empty: the newest first.
    """

    text: str
    where: str
    sort: str = ""


def buckets_of(rows: Sequence[Row]) -> list[Bucket]:
    """Return the buckets in order: by policy version if any row has one, else by the time of the start.

    Rows without it are in no bucket.
    """
    if any(row["policy_version"] is not None for row in rows):
        return list(_by_version(rows))
    return list(_by_time(rows))


def _by_version(rows: Sequence[Row]) -> Iterator[Bucket]:
    versions = sorted({row["policy_version"] for row in rows} - {None})
    size = math.ceil(len(versions) / BUCKETS)
    number = {version: at // size for at, version in enumerate(versions)}
    for at, inside in _grouped(rows, lambda row: number.get(row["policy_version"])):
        first, *rest = versions[at * size : (at + 1) * size]
        since = f"policy_version >= {first}"
        where = f"{since} and policy_version <= {rest[-1]}" if rest else f"policy_version = {first}"
        yield Bucket(f"{first} to {rest[-1]}" if rest else str(first), where, since, inside)


def _by_time(rows: Sequence[Row]) -> Iterator[Bucket]:
    times = [row["started_at"] for row in rows if row["started_at"]]
    if not times:
        return
    low, high = math.floor(min(times)), max(times)
    width = max(1, math.ceil((high - low + 1) / BUCKETS))
    pattern = "%H:%M:%S" if high - low < 86_400 else "%m-%d %H:%M"

    def number(row: Row) -> int | None:
        return int((row["started_at"] - low) // width) if row["started_at"] else None

    for at, inside in _grouped(rows, number):
        begin, end = (datetime.fromtimestamp(low + edge * width, UTC) for edge in (at, at + 1))
        since = f"started >= {begin.isoformat()}"
        yield Bucket(begin.strftime(pattern), f"{since} and started < {end.isoformat()}", since, inside)


def _grouped(rows: Sequence[Row], number: Callable[[Row], int | None]) -> list[tuple[int, list[Row]]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        if (at := number(row)) is not None:
            found.setdefault(at, []).append(row)
    return sorted(found.items())


# -- figures


def mean_of(rows: Sequence[Row], key: str) -> float | None:
    """Return the mean of a number of rows; None if no row has it."""
    known = [row[key] for row in rows if row[key] is not None]
    return math.fsum(known) / len(known) if known else None


def calls_of(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Return the calls and the failed calls of each tool, the most called first."""
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for row in rows:
        for name, count, bad in row["calls"]:
            calls[name] += count
            failed[name] += bad
    return {name: (count, failed[name]) for name, count in calls.most_common()}


def repeated_in(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the episodes that make the same calls for the same task and seed, in groups, the largest first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["calls_digest"] is not None:
            groups.setdefault(row["calls_digest"], []).append(row)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)


def present_of(buckets: Sequence[Bucket]) -> Sequence[Bucket]:
    """Return the last third of the buckets, at least one."""
    return buckets[-max(1, len(buckets) // 3) :]


# -- alarms


def alarms_of(rows: Sequence[Row], buckets: Sequence[Bucket]) -> list[Alarm]:
    """Return all alarms of rows and of their buckets."""
    raised = (reward_without_verified(buckets), recorded_twice(rows), repeated_calls(buckets))
    return [*(alarm for alarm in raised if alarm is not None), *tools_that_only_fail(buckets)]


def reward_without_verified(buckets: Sequence[Bucket]) -> Alarm | None:
    """Return an alarm if the mean return rises and the verified value does not, over the episodes that have both."""
    if len(buckets) < 2:
        return None
    size = len(present_of(buckets))
    before, now = (_both(part) for part in (buckets[:size], buckets[-size:]))
    if min(len(before), len(now)) < MIN_SIDE:
        return None
    up, flat = (_rise([row[key] for row in before], [row[key] for row in now]) for key in ("return", "verified"))
    if up < SIGMAS_UP or flat > SIGMAS_FLAT:
        return None
    low, high, checked, still = (mean_of(part, key) or 0.0 for key in ("return", "verified") for part in (before, now))
    told = (
        f"the mean return rises from {low:.3g} to {high:.3g}, and the verified value does not ({checked:.3g} to "
        f"{still:.3g})"
    )
    return Alarm(told, f"{buckets[-size].since} and verified <= {still!r}", "-return")


def _both(buckets: Sequence[Bucket]) -> list[Row]:
    rows = (row for bucket in buckets for row in bucket.rows)
    return [row for row in rows if row["return"] is not None and row["verified"] is not None]


def _rise(before: Sequence[float], now: Sequence[float]) -> float:
    """Return the rise of the mean in standard errors of the difference (Welch)."""
    (low, low_error), (high, high_error) = map(_mean_and_error, (before, now))
    rise, error = high - low, math.sqrt(low_error + high_error)
    if equal(low, high):
        return 0.0
    return rise / error if error else math.copysign(math.inf, rise)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def recorded_twice(rows: Sequence[Row]) -> Alarm | None:
    """Return an alarm if an episode is in the record more than once: a trainer that reads it counts it twice."""
    again = [name for name, count in Counter(row["id"] for row in rows).most_common() if count > 1]
    if not again:
        return None
    have = "episode is" if len(again) == 1 else "episodes are"
    return Alarm(f"{len(again)} {have} in the record more than once", _named(again))


def repeated_calls(buckets: Sequence[Bucket]) -> Alarm | None:
    """Return an alarm if many of the present episodes of a bucket make the calls of another one of the same task."""
    present = present_of(buckets)
    count = sum(len(bucket.rows) for bucket in present)
    groups = [group for bucket in present for group in repeated_in(bucket.rows)]
    again = sum(map(len, groups))
    if again < MIN_REPEATED or again < REPEATED * count:
        return None
    told = f"{again} of the {count} newest episodes repeat another one call by call, for the same task and seed"
    return Alarm(told, _named([row["id"] for row in max(groups, key=len)]))


def tools_that_only_fail(buckets: Sequence[Bucket]) -> Iterator[Alarm]:
    """Yield an alarm for each tool of which every present call failed."""
    present = present_of(buckets)
    for name, (calls, failed) in calls_of([row for bucket in present for row in bucket.rows]).items():
        if calls >= MIN_CALLS and failed == calls:
            yield Alarm(
                f"the tool {name} only fails: all its {calls} newest calls",
                f"{present[0].since} and tool({quoted(name)})",
            )


def _named(ids: Sequence[str]) -> str:
    return f"id in ({', '.join(map(quoted, list(dict.fromkeys(ids))[:NAMED]))})"
