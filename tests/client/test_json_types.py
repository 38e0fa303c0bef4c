from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import pytest
from pydantic import Base64Bytes, BaseModel, Field, TypeAdapter, model_validator
from typing_extensions import TypedDict

from mcpenv import MCPEnvironment
from mcpenv_client import ToolErrorType
from mcpenv_client.types.json_types import writer_of

BLOB = b"\xff\xfe\x00hi>?"
STANDARD, SAFE = "//4AaGk+Pw==", "__4AaGk-Pw=="


class Blob(BaseModel):
    data: bytes
    inner: list[Blob] = []


@dataclasses.dataclass
class Part:
    data: bytes


class Row(TypedDict):
    data: bytes


class Metadata(BaseModel):
    """Its fields are named as keys of pydantic's schemas."""

    metadata: bytes
    config: list[bytes] = []
    serialization: bytes = b""


def raw(data: Any) -> bytes:
    """Return the bytes of an argument of one of the types below."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, dict):
        (data,) = [*data.values(), *data] if b"" in data.values() else data.values()
        return raw(data)
    if isinstance(data, list):
        return raw(data[0])
    if isinstance(data, Metadata):
        assert [data.metadata] == data.config == [data.serialization]
        return data.metadata
    return raw(data.inner[0] if isinstance(data, Blob) and data.inner else data.data)


def answered(hint: Any, value: Any) -> Any:
    """Return the text or the failure of a tool whose argument has this type."""
    env = MCPEnvironment()

    def put(data: Any) -> str:
        return raw(data).hex()

    put.__annotations__["data"] = hint
    env.tool(put)
    assert "binary" not in str(env.list_tools()[0].input_schema)
    step = env.call_tool("put", {"data": value})
    return step.error.error_type if step.error is not None else step.text


@pytest.mark.parametrize("text", [STANDARD, SAFE, SAFE.rstrip("="), BLOB])
@pytest.mark.parametrize(
    ("hint", "wrap"),
    [
        (bytes, lambda text: text),
        (bytes | None, lambda text: text),
        (bytes | int, lambda text: text),
        (list[int] | bytes, lambda text: text),
        (Annotated[bytes, Field(strict=True, max_length=20)], lambda text: text),
        (list[bytes], lambda text: [text]),
        (Sequence[bytes], lambda text: [text]),
        (Iterable[bytes], lambda text: [text]),
        (dict[str, bytes], lambda text: {"a": text}),
        (Blob, lambda text: {"data": text}),
        (Blob, lambda text: {"data": "", "inner": [{"data": text}]}),
        (Part, lambda text: {"data": text}),
        (Row, lambda text: {"data": text}),
        (Metadata, lambda text: {"metadata": text, "config": [text], "serialization": text}),
    ],
)
def test_bytes_arrive_as_they_were_sent(hint: Any, wrap: Any, text: Any) -> None:
    assert answered(hint, wrap(text)) == BLOB.hex()


def test_base64_bytes_of_pydantic_are_decoded_once() -> None:
    assert answered(Base64Bytes, STANDARD) == BLOB.hex()


@pytest.mark.parametrize("text", ["hi", "a b=", "%%%%", 3])
def test_a_text_that_is_no_base64_is_refused(text: Any) -> None:
    assert answered(bytes, text) is ToolErrorType.INVALID_ARGS


class Tagged(BaseModel):
    tags: set[str]


@pytest.mark.parametrize(
    ("hint", "value", "written"),
    [
        (set, {None, "0", 3}, ["0", 3, None]),
        (set[int], {1, 2, 10}, [1, 2, 10]),
        (frozenset[str] | None, frozenset("cab"), ["a", "b", "c"]),
        (list[Tagged], [Tagged(tags={"b", "a", "c"})], [{"tags": ["a", "b", "c"]}]),
        (dict[str, set[bytes]], {"k": {b"b", b"a"}}, {"k": ["YQ==", "Yg=="]}),
        (set[tuple[int, str]], {(2, "a"), (1, "b")}, [[1, "b"], [2, "a"]]),
        (set, [3, 1], [3, 1]),
    ],
)
def test_a_set_is_written_sorted(hint: Any, value: Any, written: Any) -> None:
    assert writer_of(TypeAdapter(hint).core_schema).to_python(value, mode="json", warnings=False) == written


def test_a_union_of_text_and_bytes_is_the_text() -> None:
    env = MCPEnvironment()

    @env.tool
    def put(data: bytes | str) -> str:
        return type(data).__name__

    assert env.call_tool("put", {"data": "aGk="}).text == "str"


def test_an_iterable_is_checked_before_the_tool_runs() -> None:
    env: Any = MCPEnvironment()
    calls: list[int] = []

    @env.tool  # type: ignore[untyped-decorator]
    def add(numbers: Iterable[int]) -> int:
        calls.append(1)
        return sum(numbers) + sum(numbers)

    for wrong in (["a"], [1, "x"], [None], [[1]], 1, "12"):
        refused = env.call_tool("add", {"numbers": wrong})
        assert refused.error is not None and refused.error.error_type is ToolErrorType.INVALID_ARGS and not calls
    assert env.call_tool("add", {"numbers": [1, "2"]}).result.data == 6


class Popping(BaseModel):
    fields: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def take(cls, data: Any) -> Any:
        data.pop("extra", None)
        return data


@pytest.mark.parametrize(
    ("hint", "value", "change"),
    [
        (Any, {"id": 5}, lambda v: v.pop("id")),
        (dict[str, Any], {"a": {"id": 5}}, lambda v: v["a"].pop("id")),
        (list, [{"id": 5}], lambda v: v[0].pop("id")),
        (list[list[int]], [[5]], lambda v: v[0].pop()),
        (Popping, {"fields": {"a": [5]}, "extra": 1}, lambda v: v.fields["a"].pop()),
        (Row | dict[str, Any], {"a": {"id": 5}}, lambda v: v["a"].pop("id")),
        (tuple[Any, ...], [[5]], lambda v: v[0].pop()),
        (Any | None, [5], lambda v: v.pop()),
    ],
)
def test_a_tool_that_changes_its_argument_changes_no_record_and_nothing_of_the_caller(
    hint: Any, value: Any, change: Any
) -> None:
    seen = []

    class Desk(MCPEnvironment):
        def __init__(self) -> None:
            def patch(v: Any) -> str:
                change(v)
                return "patched"

            patch.__annotations__["v"] = hint
            self.tool(patch)

        def score(self, call: Any, outcome: Any) -> float:
            seen.append(repr(call.arguments))
            return 1.0

    env, arguments = Desk(), {"v": value}
    before = repr(arguments)
    assert env.call_tool("patch", arguments).text == "patched"
    assert repr(arguments) == before and seen == [before]
    arguments.clear()
    assert env.trajectory is not None and repr(env.trajectory.steps[0].call.arguments) == before
