"""Environments that several tests share."""

from __future__ import annotations

import asyncio
import enum
import functools
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import numpy as np
from fastmcp.dependencies import CurrentContext, Depends, Progress
from fastmcp.tools import ToolResult as FastMCPResult
from fastmcp.utilities.types import Audio, File, Image
from mcp_types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from mcpenv import Context, MCPEnvironment, Mode, Observation, State, ToolCall, ToolError, ToolOutcome

F = TypeVar("F", bound=Callable[..., Any])

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000a49444154789c6300010000050001"
    "0d0a2db40000000049454e44ae426082"
)
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


class Size(enum.Enum):
    """An enum by value."""

    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    """An enum of numbers."""

    LOW = 1
    HIGH = 2


class Address(BaseModel):
    """A nested model."""

    street: str
    number: int = Field(default=1, ge=1, description="House number")


class Person(BaseModel):
    """A model with a nested one and a default."""

    name: str
    address: Address | None = None
    tags: list[str] = Field(default_factory=list)


class Cat(BaseModel):
    """One side of a tagged union."""

    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    """The other side."""

    kind: Literal["dog"] = "dog"
    tricks: list[str] = Field(default_factory=list)


@dataclass
class Place:
    """A dataclass."""

    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    """A typed dict."""

    verbose: bool
    depth: int


def counted(fn: F) -> F:
    """A decorator as authors write them."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        wrapper.calls += 1  # type: ignore[attr-defined]
        return fn(*args, **kwargs)

    wrapper.calls = 0  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def a_connection() -> str:
    """A dependency."""
    return "connection"


async def an_async_connection() -> str:
    """An async dependency."""
    await asyncio.sleep(0)
    return "async connection"


class Shout:
    """Say it louder."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __call__(self, text: str) -> str:
        """Not this docstring, as FastMCP has it."""
        return text.upper() + self.mark


class EverythingEnvironment(MCPEnvironment):
    """An environment with a tool for every feature of tools.

    Args:
        choice: the second value of the ``Literal`` that ``choose`` takes.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, choice: str = "right") -> None:
        self.choice = choice
        self.moved = 0
        either = Literal["left", choice]  # type: ignore[valid-type]

        @self.tool
        def plain(text: str) -> str:
            """Give the text back."""
            return text

        @self.tool
        async def awaited(text: str = "default") -> str:
            """Give the text back, later."""
            await asyncio.sleep(0)
            return text

        self.tool(self.move)
        self.tool(self.move_async, name="move_later", description="Move, later.")

        @self.tool
        @counted
        def decorated(text: str, times: int = 1) -> str:
            """A decorated function."""
            return text * times

        def joined(first: str, second: str, glue: str = "-") -> str:
            """A partial of a function."""
            return f"{first}{glue}{second}"

        self.tool(functools.partial(joined, "bound"), name="partial")
        self.tool(Shout("!"), name="shout")

        @self.tool
        def generated(count: int) -> Iterator[int]:
            """A generator."""
            yield from range(count)

        @self.tool
        async def generated_later(count: int) -> AsyncIterator[int]:
            """An async generator."""
            for number in range(count):
                await asyncio.sleep(0)
                yield number

        @self.tool
        def models(person: Person, places: list[Place]) -> Person:
            """Models, nested ones and dataclasses."""
            return person.model_copy(update={"tags": [*person.tags, *(f"{place.x:g}" for place in places)]})

        @self.tool
        def unions(
            value: int | str | None,
            pet: Annotated[Cat | Dog, Field(discriminator="kind")],
            options: Options | None = None,
        ) -> str:
            """Unions, tagged ones and typed dicts."""
            return f"{type(value).__name__} {type(pet).__name__} {options}"

        @self.tool
        def choose(side: either, size: Size = Size.SMALL, level: Level = Level.LOW) -> str:
            """Literals and enums."""
            return f"{side} {size.name} {level.name}"

        @self.tool
        def annotated(
            count: Annotated[int, Field(ge=1, le=10, description="How many")],
            ratio: Annotated[float, "A ratio"] = 0.5,
            name: str = Field(default="nobody", min_length=2, pattern="^[a-z]+$"),
        ) -> str:
            """Constraints and descriptions of parameters."""
            return f"{count} {ratio} {name}"

        @self.tool
        def odd_types(
            day: date, when: datetime, span: timedelta, amount: Decimal, key: UUID, data: bytes
        ) -> dict[str, Any]:
            """Types that JSON does not have."""
            kinds = [type(value).__name__ for value in (day, when, span, amount, key, data)]
            return {"kinds": kinds, "next": day + timedelta(days=1), "data": data}

        @self.tool
        async def in_context(ctx: Context, steps: int = 2) -> str:
            """Progress, logging and state."""
            for step in range(steps):
                await ctx.report_progress(step + 1, steps, f"step {step + 1}")
            await ctx.info("half way")
            await ctx.warning("careful")
            seen = (await ctx.get_state("seen")) or 0
            await ctx.set_state("seen", seen + 1)
            return f"seen {seen}"

        @self.tool
        def in_context_sync(text: str, ctx: Context) -> str:
            """A sync tool that only knows its session."""
            return f"{text} {bool(ctx.session_id)} {bool(ctx.request_id)}"

        @self.tool
        async def injected(
            text: str,
            connection: str = Depends(a_connection),
            later: str = Depends(an_async_connection),
            ctx: Context = CurrentContext(),  # noqa: B008
            progress: Progress = Progress(),  # noqa: B008
        ) -> str:
            """Dependencies."""
            await progress.set_total(2)
            await progress.increment()
            return f"{text} {connection} {later} {bool(ctx.session_id)}"

        @self.tool
        async def ask(question: str, ctx: Context) -> str:
            """Ask whoever is there."""
            answer = await ctx.elicit(question, response_type=str)
            return str(getattr(answer, "data", answer.action))

        @self.tool
        def image() -> Image:
            """An image."""
            return Image(data=PIXEL, format="png")

        @self.tool
        def audio() -> Audio:
            """A sound."""
            return Audio(data=b"RIFF0000", format="wav")

        @self.tool
        def resources() -> list[Any]:
            """Embedded resources, links, files, and text between them."""
            embedded = TextResourceContents(uri="note://1", mime_type="text/plain", text="a note")
            return [
                "before",
                EmbeddedResource(type="resource", resource=embedded),
                ResourceLink(type="resource_link", uri="note://2", name="another"),
                File(data=b"bytes", name="some", format="bin"),
                TextContent(type="text", text="after"),
            ]

        @self.tool(
            output_schema={"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
        )
        def structured(numbers: list[int]) -> FastMCPResult:
            """Content and structured content, told apart."""
            return FastMCPResult(content=f"{len(numbers)} numbers", structured_content={"total": sum(numbers)})

        @self.tool(output_schema=None)
        def unstructured(text: str) -> str:
            """No structured output."""
            return text

        @self.tool
        def typed(x: float) -> Place:
            """A dataclass comes back."""
            return Place(x, np.float64(x).item())

        @self.tool
        def numbers() -> dict[str, Any]:
            """Numpy comes back as plain numbers and lists."""
            return {"scalar": np.int64(3), "vector": np.arange(3), "flag": np.bool_(True), "wide": 2**70}

        @self.tool
        def nothing() -> None:
            """Nothing comes back."""

        @self.tool
        def moment() -> datetime:
            """A moment."""
            return datetime(2026, 1, 31, 12, tzinfo=UTC)

        @self.tool(
            title="With everything",
            annotations={"readOnlyHint": True, "openWorldHint": False},
            tags={"one", "two"},
            meta={"owner": "tests"},
            version="2",
        )
        def dressed() -> bool:
            """Options that FastMCP knows."""
            return True

        @self.tool(mode=Mode.SIMULATION, name="by_mode")
        def in_simulation(hint: str = "") -> str:
            """One name, two bodies: this one in simulation."""
            return f"simulation{hint}"

        @self.tool(mode="production", name="by_mode")
        def in_production(hint: str = "") -> str:
            """One name, two bodies: this one in production."""
            return f"production{hint}"

        @self.tool
        def refuse(why: str) -> str:
            """Refuse in words for the agent."""
            raise ToolError(why)

        @self.tool(timeout_s=20, concurrent=True)
        async def concurrent_tool() -> str:
            """Options of ours."""
            return "done"

        @self.tool(mode=Mode.SIMULATION, terminal=True)
        def done() -> str:
            """End the episode."""
            return "over"

    def move(self, by: int = 1) -> int:
        """Move by some steps."""
        self.moved += by
        return self.moved

    async def move_async(self, by: int = 1) -> int:
        await asyncio.sleep(0)
        return self.move(by)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.moved = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return None if outcome.error is not None else 0.5


EVERYTHING_CALLS: dict[str, dict[str, Any]] = {
    "plain": {"text": "grüße 🙂"},
    "awaited": {},
    "move": {"by": 2},
    "move_later": {},
    "decorated": {"text": "ab", "times": 2},
    "partial": {"second": "given"},
    "shout": {"text": "hey"},
    "generated": {"count": 3},
    "generated_later": {"count": 2},
    "models": {"person": {"name": "ada", "address": {"street": "high"}}, "places": [{"x": 1.5}]},
    "unions": {"value": "7", "pet": {"kind": "dog"}, "options": {"depth": 2}},
    "choose": {"side": "left", "size": "large", "level": 2},
    "annotated": {"count": 3},
    "odd_types": {
        "day": "2026-01-31",
        "when": "2026-01-31T12:00:00Z",
        "span": "PT1H",
        "amount": "1.50",
        "key": "00000000-0000-4000-8000-000000000000",
        "data": "text",
    },
    "in_context": {},
    "in_context_sync": {"text": "yes"},
    "injected": {"text": "with"},
    "image": {},
    "audio": {},
    "resources": {},
    "structured": {"numbers": [1, 2, 3]},
    "unstructured": {"text": "text"},
    "typed": {"x": 1.5},
    "numbers": {},
    "nothing": {},
    "moment": {},
    "dressed": {},
    "by_mode": {"hint": "!"},
    "concurrent_tool": {},
    "done": {},
}
"""Arguments that work, for every tool of `EverythingEnvironment` that gives a result in process."""


class NotesState(State):
    """Return the number of notes."""

    notes: int = 0


class NotesEnvironment(MCPEnvironment):
    """Notes in a SQLite database that is bound to the thread in which it was opened."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    THREAD_AFFINE = True
    state_type = NotesState

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table notes (text text)")

        @self.tool
        def write(text: str) -> int:
            """Write a note."""
            self.database.execute("insert into notes values (?)", (text,))
            return self.count()

        @self.tool(annotations={"readOnlyHint": True})
        def read() -> list[str]:
            """Read all notes."""
            return [row[0] for row in self.database.execute("select text from notes")]

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.database.execute("delete from notes")
        return Observation(metadata={"notes": self.count()})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float(self.count())

    @property
    def state(self) -> NotesState:
        return NotesState(notes=self.count())

    def close(self) -> None:
        self.database.close()

    def count(self) -> int:
        return int(self.database.execute("select count(*) from notes").fetchone()[0])


class SharedNotesEnvironment(NotesEnvironment):
    """The same without saying that it is bound to a thread."""

    THREAD_AFFINE = False


class CounterEnvironment(MCPEnvironment):
    """Count to the target.

    Args:
        target: the count at which the episode ends.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, target: int = 3) -> None:
        self.target, self.count = target, 0
        self.threads: set[int] = set()

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            return self.increase(by)

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter, in a plain function."""
            return self.increase(by)

    def increase(self, by: int) -> int:
        self.threads.add(threading.get_ident())
        self.count += by
        return self.count

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.count = 0
        return Observation(metadata={"target": self.target})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if outcome.error is not None:
            return None
        if self.count >= self.target:
            self.finish(reason="target")
        return float(outcome.value)
