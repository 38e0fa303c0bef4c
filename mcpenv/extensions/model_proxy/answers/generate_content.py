"""Answers of Gemini's API, ``generateContent`` and ``streamGenerateContent``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcpenv_client.types.model_turns import TurnTokens, TurnUsage

from .reading import JSON, Reading, call_of, error_of, number_of, objects, text_or_none, whole


def assembled(events: Iterable[JSON]) -> JSON:
    """Return the answer that a stream of partial answers represents, in the format of an answer without streaming."""
    answer: JSON = {}
    candidates: dict[int, JSON] = {}
    for event in events:
        answer |= {name: value for name, value in event.items() if name != "candidates"}
        for part in objects(event.get("candidates")):
            _add(candidates.setdefault(whole(part.get("index")) or 0, {}), part)
    if candidates:
        answer["candidates"] = [candidates[index] for index in sorted(candidates)]
    return answer


def _add(candidate: JSON, part: JSON) -> None:
    before, logprobs = _parts(candidate), candidate.get("logprobsResult")
    content = part.get("content")
    candidate |= part
    if isinstance(content, dict):
        candidate["content"] = {**content, "parts": _joined(before, _parts(part))}
    elif before:
        candidate["content"] = {"parts": before}
    now = part.get("logprobsResult")
    if isinstance(logprobs, dict) and isinstance(now, dict):
        candidate["logprobsResult"] = {
            name: [*objects(logprobs.get(name)), *objects(now.get(name))] for name in {**logprobs, **now}
        }


def _joined(before: list[JSON], parts: list[JSON]) -> list[JSON]:
    """Return the parts of a message with consecutive texts joined, thoughts separate from the others."""
    joined = list(before)
    for part in parts:
        last = joined[-1] if joined else {}
        texts = all(isinstance(each.get("text"), str) for each in (last, part))
        if texts and last.get("thought") == part.get("thought"):
            joined[-1] = {**last, **part, "text": last["text"] + part["text"]}
        else:
            joined.append(part)
    return joined


def read(answer: JSON) -> Reading:
    """Return the content of an answer, and remove from it the tokens that the reading contains."""
    reading = Reading(text_or_none(answer.get("modelVersion")), error=error_of(answer))
    reading.usage = _usage(answer.get("usageMetadata"))
    for candidate in objects(answer.get("candidates")):
        reading.finish_reason = reading.finish_reason or text_or_none(candidate.get("finishReason"))
        for part in _parts(candidate):
            call = part.get("functionCall")
            if isinstance(call, dict):
                reading.calls.append(call_of(call.get("id"), call.get("name"), call.get("args") or {}))
        result = candidate.get("logprobsResult")
        chosen = list(objects(result.pop("chosenCandidates", None))) if isinstance(result, dict) else []
        if chosen:
            ids = [whole(each.get("tokenId")) for each in chosen]
            known = [each for each in ids if each is not None]
            texts = [str(each.get("token", "")) for each in chosen]
            numbers = [number_of(each.get("logProbability")) for each in chosen]
            reading.tokens.append(TurnTokens(known if len(known) == len(ids) else None, numbers, texts))
    return reading


def text(answer: JSON) -> str:
    """Return the text of the first candidate, without thoughts; empty if it has none."""
    for candidate in objects(answer.get("candidates")):
        return "".join(text_or_none(part.get("text")) or "" for part in _parts(candidate) if not part.get("thought"))
    return ""


def _parts(candidate: Mapping[str, Any]) -> list[JSON]:
    content = candidate.get("content")
    return list(objects(content.get("parts"))) if isinstance(content, dict) else []


def _usage(usage: Any) -> TurnUsage | None:
    if not isinstance(usage, Mapping):
        return None
    sampled = [whole(usage.get(name)) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    known = [count for count in sampled if count is not None]
    given, cached = whole(usage.get("promptTokenCount")), whole(usage.get("cachedContentTokenCount"))
    return TurnUsage(given, sum(known) if known else None, cached)
