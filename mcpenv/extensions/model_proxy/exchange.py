"""The exchange: one request and its answer, recorded while they are forwarded."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from mcpenv.redaction import redact_named, without_known_in
from mcpenv_client.types.model_turns import Api, ModelTurn

from .answers.reading import JSON, text_or_none, version_of
from .apis import EVENT_STREAM, READERS, events_of, is_whole

MAX_TEXT = 10_000
"""Maximum characters of an answer that is not a JSON object, such as an error page."""


@dataclass
class Exchange:
    """A request and its answer.

    Attributes:
        api, path: as in `ModelTurn`.
        request: the body as the endpoint receives it; empty if it cannot be parsed.
        status, content_type: of the answer; ``status`` is None without one.
        version: the answer's header ``X-Policy-Version``; None without one.
        received: the part of the answer's body received so far.
        complete: True once the whole answer has been received.
        error, cut: as in `ModelTurn`.
    """

    api: Api
    path: str
    request: JSON = field(default_factory=dict)
    status: int | None = None
    content_type: str = ""
    version: str | None = None
    received: bytearray = field(default_factory=bytearray)
    complete: bool = False
    error: str | None = None
    cut: Literal["agent", "endpoint"] | None = None
    started_at: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    _first_byte_s: float | None = None

    def answered(self, status: int, content_type: str, version: str | None) -> None:
        """Record the head of the answer."""
        self.version = version
        self.status, self.content_type = status, content_type.partition(";")[0].strip().lower()
        self._first_byte_s = self._elapsed_s()

    def turn(self) -> ModelTurn:
        """Return the turn, without the secrets that this process knows. Its request is complete.

        An agent that closes the connection at the end of the answer, before the endpoint does, has cut nothing.
        """
        duration_s, streamed = self._elapsed_s(), self.content_type == EVENT_STREAM
        reader, request = READERS[self.api], _clean(self.request)
        events = events_of(bytes(self.received)) if streamed else []
        answer = _clean(reader.assembled(events) if streamed else _body(self.received))
        if self.cut == "agent" and (is_whole(self.received, events) if streamed else isinstance(answer, dict)):
            self.cut = None
        turn = ModelTurn(
            self.api,
            self.path,
            request,
            started_at=self.started_at,
            first_byte_s=self._first_byte_s,
            duration_s=duration_s,
            status=self.status,
            streamed=streamed,
            answer=answer,
            error=_clean(self.error),
            cut=self.cut,
            model=text_or_none(request.get("model")) or _model_in(self.path),
            policy_version=version_of(self.version, answer),
        )
        if isinstance(answer, dict):
            reading = reader.read(answer)
            turn.model, turn.error = reading.model or turn.model, turn.error or reading.error
            turn.finish_reason, turn.calls, turn.usage = reading.finish_reason, reading.calls, reading.usage
            turn.prompt_ids, turn.tokens = reading.prompt_ids, reading.tokens
        return turn

    def _elapsed_s(self) -> float:
        return round(time.monotonic() - self._began, 6)


def _model_in(path: str) -> str | None:
    """Return the model that a path of Gemini's API names."""
    return path.rpartition("/models/")[2].partition(":")[0] if ":" in path else None


def _clean(value: Any) -> Any:
    return redact_named(without_known_in(value))


def _body(data: bytearray) -> JSON | str | None:
    if not data:
        return None
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except ValueError:
        return text[:MAX_TEXT]
    return found if isinstance(found, dict) else text[:MAX_TEXT]
