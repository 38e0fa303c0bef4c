"""A real run of TRL's trainer on CPU, in a virtual environment that has trl and the client, without a server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from served import served
from trainer_worlds import Doors, Shop, Together

from mcpenv.server.app import create_app

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]


def test_the_trainer_plays_learns_from_the_verifier_and_shows_schemas_whole() -> None:
    python = os.environ.get("MCPENV_TRL")
    assert python, "MCPENV_TRL names no Python that has trl and mcpenv-client; .ci/run makes one and sets it"
    program = Path(__file__).with_name("trl_program.py")
    with served(create_app(Doors)) as doors, served(create_app(Shop)) as shop, served(create_app(Together)) as together:
        urls = [address.removesuffix("/mcp") for address in (doors, shop, together)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        command = [python, str(program), *urls]
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["whole"] and "tool 'buy': the prompt lacks" in found["refused"]
    steps = [entry for entry in found["logged"] if "reward" in entry]
    assert len(steps) == 2 and sum(step["tools/call_frequency"] for step in steps) > 0
    # Of three doors the model opens the red one, which is right for one task.
    assert 0.0 < sum(step["rewards/McpenvEpisode/mean"] for step in steps) < 2.0
    assert set(found["ended"]) == {"completed"}
    side = found["side"]
    steps = [entry for entry in side["logged"] if "reward" in entry]
    assert len(steps) == 2 and 0.0 < sum(step["rewards/episode_return/mean"] for step in steps) < 2.0
    with Shop() as world:
        (tool,) = world.list_tools()
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    assert side["bought"] == {"tool": {"type": "function", "function": function}, "rewards": [1.0]}
    example = side["example"]
    assert example["episode_status"] == ["completed", "judge_error"] and example["episode_reward"] == [1.25, None]
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call><|im_end|>'
    look, opened = call.format("look", "{}"), call.format("open_door", '{"colour": "red"}')
    seen = '\n<|im_start|>user\n<tool_response>\n{"colour":"red"}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    assert example["texts"][0] == f"{look}{seen}{opened}"
    assert example["trained"][0] == f"{look}{opened}"
    assert example["trained"][1] == f"{look}{call.format('break_verifier', '{}')}Done.<|im_end|>"
    assert len(side["met"]) == 4 and all("True" in text for text in side["met"])
