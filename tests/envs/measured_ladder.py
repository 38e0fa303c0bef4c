"""The ladder in an environment's README, compared with what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcpenv.extensions.generated_worlds import RATES, agents_table, measure

MEASURED = 2
"""The column that is measured again: all five take minutes."""
WITHOUT_MISTAKES = 10
"""The tasks of each level that are played without a mistake, of which each must be solved."""


def check_ladder(environment: Any, readme: Path) -> None:
    """Compare the table in a README with the scores of the same tasks, and demand that it falls in both directions."""
    lines = readme.read_text(encoding="utf-8").split("| level | 0% mistakes |")[1].splitlines()[2:7]
    told = {int(level): cells for level, *cells in (line.strip("| ").split(" | ") for line in lines)}
    composer = environment.COMPOSER
    with environment() as env:
        scores = measure(env, composer.LOOKS, composer.LADDER, [RATES[MEASURED]])
        best = measure(env, composer.LOOKS, WITHOUT_MISTAKES, [0.0])
        agents = [line.strip("| ").split(" | ") for line in agents_table(env, 10).splitlines()[2:]]
    assert [row[:3] for row in agents] == [[str(level), "1.00", "0.00"] for level in told]
    assert all(cell.startswith("0.00 (") for cell in agents[-1][3:])
    assert best == {level: [1.0] for level in told}
    assert {level: cells[MEASURED] for level, cells in told.items()} == {
        level: f"{score:.2f}" for level, (score,) in scores.items()
    }
    for cells in told.values():
        assert len(cells) == len(RATES) and cells[0] == "1.00" and cells == sorted(cells, reverse=True)
    for column in zip(*told.values(), strict=True):
        assert list(column) == sorted(column, reverse=True)
