"""The blobs of a record: images, audio and long outputs, each stored once in a file that is named by its hash.

A block of content with an image has ``blob``, the name of its file, instead of ``data``. An image in a message of a
chat has ``blob`` and ``mimeType`` instead of a data URL. The reader puts the data back.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mcpenv.tools.outputs import Output
from mcpenv_client.formats.images import block_of, image_parts
from mcpenv_client.types.records import StepRecord, ToolOutcome

from .episode import OBSERVATIONS, RecordedEpisode
from .segments import MAX_MEMBER_BYTES

FOLDER = "blobs"

MIN_CHARACTERS = 1000
"""Characters of base64 text below which data stays in the line of its episode."""

_KINDS = frozenset({"image", "audio"})
_ENDINGS = {"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp", "image/gif": ".gif", "audio/wav": ".wav"}
_OTHER = ".bin"
_NAME = re.compile(r"[0-9a-f]{64}\.[a-z]{3}")

_GZIP = 31
"""zlib's ``wbits`` for gzip."""

Change = Callable[[dict[str, Any]], dict[str, Any]]


class Blobs:
    """The blobs in the folder of a record. Several processes may write to it."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self.folder = record / FOLDER

    def stored(self, episode: RecordedEpisode) -> RecordedEpisode:
        """Write the images and audio of an episode, and return the episode with their names instead.

        Raises:
            OSError: one was not written.
        """
        return _changed(episode, self._take)

    def restored(self, episode: RecordedEpisode) -> RecordedEpisode:
        """Return the episode with the data of its images and audio.

        A block stays as it is if its file is missing or cannot be read, or is a link out of the folder.
        """
        return _changed(episode, self._put_back) if self.folder.is_dir() else episode

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing, outside of the record, or larger than any blob."""
        try:
            # A record from elsewhere may have links, also to themselves, and pipes.
            path = (self.folder / name).resolve(strict=True)
            is_inside = path.is_relative_to(self._record.resolve()) and path.is_file()
            return path.read_bytes() if is_inside and path.stat().st_size <= MAX_MEMBER_BYTES else None
        except (OSError, RuntimeError):  # `resolve` raises a RuntimeError for a loop before Python 3.13
            return None

    def keep_outputs(self, outputs: Iterable[Output]) -> None:
        """Write the whole text of long outputs, compressed.

        Raises:
            OSError: one was not written.
        """
        for output in outputs:
            data = output.text.encode()
            name = f"{hashlib.sha256(data).hexdigest()}.txt.gz"
            if not (self.folder / name).exists():
                packer = zlib.compressobj(1, wbits=_GZIP)
                self._write(name, packer.compress(data) + packer.flush())

    def _take(self, block: dict[str, Any]) -> dict[str, Any]:
        text = block.get("data")
        if not isinstance(text, str) or len(text) < MIN_CHARACTERS:
            return block
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return block
        if base64.b64encode(data).decode() != text:
            return block  # the data would not be restored exactly
        name = hashlib.sha256(data).hexdigest() + _ENDINGS.get(str(block.get("mimeType")), _OTHER)
        self._write(name, data)
        return {**{key: value for key, value in block.items() if key != "data"}, "blob": name}

    def _put_back(self, block: dict[str, Any]) -> dict[str, Any]:
        name = block.get("blob")
        if not isinstance(name, str) or "data" in block or not _NAME.fullmatch(name):
            return block
        data = self.read(name)
        if data is None:
            return block
        rest = {key: value for key, value in block.items() if key != "blob"}
        return {**rest, "data": base64.b64encode(data).decode()}

    def _write(self, name: str, data: bytes) -> None:
        file = self.folder / name
        if file.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, data)


def write_whole(file: Path, data: bytes) -> None:
    """Write a file that is whole or absent, also if another process writes the same file.

    Raises:
        OSError: it was not written.
    """
    written = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    try:
        written.write_bytes(data)
        os.replace(written, file)
    except OSError:
        with contextlib.suppress(OSError):
            written.unlink()
        raise


def _changed(episode: RecordedEpisode, change: Change) -> RecordedEpisode:
    trajectory = episode.trajectory
    steps = [_step(step, change) for step in trajectory.steps]
    observation = _anywhere(trajectory.observation, change)
    extra = episode.extra
    if OBSERVATIONS in extra:
        extra = {**extra, OBSERVATIONS: _anywhere(extra[OBSERVATIONS], change)}
    messages = None if episode.messages is None else [_message(message, change) for message in episode.messages]
    same_chat = episode.messages is None or all(map(_is, messages or (), episode.messages))
    same = observation is trajectory.observation and all(map(_is, steps, trajectory.steps))
    if same and same_chat and extra is episode.extra:
        return episode
    return dataclasses.replace(
        episode,
        trajectory=dataclasses.replace(trajectory, steps=steps, observation=observation),
        messages=messages,
        extra=extra,
    )


def _message(message: dict[str, Any], change: Change) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    changed = [_part(part, change) for part in parts]
    return message if all(map(_is, changed, parts)) else {**message, "content": changed}


def _part(part: Any, change: Change) -> Any:
    """Return a part of a chat message, its image changed as a block of content would be."""
    image = part.get("image_url") if isinstance(part, dict) else None
    if not isinstance(image, dict):
        return part
    block = block_of(part)
    if block is None and "blob" in image and "mimeType" in image:
        block = {"type": "image", "mimeType": image["mimeType"], "blob": image["blob"]}
    if block is None:
        return part
    made = change(block)
    if made is block:
        return part
    (whole,) = image_parts([made]) or [{"image_url": {"blob": made.get("blob"), "mimeType": made["mimeType"]}}]
    rest = {key: value for key, value in image.items() if key not in ("url", "blob", "mimeType")}
    return {**part, "image_url": {**whole["image_url"], **rest}}


def _is(one: object, other: object) -> bool:
    return one is other


def _step(step: StepRecord, change: Change) -> StepRecord:
    outcome = step.outcome
    if outcome.value is not None and type(outcome.value) in (str, int, bool):
        return step  # text only; its result would have to be built
    result = outcome.result
    if result is None or not any(block.get("type") in _KINDS for block in result.content):
        return step
    content = [change(block) if block.get("type") in _KINDS else block for block in result.content]
    if all(map(_is, content, result.content)):
        return step
    changed = result.model_copy(update={"content": content})
    return dataclasses.replace(step, outcome=ToolOutcome(changed, None, outcome.value, outcome.duration_s))


def _anywhere(value: Any, change: Change) -> Any:
    """Return plain data with its blocks of images and audio changed; the same object if it has none."""
    if isinstance(value, list):
        items = [_anywhere(item, change) for item in value]
        return value if all(map(_is, items, value)) else items
    if isinstance(value, dict):
        if value.get("type") in _KINDS and isinstance(value.get("mimeType"), str):
            return change(value)
        made = {key: _anywhere(item, change) for key, item in value.items()}
        return value if all(made[key] is value[key] for key in value) else made
    return value
