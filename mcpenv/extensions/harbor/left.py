"""Remove containers with their networks and volumes: those of an episode, and those that an ended process has left."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from mcpenv_client.providers import owner

from .box import BoxFailed
from .engine import COMMAND_TIMEOUT_S, command

logger = logging.getLogger("mcpenv.harbor")

OURS = {"mcpenv": "harbor"}
"""The label of all that is made for tasks."""

PROJECT = "mcpenv.project"
"""The label that names the services of an episode."""

_KINDS = ("container", "network", "volume")
"""What an engine keeps, in the order of removal."""


def labels(project: str) -> dict[str, str]:
    """Return the labels of what is made for an episode."""
    return {**OURS, **owner.labels(), PROJECT: project}


async def remove_project(engine: str, project: str) -> None:
    """Remove the containers, networks and volumes of an episode. What is not removed is logged."""
    for kind in _KINDS:
        try:
            await _remove(engine, kind, await _listed(engine, kind, f"{PROJECT}={project}"))
        except BoxFailed as error:
            logger.warning("%ss of %s are not removed: %s", kind, project, error)


async def remove_left(engine: str) -> None:
    """Remove what processes of this machine have left that ended before they could, by ``kill -9`` say."""
    gone: dict[str, bool] = {}
    for kind in _KINDS:
        ours = ",".join(f"{name}={value}" for name, value in OURS.items())
        with suppress(BoxFailed):  # another process removes it at the same time
            found = await _listed(engine, kind, ours)
            inspected = await command(engine, kind, "inspect", *found, timeout_s=COMMAND_TIMEOUT_S) if found else b"[]"
            left = []
            for name, its in zip(found, map(_labels, json.loads(inspected)), strict=True):
                mark = its.get(owner.MARK, "")
                if mark and mark not in gone:
                    gone[mark] = owner.is_gone(its)
                if gone.get(mark):
                    left.append(name)
            await _remove(engine, kind, left)


async def _listed(engine: str, kind: str, label: str) -> list[str]:
    options = ("--all",) if kind == "container" else ()
    words = (engine, kind, "ls", "--quiet", *options, "--filter", f"label={label}")
    return (await command(*words, timeout_s=COMMAND_TIMEOUT_S)).decode().split()


async def _remove(engine: str, kind: str, names: list[str]) -> None:
    if not names:
        return
    if kind == "container":
        with suppress(BoxFailed):  # some do not run; without it, podman waits 10 s for the end of each
            await command(engine, "kill", *names, timeout_s=COMMAND_TIMEOUT_S)
    options = {"container": ("--force", "--volumes"), "network": (), "volume": ("--force",)}[kind]
    await command(engine, kind, "rm", *options, *names, timeout_s=COMMAND_TIMEOUT_S)


def _labels(inspected: dict[str, Any]) -> dict[str, str]:
    config: dict[str, Any] = inspected.get("Config") or inspected
    found: dict[str, str] = config.get("Labels") or config.get("labels") or {}
    return found


def options(project: str) -> Iterator[str]:
    """Yield the options that give a container the labels of an episode."""
    for name, value in labels(project).items():
        yield from ("--label", f"{name}={value}")
