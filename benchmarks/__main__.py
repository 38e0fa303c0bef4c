"""``python -m benchmarks [NAME ...]``: run benchmarks, print their tables and the budgets.

Peers are installed from PyPI, each in a virtual environment of its own that is kept.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import (
    budgets,
    concurrency,
    control,
    growth,
    inside,
    mcp_calls,
    page,
    proxied_step,
    sessions,
    starting,
    steps,
    workers,
)
from .effort import EFFORTS, SMOKE, Effort
from .results import Results
from .rows import Row
from .tables import tables, text

BENCHMARKS: dict[str, Callable[[Effort], list[Row]]] = {
    "steps": steps.run,
    "control": control.run,
    "mcp": mcp_calls.run,
    "inside": inside.run,
    "starting": starting.run,
    "sessions": sessions.run,
    "growth": growth.run,
    "concurrency": concurrency.run,
}
"""By name: what measures rows."""

OTHERS: dict[str, Callable[[bool], dict[str, object]]] = {
    "proxied_step": proxied_step.run,
    "workers": workers.run,
}
"""By name: what prints tables of its own; the argument: whether it shall be quick."""


def main(arguments: Sequence[str] | None = None) -> None:
    known = [*BENCHMARKS, *OTHERS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(known)}; default: all")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", dest="effort", action="store_const", const="quick", help="a few minutes, for a look")
    how.add_argument(
        "--smoke", dest="effort", action="store_const", const="smoke", help="whether each row runs; no figure counts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing: take the figures of such a file")
    parser.add_argument("--like", type=Path, metavar="FILE", help="fail unless the rows are those of such a file")
    parser.add_argument(
        "--write",
        type=Path,
        nargs="+",
        default=[],
        metavar="PAGE",
        help="put the tables on pages, between their markers",
    )
    parser.set_defaults(effort="full")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(known)}")
    if given.read is not None:
        results = Results.read(given.read)
        for rows in results.rows.values():
            print("".join(f"{text(table)}\n\n" for table in tables(rows)), end="")
    else:
        effort = EFFORTS[given.effort]
        # A smoke of the others would be no quicker than a run of theirs.
        results = measure(given.names or (list(BENCHMARKS) if effort is SMOKE else known), effort, given.json)
    print(f"{text(budgets.cells(results))}\n")
    for each in given.write:
        page.write(each, results)
    wrong = [f"{name} could not be measured" for name in results.failed]
    if given.like is not None:
        wrong += results.unlike(Results.read(given.like))
    if wrong:
        parser.exit(1, "".join(f"{line}\n" for line in wrong))


def measure(names: list[str], effort: Effort, kept: Path | None) -> Results:
    """Run the benchmarks, and print the results. ``kept`` is the file of the figures so far, written after each."""
    results = Results.of_now(effort.name)
    for name in names:
        began = time.perf_counter()
        print(f"== {name}\n", flush=True)
        try:
            if name in BENCHMARKS:
                results.rows[name] = BENCHMARKS[name](effort)
                print("\n\n".join(text(table) for table in tables(results.rows[name])))
            else:
                results.others[name] = OTHERS[name](effort.quick)
        except Exception:  # the others are measured all the same; the run has failed
            logging.exception("%s could not be measured", name)
            results.failed.append(name)
        if kept is not None:
            results.write(kept)
        print(f"\n-- {name}: {time.perf_counter() - began:.0f} s\n", flush=True)
    return results


if __name__ == "__main__":
    main()
