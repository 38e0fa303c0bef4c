"""The examples of agents' libraries that play at episodes' addresses, with a scripted model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from door_player import DoorPlayer
from served import served
from trainer_worlds import Doors, Jammed

from mcpenv.server.app import create_app
from mcpenv_client import EnvClient

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[3] / "examples"


LIBRARIES = pytest.mark.parametrize("library", ["openai_agents", "langgraph", "pydantic_ai"])


def lines_of(library: str, world: type[Doors], player: DoorPlayer) -> list[str]:
    """Return the lines of an example that plays a world with a scripted model."""
    python = os.environ.get("MCPENV_AGENTS")
    assert python, "MCPENV_AGENTS names no Python that has the agents' libraries and mcpenv-client; .ci/run makes one"
    with served(create_app(world)) as address, served(player.app) as model:
        url = address.removesuffix("/mcp")
        program = EXAMPLES / f"rollouts_{library}.py"
        endpoint = ["--base-url", f"{model.removesuffix('/mcp')}/v1", "--model", "scripted"]
        command = [python, str(program), url, *endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        with EnvClient(url).sync() as client:
            assert client.capacity().active_sessions == 1
    return done.stdout.splitlines()


@LIBRARIES
def test_agents_play_all_tasks_at_their_own_addresses_and_failed_episodes_are_left_out(library: str) -> None:
    player = DoorPlayer()
    lines = lines_of(library, Doors, player)
    assert lines == ["red: completed, 1.25", "green: completed, 1.25", "blue: judge_error, None", "mean of 2: 1.25"]
    assert {tool["function"]["name"] for tool in player.tools} == {"look", "open_door", "break_verifier"}


@LIBRARIES
def test_a_reset_that_fails_is_tried_again_and_costs_no_other_episode(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jammed, "failing", {"red": 1, "green": 100})
    lines = lines_of(library, Jammed, DoorPlayer())
    assert lines == ["red: completed, 1.25", "green: env_error, None", "blue: judge_error, None", "mean of 1: 1.25"]
    assert Jammed.failing == {"red": 0, "green": 97}
