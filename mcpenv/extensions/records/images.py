"""The images of an episode, such as the screenshots of a browser."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv_client.formats.images import images_within

_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "image/svg+xml": "svg"}


@dataclass(frozen=True)
class Image:
    """One image.

    Attributes:
        step: the number of its step; 0 for the observation of the reset.
        number: its number in the step, from 1.
        mime_type: as the tool gave it.
        data: None if the record lacks the data.
        blob: the file of the record with the data, if the data is missing.
    """

    step: int
    number: int
    mime_type: str
    data: bytes | None
    blob: str | None = None

    @property
    def file_name(self) -> str:
        """A name for a file, which sorts in the order of the episode."""
        place = f"step-{self.step:04d}" if self.step else "reset"
        return f"{place}-{self.number}.{_ENDINGS.get(self.mime_type, 'bin')}"


def images_of(episode: RecordedEpisode) -> Iterator[Image]:
    """Yield the images of the reset's observation and of each step, in order."""
    yield from _images(0, episode.trajectory.observation)
    own = episode.extra.get(OBSERVATIONS, {})
    for step in episode.trajectory.steps:
        result = step.outcome.result
        seen = own.get(str(step.call.step)) if result is None else result.content
        yield from _images(step.call.step, seen)


def _images(step: int, value: Any) -> Iterator[Image]:
    for number, block in enumerate(images_within(value), 1):
        yield Image(step, number, str(block.get("mimeType")), _data(block.get("data")), block.get("blob"))


def _data(text: Any) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None
