"""Values that are bound to arguments: checked against the schema of their tool."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mcpenv import InvalidTool
from mcpenv.tools.bound_values import check_bound

SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"Place": {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}}},
    "properties": {"at": {"$ref": "#/$defs/Place"}, "path": {"type": "string", "pattern": "^/"}, "n": {"minimum": 2}},
    "required": ["at", "path", "n"],
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"at": {"rows": [1, "s3cret"]}}, "bound to 'at'['rows'][1] does not fit its schema (type: 'integer')"),
        ({"n": 1}, "bound to 'n' does not fit its schema (minimum: 2)"),
        ({"path": "s3cret"}, "bound to 'path' does not fit its schema (pattern: '^/')"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_without_being_quoted(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTool) as raised:
        check_bound("look", SCHEMA, arguments)
    assert said in str(raised.value) and "s3cret" not in str(raised.value)


def test_values_that_fit_and_texts_with_a_placeholder_are_accepted() -> None:
    check_bound("look", SCHEMA, {"at": {"rows": [1]}, "n": 2, "path": "{workspace}"})


@pytest.mark.parametrize("bad", [{"type": "strng"}, {"$ref": "#/$defs/None"}, {"$ref": "http://127.0.0.1:9/schema"}])
def test_a_schema_that_cannot_be_read_is_named_in_a_warning(
    bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="mcpenv"):
        check_bound("look", {"type": "object", "properties": {"a": bad}}, {"a": 1})
    assert "tool 'look': the values bound to its arguments are not checked" in caplog.text
