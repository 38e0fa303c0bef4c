"""Play a seeded maze: find the key, and leave by the door."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastmcp.resources import Resource
from fastmcp.server.providers import LocalProvider
from pydantic import Field

from mcpenv import MCPEnvironment, Reward, State, TaskSet
from mcpenv.rewards.verifiers import Evidence
from mcpenv.worlds import ObjectWorld

Room = tuple[int, int]
"""Column, counted from the west, and row, counted from the north."""

Direction = Literal["north", "east", "south", "west"]

STEPS: dict[Direction, Room] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
OPPOSITE: dict[Direction, Direction] = {"north": "south", "east": "west", "south": "north", "west": "east"}

MIN_SIZE, MAX_SIZE = 3, 20

VIEW_URI = "ui://maze/view.html"
"""The address of the view: an MCP App, which the console and other hosts of Apps show beside the tools' results."""


@dataclass
class Maze:
    """The rooms of a square, with exactly one path between any two. One has the key, one the door.

    Attributes:
        size: the number of rooms on a side.
        ways: the open directions of each room.
        start: the room of the agent at the start.
        key: the room of the key.
        door: the room of the door.
    """

    size: int
    ways: dict[Room, list[Direction]]
    start: Room
    key: Room
    door: Room

    @classmethod
    def dig(cls, size: int, rng: random.Random) -> Maze:
        """Return a maze of ``size`` times ``size`` rooms, dug by a random depth-first walk."""
        start = (rng.randrange(size), rng.randrange(size))
        ways: dict[Room, list[Direction]] = {start: []}
        walk = [start]
        while walk:
            room = walk[-1]
            fresh = [way for way in STEPS if _inside(_next(room, way), size) and _next(room, way) not in ways]
            if not fresh:
                walk.pop()
                continue
            way = rng.choice(fresh)
            beyond = _next(room, way)
            ways[room].append(way)
            ways[beyond] = [OPPOSITE[way]]
            walk.append(beyond)
        maze = cls(size, ways, start, start, start)
        # Start, key and door are far apart, so that an agent must search for both.
        maze.door = maze._farthest(start)
        maze.key = maze._farthest(start, maze.door)
        return maze

    def path(self, start: Room, goal: Room) -> list[Direction]:
        """Return the path from one room to another."""
        left = self.distances(goal)
        path: list[Direction] = []
        while start != goal:
            way = next(way for way in self.ways[start] if left[_next(start, way)] < left[start])
            path.append(way)
            start = _next(start, way)
        return path

    def distances(self, start: Room) -> dict[Room, int]:
        """Return the number of steps to each room."""
        found = {start: 0}
        waiting = deque([start])
        while waiting:
            room = waiting.popleft()
            for beyond in (_next(room, way) for way in self.ways[room]):
                if beyond not in found:
                    found[beyond] = found[room] + 1
                    waiting.append(beyond)
        return found

    def _farthest(self, *rooms: Room) -> Room:
        """Return the room with the greatest distance to the nearest of these."""
        from_each = [self.distances(room) for room in rooms]
        return max(sorted(self.ways), key=lambda room: min(distances[room] for distances in from_each))


@dataclass
class Game:
    """The state of a game. Plain data, so it can be copied, saved and compared."""

    maze: Maze
    room: Room
    has_key: bool = False
    escaped: bool = False
    walked: int = 0


@dataclass
class View:
    """The view from a room.

    ``rooms_ahead`` has the number of rooms up to the next wall, for each open direction. ``key_ahead`` and
    ``door_ahead`` are the directions in which the key and the door are visible, or "here". ``said`` is the outcome of
    the call.
    """

    column: int
    row: int
    rooms_ahead: dict[Direction, int]
    has_key: bool
    key_ahead: Direction | Literal["here"] | None = None
    door_ahead: Direction | Literal["here"] | None = None
    said: str = ""


class MazeState(State):
    """The position of the agent, for the orchestrator."""

    room: Room | None = None
    has_key: bool = False
    walked: int = 0


def make_task(rng: random.Random, index: int) -> dict[str, Any]:
    """Return a maze and its solution. Its size, from 4 x 4 to 8 x 8, is its level."""
    size, seed = 4 + index % 5, rng.getrandbits(31)
    maze = Maze.dig(size, random.Random(seed))
    way_out: list[dict[str, Any]] = [
        *({"tool_name": "walk", "arguments": {"direction": way}} for way in maze.path(maze.start, maze.key)),
        {"tool_name": "take_key"},
        *({"tool_name": "walk", "arguments": {"direction": way}} for way in maze.path(maze.key, maze.door)),
        {"tool_name": "unlock_door"},
    ]
    return {
        "prompt": (
            f"You are in a maze of {size} by {size} rooms. Somewhere in it is a key, and somewhere else a locked door. "
            "Find the key, take it, and unlock the door from the room in which it is: then you are out. You see along "
            f"a straight line as far as the next wall. You have {4 * len(way_out)} moves; looking is one too."
        ),
        "seed": seed,
        "options": {"size": size},
        "limits": {"max_steps": 4 * len(way_out)},
        "metadata": {"shortest": len(way_out)},
        "level": size - 3,
        "family": "escape",
        "tags": [f"{size} x {size} rooms"],
        "oracle": way_out,
    }


def view_provider() -> LocalProvider:
    """Return the provider of the view."""
    provider = LocalProvider()
    provider.add_resource(
        Resource.from_function(
            lambda: (Path(__file__).parent / "view.html").read_text("utf-8"),
            uri=VIEW_URI,
            name="maze view",
            mime_type="text/html;profile=mcp-app",
        )
    )
    return provider


class MazeEnvironment(MCPEnvironment):
    """A maze with a key and a locked door.

    Description:
        The agent walks from room to room. It sees the rooms in a straight line up to the next wall, and the key and
        the door if they are in these rooms. With the key, it can leave from the room of the door.

    Tools:
        look(): the view from the current room.
        walk(direction): walk to the next room. A wall is not an error, but costs a move.
        take_key(): take the key in its room.
        unlock_door(): leave by the door in its room; with the key this ends the game.

    Observation:
        Of a reset: ``metadata.prompt``, the task. Of a step: the tool's `View`.

    Reward:
        At the end: 1.0 after an escape, else 0.0, with the components ``key`` and ``escaped``. Steps are not scored.

    Start:
        Maze and starting room depend on the seed.

    End:
        Terminated by leaving. Truncated after the task's ``max_steps``; without a task there is no limit.

    Arguments:
        size: rooms on a side, 3 to 20.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "maze"
    VERSION = "1.0.0"
    state_type = MazeState
    tasks = TaskSet.generate(make_task, seed=2026, sizes={"train": 15, "test": 6}).with_licence("Apache-2.0")

    mcp_provider = view_provider()

    def __init__(self, size: Annotated[int, Field(ge=MIN_SIZE, le=MAX_SIZE)] = 5) -> None:
        self.size = size
        self.game = new_game(size, 0)
        self.world = ObjectWorld(self._plain)
        for tool in (self.look, self.walk, self.take_key, self.unlock_door):
            self.tool(tool, meta={"ui": {"resourceUri": VIEW_URI}})

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        size: Annotated[int, Field(ge=MIN_SIZE, le=MAX_SIZE)] | None = None,
    ) -> None:
        """Start a game in a new maze.

        Args:
            seed: the seed of the maze.
            episode_id: not used.
            size: rooms on a side, instead of the constructor's.
        """
        self.game = new_game(size or self.size, seed)

    def verify(self, evidence: Evidence) -> Reward:
        """Return 1.0 if the agent has escaped, with the components ``key`` and ``escaped``."""
        assert evidence.after is not None
        escaped, has_key = evidence.after["escaped"], evidence.after["has_key"]
        return Reward(float(escaped), {"key": float(has_key), "escaped": float(escaped)})

    @property
    def state(self) -> MazeState:
        return MazeState(room=self.game.room, has_key=self.game.has_key, walked=self.game.walked)

    # -- tools

    def look(self) -> View:
        """Look around from the room that you are in."""
        return self._view()

    def walk(self, direction: Direction) -> View:
        """Walk to the next room in a direction, if there is a way."""
        game = self.game
        if direction not in game.maze.ways[game.room]:
            return self._view(f"There is a wall in the {direction}.")
        game.room = _next(game.room, direction)
        game.walked += 1
        return self._view(f"You walked {direction}.")

    def take_key(self) -> View:
        """Take the key, if it is in this room."""
        game = self.game
        if game.has_key or game.room != game.maze.key:
            return self._view("There is no key here.")
        game.has_key = True
        return self._view("You have the key.")

    def unlock_door(self) -> View:
        """Unlock the door, if it is in this room and you have the key, and leave the maze."""
        game = self.game
        if game.room != game.maze.door:
            return self._view("There is no door here.")
        if not game.has_key:
            return self._view("The door is locked, and you have no key.")
        game.escaped = True
        self.finish()
        return self._view("You are out.")

    # -- the game

    def _view(self, said: str = "") -> View:
        game, maze = self.game, self.game.maze
        view = View(game.room[0], game.room[1], {}, game.has_key, said=said)
        key = None if game.has_key else maze.key
        view.key_ahead = "here" if game.room == key else None
        view.door_ahead = "here" if game.room == maze.door else None
        for way in STEPS:
            ahead = list(_straight(maze, game.room, way))
            if ahead:
                view.rooms_ahead[way] = len(ahead)
            if key in ahead:
                view.key_ahead = way
            if maze.door in ahead:
                view.door_ahead = way
        return view

    def _plain(self) -> dict[str, Any]:
        game = self.game
        return {"room": list(game.room), "has_key": game.has_key, "escaped": game.escaped, "walked": game.walked}


def new_game(size: int, seed: int | None) -> Game:
    """Return a new game; without a seed it is random."""
    maze = Maze.dig(size, random.Random(seed))
    return Game(maze, maze.start)


def _next(room: Room, way: Direction) -> Room:
    return room[0] + STEPS[way][0], room[1] + STEPS[way][1]


def _inside(room: Room, size: int) -> bool:
    return 0 <= room[0] < size and 0 <= room[1] < size


def _straight(maze: Maze, room: Room, way: Direction) -> Iterator[Room]:
    """Yield the rooms in a direction up to the next wall."""
    while way in maze.ways[room]:
        room = _next(room, way)
        yield room
