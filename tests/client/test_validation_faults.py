"""The faults of a value, as plain data and as text."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, TypeAdapter, ValidationError

from mcpenv_client.wire.faults import MAX_COUNTED, MAX_FAULTS, describe_faults, faults


def _refuse(value: str) -> str:
    raise ValueError(value)


def _assert(value: str) -> str:
    assert value == "right", value
    return value


def _error(kind: Any, value: Any) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    return raised.value


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("no such room", "input: no such room"),
        ("Value error, twice", "input: Value error, twice"),
        ("two\n  lines", "input: two lines"),
        ("a bell\x07", r"input: a bell\x07"),
        ("", "input: Invalid value"),
    ],
)
def test_a_validator_s_words_are_told_on_one_line_without_pydantic_s(said: str, text: str) -> None:
    assert describe_faults(_error(Annotated[str, AfterValidator(_refuse)], said)) == text


def test_the_words_of_an_assertion_are_told_without_pydantic_s() -> None:
    (fault,) = faults(_error(Annotated[str, AfterValidator(_assert)], "wrong"))
    assert not fault["msg"].startswith("Assertion failed") and fault["msg"].startswith("wrong")


@pytest.mark.parametrize(
    ("count", "named", "end"),
    [
        (MAX_FAULTS, MAX_FAULTS, "19: Input should be a valid integer"),
        (MAX_FAULTS + 3, MAX_FAULTS, "; 3 more problems"),
        (MAX_COUNTED + 1, 1, f"input: {MAX_COUNTED + 1} problems"),
    ],
)
def test_many_faults_are_counted(count: int, named: int, end: str) -> None:
    error = _error(list[int], [None] * count)
    assert len(faults(error)) == named
    assert describe_faults(error).endswith(end)
