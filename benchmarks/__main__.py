"""``python -m benchmarks [NAME ...]``: run benchmarks, print their tables and the budgets.

Peers are installed from PyPI, each in a virtual environment of its own that is kept.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from . import recording, snapshots, steps
from .effort import EFFORTS, Effort
from .results import Results
from .rows import Row
from .tables import cells, text

BENCHMARKS: dict[str, Callable[[Effort], list[Row]]] = {
    "steps": steps.run,
}
"""By name: what measures rows."""

OTHERS: dict[str, Callable[[bool], dict[str, object]]] = {
    "recording": recording.run,
    "snapshots": snapshots.run,
}
"""By name: what prints tables of its own; the argument: whether it shall be quick."""


def main() -> None:
    known = [*BENCHMARKS, *OTHERS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(known)}; default: all")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", dest="effort", action="store_const", const="quick", help="a few minutes, for a look")
    effort.add_argument(
        "--smoke", dest="effort", action="store_const", const="smoke", help="whether each row runs; no figure counts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.set_defaults(effort="full")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(known)}")
    results = measure(given.names or known, EFFORTS[given.effort])
    if given.json is not None:
        results.write(given.json)


def measure(names: list[str], effort: Effort) -> Results:
    """Run them, and print what each gives."""
    results = Results.of_now(effort.name)
    for name in names:
        began = time.perf_counter()
        print(f"== {name}\n", flush=True)
        if name in BENCHMARKS:
            results.rows[name] = BENCHMARKS[name](effort)
            print(text(cells(results.rows[name])))
        else:
            results.others[name] = OTHERS[name](effort.quick)
        print(f"\n-- {name}: {time.perf_counter() - began:.0f} s\n", flush=True)
    return results


if __name__ == "__main__":
    main()
