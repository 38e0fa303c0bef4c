"""The example that trains a policy, in a Python that has torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.world

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))
from serving import served  # noqa: E402


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    python = os.environ.get("MCPENV_TORCH")
    assert python, "MCPENV_TORCH names no Python that has mcpenv and torch; .ci/run makes one and sets it"
    command = [python, str(ROOT / "examples" / "train_ppo.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_a_policy_is_trained_on_a_server_of_its_own_and_its_curve_written(tmp_path: Path) -> None:
    said = [run("--quick", "--seed", "3", "--json", str(tmp_path / name)) for name in ("a", "b")]
    assert all(each.returncode == 0 for each in said), said
    one, other = (json.loads((tmp_path / name).read_text()) for name in ("a", "b"))
    assert [point["steps"] for point in one["curve"]] == [512, 1024]
    assert {name: one[name] for name in ("seed", "cheat", "episodes_at_once", "lost")} == {
        "seed": 3,
        "cheat": False,
        "episodes_at_once": 64,
        "lost": 0,
    }
    assert one["curve"] == other["curve"]  # the same seed, the same curve


def test_a_policy_is_trained_on_the_server_that_is_given() -> None:
    with served(ROOT / "envs" / "maze_mcp") as url:
        ended = run("--quick", "--episodes", "4", "--url", url)
    assert ended.returncode == 0, ended.stderr
    assert "64 steps" in ended.stdout


def test_the_maze_that_pays_for_a_cheat_is_trained_on() -> None:
    ended = run("--quick", "--cheat")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--updates", "0"), "'0' is not a whole number from 1"),
        (("--cheat", "--url", "http://127.0.0.1:1"), "leave out --url"),
    ],
)
def test_a_wrong_option_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2 and complaint in ended.stderr
