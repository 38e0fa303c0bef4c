"""The cards in the README of each environment: none is older than the environment's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpenv.extensions.card.fingerprint import stale

ENVS = Path(__file__).parents[2] / "envs"

WITHOUT_CARD = {"browser_mcp"}
"""One without tasks."""

OLDER = {
    "agentdojo_mcp": "lacks these parts of validation: durability",
    "bfcl_mcp": "lacks these parts of validation: durability",
    "harness_bench_mcp": "has format 1,",
    "operations_mcp": "has format 1,",
    "terminal_mcp": "is older than the files of",
}
"""Those whose card is stale, and why. Make it again, and take the name out."""

CARDED = sorted(file.parent.name for file in ENVS.glob("*/README.md") if file.parent.name not in WITHOUT_CARD)


@pytest.mark.parametrize("name", CARDED)
def test_the_card_of_an_environment_is_that_of_its_files(name: str) -> None:
    reason = stale(ENVS / name)
    if name in OLDER:
        assert reason is not None and f"card {OLDER[name]}" in reason, reason
    else:
        assert reason is None, f"{reason}. Run: mcpenv card envs/{name} --readme -n 30"
