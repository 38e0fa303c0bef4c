"""Servers in containers: `DockerProvider`, for Docker, and for Podman behind its socket."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mcpenv_client.errors import InstanceFailed

from .blocking import in_thread
from .provider import Capabilities, Instance, Provider, one_line

if TYPE_CHECKING:
    from .docker_engine import Engine

T = TypeVar("T")

HUB_REGISTRY = "registry.hf.space"
"""The registry that has the image of each Docker Space of Hugging Face."""


class DockerProvider(Provider):
    """The provider of containers on this machine: one for each instance, removed with its block.

    The image's entrypoint must accept options of ``mcpenv run``, as in images from ``mcpenv build``. A container is
    published on loopback only. It has no capabilities, cannot gain privileges, and is read-only but for ``/tmp``.

    A container does not end when its owner process is killed. The next use of a `DockerProvider` of the same user on
    this machine removes it (not on Windows); so does `remove_orphans`.

    Args:
        image: the image; pulled if the engine does not have it.
        port: the port that the server listens on in the container; by default the port that the image exposes.
        options: further options of ``mcpenv run``, such as ``["--set", "size=3"]``.
        env: environment variables, such as the manifest's secrets. Any user who may inspect containers can read them.
        memory: the limit of memory; None: no limit.
        cpus: the limit of processors; None: no limit.
        pids: the limit of processes and threads; None: no limit.
        read_only: False to let the environment write anywhere in its container.
        network: the network to join; the engine's default has access to other machines.
        host_port: the port on loopback; any free one by default. With it, only one instance can run at a time.
        control_token: the control token of every container; by default each has its own.
        require_handle: True to serve agents only at the address of an episode.
        pull: False to refuse an image that the engine does not have.
        start_timeout_s: maximum seconds until the server is ready, without the pull.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(isolated=True, limits=True)

    def __init__(
        self,
        image: str,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        memory: str | None = "2g",
        cpus: float | None = None,
        pids: int | None = 512,
        read_only: bool = True,
        network: str | None = None,
        host_port: int | None = None,
        control_token: str | None = None,
        require_handle: bool = True,
        pull: bool = True,
        start_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(start_timeout_s=start_timeout_s)
        self.image = image
        self.port = port
        self.options = tuple(options)
        self.env = dict(env or {})
        self.memory = memory
        self.cpus = cpus
        self.pids = pids
        self.read_only = read_only
        self.network = network
        self.host_port = host_port
        self._control_token = control_token
        self.require_handle = require_handle
        self.pull = pull

    async def missing(self) -> list[str]:
        """Return a sentence if there is no Docker SDK, no engine, or no usable image."""
        if importlib.util.find_spec("docker") is None:
            return ["the Docker SDK is not installed; run: pip install 'mcpenv-client[docker]'"]
        return await in_thread(self._missing)

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[ContainerInstance]:
        """Start a container, and remove it with the block."""
        name, token = f"mcpenv-{secrets.token_hex(6)}", self._control_token or secrets.token_urlsafe(24)
        await self.remove_orphans()
        try:
            await self._pull()
            what = f"image {self.image}"
            port = await in_thread(_with_engine, lambda engine: engine.start(self, name, token), what)
            yield ContainerInstance(name, f"http://127.0.0.1:{port}", token)
        finally:
            await in_thread(_with_engine, lambda engine: engine.remove(name), name)

    async def remove_orphans(self) -> list[str]:
        """Remove the containers of killed owners, of this user on this machine. Return their names."""
        return await in_thread(_with_engine, lambda engine: engine.remove_orphans(), "the engine")

    def _missing(self) -> list[str]:
        from .docker_engine import FAILURES, NO_ENGINE, REFUSALS, barred, engine

        if (reason := barred()) is not None:
            return [reason]
        try:
            with engine() as connected:
                if connected.has_image(self.image):
                    unfit = connected.unfit(self.image, self.port)
                    return [] if unfit is None else [unfit]
                if not self.pull:
                    return [f"the engine has no image {self.image}; run: docker pull {self.image}"]
        except REFUSALS as error:
            return [f"the engine refused the image {self.image}: {one_line(error)}; check its name"]
        except FAILURES as error:
            return [NO_ENGINE.format(one_line(error))]
        return []

    async def _pull(self) -> None:
        """Pull the image if the engine does not have it; stop that if the task is cancelled."""
        cancelled = threading.Event()

        def pull(engine: Engine) -> None:
            if not engine.has_image(self.image):
                engine.pull(self.image, cancelled)

        pulling = asyncio.ensure_future(in_thread(_with_engine, pull, f"image {self.image}"))
        try:
            await asyncio.shield(pulling)
        finally:
            cancelled.set()
            await asyncio.wait([pulling])


class ContainerInstance(Instance):
    """A server in a container of this machine.

    Attributes:
        container: the container's name.
    """

    def __init__(self, container: str, url: str, control_token: str) -> None:
        super().__init__(f"container {container}", url, control_token)
        self.container = container

    async def is_running(self) -> bool:
        """Return True if the container runs."""
        return await in_thread(_with_engine, lambda engine: engine.is_running(self.container), self.name)

    async def logs(self) -> str:
        """Return the end of the output of the server and the environment."""
        return await in_thread(_with_engine, lambda engine: engine.logs(self.container), self.name)


def space_image(repository: str) -> str:
    """Return the image of a Docker Space of Hugging Face: ``org/env``, or ``hub:org/env``.

    Raises:
        ValueError: the text is not the name of a Space.
    """
    owner, slash, name = repository.removeprefix("hub:").partition("/")
    if not slash or not owner or not name or "/" in name or "@" in name:
        raise ValueError(f"{repository!r} is no Space; write OWNER/NAME. The registry has its last revision only")
    subdomain = "".join(char if char.isalnum() else "-" for char in f"{owner}-{name}".lower())
    return f"{HUB_REGISTRY}/{subdomain}:latest"


def hub_provider(repository: str, **options: Any) -> DockerProvider:
    """Return the provider of a Docker Space of Hugging Face.

    Raises:
        ValueError: as `space_image`.
    """
    return DockerProvider(space_image(repository), **options)


def _with_engine(function: Callable[[Engine], T], what: str) -> T:
    """Return the result of a function that uses an engine.

    Raises:
        InstanceFailed: the engine refused.
    """
    from .docker_engine import FAILURES, engine

    try:
        with engine() as connected:
            return function(connected)
    except FAILURES as error:
        raise InstanceFailed(what, f"the engine refused: {one_line(error)}") from error
