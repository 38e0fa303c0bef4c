"""schemathesis against ``/openapi.json`` of a running server: what is documented is so, and nothing answers 500."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import httpx
import pytest
from worlds import World

from mcpenv import MCPEnvironment, Mode, Observation
from mcpenv.config import ServerConfig
from mcpenv.serve import serving
from mcpenv_client import Action, State


class Move(Action):
    """An action of the game's own."""

    type: Literal["move"] = "move"
    by: int = 1


class Board(Observation):
    """What the player sees."""

    cells: list[int]


class Count(State):
    """How far the game is."""

    moves: int = 0


class Game(MCPEnvironment):
    """Own actions, observations and states."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    action_types = (Move,)
    observation_type = Board
    state_type = Count

    def __init__(self) -> None:
        self.moves = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Board:
        self.moves = 0
        return Board(cells=[seed or 0])

    def act(self, action: Action) -> Board:
        assert isinstance(action, Move)
        self.moves += 1
        return Board(cells=[action.by], reward=1, done=self.moves == 2)

    @property
    def state(self) -> Count:
        return Count(moves=self.moves)


CONFIG = """
# A deadline of the client's own choice passes (504), and slots can be taken (503); neither is a failure of the server.
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]

# No route matches an id with a line break; the router's own 404 is plain text.
[[operations]]
include-path = "/sessions/{session_id}"
[operations.checks.content_type_conformance]
enabled = false
"""


@pytest.mark.world
@pytest.mark.parametrize(
    ("world", "mode", "token"),
    [
        (World, Mode.SIMULATION, None),
        (World, Mode.SIMULATION, "the-control-token"),
        (World, Mode.PRODUCTION, None),
        (Game, Mode.SIMULATION, None),
    ],
)
def test_the_documented_routes_are_as_documented_and_none_answers_500(
    world: type[MCPEnvironment], mode: Mode, token: str | None, tmp_path: Path
) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    command += ["--config-file", "schemathesis.toml", "run", "--checks", "all", "--max-examples", "50", "--seed", "1"]
    command += ["--no-color", "--continue-on-failure"]
    if token is not None:
        command += ["--header", f"Authorization: Bearer {token}"]
    config = ServerConfig(mode=mode, control_token=token, max_concurrent_envs=2_000)
    with serving(world, config) as url:
        done = subprocess.run(
            [*command, f"{url}/openapi.json"], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        tried = re.search(r"(\d+) generated", done.stdout)
        assert tried is not None
        assert int(tried.group(1)) > 20
        assert httpx.get(f"{url}/ready").status_code == 200
