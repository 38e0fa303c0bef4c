"""Test that JSON values cross unchanged, and that others are refused by the name of their field."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import re
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from strategies import WIRE, Color, Part, given, json_values

from mcpenv.execution.execution import as_sent
from mcpenv_client import NotSerializable
from mcpenv_client.types import values
from mcpenv_client.types.values import (
    MAX_DEPTH,
    MAX_PARTS,
    decode,
    encode,
    encode_plain,
    excess_parts,
    refuse_non_finite,
    revive,
    to_plain,
    to_recorded,
)

NAN, INF = math.nan, math.inf


class Inner(BaseModel):
    """Somebody's own model, with pydantic's defaults: NaN would become null, bytes UTF-8."""

    x: float = 0.0
    data: bytes = b""


@dataclasses.dataclass
class Pair:
    left: Any = None
    right: float = 0.0


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


def nested(depth: int, value: Any = 1) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def around_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


@given(json_values)
def test_json_crosses_unchanged(value: Any) -> None:
    assert decode(encode(value)) == value
    assert decode(encode(to_plain(value))) == value


@given(json_values)
def test_what_is_written_is_what_the_standard_library_reads(value: Any) -> None:
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, 1.7976931348623157e308, 5e-324, -0.0, 0.1])
def test_numbers_keep_every_digit(number: float) -> None:
    again = decode(encode(number))
    assert again == number
    assert type(again) is type(number)
    assert math.copysign(1, again) == math.copysign(1, number) if isinstance(number, float) else True


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.uint8(255), 255),
        (np.float32(1.5), 1.5),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (np.str_("é"), "é"),
        (np.array(7), 7),
        (np.array([], dtype=float), []),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([True, False]), [True, False]),
        ({"deep": [np.array([1.5]), {"x": np.int32(1)}]}, {"deep": [[1.5], {"x": 1}]}),
        ({np.int64(1): "key"}, {"1": "key"}),
        (b"\xff\xfe", "__4="),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.timezone.utc), "2024-02-29T01:00:00Z"),
        (Color.NUMBER, 7),
        ((1, (2,)), [1, [2]]),
        (frozenset({1}), [1]),
        (decimal.Decimal("0.10"), "0.10"),
        (pathlib.Path("a"), "a"),
        (Inner(x=1.5, data=b"text"), {"x": 1.5, "data": "dGV4dA=="}),
        (Pair(left=Pair(), right=2.0), {"left": {"left": None, "right": 0.0}, "right": 2.0}),
        ((n for n in (1, 2)), [1, 2]),
    ],
)
def test_other_values_have_one_plain_form(value: Any, plain: Any) -> None:
    assert decode(encode(to_plain(value))) == plain


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_arrays_are_lists(whole: list[int], real: list[float]) -> None:
    assert decode(encode({"a": np.array(whole, dtype=np.int64), "b": np.array(real)})) == {"a": whole, "b": real}


@pytest.mark.parametrize("number", [NAN, INF, -INF, np.float64("nan"), np.float32("inf"), np.array(NAN)])
@pytest.mark.parametrize("write", [encode, to_plain])
def test_nan_and_infinity_are_refused_by_name_wherever_they_stand(write: Any, number: Any) -> None:
    places: dict[str, Any] = {
        "value": number,
        "value.a": {"a": number},
        "value.a[1].b": {"a": [0, {"b": number}]},
        "value[0][2]": [np.array([0.0, 1.0, float(number)])],
        "value.m.x": {"m": Inner(x=float(number))},
        "value.list[0].x": {"list": [Inner(x=float(number))]},
        "value.right": Pair(right=float(number)),
        "value.left.right": Pair(left=Pair(right=float(number))),
        "value.m.extra": {"m": Loose(extra=float(number))},  # type: ignore[call-arg]
    }
    for path, value in places.items():
        with pytest.raises(NotSerializable) as refused:
            write(value)
        assert refused.value.path == path
        assert refused.value.path in str(refused.value)


@given(st.dictionaries(st.text(), json_values))
def test_a_copy_of_arguments_is_what_their_json_says(arguments: dict[str, Any]) -> None:
    copy = as_sent(arguments)
    assert copy == decode(encode(arguments)) and copy is not arguments


@pytest.mark.parametrize("arguments", [{"a": "\ud800"}, {"\ud800": 1}, {"a": NAN}, {"a": object()}])
def test_arguments_without_a_json_form_are_not_copied(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        as_sent(arguments)


@pytest.mark.parametrize("text", ["NaN", "Infinity", '{"NaN": "-Infinity"}', "a NaN b"])
def test_the_words_are_no_numbers(text: str) -> None:
    assert decode(encode({"a": text, text: 1})) == {"a": text, text: 1}


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "1e999", '{"a": -1e400}', "[1, 2", "", "'a'", "\ud800"]
)
def test_text_that_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        decode(text)


def test_json_constants_inside_strings_are_read() -> None:
    assert decode('["Infinity", "NaN", 1e308]') == ["Infinity", "NaN", 1e308]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": object()}, "value.a"),
        ({"a": [1, {"b": lambda: 1}]}, "value.a[1].b"),
        ({"a": "\ud800"}, "value.a"),
        ({"a": {"\ud800": 1}}, "value.a"),
        (["\udfff"], "value[0]"),
        (Pair(left=object()), "value.left"),
        ({"m": Loose(extra=object())}, "value.m.extra"),  # type: ignore[call-arg]
        ({"m": [Loose(extra=1j)]}, "value.m[0].extra"),  # type: ignore[call-arg]
        ({"m": 1j}, "value.m"),
        ({"m": np.array([1j])}, "value.m[0]"),
    ],
)
def test_what_has_no_json_form_is_refused_by_name(value: Any, path: str) -> None:
    with pytest.raises(NotSerializable) as refused:
        encode(value)
    assert refused.value.path == path
    # The refusal itself can be sent.
    assert decode(encode(str(refused.value)))


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    data: bytes


class PutOff(BaseModel):
    model_config = ConfigDict(defer_build=True)
    data: bytes


class Hexadecimal(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes


@pytest.mark.parametrize("data", [b"", b"text", b"\xff\xfe", b"hi>?"])
@pytest.mark.parametrize("model", [Inner, Strict, Part, PutOff, Hexadecimal])
def test_bytes_of_models_are_base64_text_and_come_back(model: Any, data: bytes) -> None:
    made = model(data=data)
    text = base64.urlsafe_b64encode(data).decode()
    assert to_plain(made)["data"] == text and revive(model, to_plain(made)) == made
    for within in (
        {"a": [made]},
        (made,),
        Loose.model_validate({"extra": made}),
        Pair(made),
        iter([made]),
        OrderedDict(a=Pair([made])),
    ):
        assert f'"data":"{text}"' in encode(within).decode()


@pytest.mark.parametrize("depth", [1, 50, MAX_DEPTH - 1, MAX_DEPTH])
def test_deep_values_cross(depth: int) -> None:
    assert decode(encode(nested(depth))) == nested(depth)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 254, 255, 256, 900, 20_000])
def test_deeper_values_are_refused_where_they_are_made(depth: int) -> None:
    with pytest.raises(NotSerializable):
        encode(nested(depth))


@given(st.integers(1, 40), st.integers(0, 300))
def test_wide_values_are_not_deep(depth: int, width: int) -> None:
    value = {"rows": [nested(depth)] * width}
    assert decode(encode(value)) == value


JSON = st.recursive(
    st.none() | st.integers() | st.text('a"\\\\[]{},:\u00e9'),
    lambda parts: st.lists(parts) | st.dictionaries(st.text('"\\\\[,'), parts),
)


def _parts_in(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return max(len(value), 1) + sum(map(_parts_in, value.values() if isinstance(value, dict) else value))


@given(JSON, st.booleans())
def test_the_parts_of_json_text_are_counted_without_reading_it(value: Any, ascii: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "MAX_PARTS", 0)
        assert excess_parts(json.dumps(value, ensure_ascii=ascii).encode()) == _parts_in(value)


def test_parts_are_not_hidden_by_another_encoding() -> None:
    text = '{"\u2200":[' + ",".join(["[]"] * 150_000) + "]}"
    assert json.loads(text.encode("utf-16")) == json.loads(text)
    assert excess_parts(text.encode("utf-16")) > MAX_PARTS


@pytest.mark.parametrize("write", [encode, to_plain, lambda value: refuse_non_finite(value, "value")])
def test_a_value_that_refers_to_itself_is_refused(write: Any) -> None:
    with pytest.raises(NotSerializable, match="itself"):
        write(around_itself())


class Counted:
    """A part that counts how often it is written."""

    def __init__(self) -> None:
        self.written = 0

    def __str__(self) -> str:
        self.written += 1
        return "counted"


class Node(BaseModel):
    value: Any = None
    beside: Any = None
    children: list[Any] = []
    parent: Any = Field(default=None, exclude=True)


@pytest.mark.parametrize("write", [to_plain, encode, to_recorded])
@pytest.mark.parametrize("kind", [list, dict, Node, OrderedDict])
def test_what_stands_beside_a_reference_to_itself_is_written_a_few_times(write: Any, kind: type) -> None:
    counted = Counted()
    value: Any = [counted] if kind is list else kind(value=counted)
    inner = [value]
    if kind is list:
        value.append(inner)
    elif kind is Node:
        value.beside = inner
    else:
        value["beside"] = inner
    with pytest.raises(NotSerializable, match="refers to itself") as caught:
        write(value, "it")
    assert len(caught.value.path) < 20
    assert counted.written < 10


@pytest.mark.parametrize("levels", [250, 500, 5000])
@pytest.mark.parametrize("write", [encode, to_plain, encode_plain])
def test_a_value_that_is_nested_too_deeply_has_no_json_form(write: Callable[[Any, str], Any], levels: int) -> None:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    with pytest.raises(NotSerializable, match="nested"):
        write(value, "it")


def _deque() -> Any:
    value: deque[Any] = deque()
    value.append(value)
    return value


def _user_dict() -> Any:
    value: UserDict[str, Any] = UserDict()
    value["a"] = value
    return value


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (_deque(), "it[0]", "refers to itself"),
        ([_user_dict()], "it[0].a", "refers to itself"),
        (Node(value=_deque()), "it.value[0]", "refers to itself"),
        (deque([1, object()]), "it[1]", "a value of type object"),
        (UserDict(a=UserList([float("nan")])), "it.a[0]", "nan has no JSON form"),
        (deque(["\ud800"]), "it[0]", "a text with a lone surrogate"),
    ],
)
def test_the_fault_is_found_inside_of_every_kind_of_list_and_dict(value: Any, path: str, reason: str) -> None:
    with pytest.raises(NotSerializable, match=re.escape(reason)) as caught:
        encode(value, "it")
    assert caught.value.path == path


def test_the_field_is_found_in_one_walk() -> None:
    counted = Counted()
    value: Any = object()
    for _ in range(MAX_DEPTH - 20):
        value = [counted, value]
    with pytest.raises(NotSerializable, match="type object"):
        encode(value)
    assert counted.written < 3 * MAX_DEPTH


def test_a_value_may_stand_in_several_places() -> None:
    shared = {"a": [1, {"b": (2,)}]}
    plain = {"a": [1, {"b": [2]}]}
    assert to_plain([shared, [shared], (shared, shared)]) == [plain, [plain], [plain, plain]]


def test_excluded_fields_of_models_are_not_looked_at() -> None:
    root = Node(children=[Node(), Node()])
    for child in root.children:
        child.parent = root
    written: dict[str, Any] = {"value": None, "beside": None, "children": []}
    assert to_plain(root) == {**written, "children": [written, written]}


def test_a_key_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotSerializable, match="key nan"):
        refuse_non_finite({"a": {NAN: 1}}, "value")


class Kind(str, enum.Enum):
    ONE = "one"


def test_revive_reads_what_to_plain_wrote() -> None:
    class Thing(BaseModel):
        model_config = WIRE

        data: bytes
        when: datetime.datetime
        kind: Kind
        pair: tuple[int, str]

    thing = Thing(data=b"\x00\xff", when=datetime.datetime(2024, 1, 1, 2, 3, 4, 5), kind=Kind.ONE, pair=(10**30, "é"))
    assert revive(Thing, decode(encode(to_plain(thing)))) == thing
