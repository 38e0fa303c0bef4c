"""The cards in the README of each environment: none is older than the environment's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpenv.extensions.card.fingerprint import stale

ENVS = Path(__file__).parents[2] / "envs"

WITHOUT_CARD = {"browser_mcp"}
"""One without tasks."""

CARDED = sorted(file.parent.name for file in ENVS.glob("*/README.md") if file.parent.name not in WITHOUT_CARD)


@pytest.mark.parametrize("name", CARDED)
def test_the_card_of_an_environment_is_that_of_its_files(name: str) -> None:
    reason = stale(ENVS / name)
    assert reason is None, f"{reason}. Run: mcpenv card envs/{name} --readme -n 30"
