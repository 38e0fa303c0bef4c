"""The engine of containers, by the Docker SDK: Docker, or Podman behind its socket. Blocking; imported on use."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import docker
import docker.constants
import docker.errors
import docker.utils
import requests
from docker.context import ContextAPI

from mcpenv_client.connection.addresses import is_loopback, without_password
from mcpenv_client.errors import InstanceFailed

from . import owner

if TYPE_CHECKING:
    from .docker import DockerProvider

LABEL = "mcpenv.provider"
"""The label of every container that is made; its value is ``docker`` for those of providers."""

NO_ENGINE = "no engine answers ({}); start Docker, or set DOCKER_HOST to the socket of Podman"

SECRETS = "/run/mcpenv"
"""The volume of a container that has its control token."""

TOKEN = "control-token"
PUBLIC_URL = "--public-url"
"""The option of ``mcpenv run`` that sets the beginning of all addresses for agents."""

LOG_LINES = 30
STOP_TIMEOUT_S = 10
"""Seconds for a container to end by itself."""

FAILURES = (docker.errors.DockerException, requests.RequestException)
"""The exceptions that a call of the engine raises."""

REFUSALS = (docker.errors.APIError,)
"""The subset of them that are answers of the engine."""


class Engine:
    """A connection to an engine, for one operation at a time."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def has_image(self, image: str) -> bool:
        """Return True if the engine need not pull the image."""
        try:
            self._client.images.get(image)
        except docker.errors.ImageNotFound:
            return False
        return True

    def pull(self, image: str, cancelled: threading.Event) -> None:
        """Pull an image; stop if the event is set meanwhile.

        Raises:
            InstanceFailed: the registry refused.
        """
        repository, tag = docker.utils.parse_repository_tag(image)
        # The SDK's own `images.pull` ignores errors in the registry's answer.
        for line in self._client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if "error" in line:
                raise InstanceFailed(f"image {image}", f"it cannot be pulled: {line['error']}")
            if cancelled.is_set():
                return

    def unfit(self, image: str, port: int | None) -> str | None:
        """Return why an image of the engine is not a server's image; None if it may be one.

        Args:
            image: the image.
            port: the given port, if any.
        """
        config = self._config(image)
        if not config.get("Entrypoint"):
            return (
                f"the image {image} has no entrypoint that takes options of `mcpenv run`; "
                "use one that `mcpenv build` has made"
            )
        exposed = self._exposed(image)
        if port is None and len(exposed) != 1:
            said = f"exposes the ports {', '.join(map(str, exposed))}" if exposed else "exposes no port"
            return f"the image {image} {said}; give port= the one that its server listens on"
        return None

    def start(self, provider: DockerProvider, name: str, token: str) -> int:
        """Create and start a container. Return its port on loopback.

        Args:
            provider: the image and the options.
            name: the container's name.
            token: the control token, which is put into a file.

        Raises:
            InstanceFailed: the image is not a server's image, or the container has ended.
        """
        if (reason := self.unfit(provider.image, provider.port)) is not None:
            raise InstanceFailed(f"container {name}", reason)
        port = provider.port or self._exposed(provider.image)[0]
        # --insecure: agents have no tokens. The port is published on loopback only, and the control plane has one.
        command = ["--control-token-file", f"{SECRETS}/{TOKEN}", "--insecure"]
        command += ["--require-handle"] if provider.require_handle else []
        container = self._client.containers.create(
            provider.image,
            [*command, *provider.options],
            entrypoint=_local_entrypoint(self._config(provider.image)),
            name=name,
            labels={LABEL: "docker", **owner.labels()},
            ports={f"{port}/tcp": ("127.0.0.1", provider.host_port)},
            environment=dict(provider.env),
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=provider.read_only,
            volumes=[SECRETS],
            **({"tmpfs": {"/tmp": "rw,mode=1777"}} if provider.read_only else {}),
            **({} if provider.memory is None else {"mem_limit": provider.memory}),
            **({} if provider.cpus is None else {"nano_cpus": int(provider.cpus * 1e9)}),
            **({} if provider.pids is None else {"pids_limit": provider.pids}),
            **({} if provider.network is None else {"network": provider.network}),
        )
        container.put_archive(SECRETS, _archive(TOKEN, token))
        container.start()
        container.reload()
        published = (container.attrs["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp")
        if not published:
            raise InstanceFailed(f"container {name}", f"it does not publish its port {port}", self.logs(name))
        return int(published[0]["HostPort"])

    def is_running(self, name: str) -> bool:
        """Return True if a container runs."""
        try:
            return str(self._client.containers.get(name).status) == "running"
        except docker.errors.NotFound:
            return False

    def logs(self, name: str) -> str:
        """Return the end of a container's output; empty if the container is gone."""
        try:
            return bytes(self._client.containers.get(name).logs(tail=LOG_LINES)).decode("utf-8", "replace").strip()
        except docker.errors.NotFound:
            return ""

    def remove(self, name: str) -> None:
        """Stop and remove a container with its volume. Do nothing if it does not exist."""
        with contextlib.suppress(docker.errors.NotFound):
            container = self._client.containers.get(name)
            if container.status == "running":
                container.stop(timeout=STOP_TIMEOUT_S)
            container.remove(force=True, v=True)

    def remove_orphans(self, kind: str = "docker") -> list[str]:
        """Remove the containers of ended owners whose label has this value, and return their names."""
        removed = []
        ours = {"label": f"{LABEL}={kind}"}
        for container in self._client.containers.list(all=True, filters=ours, ignore_removed=True):
            if owner.is_gone(dict(container.labels)):
                with contextlib.suppress(docker.errors.NotFound):  # another process removed it
                    container.remove(force=True, v=True)
                removed.append(str(container.name))
        return removed

    def _config(self, image: str) -> Mapping[str, Any]:
        return self._client.images.get(image).attrs.get("Config") or {}

    def _exposed(self, image: str) -> list[int]:
        """Return the ports that an image exposes."""
        return sorted(int(port.partition("/")[0]) for port in self._config(image).get("ExposedPorts") or {})


def barred() -> str | None:
    """Return why the engine cannot be used, judged by its address; None if there is no reason.

    Ports of an engine on another machine cannot be reached.
    """
    address = _address()
    url = urlsplit(address)
    if url.scheme in ("unix", "http+unix"):
        socket = Path(url.path)
        if _is_there(socket) and not os.access(socket, os.R_OK | os.W_OK):
            return (
                f"this user may not use the engine at {socket}; join the group that owns it, "
                "or set DOCKER_HOST to the socket of an engine of your own, such as rootless Podman"
            )
        return None
    if url.scheme in ("", "npipe") or is_loopback(address):
        return None
    engine_at = without_password(address)
    return f"the engine at {engine_at} is not on this machine, so its ports cannot be reached; change DOCKER_HOST"


def _is_there(socket: Path) -> bool:
    """Return True if a socket exists, or is in a folder that this user may not read."""
    try:
        return socket.exists()
    except PermissionError:
        return True


def _address() -> str:
    """Return the address of the engine: from ``DOCKER_HOST``, from Docker's context, or the usual one."""
    given = docker.utils.kwargs_from_env().get("base_url") or ContextAPI.kwargs_from_context().get("base_url")
    return str(given or docker.constants.DEFAULT_UNIX_SOCKET)


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Connect to the engine that ``DOCKER_HOST`` names, by default this machine's engine.

    Raises:
        docker.errors.DockerException: no engine answers.
    """
    client: Any = docker.from_env()
    try:
        yield Engine(client)
    finally:
        client.close()


def _local_entrypoint(config: Mapping[str, Any]) -> list[str]:
    """Return the entrypoint of an image without the public URL of its server elsewhere, which a Space's image has."""
    entrypoint = list(config["Entrypoint"])
    if PUBLIC_URL in entrypoint:
        at = entrypoint.index(PUBLIC_URL)
        del entrypoint[at : at + 2]
    return entrypoint


def _archive(name: str, text: str) -> bytes:
    data, made = text.encode(), io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o444  # the server's user has no name outside of the image
        archive.addfile(entry, io.BytesIO(data))
        size = made.tell()
    # Without the padding after the two empty blocks at the end. Podman's reader may stop there, and then its engine
    # fails because the rest cannot be written.
    return made.getvalue()[: size + 2 * tarfile.BLOCKSIZE]
