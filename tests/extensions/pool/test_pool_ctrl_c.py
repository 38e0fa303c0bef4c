"""Ctrl-C in each kind of play: it ends within seconds, leaves no session, and prints one `KeyboardInterrupt`."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from pool_worlds import Dice

from mcpenv.server.serve import serving

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("interrupted_program.py")

LIMIT_S = 30.0
"""The maximum seconds from Ctrl-C to the end of a play, on a machine with other work; what hangs would last 600."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Dice) as address:
        yield address


def interrupted(url: str, play: str, pool: str, policy: str, moments: list[float]) -> tuple[list[float], str]:
    """Interrupt a play at each moment. Return the seconds until it had ended, and the program's stderr."""
    command = [sys.executable, str(PROGRAM), play, pool, policy, url, *map(str, moments)]
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parent)}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            out, err = program.communicate(timeout=300)
            with pytest.raises(ProcessLookupError):  # neither the program nor a process that it started
                for _ in range(100):
                    os.killpg(program.pid, 0)
                    time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == -signal.SIGINT, err
    return [float(line) for line in out.split()], err


def moments(first_s: float, last_s: float, number: int) -> list[float]:
    made = random.Random(7)
    return [made.uniform(first_s, last_s) for _ in range(number)]


def check(url: str, play: str, pool: str, policy: str, moments: list[float], limit_s: float = LIMIT_S) -> None:
    ended_s, err = interrupted(url, play, pool, policy, moments)
    assert len(ended_s) == len(moments) - 1
    # Only the last one is not caught. `asyncio.run` raises it while it handles the cancellation of its coroutine, and
    # `importlib.metadata` while it handles a distribution without entry points.
    errors = re.findall(r"^\S*(?:Error|Exception|Interrupt|Lost|Failed|Exit|Warning)\b.*|.*never.*", err, re.MULTILINE)
    handled = [each for each in errors if each == "asyncio.exceptions.CancelledError" or "entry_points.txt" in each]
    assert [each for each in errors if each not in handled] == ["KeyboardInterrupt"], err
    assert err.startswith("Traceback") and err.endswith("\nKeyboardInterrupt\n"), err
    print(f"ended at most {max(ended_s):.1f} s after Ctrl-C")
    assert max(ended_s) < limit_s
    assert httpx.get(f"{url}/sessions").json() == {"sessions": []}


POOLS = {"local": (0.0, 0.3, 15), "remote": (0.0, 0.3, 15), "process": (0.0, 3.0, 4)}
"""The first and the last moment, in seconds, and the number of plays that are interrupted."""


PLAYS = [("rollout", "slow_rolls"), ("blocking", "slow_rolls")]
PLAYS += [(play, "slow_rolls_async") for play in ("rollout", "stream", "groups", "forks", "mixed")]
"""The form of a policy matters to the workers of a pool alone, which all plays share."""


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("play", "policy"), PLAYS)
def test_ctrl_c_ends_a_play_and_its_sessions(url: str, play: str, pool: str, policy: str) -> None:
    check(url, play, pool, policy, moments(*POOLS[pool]))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("play", "policy"), [("samples", "written_rolls"), ("steps", "written_rolls")])
def test_ctrl_c_ends_samples_and_steps(url: str, play: str, pool: str, policy: str) -> None:
    check(url, play, pool, policy, moments(*POOLS[pool]))


@pytest.mark.parametrize("policy", ["thinks", "endless", "hangs"])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("play", ["rollout", "blocking"])
def test_ctrl_c_does_not_wait_for_policies_and_tools(play: str, pool: str, policy: str) -> None:
    last_s = 4.0 if pool == "process" else 1.0
    for each in (policy, f"{policy}_async") if play == "rollout" else (policy,):
        if (pool, each) != ("local", "hangs_async"):  # a tool that blocks the event loop cannot be stopped
            with serving(Dice) as url:  # which refuses sessions once several tools of it hang
                check(url, play, pool, each, [0.5, last_s])


@pytest.mark.world
@pytest.mark.parametrize("pool", ["local", "remote"])
@pytest.mark.parametrize("play", ["gymnasium", "vector"])
def test_ctrl_c_ends_environments_of_gymnasium(url: str, play: str, pool: str) -> None:
    check(url, play, pool, "slow_rolls", moments(0.0, 0.5, 12), limit_s=5.0)
