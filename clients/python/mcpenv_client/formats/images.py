"""Images in messages for models: the content of tool results as parts of OpenAI's chat messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Part = dict[str, Any]

_DATA_URL = re.compile(r"data:(?P<type>image/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=]*)")

_PARTS = frozenset({"image", "image_url", "input_image"})


def image_parts(content: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Return the images among blocks of MCP content as ``image_url`` parts, in order. Other blocks are omitted."""
    return [
        {"type": "image_url", "image_url": {"url": f"data:{block['mimeType']};base64,{block['data']}"}}
        for block in content
        if block.get("type") == "image" and "data" in block and "mimeType" in block
    ]


def block_of(part: Any) -> dict[str, Any] | None:
    """Return the image of an ``image_url`` part as a block of MCP content; None if the part has no image's data."""
    image = part.get("image_url") if isinstance(part, Mapping) else None
    url = image.get("url") if isinstance(image, Mapping) else None
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    return None if found is None else {"type": "image", "mimeType": found["type"], "data": found["data"]}


def images_within(value: Any) -> list[dict[str, Any]]:
    """Return the blocks of MCP content that are images anywhere in plain data, such as an observation, in order.

    In a record, a block may have the name of a file as ``blob`` instead of ``data``.
    """
    if isinstance(value, list):
        return [block for item in value for block in images_within(item)]
    if isinstance(value, dict):
        if value.get("type") == "image" and ("data" in value or "blob" in value):
            return [value]
        return [block for item in value.values() for block in images_within(item)]
    return []


def without_data(value: Any) -> Any:
    """Return plain data with a short text in place of each image and audio clip, for a reader of text."""
    if isinstance(value, list):
        return [without_data(item) for item in value]
    if isinstance(value, dict):
        if value.get("type") in ("image", "audio") and ("data" in value or "blob" in value):
            return f"[{value['type']}]"
        return {key: without_data(item) for key, item in value.items()}
    return value


def without_images(value: Any) -> tuple[Any, int]:
    """Return a message, or a part of one, with ``[image]`` in place of each image, and the number of images."""
    if isinstance(value, Mapping):
        if value.get("type") in _PARTS:
            return "[image]", 1
        made = {key: without_images(item) for key, item in value.items()}
        return {key: item for key, (item, _) in made.items()}, sum(count for _, count in made.values())
    if isinstance(value, list | tuple):
        items = [without_images(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    return value, 0
