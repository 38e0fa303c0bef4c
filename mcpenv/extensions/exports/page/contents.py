"""The contents of a page: texts as text, images and sounds by their declared type, never HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv_client.formats.images import block_of, images_within, without_data

from .markup import Child, el, pre

MAX_TEXT = 200_000
"""Maximum characters of one text."""

MAX_FILE = 4_000_000
"""Maximum characters of base64 text of one image or sound."""

MAX_FILES = 64_000_000
"""Maximum characters of base64 text of all images and sounds of a page."""

_LINE = 60
_OPEN, _FOLDED, _DEPTH = 2_000, 50_000, 40
"""Maximum characters of an inner value that is open at first, of a value that folds, and levels that fold."""
_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*"(?:: )?|-?\b\d[\d.eE+-]*|\b(?:true|false|null)\b)')
_MEDIA = re.compile(
    r"image/(png|jpeg|gif|webp|avif|bmp|svg\+xml)|audio/(mpeg|mp[34]|(x-)?wave?|ogg|webm|aac|flac)", re.IGNORECASE
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class Contents:
    """The contents of one page, with a limit for images."""

    def __init__(self) -> None:
        self._room = MAX_FILES

    def block(self, block: Any) -> Element:
        """Return a block of MCP content."""
        if not isinstance(block, Mapping):
            return json_of(block)
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            return text_of(block["text"])
        if kind in ("image", "audio"):
            return self._media(block, block.get("data"), block.get("blob"))
        resource = block.get("resource")
        if kind == "resource" and isinstance(resource, Mapping):
            return self._resource(resource)
        return json_of(block)

    def part(self, part: Any) -> Element:
        """Return a part of a message of a chat."""
        image = block_of(part)
        return self.block(part if image is None else image)

    def value(self, value: Any) -> list[Element]:
        """Return plain data, such as an observation, as JSON, and after it the images in it."""
        return [json_of(without_data(value)), *map(self.block, images_within(value))]

    def _resource(self, resource: Mapping[str, Any]) -> Element:
        name = el("p", "Resource ", el("code", str(resource.get("uri", ""))))
        if isinstance(resource.get("text"), str):
            return el("div", name, text_of(resource["text"]))
        if _MEDIA.fullmatch(str(resource.get("mimeType"))):
            return el("div", name, self._media(resource, resource.get("blob"), None))
        size = f"{resource.get('mimeType') or 'bytes'}, {len(str(resource.get('blob', '')))} base64 characters"
        return el("div", name, el("p", size, class_="muted"))

    def _media(self, block: Mapping[str, Any], data: Any, file: Any) -> Element:
        kind = str(block.get("mimeType")).lower()
        noun = "sound" if kind.startswith("audio/") else "image"
        if data is None and file is not None:
            return _left_out(f"The {noun} is not in the record: the file blobs/{file} is missing.")
        if not isinstance(data, str) or not _MEDIA.fullmatch(kind) or not _BASE64.fullmatch(data):
            return json_of(block)
        if len(data) > min(MAX_FILE, self._room):
            bound = "a file of the page" if len(data) > MAX_FILE else "what is left of the page's room"
            return _left_out(f"The {noun} ({kind}, {len(data):,} base64 characters) is larger than {bound}.")
        self._room -= len(data)
        source = f"data:{kind};base64,{data}"
        if noun == "sound":
            return el("audio", src=source, controls="", aria_label=f"Sound ({kind}) returned by the environment")
        return el("img", src=source, alt=f"Image ({kind}) returned by the environment", loading="lazy")


def text_of(text: str) -> Element:
    """Return a text; JSON is indented."""
    if not text:
        return el("p", "An empty text.", class_="muted")
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json_of(json.loads(text))
        except (ValueError, RecursionError):
            return _bounded(text, "text")  # it only begins like JSON
    return _bounded(text, "text")


def json_of(value: Any) -> Element:
    """Return a value as JSON in colours; the objects and arrays of a long one fold."""
    short = line_of(value)
    if len(short) > _FOLDED:
        return _bounded(json.dumps(value, indent=2, ensure_ascii=False), "JSON")
    return el("div", _folding(value), class_="json", tabindex="0", role="region", aria_label="JSON")


def _folding(value: Any, label: str = "", end: str = "", depth: int = 0) -> Element:
    text = line_of(value)
    if len(text) <= _LINE or not isinstance(value, Mapping | list) or depth == _DEPTH:
        return el("div", *_painted(label + text + end))
    if isinstance(value, Mapping):
        begin, close = "{", "}"
        entries = [(f"{line_of(name)}: ", each) for name, each in value.items()]
    else:
        begin, close = "[", "]"
        entries = [("", each) for each in value]
    inside = (_folding(each, name, "," * (at < len(entries)), depth + 1) for at, (name, each) in enumerate(entries, 1))
    return el(
        "details",
        el("summary", *_painted(label + begin), el("span", f" {len(entries)} {close}", class_="muted")),
        *inside,
        el("div", close + end),
        open="" if depth == 0 or len(text) <= _OPEN else None,
    )


def _painted(text: str) -> list[Child]:
    pieces = enumerate(_TOKENS.split(text))
    return [el("span", piece, class_=_kind(piece)) if at % 2 else piece for at, piece in pieces]


def _kind(token: str) -> str:
    return "key" if token.endswith(": ") else "string" if token.startswith('"') else "literal"


def line_of(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str, label: str) -> Element:
    if len(text) <= MAX_TEXT:
        return pre(text, label)
    note = f"{len(text) - MAX_TEXT:,} more characters are left out; mcpenv trajectories show prints them."
    return el("div", pre(text[:MAX_TEXT], label), _left_out(note))


def _left_out(text: str) -> Element:
    return el("p", text, class_="warn")
