"""Pools of Ray actors: real Ray, in a network namespace that has the loopback interface only."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.world, pytest.mark.timeout(1100)]


def output_of(program: str, *arguments: str) -> dict[str, Any]:
    """Run a program beside this file where only loopback exists, and return the JSON that it prints."""
    python = os.environ.get("MCPENV_RAY")
    assert python, "MCPENV_RAY names no Python that has ray, mcpenv and mcpenv-client; .ci/run makes one and sets it"
    file = Path(__file__).with_name(program)
    namespace = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    command = [*namespace, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", python, str(file), *arguments]
    environ = {**os.environ, "PYTHONPATH": str(file.parent), "RAY_USAGE_STATS_ENABLED": "0"}
    environ["RAY_worker_register_timeout_seconds"] = "600"  # a process of a worker is slow to start on a busy machine
    environ["RAY_worker_niceness"] = "0"  # with Ray's 15, actors get next to no time beside other tests
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1000, check=False)
    assert ran.returncode == 0, ran.stderr
    # Ray writes what raylets say to the same stream, also after the program's last line.
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def test_actors_play_the_same_episodes_and_lose_nothing_that_was_promised(tmp_path: Path) -> None:
    found = output_of("ray_pool_program.py", str(tmp_path))
    expected = {
        "nowhere": True,
        "ended": True,
        "equal": True,
        "actors": 2,
        "equal_async": True,
        "killed": [True, True, True],
        "lost": ["transport_lost", 2, None],
        "poison": [70],
        "slow": [True, 3],
        "paused": [True, "completed", 1],
        "hung": [True, True],
        "hung async": [True, True],
        "policy": True,
        "recorded": ["completed"] * 3 + ["cancelled"] + ["completed"] * 2,
        "not plain": True,
        "equal steps": True,
        "died": ["transport_lost", None, "transport_lost", "completed"],
        "later": [None, False, True, None],
        "anew": True,
        "equal forks": [True, True],
        "begun again": [True] * 6,
        "the lost group": True,
        "one state": [1] * 6,
        "a mistake": [3],
        "lost group": [3, "transport_lost"],
        "locked": True,
        "warm": True,
        "in time": True,
        "plain and warm": True,
        "kept": True,
    }
    assert found.keys() == expected.keys()
    assert {name: value for name, value in found.items() if value != expected[name]} == {}


def test_each_node_has_a_server_that_is_started_again() -> None:
    assert output_of("ray_servers_program.py") == {
        "servers": 1,
        "equal": True,
        "where": True,
        "handle": True,
        "stranger": "Unauthorized",
        "moved": True,
        "equal again": True,
        "usable": True,
        "nowhere": True,
    }


def test_a_cluster_of_two_nodes_shares_the_actors_and_loses_nothing_with_a_node(tmp_path: Path) -> None:
    assert output_of("ray_cluster_program.py", str(tmp_path)) == {
        "pools in a row": [True] * 9,
        "left": True,
        "equal": True,
        "nodes": 2,
        "equal after the loss of a node": True,
        "all completed": True,
        "equal on one node": True,
        "nodes left": 1,
        "servers": 2,
    }
