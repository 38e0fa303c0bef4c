"""Resolve the target ``harbor:PATH``."""

from __future__ import annotations

from pathlib import Path

from .environment import HarborEnvironment
from .provider import BaseImage, Choice


def load(path: Path, /, *, provider: Choice = "auto", base_image: BaseImage = "task") -> type[HarborEnvironment]:
    """Return the class of the environment of a task directory, or of a folder of them.

    Args:
        path: the folder.
        provider: the program that runs containers.
        base_image: "host" to use the system folders of this machine instead of the images of tasks.

    Raises:
        ConfigurationError: a task cannot be read, or this machine lacks a requirement of it.
    """
    return HarborEnvironment.from_folder(path, provider=provider, base_image=base_image)
