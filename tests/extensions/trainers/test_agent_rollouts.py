"""The examples of agents' libraries that play at episodes' addresses, with a scripted model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from door_player import DoorPlayer
from served import served
from trainer_worlds import Doors

from mcpenv.server.app import create_app
from mcpenv_client import EnvClient

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("library", ["openai_agents", "langgraph", "pydantic_ai"])
def test_agents_play_all_tasks_at_their_own_addresses_and_failed_episodes_are_left_out(library: str) -> None:
    python = os.environ.get("MCPENV_AGENTS")
    assert python, "MCPENV_AGENTS names no Python that has the agents' libraries and mcpenv-client; .ci/run makes one"
    player = DoorPlayer()
    with served(create_app(Doors)) as address, served(player.app) as model:
        url = address.removesuffix("/mcp")
        program = EXAMPLES / f"rollouts_{library}.py"
        endpoint = ["--base-url", f"{model.removesuffix('/mcp')}/v1", "--model", "scripted"]
        command = [python, str(program), url, *endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        with EnvClient(url).sync() as client:
            assert client.capacity().active_sessions == 1
    lines = ["red: completed, 1.25", "green: completed, 1.25", "blue: judge_error, None", "mean of 2: 1.25"]
    assert done.stdout.splitlines() == lines
    assert {tool["function"]["name"] for tool in player.tools} == {"look", "open_door", "break_verifier"}
