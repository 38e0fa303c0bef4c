"""The example that trains a language model with TRL, in a Python with trl and the client, on a server of this one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))
from serving import served  # noqa: E402

PROGRAM = (str(ROOT / "examples" / "train_grpo.py"),)


def run(*arguments: str, program: tuple[str, ...] = PROGRAM, **environ: str) -> subprocess.CompletedProcess[str]:
    python = os.environ.get("MCPENV_TRL")
    assert python, "MCPENV_TRL names no Python that has trl and mcpenv-client; .ci/run makes one and sets it"
    command = [python, *program, *arguments]
    offline = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environ}
    return subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def doors() -> Iterator[str]:
    with served(ROOT / "examples" / "coloured_doors.py", "--max-sessions", "200") as url:
        yield url


def test_a_model_that_imitated_to_its_skill_is_trained_by_the_rewards_of_the_environment(
    doors: str, tmp_path: Path
) -> None:
    ended = run("--url", doors, "--quick", "--seeds", "3", "--json", str(tmp_path / "log.json"))
    assert ended.returncode == 0, ended.stderr
    (trained,) = json.loads((tmp_path / "log.json").read_text())["runs"]
    assert 0.45 <= trained["start"]["skill"] < 0.8
    assert trained["seed"] == 3 and trained["lost"] == 0
    assert [point["steps"] for point in trained["curve"]] == [1, 2]
    for point in trained["curve"]:
        assert point["episodes"] == 64
        assert math.isfinite(point["loss"]) and point["grad_norm"] > 0
        # Some read the sign, and some open the right door; not all do.
        assert 0.0 < point["verified"] < point["reward"] < 1.25
        # The verifier gives 1 or 0, and the sign 0.25.
        assert (point["verified"] * 64).is_integer() and (point["reward"] * 64 * 4).is_integer()
    assert "imitation ends after" in ended.stdout and "seed 3: reward" in ended.stdout


REFUSED = """
import json, sys
import train_grpo
ends = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        train_grpo.main()
    except SystemExit as end:
        ends.append(end.code)
print(json.dumps(ends))
"""


def test_what_it_cannot_train_is_refused_before_anything_is_trained(doors: str) -> None:
    with served(ROOT / "envs" / "maze_mcp") as maze:
        wrong = [["--json", "nowhere/log.json"], ["--url", maze], ["--url", doors, "--model", "./no-such-folder"]]
        ended = run(json.dumps(wrong), program=("-c", REFUSED), PYTHONPATH=str(ROOT / "examples"))
    assert ended.returncode == 0, ended.stderr
    option, tools, model = json.loads(ended.stdout)  # nothing else was said
    assert option == 2 and "there is no folder nowhere; make it first" in ended.stderr
    assert "has the tools ['look', 'take_key'" in tools
    assert "train_grpo: --model ./no-such-folder cannot be loaded" in model
