"""Choose the program that runs the containers of tasks, and report missing requirements before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.sandbox.bubblewrap import find_bubblewrap

from .box import Box
from .bubblewrap import OPTIONS, Template
from .container import ENGINES, Image, find_engine
from .dockerfile import NeedsEngine, read_recipe
from .task import HarborTask

logger = logging.getLogger("mcpenv.harbor")

Choice = Literal["auto", "docker", "podman", "bubblewrap"]
BaseImage = Literal["task", "host"]

_ROOT = (None, "root", "0", 0)


class Boxes(Protocol):
    """The maker of the boxes of one task."""

    async def box(self, networks: Mapping[str, bool]) -> Box:
        """Return a new box."""
        ...


def choose(tasks: Sequence[HarborTask], provider: Choice, base_image: BaseImage) -> dict[str, Boxes]:
    """Return the makers of boxes by task. Blocks until the chosen program has answered.

    Args:
        provider: the program. "auto" is bubblewrap if the host replaces base images, otherwise Docker or Podman.
        base_image: "host" to use the system folders of this machine instead of a task's image.

    Raises:
        ConfigurationError: the program lacks a requirement of a task, or is not installed.
    """
    for task in tasks:
        if task.needs:
            raise ConfigurationError(f"task {task.name!r} needs {' and '.join(task.needs)}, which mcpenv does not have")
    if base_image == "host" and provider not in ("auto", "bubblewrap"):
        raise ConfigurationError(f"base_image=host is for bubblewrap; with provider={provider} leave it out")
    if provider == "bubblewrap" and base_image != "host":
        raise ConfigurationError(
            f"task {tasks[0].name!r} needs a container engine for its image {_image_of(tasks[0])!r}; to let the system "
            "folders of this machine stand in for it, add --set base_image=host"
        )
    if base_image == "host":
        bwrap = find_bubblewrap(*OPTIONS, "--unshare-net")
        return {task.name: _template(bwrap, task) for task in tasks}
    engine = _engine(tasks, ENGINES if provider == "auto" else (provider,))
    return {task.name: _image(engine, task) for task in tasks}


def networks(task: HarborTask) -> dict[str, bool]:
    """Return True for each phase of a task that has a network."""
    return {phase: task.network(phase) == "public" for phase in ("agent", "verifier")}


def _engine(tasks: Sequence[HarborTask], engines: Sequence[str]) -> str:
    reasons = []
    for engine in engines:
        reason = find_engine(engine)
        if reason is None:
            return engine
        reasons.append(reason)
    raise ConfigurationError(
        f"task {tasks[0].name!r} needs a container engine ({'; '.join(reasons)}); to let the system folders of this "
        "machine stand in for its image, add --set base_image=host"
    )


def _image(engine: str, task: HarborTask) -> Image:
    if task.config.environment.docker_image is None and not (task.environment / "Dockerfile").is_file():
        raise ConfigurationError(f"task {task.name!r} has neither environment/Dockerfile nor docker_image")
    if task.network("agent") != task.network("verifier"):
        raise ConfigurationError(
            f"task {task.name!r} needs different networks for agent and tests, which {engine} cannot switch"
        )
    if task.config.environment.storage_mb is not None or task.config.environment.storage is not None:
        logger.warning("task %r: the limit of storage has no effect with %s", task.name, engine)
    return Image(engine, task)


def _template(bwrap: str, task: HarborTask) -> Template:
    environment = task.config.environment
    place = f"task {task.name!r} needs a container engine for"
    if not (task.environment / "Dockerfile").is_file():
        raise ConfigurationError(f"{place} its image {environment.docker_image!r}: it has no environment/Dockerfile")
    for name, user in (("agent", task.config.agent.user), ("verifier", task.config.verifier.user)):
        if user not in _ROOT:
            raise ConfigurationError(f"{place} [{name}] user = {user!r}: with base_image=host only root is there")
    try:
        recipe = read_recipe(task.environment)
    except NeedsEngine as error:
        raise ConfigurationError(f"{place} {error}") from error
    limits = ("cpus", "memory_mb", "memory", "storage_mb", "storage")
    ignored = [name for name in limits if getattr(environment, name) is not None]
    if ignored:
        logger.warning("task %r: %s have no effect without a container engine", task.name, ", ".join(ignored))
    return Template(
        bwrap, recipe, task.environment, task.env, environment.workdir, timeout_s=environment.build_timeout_sec
    )


def _image_of(task: HarborTask) -> str:
    image = task.config.environment.docker_image
    if image is not None:
        return image
    try:
        return read_recipe(task.environment).image
    except (NeedsEngine, OSError):
        return "environment/Dockerfile"
