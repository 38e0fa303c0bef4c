"""The APIs of models: the API of a request, and the functions that read its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx2

from mcpenv_client.types.model_turns import Api

from .answers import chat_completions, generate_content, messages, responses
from .answers.reading import JSON, Reading, objects

EVENT_STREAM = "text/event-stream"

_LAST = ("response.completed", "response.incomplete", "response.failed", "message_stop")


@dataclass(frozen=True)
class Reader:
    """The functions that read an API's answers.

    Attributes:
        assembled: assembles the events of a stream to an answer.
        read: returns the content of an answer, and removes its tokens from it.
        text: returns the text in an answer.
    """

    assembled: Callable[[Iterable[JSON]], JSON]
    read: Callable[[JSON], Reading]
    text: Callable[[JSON], str]


READERS: dict[Api, Reader] = {
    "chat_completions": Reader(chat_completions.assembled, chat_completions.read, chat_completions.text),
    "responses": Reader(responses.assembled, responses.read, responses.text),
    "messages": Reader(messages.assembled, messages.read, messages.text),
    "generate_content": Reader(generate_content.assembled, generate_content.read, generate_content.text),
}

_ENDS: dict[str, Api] = {
    "/chat/completions": "chat_completions",
    "/responses": "responses",
    "/messages": "messages",
    ":generateContent": "generate_content",
    ":streamGenerateContent": "generate_content",
}


def api_of(method: str, path: str) -> Api | None:
    """Return the API of a request; None if it does not ask a model for an answer, such as a count of tokens."""
    if method != "POST":
        return None
    return next((api for end, api in _ENDS.items() if f"/{path.rstrip('/')}".endswith(end)), None)


_NAME = r"(?!\.{1,2}(?:/|$))[\w.@:+~-]+"
_MODEL = rf"(?:projects/{_NAME}/locations/{_NAME}/)?(?:publishers/{_NAME}/)?models"
_POSTED = (
    r"chat/completions|completions|embeddings|responses(?:/input_tokens|/compact)?|messages(?:/count_tokens)?",
    rf"{_MODEL}/{_NAME}:(?:generateContent|streamGenerateContent|countTokens|embedContent|batchEmbedContents)",
)
_CALLS = re.compile(rf"(?:v\d\w*/)?(?:{'|'.join(_POSTED)})/?", re.ASCII)
_LISTS = re.compile(rf"(?:v\d\w*/)?{_MODEL}(?:/{_NAME})*/?", re.ASCII)


def is_allowed(method: str, path: str) -> bool:
    """Return True for a call of a model, or a list of models. Other paths and methods may be of use to operators only.

    Args:
        path: the path below the episode's base URL, without percent-encoding. It cannot leave the endpoint's base URL.
    """
    allowed = {"POST": _CALLS, "GET": _LISTS, "HEAD": _LISTS}.get(method)
    return allowed is not None and allowed.fullmatch(path) is not None


def events_of(stream: bytes) -> list[JSON]:
    """Return the data of a stream's events that are JSON objects. A truncated event is omitted."""
    # A separate response, because the forwarded one is read as it arrives.
    response = httpx2.Response(200, headers={"content-type": EVENT_STREAM}, content=stream)
    response.request = httpx2.Request("POST", "http://localhost")  # the reader names it in its errors
    found = []
    for event in httpx2.EventSource(response, max_event_size=None):
        try:
            data = json.loads(event.data)
        except ValueError:
            continue  # "[DONE]"
        if isinstance(data, dict):
            found.append(data)
    return found


def is_whole(stream: bytes | bytearray, events: list[JSON]) -> bool:
    """Return True if a stream has the event that ends an answer, at which agents such as Codex hang up.

    Args:
        events: those of the stream, as of `events_of`.
    """
    last = events[-1] if events else {}
    finished = last.get("type") in _LAST or any("finishReason" in each for each in objects(last.get("candidates")))
    return finished or stream.rstrip().endswith(b"data: [DONE]")
