"""The error tree: one class per wire code, drawn in its module; every class crosses the wire and process borders."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest
from hypothesis import strategies as st
from strategies import given, json_values, objects, texts

import mcpenv_client
from mcpenv_client import (
    CapacityReached,
    ConnectionFailed,
    ErrorCode,
    ExecutionError,
    FactoryError,
    InvalidMessage,
    ListingFailed,
    McpenvError,
    NotSerializable,
    ToolCallFailed,
    WireError,
    errors,
)
from mcpenv_client.errors import from_wire
from mcpenv_client.wire.protocol import decode_reply, encode_reply

WIRE_ERRORS = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, WireError)]
WIRE_ERRORS.remove(WireError)
OTHERS = [ConnectionFailed, NotSerializable, ListingFailed, ToolCallFailed]


def test_every_code_has_one_class() -> None:
    assert sorted(cls.code.value for cls in WIRE_ERRORS) == sorted(code.value for code in ErrorCode)
    for code in ErrorCode:
        assert type(from_wire({"code": code.value, "message": "m"})).code is code


def test_the_drawn_tree_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn: dict[int, str] = {-1: "Exception"}
    parents: dict[str, str] = {}
    codes: dict[str, str] = {}
    for line in errors.__doc__.splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)( +([A-Z_]{4,}))?", line)
        if found and inspect.isclass(getattr(errors, found[2], None)):
            depth = len(found[1]) // 4
            parents[found[2]], drawn[depth] = drawn[depth - 1], found[2]
            codes[found[2]] = found[4] or ""
    classes = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, McpenvError)]
    assert parents == {cls.__name__: cls.__bases__[0].__name__ for cls in classes}
    assert {cls.__name__: cls.code.value for cls in WIRE_ERRORS} == {name: code for name, code in codes.items() if code}


def test_every_error_is_exported() -> None:
    assert {cls.__name__ for cls in [*WIRE_ERRORS, *OTHERS, WireError, McpenvError]} <= set(mcpenv_client.__all__)


@pytest.mark.parametrize("cls", WIRE_ERRORS)
def test_an_error_crosses_the_wire(cls: type[WireError]) -> None:
    @given(texts, st.dictionaries(texts.filter(lambda name: name not in ("message", "code")), json_values, max_size=3))
    def crosses(message: str, data: dict[str, Any]) -> None:
        error = cls(message, **data)
        read = from_wire(decode_reply(encode_reply("error", error.to_wire())).data)
        assert type(read) is cls
        assert (read.message, read.data, str(read)) == (message, error.data, message)

    crosses()


@given(objects | st.fixed_dictionaries({"message": json_values, "code": json_values}))
def test_any_error_frame_is_an_error(data: dict[str, Any]) -> None:
    error = from_wire(data)
    assert isinstance(error, WireError)
    for name in ("errors", "incident", "retry_after_s"):
        getattr(error, name, None)


def test_data_of_other_types_than_expected_is_harmless() -> None:
    assert InvalidMessage("m", errors="none").errors == []
    assert CapacityReached("m", retry_after_s="soon").retry_after_s is None


def test_a_code_of_a_later_version_is_named() -> None:
    error = from_wire({"code": "FULL_MOON", "message": "wait", "until": "dawn", "self": 1})
    assert type(error) is WireError
    assert "FULL_MOON" in str(error)
    assert error.data == {"until": "dawn", "self": 1}


def test_further_fields_are_attributes() -> None:
    assert CapacityReached("m", retry_after_s=2, max_sessions=1).retry_after_s == 2
    assert ExecutionError("m", incident="1a").incident == FactoryError("m", incident="1a").incident == "1a"
    assert InvalidMessage("m", errors=[{"loc": ["a"]}]).errors == [{"loc": ["a"]}]
    assert CapacityReached("m", retry_after_s=None).to_wire() == {"message": "m", "code": "CAPACITY_REACHED"}


@pytest.mark.parametrize("cls", [*WIRE_ERRORS, WireError])
def test_a_wire_error_crosses_processes(cls: type[WireError]) -> None:
    error = cls("m", incident="1a", errors=[1])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.data, str(again)) == (cls, "m", error.data, "m")


@pytest.mark.parametrize("cls", OTHERS)
def test_other_errors_cross_processes(cls: type[McpenvError]) -> None:
    error = cls("first", "second")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (cls, str(error), error.__dict__)
    assert "first" in str(error)
    assert "second" in str(error)
