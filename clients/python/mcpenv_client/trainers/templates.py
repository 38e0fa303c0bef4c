"""Check that a chat template shows a model the whole schema of each tool."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with an object that has names as keys."""

_SHOWN = 5
"""Maximum number of parts that a problem names."""


def left_out(processing_class: Any, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the parts of tools' schemas that the chat template omits, by the tool's name.

    Names of properties, descriptions, enums, defaults and limits must be in the prompt. A template that writes keywords
    differently, such as ``string or null``, passes.

    Args:
        processing_class: the tokenizer or processor.
        tools: the tools as the template takes them.
    """
    problems: dict[str, str] = {}
    for tool in tools:
        messages = [{"role": "user", "content": ""}]
        prompt = processing_class.apply_chat_template(messages, tools=[dict(tool)], tokenize=False)
        function = tool["function"]
        missing = [
            path for path, value in _leaves(function, function["name"]) if not any(f in prompt for f in _forms(value))
        ]
        if missing:
            more = "" if len(missing) <= _SHOWN else f" and {len(missing) - _SHOWN} more"
            problems[function["name"]] = f"the prompt lacks {', '.join(missing[:_SHOWN])}{more}"
    return problems


def _leaves(value: Any, path: str, named: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the names and the values in a schema, each with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if named:
                yield f"{path}.{key}", key
            if key not in ("type", "title", "additionalProperties"):
                yield from _leaves(inner, f"{path}.{key}", key in _NAMED and not named)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{at}]")
    elif value is not None and value != "":
        yield path, value


def _forms(value: Any) -> set[str]:
    """Return the texts that stand for a value: itself, as JSON without quotes, as Python."""
    return {str(value), json.dumps(value, ensure_ascii=False).strip('"'), json.dumps(value).strip('"')}
