"""docs/reference/openenv-differences.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference" / "openenv-differences.md"


def test_every_row_names_a_test_that_there_is() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Where OpenEnv")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    there = set()
    for file in TESTS.rglob("test_*.py"):
        there |= set(re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(rows) > 12
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert named and not set(named) - there, row
