"""Recording under kill -9, at the size that is promised. `tests/trajectories/test_recorder.py` has it small."""

from __future__ import annotations

from pathlib import Path

import pytest
from killed import kill_in_the_middle

pytestmark = [pytest.mark.world, pytest.mark.timeout(1200)]


def test_ten_kills_in_the_middle_of_two_hundred_episodes_each_lose_no_finished_episode(tmp_path: Path) -> None:
    kill_in_the_middle(tmp_path, times=10, episodes=200)
