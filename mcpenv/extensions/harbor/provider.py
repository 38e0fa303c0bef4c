"""Choose the program that runs the containers of tasks, and report missing requirements before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.sandbox.bubblewrap import find_bubblewrap
from mcpenv.extensions.sandbox.engine import why_not
from mcpenv.extensions.sandbox.slirp import find_slirp

from .box import Box
from .bubblewrap import OPTIONS, Template
from .compose import ComposeImage, find_compose
from .config import Network
from .container import ENGINES, Image
from .dockerfile import NeedsEngine, read_recipe
from .task import HarborTask, usable

logger = logging.getLogger("mcpenv.harbor")

Choice = Literal["auto", "docker", "podman", "bubblewrap"]
BaseImage = Literal["task", "host"]
NetworkOf = Literal["task", "none"]

_ROOT = (None, "root", "0")


class Boxes(Protocol):
    """The maker of the boxes of one task."""

    async def prepare(self) -> None:
        """Build the image, once."""
        ...

    async def box(self, networks: Mapping[str, bool]) -> Box:
        """Return a new box."""
        ...


@dataclass(frozen=True)
class BoxesOf:
    """The makers of the boxes of one task.

    Attributes:
        agent: the maker of the agent's.
        judges: the makers of those of separate verifiers, by the number of the step.
    """

    agent: Boxes
    judges: Mapping[int, Boxes]


def choose(
    tasks: Sequence[HarborTask],
    provider: Choice,
    base_image: BaseImage,
    fresh: bool = True,
    network: NetworkOf = "task",
) -> dict[str, BoxesOf]:
    """Return the makers of boxes by task. Blocks until the chosen program has answered.

    Args:
        provider: the program. "auto" is bubblewrap if the host replaces base images, otherwise Docker or Podman.
        base_image: "host" to use the system folders of this machine instead of a task's image.
        fresh: False to run tests with all files of the agent, the system's too.
        network: "none" to run all tasks without a network.

    Raises:
        ConfigurationError: the program lacks a requirement of every task, or is not installed.
    """
    tasks = usable(tasks, _without_needs)
    _log_without_effect(tasks, in_containers=base_image != "host")
    if base_image == "host" and provider not in ("auto", "bubblewrap"):
        raise ConfigurationError(f"base_image=host is for bubblewrap; with provider={provider} leave it out")
    if provider == "bubblewrap" and base_image != "host":
        raise ConfigurationError(
            f"task {tasks[0].name!r} needs a container engine for its image {_image_of(tasks[0])!r}; to let the system "
            "folders of this machine stand in for it, add --set base_image=host"
        )
    if base_image == "host":
        bwrap = find_bubblewrap(*OPTIONS, "--unshare-net")
        try:
            slirp, missing = find_slirp(), ""
        except ConfigurationError as error:
            slirp, missing = None, str(error)

        def made(task: HarborTask) -> Template:
            if missing and any(networks(task, network).values()):
                raise ConfigurationError(
                    f"task {task.name!r} needs a network: {missing}. Install it (Debian: slirp4netns), or run without "
                    "a network by --set network=none"
                )
            return _template(bwrap, slirp, task, fresh)

        return dict(usable(tasks, lambda task: (task.name, _boxes_of(task, made))))
    engines = _Engines(tasks, ENGINES if provider == "auto" else (provider,))
    return dict(
        usable(
            tasks,
            lambda task: (task.name, _boxes_of(task, lambda own: _image(engines, own, fresh, networks(own, network)))),
        )
    )


def _boxes_of(task: HarborTask, made: Callable[[HarborTask], Boxes]) -> BoxesOf:
    """Return the makers of a task's boxes. Those of equal environments are one, whose image is built once."""
    agent = made(task)
    known = {_environment_of(task): agent}
    judges: dict[int, Boxes] = {}
    for number in range(len(task.steps)):
        judge = task.judged_in(number)
        if judge is None:
            continue
        _without_needs(judge)
        key = _environment_of(judge)
        if key not in known:
            try:
                known[key] = made(judge)
            except ConfigurationError as error:
                raise ConfigurationError(f"the separate verifier of {error}") from error
        judges[number] = known[key]
    return BoxesOf(agent, judges)


def _environment_of(task: HarborTask) -> str:
    """Return a text that is the same for equal environments of a task and its verifiers."""
    return f"{task.tag} {networks(task, 'task')} {task.config.environment.model_dump_json()}"


def _without_needs(task: HarborTask) -> HarborTask:
    if task.needs:
        raise ConfigurationError(f"task {task.name!r} needs {' and '.join(task.needs)}, which mcpenv does not have")
    image = task.config.environment.docker_image
    if not (image or task.has_services or (task.environment / "Dockerfile").is_file()):
        raise ConfigurationError(
            f"task {task.name!r} has no image: there is neither environment/Dockerfile nor [environment] docker_image"
        )
    return task


def has_network(wanted: Network, network: NetworkOf) -> bool:
    """Return True if a box that wants a network has one."""
    return network == "task" and wanted == "public"


def networks(task: HarborTask, network: NetworkOf) -> dict[str, bool]:
    """Return True for each phase of a task that has a network."""
    return {phase: has_network(wanted, network) for phase, wanted in task.networks.items()}


def _log_without_effect(tasks: Sequence[HarborTask], *, in_containers: bool) -> None:
    """Log each key that has no effect, once for all tasks."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        judges = (step.judge.environment for step in task.steps if step.judge is not None)
        limited = in_containers and any(each.storage_mb is not None for each in (task.config.environment, *judges))
        for key in (*task.without_effect, *(("[environment] storage_mb",) if limited else ())):
            found.setdefault(key, []).append(task.name)
    for key, names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        logger.warning("%s has no effect (task %r%s)", key, names[0], more)


class _Engines:
    """The container engine, and the program of it that makes several services.

    Args:
        tasks: the tasks, for an error.
        names: the engines to try.

    Raises:
        ConfigurationError: none works.
    """

    def __init__(self, tasks: Sequence[HarborTask], names: Sequence[str]) -> None:
        found = {name: why_not(name) for name in names}
        self.working = [name for name, reason in found.items() if reason is None]
        if not self.working:
            reasons = "; ".join(reason or "" for reason in found.values())
            raise ConfigurationError(
                f"task {tasks[0].name!r} needs a container engine ({reasons}); to let the system folders of this "
                "machine stand in for its image, add --set base_image=host"
            )

    @cached_property
    def compose(self) -> tuple[str, tuple[str, ...]] | str:
        """The first engine that has a compose program, and the words of the program; else the reasons."""
        reasons = []
        for name in self.working:
            try:
                return name, find_compose(name)
            except ConfigurationError as error:
                reasons.append(str(error))
        return ", and ".join(reasons)


def _image(engines: _Engines, task: HarborTask, fresh: bool, public: Mapping[str, bool]) -> Image:
    found = engines.compose if task.has_services else (engines.working[0], ())
    if isinstance(found, str):
        raise ConfigurationError(
            f"task {task.name!r} has several services ({_place_of(task)}/docker-compose.yaml): {found}"
        )
    engine, compose = found
    is_defined = task.has_services or (task.environment / "Dockerfile").is_file()
    if task.config.environment.docker_image is None and not is_defined:
        raise ConfigurationError(f"task {task.name!r} has neither {_place_of(task)}/Dockerfile nor docker_image")
    if public["agent"] != public["verifier"] and not fresh:
        raise ConfigurationError(
            f"task {task.name!r} needs different networks for agent and tests, which {engine} cannot switch in the "
            "agent's own container; leave out fresh=false"
        )
    if task.has_services and public["agent"] and not public["verifier"]:
        raise ConfigurationError(
            f"task {task.name!r} needs a network for the agent and none for its tests, which share the services' "
            "(environment/docker-compose.yaml); run without a network by --set network=none"
        )
    return ComposeImage(engine, compose, task, fresh=fresh) if compose else Image(engine, task, fresh=fresh)


def _template(bwrap: str, slirp: str | None, task: HarborTask, fresh: bool) -> Template:
    environment = task.config.environment
    place = f"task {task.name!r} needs a container engine for"
    if task.has_services:
        raise ConfigurationError(f"{place} its services ({_place_of(task)}/docker-compose.yaml)")
    if not (task.environment / "Dockerfile").is_file():
        raise ConfigurationError(
            f"{place} its image {environment.docker_image!r}: it has no {_place_of(task)}/Dockerfile"
        )
    for name, user in (each for step in task.steps for each in (("agent", step.user), ("verifier", step.tests_user))):
        if user not in _ROOT:
            raise ConfigurationError(f"{place} [{name}] user = {user!r}: with base_image=host only root is there")
    try:
        recipe = read_recipe(task.environment)
    except NeedsEngine as error:
        raise ConfigurationError(f"{place} {error}") from error
    limits = ("cpus", "memory_mb", "storage_mb")
    ignored = [name for name in limits if getattr(environment, name) is not None]
    if ignored:
        logger.warning("task %r: %s have no effect without a container engine", task.name, ", ".join(ignored))
    return Template(
        bwrap,
        recipe,
        task.environment,
        task.env,
        environment.workdir,
        timeout_s=environment.build_timeout_sec,
        slirp=slirp,
        keep=task.keep,
        tests_env=task.tests_env,
        fresh=fresh,
    )


def _place_of(task: HarborTask) -> str:
    """Return the path of the folder from which a container is built, in its task."""
    return task.environment.relative_to(task.folder).as_posix()


def _image_of(task: HarborTask) -> str:
    image = task.config.environment.docker_image
    if image is not None:
        return image
    try:
        return read_recipe(task.environment).image
    except (NeedsEngine, OSError):
        return "environment/Dockerfile"
