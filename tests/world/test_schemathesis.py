"""schemathesis against ``/openapi.json`` of a running server: what is documented is so, and nothing answers 500."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from worlds import World

from mcpenv import MCPEnvironment, Mode, Observation
from mcpenv.server.app import create_app
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import Action, State


class Move(Action):
    """An action of the game's own."""

    type: Literal["move"] = "move"
    by: int = 1


class Board(Observation):
    """The board that the player sees."""

    cells: list[int]


class Count(State):
    """The progress of the game."""

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
        return Board(cells=[action.by], reward=1, terminated=self.moves == 2)

    @property
    def state(self) -> Count:
        return Count(moves=self.moves)


CONFIG = """
# A deadline of the client's own choice passes (504), and slots can be taken (503); neither is a failure of the server.
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""


TOKEN = "the-control-token"


def tried(url: str, folder: Path, token: str | None = None, examples: int = 50) -> subprocess.CompletedProcess[str]:
    """Run schemathesis on the document of a server."""
    (folder / "schemathesis.toml").write_text(CONFIG)
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    command += ["--config-file", "schemathesis.toml", "run", "--checks", "all", "--max-examples", str(examples)]
    command += ["--seed", "1", "--no-color", "--continue-on-failure", "--exclude-path-regex", "/events$"]
    if token is not None:
        command += ["--header", f"Authorization: Bearer {token}"]
    command.append(f"{url}/openapi.json")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.world
@pytest.mark.parametrize(
    ("world", "mode", "token"),
    [
        (World, Mode.SIMULATION, None),
        (World, Mode.SIMULATION, TOKEN),
        (World, Mode.PRODUCTION, TOKEN),
        (Game, Mode.SIMULATION, None),
    ],
)
def test_the_documented_routes_are_as_documented_and_none_answers_500(
    world: type[MCPEnvironment], mode: Mode, token: str | None, tmp_path: Path
) -> None:
    config = ServerConfig(mode=mode, control_token=token, max_concurrent_envs=2_000)
    with serving(world, config) as url:
        done = tried(url, tmp_path, token)
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.search(r"(\d+) generated", done.stdout)
        assert found is not None
        assert int(found.group(1)) > (500 if mode is Mode.SIMULATION else 20)
        assert httpx.get(f"{url}/ready").status_code == 200


@pytest.mark.world
def test_without_the_token_every_control_route_answers_as_documented(tmp_path: Path) -> None:
    with serving(World, ServerConfig(control_token=TOKEN)) as url:
        operations = httpx.get(f"{url}/openapi.json").json()["paths"]
        done = tried(url, tmp_path, examples=5)
        # What it finds is that its valid requests are refused, and that what it made is not there: nothing else.
        assert "401" in done.stdout
        for complaint in ("Undocumented", "Server error", "violates schema", "accepted"):
            assert complaint not in done.stdout, done.stdout
        assert {name for name, methods in operations.items() if "401" in str(methods)} == set(CONTROLLED)


PARTS = ("trajectory", "events", "pause", "resume")

CONTROLLED = (
    *("/reset", "/step", "/end", "/state", "/capacity", "/metrics"),
    *("/sessions", "/sessions/events", "/sessions/{session_id}"),
    *(f"/sessions/{{session_id}}/{part}" for part in PARTS),
    "/sessions/{session_id}/steps/{step}/content/{block}",
)


class Breaks(World):
    """Its state raises."""

    @property
    def state(self) -> State:
        raise RuntimeError("broken")


async def teapot(request: Request) -> Response:
    return Response("{}", 418, media_type="application/json")


@pytest.mark.world
def test_a_500_and_an_undocumented_status_are_found(tmp_path: Path) -> None:
    """Show that the tests above find such faults."""
    with serving(Breaks) as url:
        done = tried(url, tmp_path, examples=50)
        assert done.returncode == 1
        assert re.search(r"GET /state.*Server error", done.stdout, re.DOTALL), done.stdout
    app = create_app(World)
    app.router.routes.insert(0, Route("/capacity", teapot))
    with served(app) as url:
        done = tried(url, tmp_path, examples=5)
        assert done.returncode == 1
        assert re.search(r"GET /capacity.*Undocumented status code.*Received: 418", done.stdout, re.DOTALL), done.stdout


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """An application in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="websockets-sansio"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
