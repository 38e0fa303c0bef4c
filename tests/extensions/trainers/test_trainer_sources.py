"""The small readers of rows beside the code of slime and NeMo RL, which PyPI does not have. It runs by hand:

MCPENV_TORCH names a Python with torch, datasets and transformers, MCPENV_TRAINER_SOURCES a folder with the packages
``slime`` (commit 624b824) and ``nemo_rl`` (commit 7ea279a).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_trainer_rows import exported
from trainer_rows import SLIME_FIELDS, SLIME_STATUSES, nemo_batch, slime_batch

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


def test_the_small_readers_read_what_the_trainers_read(tmp_path: Path) -> None:
    rows = exported(tmp_path)
    program = Path(__file__).with_name("trainer_sources_program.py")
    command = [os.environ["MCPENV_TORCH"], str(program), os.environ["MCPENV_TRAINER_SOURCES"], str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    small = slime_batch(rows["slime"])
    assert {name: found["slime"]["batch"][name] for name in small} == small
    assert (set(found["slime"]["fields"]), set(found["slime"]["statuses"])) == (SLIME_FIELDS, SLIME_STATUSES)
    assert found["nemo"] == nemo_batch(rows["nemo"])
