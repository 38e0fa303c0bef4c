"""Environments that the same test bodies use over every plane. Importable by a server in another process."""

from __future__ import annotations

import asyncio
import enum
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastmcp import Context as FastMCPContext
from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.utilities.types import Audio, Image
from mcp_types import EmbeddedResource, TextResourceContents
from pydantic import BaseModel, ConfigDict, Field

from mcpenv import (
    Context,
    Gate,
    MCPEnvironment,
    Mode,
    Observation,
    Reward,
    Rubric,
    ToolCall,
    ToolError,
    ToolOutcome,
    Trajectory,
    WeightedSum,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000a49444154789c6300010000050001"
    "0d0a2db40000000049454e44ae426082"
)


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")

    x: int
    y: int = 0


class Shape(BaseModel):
    """A shape."""

    name: str = Field(description="What it is called")
    points: list[Point] = Field(default_factory=list)
    color: Color | None = None


def a_dependency() -> str:
    return "injected"


class World(MCPEnvironment):
    """Every kind of tool."""

    SURVIVES_TIMEOUT = True
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, target: int = 100, names: tuple[str, ...] = ("ada", "bob")) -> None:
        self.target, self.count = target, 0

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter.

            Args:
                by: how much to add.
            """
            self.count += by
            if self.count >= self.target:
                self.finish(10.0, reason="target")
            return self.count

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter, in a sync function."""
            self.count += by
            return self.count

        @self.tool
        def draw(shape: Shape, at: Point | None = None, scale: Annotated[float, Field(gt=0, le=10)] = 1.0) -> Shape:
            """Draw a shape."""
            return shape.model_copy(update={"points": [*shape.points, at or Point(x=0)]})

        @self.tool
        def paint(color: Color, mode: Literal["fast", "slow"] = "fast", width: int | str = 1) -> dict[str, Any]:
            """Paint."""
            return {"color": color.value, "mode": mode, "width": width}

        @self.tool
        def greet(name: Literal[tuple(names)]) -> str:  # type: ignore[valid-type]
            """Greet somebody who is known."""
            return f"hello {name}"

        @self.tool
        def echo(value: Any) -> Any:
            """Give the value back."""
            return value

        @self.tool
        def image() -> Image:
            """An image."""
            return Image(data=PIXEL, format="png")

        @self.tool
        def audio() -> Audio:
            """A sound."""
            return Audio(data=b"RIFF", format="wav")

        @self.tool
        def resource() -> EmbeddedResource:
            """A resource."""
            return EmbeddedResource(
                type="resource", resource=TextResourceContents(uri="test://a", text="inside", mime_type="text/plain")
            )

        @self.tool
        async def remember(key: str, value: int, ctx: Context) -> int | None:
            """Keep a value, tell what it was; log and report progress on the way."""
            await ctx.info(f"remember {key}")
            await ctx.report_progress(1, 2, "half")
            before: int | None = await ctx.get_state(key)
            await ctx.set_state(key, value)
            return before

        @self.tool
        def injected(x: int, word: str = Depends(a_dependency)) -> str:
            """Use a dependency."""
            return f"{word} {x}"

        @self.tool
        def fails() -> str:
            """Raise."""
            raise RuntimeError("nothing at /srv/secret/place.txt")

        @self.tool
        def refuses() -> str:
            """Raise what the agent may read."""
            raise ToolError("the door at /north/gate is locked")

        @self.tool
        def nan() -> dict[str, float]:
            """Return what has no JSON form."""
            return {"score": float("nan")}

        @self.tool(timeout_s=0.05)
        async def late() -> str:
            """Never in time."""
            await asyncio.Event().wait()
            return "never"

        @self.tool(annotations={"readOnlyHint": True, "title": "Look"}, title="Look around", meta={"k": 1})
        def look() -> str:
            """Look."""
            return "dark"

        @self.tool(terminal=True)
        def submit(answer: str) -> str:
            """Hand in the answer."""
            return f"handed in {answer}"

        @self.tool(mode=Mode.SIMULATION)
        def hint() -> str:
            """Only in an episode."""
            return "try adding"

        @self.tool(mode="production")
        def ticket(text: str) -> str:
            """Only for live clients."""
            return f"ticket: {text}"

        @self.tool(mode="simulation", name="weather")
        def weather_simulated() -> str:
            """The weather."""
            return "simulated"

        @self.tool(mode="production", name="weather")
        def weather_live() -> str:
            """The weather."""
            return "live"

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Observation:
        self.count = start
        return Observation(metadata={"start": start})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward | None:
        if call.name == "look":
            return None
        return Reward(0.5 if outcome.error is None else -1.0, {"ok": float(outcome.error is None)})


class Ledger(MCPEnvironment):
    """A SQLite database, opened in the constructor and used from sync tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    THREAD_AFFINE = True

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("create table entries (amount integer)")

        @self.tool
        def book(amount: int) -> int:
            """Book an amount; gives the balance."""
            self.db.execute("insert into entries values (?)", (amount,))
            return int(self.db.execute("select sum(amount) from entries").fetchone()[0])

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.db.execute("delete from entries")

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float(self.db.execute("select count(*) from entries").fetchone()[0])

    def close(self) -> None:
        self.db.close()


class Shout(Middleware):
    """Adds to what tools say."""

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        result = await call_next(context)
        result.content[0].text += "!"
        return result


HANDED_IN = FastMCP("handed in", middleware=[Shout()])


@HANDED_IN.tool
def upper(text: str) -> str:
    """Upper case."""
    return text.upper()


@HANDED_IN.tool
async def note(text: str, ctx: Context) -> str:
    """Log and report through a plain FastMCP context."""
    await ctx.info(text)
    await ctx.report_progress(1, 1)
    return text


@HANDED_IN.resource("test://motto")
def motto() -> str:
    """A resource."""
    return "to and fro"


@HANDED_IN.prompt
def advise(topic: str) -> str:
    """A prompt."""
    return f"Advise on {topic}."


class WithServer(MCPEnvironment):
    """Tools of a FastMCP server, and one of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(HANDED_IN)

        @self.tool
        def lower(text: str) -> str:
            """Lower case."""
            return text.lower()


@asynccontextmanager
async def _opened(server: FastMCP) -> AsyncIterator[dict[str, Any]]:
    yield {"users": ["Ada"]}


WITH_LIFESPAN = FastMCP("with lifespan", lifespan=_opened)


@WITH_LIFESPAN.tool(name="users")
@WITH_LIFESPAN.resource("test://users")
@WITH_LIFESPAN.prompt(name="users")
def users(ctx: FastMCPContext) -> str:
    """Tell the users, as a tool, a resource and a prompt."""
    assert ctx.request_context is not None
    return str(ctx.request_context.lifespan_context["users"])


class WithLifespan(MCPEnvironment):
    """A FastMCP server whose tools use what its lifespan yields."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(WITH_LIFESPAN)


class Letters(Rubric):
    """Per step: how many letters there are, unless the tool failed."""

    name = "letters"

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return None if outcome.result is None else float(len(outcome.result.text))


class Novelty(Rubric):
    """Per step, async, with a state: whether this was not called before in the episode."""

    def __init__(self) -> None:
        self.called_before: set[str] = set()

    async def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        await asyncio.sleep(0)
        new = call.name not in self.called_before
        self.called_before.add(call.name)
        return float(new)


class Verdict(Rubric):
    """At the end: what the world has become."""

    def score_trajectory(self, trajectory: Trajectory) -> float:
        return float(self.env.count)


class Broken(Rubric):
    """Raises when the tool said "fail"."""

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if outcome.value == "fail":
            raise RuntimeError("no ruler at /srv/secret/ruler")
        return None


class Judged(MCPEnvironment):
    """A rubric of the class: sync and async parts, per step and at the end; `sync_only` leaves the async one out."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    rubric = WeightedSum(
        {"letters": Letters(), "new": Gate(Novelty(), threshold=1.0), "end": Verdict(), "broken": Broken()},
        {"letters": 0.5, "new": 1.0, "end": 10.0, "broken": 1.0},
    )

    def __init__(self, sync_only: bool = False, mounted: bool = False) -> None:
        super().__init__(HANDED_IN if mounted else None)
        self.count = 0
        if sync_only:
            self.rubric = WeightedSum({"letters": Letters(), "end": Verdict(), "broken": Broken()})

        @self.tool
        def say(word: str) -> str:
            """Say a word, in a sync function."""
            self.count += 1
            return word

        @self.tool
        async def say_later(word: str) -> str:
            """Say a word, in an async function."""
            self.count += 1
            return word

        @self.tool(terminal=True)
        async def stop() -> None:
            """Be done."""

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.count = 0


class Slow(MCPEnvironment):
    """Everything blocks while the class's gate is shut; tests open it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    block_in = ""
    inside = threading.Event()

    def __init__(self) -> None:
        self._pause("constructor")

        @self.tool
        def wait() -> str:
            """Wait at the gate."""
            self._pause("tool")
            return "through"

        @self.tool
        async def quick() -> str:
            """Do not wait."""
            return "quick"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self._pause("reset")

    @property
    def state(self) -> Any:
        self._pause("state")
        return super().state

    def _pause(self, where: str) -> None:
        deadline = time.monotonic() + 20
        while type(self).block_in == where:
            self.inside.set()
            if time.monotonic() > deadline:
                raise RuntimeError("the gate was never opened")
            time.sleep(0.002)
