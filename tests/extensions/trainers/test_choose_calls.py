"""The tiny policy of `examples/choose_calls.py`: what it can choose, and that it learns, in a Python that has torch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.world, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("choose_calls_program.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    python = os.environ.get("MCPENV_TORCH")
    assert python, "MCPENV_TORCH names no Python that has mcpenv and torch; .ci/run makes one and sets it"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=800, check=False
    )


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    ended = run(str(PROGRAM))
    assert ended.returncode == 0, ended.stderr
    answers: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("sampler", ["plain", "bandit"])
def test_of_two_levers_the_one_that_pays_is_learned(found: dict[str, Any], sampler: str) -> None:
    before, after = found[sampler]
    assert 0.2 < before < 0.8
    assert after > 0.95


def test_equal_seeds_learn_the_same(found: dict[str, Any]) -> None:
    assert found["again"] == found["plain"]


def test_a_bandit_takes_the_family_whose_groups_differ(found: dict[str, Any]) -> None:
    assert found["taken"]["sometimes"] > 3 * found["taken"]["always"]


def test_solutions_of_each_family_are_among_the_options(found: dict[str, Any]) -> None:
    assert found["families"] and set(found["families"].values()) == {1.0}


def test_equal_calls_of_a_task_are_made_once_and_have_the_same_results(found: dict[str, Any]) -> None:
    assert found["remembered"] == {"equal": True, "resets": 1}
