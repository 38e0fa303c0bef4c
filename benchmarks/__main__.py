"""``python -m benchmarks [NAME ...] [--quick] [--json FILE]``: run benchmarks, print their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import recording, snapshots, workers

BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "recording": recording.run,
    "snapshots": snapshots.run,
    "workers": workers.run,
}
"""By name: each prints its table and gives its figures; its argument: whether it shall be quick."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a few seconds, for a look; the figures spread more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    figures = {name: BENCHMARKS[name](given.quick) for name in given.names or BENCHMARKS}
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
