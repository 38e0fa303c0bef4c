"""An environment with a pair of tools for each of 71 annotations, whose values cross every border."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AnyUrl, Base64Bytes, BaseModel, ConfigDict, Field, JsonValue, field_serializer
from typing_extensions import TypedDict

from mcpenv import MCPEnvironment, ToolCall, ToolOutcome


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    x: int
    y: float = 0.5


class Tree(BaseModel):
    value: JsonValue = None
    children: list[Tree] = []


class Blob(BaseModel):
    data: bytes
    name: str = "blob"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 0


class Aliased(BaseModel):
    inner: int = Field(alias="innerValue", default=1)


class Doubled(BaseModel):
    n: int

    @field_serializer("n")
    def twice(self, n: int) -> str:
        return str(2 * n)


class Row(TypedDict):
    n: int


class Part(TypedDict, total=False):
    n: int
    data: bytes


class Pair(NamedTuple):
    left: int
    right: str = ""


@dataclasses.dataclass
class Holder:
    data: bytes
    numbers: list[int] = dataclasses.field(default_factory=list)


ANNOTATIONS: tuple[Any, ...] = (
    str, int, float, bool, bytes, None, Any, JsonValue, object,
    list, dict, tuple, set, list[int], list[str], list[bytes], list[Any], list[list[int]],
    dict[str, Any], dict[str, int], dict[int, str], dict[str, bytes], dict[str, list[float]], dict[bytes, int],
    tuple[int, str], tuple[int, ...], set[int], frozenset[str], deque[int], Sequence[int], Iterable[int],
    Iterable[bytes], Mapping[str, float], OrderedDict[str, int],
    int | str, str | bytes, int | None, bytes | None, float | list[int], date | str, Decimal | float,
    Literal["a", 1, None], Colour, Level,
    date, datetime, time, timedelta, Decimal, uuid.UUID, complex, IPv4Address, PurePosixPath, AnyUrl,
    Annotated[int, Field(ge=0, le=10)], Annotated[str, Field(pattern="^[a-z]*$", max_length=5)], Base64Bytes,
    Point, Tree, Blob, Open, Aliased, Doubled, list[Point], dict[str, Blob], Point | Blob | None,
    Row, Part, Pair, Holder, list[Holder],
)  # fmt: skip
"""The annotations. Each is that of a parameter and of a return value."""

VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 2**53 + 1, lambda: 2**70, lambda: 0.1, lambda: 1e300,
    lambda: 10**4299, lambda: -(10**4300), lambda: {"a": [10**5000]}, lambda: "1" * 5000, lambda: {object(): 1},
    lambda: float("nan"), lambda: float("-inf"), lambda: "", lambda: "grüße 🙂\x00\u2028", lambda: "caf\udce9",
    lambda: b"", lambda: b"hi>", lambda: b"\xff\xfe", list, dict, tuple, set, lambda: [1, "a", None], lambda: [[]],
    lambda: {"a": {"b": [1.5]}}, lambda: {1: "a", None: "b"}, lambda: {(1, 2): 3}, lambda: {"k": float("nan")},
    lambda: {"caf\udce9": 1}, lambda: (1, "a"), lambda: {3}, lambda: map(str, [1, 2]), lambda: iter([b"a"]),
    lambda: (n for n in (1, 2)), lambda: {"a": 1}.keys(), lambda: range(3), lambda: deque([1]), lambda: object(),
    lambda: len, lambda: int, lambda: Fraction(1, 3), lambda: 1j, lambda: Decimal("1.50"), lambda: date(2026, 1, 31),
    lambda: timedelta(seconds=1.5), lambda: uuid.UUID(int=1), lambda: Colour.RED, lambda: Level.LOW,
    lambda: Point(x=1), lambda: Point.model_construct(x="a"), lambda: Blob(data=b"\xff"), lambda: [Blob(data=b"hi")],
    lambda: Tree(children=[Tree(value={"a": None})]), lambda: Open.model_validate({"a": 1, "b": float("inf")}),
    lambda: Aliased(),
    lambda: Doubled(n=2), lambda: Pair(1), lambda: Holder(b"\xff", [1]), lambda: ValueError("spoken"),
    lambda: bytearray(b"ab"), lambda: "x" * 100_000, lambda: memoryview(b"ab"), lambda: {"b", "a", "c"},
    lambda: {"m": [Blob(data=b"hi")]}, lambda: Open.model_validate({"blob": Blob(data=b"\xff")}), lambda: {"k": [1j]},
    lambda: Holder(Blob(data=b"\xff")),  # type: ignore[arg-type]
)  # fmt: skip
"""What the tools return, whatever their annotations say."""


class Borders(MCPEnvironment):
    """Take and return values of every type."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        for index, annotation in enumerate(ANNOTATIONS):
            self.tool(_named(f"take_{index}", annotation))
            self.tool(_giving(f"give_{index}", annotation))

        @self.tool
        def give(value: int) -> Any:
            return VALUES[value]()

        @self.tool
        def give_bare(value: int):  # type: ignore[no-untyped-def]
            return VALUES[value]()

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return len(repr(call.arguments)) / 8 - (outcome.error is not None)


def _named(name: str, annotation: Any) -> Any:
    def take(v: Any) -> Any:
        _change(v)
        return v

    take.__name__ = name
    take.__annotations__ = {"v": annotation, "return": annotation}
    return take


def _giving(name: str, annotation: Any) -> Any:
    def give(value: int) -> Any:
        return VALUES[value]()

    give.__name__ = name
    give.__annotations__["return"] = annotation
    return give


def _change(value: Any) -> None:
    """Change a value in place, as careless tools do."""
    if isinstance(value, dict):
        for part in value.values():
            _change(part)
        value.pop("id", None)
    elif isinstance(value, list):
        for part in value:
            _change(part)
        if value and value[-1] == "id":
            value.pop()
