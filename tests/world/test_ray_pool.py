"""Pools of Ray actors: real Ray, in a network namespace that has the loopback interface only."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("ray_pool_program.py")


def test_actors_play_the_same_episodes_and_lose_nothing_that_was_promised(tmp_path: Path) -> None:
    python = os.environ.get("MCPENV_RAY")
    assert python, "MCPENV_RAY names no Python that has ray, mcpenv and mcpenv-client; .ci/run makes one and sets it"
    namespace = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    command = [*namespace, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", python, str(PROGRAM), str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parent.parent), "RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found == {
        "nowhere": True,
        "ended": True,
        "equal": True,
        "actors": 2,
        "equal_async": True,
        "killed": [True, True, True],
        "lost": ["transport_lost", 2, None],
        "poison": [70],
        "hung": [True, True, True],
        "policy": True,
        "recorded": ["completed"] * 3 + ["cancelled"] + ["completed"] * 2,
        "not plain": True,
        "equal steps": True,
        "died": ["transport_lost", None, "transport_lost", "completed"],
        "later": [None, False, True, None],
        "anew": True,
        "kept": True,
    }
