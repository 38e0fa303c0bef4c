"""Faults of a value, as plain data and as text: pydantic's errors, bounded and without values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

MAX_FAULTS = 20
"""Maximum number of faults that are named. A request of a few megabytes may have a million of them."""

MAX_COUNTED = 10_000
"""Number of faults above which none is named. Pydantic makes either all of them or none."""

MAX_FAULT_NAME, MAX_FAULT_TEXT = 100, 500

_PREFIXES = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""The words that pydantic sets before the text of an exception of a validator, by the type of the error."""


def faults(error: ValidationError) -> list[dict[str, Any]]:
    """Return the first of pydantic's errors as plain data: ``loc``, ``msg``, ``type``, but no input values and URLs.

    There is at least one. If there are more than `MAX_COUNTED` errors, it has only their number.
    """
    if (count := error.error_count()) > MAX_COUNTED:
        return [{"loc": [], "msg": f"{count} problems", "type": "too_many_errors"}]
    return plain_faults(error.errors(include_url=False, include_context=False, include_input=False))


def plain_faults(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first of the errors that ``ValidationError.errors()`` returned, as `faults` does."""
    return [
        {
            "loc": [part[:MAX_FAULT_NAME] if isinstance(part, str) else part for part in fault["loc"]],
            "msg": fault["msg"].removeprefix(_PREFIXES.get(fault["type"], ""))[:MAX_FAULT_TEXT] or "Invalid value",
            "type": fault["type"],
        }
        for fault in found[:MAX_FAULTS]
    ]


def describe_faults(error: ValidationError) -> str:
    """Return the first of pydantic's errors as one line of text, with the number of the others."""
    named = faults(error)
    texts = [describe_fault(each) for each in named]
    if named[0]["type"] != "too_many_errors" and (more := error.error_count() - len(named)) > 0:
        texts.append(f"{more} more problems")
    return "; ".join(texts)


def describe_fault(fault: Mapping[str, Any], where: str = "input") -> str:
    """Return one of the `faults` as one line of text.

    Args:
        where: the name of the whole value, for a fault that no part of it has; empty to say only what is wrong.
    """
    place = place_of(fault["loc"]) or where
    said = " ".join(str(fault["msg"]).split())
    said = said if said.isprintable() else repr(said)[1:-1]
    return f"{place}: {said}" if place else said


def place_of(loc: Sequence[str | int]) -> str:
    """Return the place of a fault as one line of text, such as ``shape.points.0.x``; empty for the whole value.

    A name that is empty, or that would not be printed as it is, stands in quotes with escapes.
    """
    return ".".join(str(part) if str(part) and str(part).isprintable() else repr(part) for part in loc)
