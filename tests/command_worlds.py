"""An environment with tools, resources and prompts in both modes, on which tests run commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, write

from mcpenv import Mode
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target

WORLD = '''
from typing import Annotated, Literal

from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from pydantic import BaseModel, Field
from mcpenv import Action, MCPEnvironment, Observation, State, ToolError


class Move(Action):
    type: Literal["move"] = "move"
    direction: Literal["left", "right"]
    steps: int = 1


class Place(Observation):
    cell: str = "here"


class Where(State):
    cell: int = 0


class Size(BaseModel):
    width: int
    height: int = 1


class World(MCPEnvironment):
    """A small world.

    For tests.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "1.2.3"
    action_types = (Move,)
    observation_type = Place
    state_type = Where

    def __init__(self, start: int = 0) -> None:
        server = FastMCP("handed in")
        server.resource("world://map", name="map", description="The map.")(lambda: "a map")
        server.resource("world://cell/{number}", name="cell")(lambda number: number)
        server.prompt(name="ask", description="Ask.")(lambda question: question)
        super().__init__(server)
        self.count = start

        @self.tool
        def add(by: Annotated[int, Field(description="how much")] = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        def say(text: str, times: int | None = None, level: Literal["low", "high"] = "low") -> str:
            """Say it."""
            return f"{text!r} {times!r} {level!r}"

        @self.tool
        def shape(size: Size, names: list[str] = [], anything: object = None, maybe: str | None = None) -> str:
            return f"{size!r} {names!r} {anything!r} {maybe!r}"

        @self.tool
        def draw() -> list:
            """Text and a picture."""
            return ["a picture:", Image(data=b"12345", format="png")]

        @self.tool(mode="simulation", terminal=True)
        def finish() -> str:
            return "the end"

        @self.tool(mode="production")
        def live() -> str:
            return "live"

        @self.tool(mode="production", name="both")
        def both_live() -> str:
            """The live one."""
            return "live"

        @self.tool(mode="simulation", name="both")
        def both_simulated() -> str:
            """The simulated one."""
            return "simulated"

        @self.tool
        def refuse() -> None:
            raise ToolError("not today")

        @self.tool
        def crash() -> None:
            raise ValueError("on [bold]purpose[/bold]")

    def score(self, call, outcome):
        return 0.5 if call.name == "add" else None
'''


@pytest.fixture
def world(tmp_path: Path) -> str:
    """The environment above, as a folder ``world`` of the working directory."""
    return write(tmp_path, "world", WORLD)


@pytest.fixture
def world_url(cli: Cli, world: str) -> Iterator[str]:
    """The environment above, served in production mode."""
    with serving(load_target(world).factory, ServerConfig(mode=Mode.PRODUCTION)) as url:
        yield url
