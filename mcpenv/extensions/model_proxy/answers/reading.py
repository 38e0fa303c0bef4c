"""Reading: the content of an answer in an API-independent form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.types.model_turns import TurnCall, TurnTokens, TurnUsage

JSON = dict[str, Any]

TOKEN_ID = "token_id:"
"""The prefix of a token's text if vLLM was asked for ids in place of texts."""

ADDED = ("prompt_token_ids", "token_ids", "token_logprobs")
"""The names under which a server adds tokens to an API without them."""


@dataclass
class Reading:
    """The content of an answer. The fields are defined in `ModelTurn`."""

    model: str | None = None
    finish_reason: str | None = None
    error: str | None = None
    calls: list[TurnCall] = field(default_factory=list)
    usage: TurnUsage | None = None
    prompt_ids: list[int] | None = None
    tokens: list[TurnTokens] = field(default_factory=list)


def call_of(identity: Any, name: Any, arguments: Any) -> TurnCall:
    """Return a call. Arguments are an object, or the JSON text of one."""
    found = arguments
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            found = arguments
    if not isinstance(found, dict):
        found = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return TurnCall(text_or_none(identity), text_or_none(name) or "", found)


def usage_of(usage: Any, given: str, sampled: str, details: str) -> TurnUsage | None:
    """Return the usage.

    Args:
        usage: the answer's ``usage``.
        given, sampled: the names of the two counts.
        details: the name of the object with ``cached_tokens``.
    """
    if not isinstance(usage, Mapping):
        return None
    more = usage.get(details)
    cached = more.get("cached_tokens") if isinstance(more, Mapping) else None
    return TurnUsage(
        whole(usage.get(given)),
        whole(usage.get(sampled)),
        whole(cached),
        number_of(usage.get("cost")),
    )


def tokens_of(ids: Any, entries: Any) -> TurnTokens | None:
    """Return the tokens of an answer; None if the endpoint gave none.

    Args:
        ids: the token ids of vLLM; None from others.
        entries: the list of OpenAI's log-probabilities: ``token``, ``logprob``, ... Some servers add ``id``.
    """
    listed = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    known = ids_of(ids)
    if known is None and listed:
        named = [_id_of(entry) for entry in listed]
        known = named if None not in named else None  # type: ignore[assignment]
    if known is None and not listed:
        return None
    if not listed:
        return TurnTokens(known)
    numbers = [number_of(entry.get("logprob")) for entry in listed]
    return TurnTokens(known, numbers, [str(entry.get("token", "")) for entry in listed])


def added_tokens(holder: JSON) -> tuple[list[int] | None, TurnTokens | None]:
    """Return the tokens of a prompt and of its answer that a server adds to an API without them, and remove them.

    ``prompt_token_ids``, ``token_ids`` and ``token_logprobs``, or NeMo Gym's names of the last two.

    Args:
        holder: an answer, or an item of it.
    """
    prompt = ids_of(holder.pop("prompt_token_ids", None))
    for ids, logprobs in (("token_ids", "token_logprobs"), ("generation_token_ids", "generation_log_probs")):
        found, given = ids_of(holder.pop(ids, None)), holder.pop(logprobs, None)
        if found is not None:
            known = isinstance(given, list) and len(given) == len(found)
            return prompt, TurnTokens(found, [number_of(each) for each in given] if known else None)
    return prompt, None


def ids_of(value: Any) -> list[int] | None:
    """Return a list of token ids; None if the value is not such a list."""
    return value if isinstance(value, list) and value and all(type(each) is int for each in value) else None


def without_tokens(entries: Any) -> list[JSON] | None:
    """Return the log-probabilities of tokens that were not sampled; None if there are none.

    The log-probabilities of sampled tokens are stored as `TurnTokens`.
    """
    listed = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    if not any(entry.get("top_logprobs") for entry in listed):
        return None
    return [{"top_logprobs": entry.get("top_logprobs")} for entry in listed]


def error_of(answer: Mapping[str, Any]) -> str | None:
    """Return the message of an error; None if the answer is not an error."""
    error = answer.get("error")
    if isinstance(error, Mapping):
        kind, message = text_or_none(error.get("type")), text_or_none(error.get("message"))
        return ": ".join(part for part in (kind, message) if part) or "an error without a message"
    return text_or_none(error)


def version_of(header: str | None, answer: Any) -> int | None:
    """Return the version of the weights that sampled an answer; None if it is not said, or is no whole number.

    Args:
        header: the value of ``X-Policy-Version``; None without one.
        answer: the answer, in which SGLang has ``metadata.weight_version``.
    """
    metadata = answer.get("metadata") if isinstance(answer, Mapping) else None
    said = header or (metadata.get("weight_version") if isinstance(metadata, Mapping) else None)
    return int(said) if isinstance(said, str) and re.fullmatch("[0-9]{1,18}", said) else None


def objects(values: Any) -> Iterable[JSON]:
    """Return the objects of a list; nothing if the value is not a list."""
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def whole(value: Any) -> int | None:
    """Return a count; None if the value is not a count."""
    return value if type(value) is int else None


def text_or_none(value: Any) -> str | None:
    """Return a text; None if the value is not a text, or is empty."""
    return value if isinstance(value, str) and value else None


def _id_of(entry: Mapping[str, Any]) -> int | None:
    named, text = whole(entry.get("id")), entry.get("token")
    if named is None and isinstance(text, str) and text.startswith(TOKEN_ID):
        digits = text.removeprefix(TOKEN_ID)
        return int(digits) if digits.isascii() and digits.isdigit() else None
    return named


def number_of(value: Any) -> float | None:
    """Return a finite number; None if the value is not one."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
