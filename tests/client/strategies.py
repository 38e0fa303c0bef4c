"""Hypothesis strategies for what crosses the wire."""

from __future__ import annotations

import datetime
import enum
import uuid
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import hypothesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from mcpenv_client import (
    Action,
    CallToolAction,
    CallToolObservation,
    ListToolsObservation,
    LogEntry,
    Observation,
    Plane,
    Reward,
    State,
    StepRecord,
    Tool,
    ToolCall,
    ToolErrorType,
    ToolFailure,
    ToolOutcome,
    ToolResult,
    Trajectory,
)

_SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def given(*args: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis' ``given``, without a deadline: the machines that run this are slow at times."""
    return lambda test: _SETTINGS(hypothesis.given(*args)(test))


WIRE = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers() | st.integers(-(10**400), 10**400)
texts = st.text(max_size=20)
scalars = st.none() | st.booleans() | integers | floats | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(texts, json_values, max_size=4)
moments = st.datetimes(min_value=datetime.datetime(1000, 1, 1)) | st.datetimes(
    min_value=datetime.datetime(1000, 1, 1),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda m: datetime.timezone(datetime.timedelta(minutes=m))),
)
spans = st.timedeltas(datetime.timedelta(days=-1000), datetime.timedelta(days=1000))


class Color(enum.Enum):
    RED = "red"
    NUMBER = 7


class Part(BaseModel):
    model_config = WIRE

    data: bytes = b""
    when: datetime.datetime | None = None
    children: list[Part] = Field(default_factory=list)


@dataclass
class Point:
    x: float = 0.0
    label: str = ""
    tags: list[str] = field(default_factory=list)


class Rich(Action):
    """An action with every kind of field."""

    type: Literal["rich"] = "rich"
    required: int
    data: bytes = b""
    when: datetime.datetime | None = None
    span: datetime.timedelta = datetime.timedelta()
    day: datetime.date = datetime.date(2000, 1, 1)
    color: Color = Color.RED
    part: Part = Field(default_factory=Part)
    point: Point = Field(default_factory=Point)
    amount: Decimal = Decimal("0.10")
    identity: uuid.UUID = uuid.UUID(int=0)
    pair: tuple[int, str] = (0, "")
    numbers: set[int] = Field(default_factory=set)
    by_number: dict[int, str] = Field(default_factory=dict)
    choice: Literal["a", 1, None] = "a"
    anything: Any = None
    aliased: str = Field(default="", alias="aliasedName")

    model_config = ConfigDict(populate_by_name=True)


class RichObservation(Observation):
    """The same kinds of fields in an observation."""

    data: bytes = b""
    when: datetime.datetime | None = None
    color: Color = Color.RED
    parts: list[Part] = Field(default_factory=list)
    text: str = ""
    grid: list[list[float]] = Field(default_factory=list)
    maybe: int | None = None


class RichState(State):
    """A state with fields of its own; further ones are taken too."""

    data: bytes = b""
    when: datetime.datetime | None = None
    part: Part | None = None


def _part(children: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.builds(
        Part, data=st.binary(max_size=8), when=st.none() | moments, children=st.lists(children, max_size=2)
    )


parts = st.recursive(st.builds(Part, data=st.binary(max_size=8)), _part, max_leaves=4)

rich_actions = st.builds(
    Rich,
    required=integers,
    data=st.binary(max_size=30),
    when=st.none() | moments,
    span=spans,
    day=st.dates(),
    color=st.sampled_from(Color),
    part=parts,
    point=st.builds(Point, x=floats, label=texts, tags=st.lists(texts, max_size=3)),
    amount=st.decimals(allow_nan=False, allow_infinity=False, places=3),
    identity=st.uuids(),
    pair=st.tuples(integers, texts),
    numbers=st.sets(integers, max_size=4),
    by_number=st.dictionaries(integers, texts, max_size=3),
    choice=st.sampled_from(["a", 1, None]),
    anything=json_values,
    aliasedName=texts,
    metadata=objects,
)
tool_actions = st.builds(CallToolAction, tool_name=texts, arguments=objects, metadata=objects)

base64_texts = st.binary(max_size=30).map(lambda data: b64encode(data).decode())
blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("image"), "data": base64_texts, "mimeType": st.just("image/png")}),
    st.fixed_dictionaries({"type": st.just("audio"), "data": base64_texts, "mimeType": st.just("audio/wav")}),
    st.fixed_dictionaries(
        {"type": st.just("resource"), "resource": st.fixed_dictionaries({"uri": texts, "text": texts})}
    ),
)
results = st.builds(
    ToolResult,
    content=st.lists(blocks, max_size=3),
    structured_content=st.none() | objects,
    data=json_values,
    is_error=st.booleans(),
    meta=st.none() | objects,
)
failures = st.builds(ToolFailure, error_type=st.sampled_from(ToolErrorType), message=texts)
ends = st.sampled_from([{}, {"terminated": True}, {"truncated": True}, {"terminated": True, "truncated": True}])
common = {"reward": st.none() | floats, "metadata": objects, "info": objects}


@st.composite
def tool_observations(draw: st.DrawFn) -> CallToolObservation:
    given = draw(st.fixed_dictionaries({"result": results}) | st.fixed_dictionaries({"error": failures}))
    return draw(st.builds(CallToolObservation, tool_name=st.just(draw(texts)), **common)).model_copy(
        update={**given, **draw(ends)}
    )


tools = st.builds(
    Tool,
    name=texts,
    title=st.none() | texts,
    description=texts,
    input_schema=objects,
    output_schema=st.none() | objects,
    annotations=st.none() | objects,
    meta=st.none() | objects,
)
listings = st.builds(ListToolsObservation, tools=st.lists(tools, max_size=3), **common)
rich_observations = st.builds(
    RichObservation,
    data=st.binary(max_size=30),
    when=st.none() | moments,
    color=st.sampled_from(Color),
    parts=st.lists(parts, max_size=2),
    text=texts,
    grid=st.lists(st.lists(floats, max_size=3), max_size=3),
    maybe=st.none() | integers,
    terminated=st.booleans(),
    truncated=st.booleans(),
    **common,
)
plain_observations = st.builds(Observation, terminated=st.booleans(), truncated=st.booleans(), **common)
states = st.builds(
    RichState,
    episode_id=st.none() | texts,
    step_count=st.integers(0, 10**30),
    data=st.binary(max_size=30),
    when=st.none() | moments,
    part=st.none() | parts,
    further=json_values,
)

rewards = st.builds(Reward, value=floats, components=st.dictionaries(texts, floats, max_size=3))
calls = st.builds(
    ToolCall,
    name=texts,
    arguments=objects,
    step=st.integers(1, 10**6),
    plane=st.sampled_from(Plane),
    principal=st.none() | texts,
)
outcomes = st.builds(ToolOutcome, result=st.none() | results, error=st.none() | failures, duration_s=floats)
logs = st.builds(
    LogEntry, level=texts, message=st.none() | texts, progress=st.none() | floats, total=st.none() | floats
)
records = st.builds(
    StepRecord,
    call=calls,
    outcome=outcomes,
    reward=st.none() | rewards,
    terminated=st.booleans(),
    truncated=st.booleans(),
    reason=st.none() | texts,
    started_at=floats,
    logs=st.lists(logs, max_size=2),
    fault=st.none() | texts,
)
trajectories = st.builds(
    Trajectory,
    episode_id=texts,
    seed=st.none() | integers,
    options=objects,
    implicit_reset=st.booleans(),
    steps=st.lists(records, max_size=2),
    dropped=st.integers(0, 10),
    total_reward=floats,
    terminated=st.booleans(),
    truncated=st.booleans(),
    reason=st.none() | texts,
    started_at=floats,
    ended_at=st.none() | floats,
)
