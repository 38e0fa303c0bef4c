"""Boxes of several services: the container ``main`` of a task, beside those of its ``docker-compose.yaml``.

A compose program (``docker compose`` or podman-compose) builds the images, and makes networks, volumes and containers.
Containers are started here, each once those that it needs are ready. An unprivileged Podman runs no health checks by
itself, so that compose programs would wait for them for ever.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.sandbox.engine import PROBE_S, failure_of

from .box import BoxFailed, last_lines
from .compose_file import ComposeFile
from .config import MAIN
from .container import ContainerBox, Image
from .engine import COMMAND_TIMEOUT_S, command
from .left import labels, remove_project
from .task import HarborTask

TESTS_NETWORK = "mcpenv-tests"
"""The network of tests that have one although the agent has none."""

_IN_NO_POD = "--in-pod=false"
_PLUGINS = ("/usr/lib/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/local/libexec/cni", "/opt/cni/bin")
_POLL_S = 0.5
_NS = 1e9


def find_compose(engine: str) -> tuple[str, ...]:
    """Return the words with which commands of an engine's compose program begin. Blocks until it has answered.

    Raises:
        ConfigurationError: there is none, or the engine gives containers no names in their network.
    """
    if engine == "docker":
        reason = failure_of(["docker", "compose", "version"], "docker compose")
        if reason is not None:
            raise ConfigurationError(f"{reason}; install Docker's compose plugin")
        return ("docker", "compose")
    _check_names()
    if importlib.util.find_spec("podman_compose") is not None:
        return (sys.executable, "-m", "podman_compose", _IN_NO_POD)
    if shutil.which("podman-compose") is not None:
        reason = failure_of(["podman-compose", _IN_NO_POD, "version"], "podman-compose")
        if reason is not None:
            raise ConfigurationError(f"{reason}; run: pip install podman-compose")
        return ("podman-compose", _IN_NO_POD)
    if failure_of(["podman", "compose", "version"], "podman compose") is not None:
        raise ConfigurationError("podman-compose is not installed; run: pip install podman-compose")
    return ("podman", "compose")


def _check_names() -> None:
    """Raise `ConfigurationError` if containers of Podman cannot reach each other by name. Podman 3 only has CNI."""
    words = ["podman", "info", "--format", "json"]
    try:
        told = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=True).stdout
    except subprocess.SubprocessError:  # the first command that needs it says why
        return
    host: dict[str, Any] = json.loads(told)["host"]
    backend = host.get("networkBackend", "cni")
    if backend == "cni" and not any(Path(folder, "dnsname").exists() for folder in _PLUGINS):
        missing = "networks of CNI without the plugin dnsname"
    elif (host.get("networkBackendInfo") or {}).get("dns") == {}:
        missing = f"networks of {backend} without aardvark-dns"
    else:
        return
    raise ConfigurationError(
        f"podman has {missing}, so that no service finds another by its name; install netavark and aardvark-dns, and "
        'set network_backend = "netavark" in containers.conf'
    )


class ComposeImage(Image):
    """The images of a task's services, pulled or built once.

    Args:
        engine: "docker" or "podman".
        compose: the words with which commands of its compose program begin.
        task: the task.
        fresh: False to run the tests in the agent's own container.

    Raises:
        ConfigurationError: the task's file cannot be read, or needs what no container is given.
    """

    def __init__(self, engine: str, compose: Sequence[str], task: HarborTask, *, fresh: bool = True) -> None:
        super().__init__(engine, task, fresh=fresh)
        self.compose = compose
        self.file = ComposeFile(task)

    async def run_compose(
        self, project: str, document: Mapping[str, Any], folder: Path, *words: str, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> None:
        """Run a command of the compose program.

        Args:
            project: the name of the project.
            document: the file.
            folder: where to write the file.
            words: the command.
            timeout_s: maximum seconds.

        Raises:
            BoxFailed: it failed, or took too long.
        """
        path = folder / f"{project}.json"
        path.write_text(json.dumps(document).replace("$", "$$"), encoding="utf-8")
        # Without BUILDAH_FORMAT, podman's builds drop health checks.
        env = {"BUILDAH_FORMAT": "docker", **os.environ, **self.task.env}
        await command(
            *self.compose, "--project-name", project, "--file", str(path), *words, timeout_s=timeout_s, env=env
        )

    def _new(self, networks: Mapping[str, bool]) -> ContainerBox:
        return ComposeBox(self, networks)

    async def _build(self) -> None:
        document = self.file.builds()
        if not document["services"]:
            return
        timeout_s = self.task.config.environment.build_timeout_sec
        with tempfile.TemporaryDirectory(prefix="mcpenv-harbor-") as folder:
            await self.run_compose("mcpenv", document, Path(folder), "build", timeout_s=timeout_s)


class ComposeBox(ContainerBox):
    """The container ``main`` of an episode, whose other services run until it is closed."""

    def __init__(self, image: ComposeImage, networks: Mapping[str, bool]) -> None:
        super().__init__(image, networks)
        self._services = image
        self._project = f"mcpenv-{secrets.token_hex(8)}"
        self._folder = tempfile.TemporaryDirectory(prefix="mcpenv-harbor-", ignore_cleanup_errors=True)

    async def start(self, phase: str) -> None:
        """Start all services, or for the tests another container ``main`` beside the services that run."""
        document = self._document()
        if phase == "agent":
            await self._make(self._project, document)
            self._name = f"{self._project}-{MAIN}"
            for service, needs in self._services.file.needs.items():
                for other, condition in needs.items():
                    await self._ready(other, condition)
                await self.engine("start", f"{self._project}-{service}")
            for service in self._services.file.needs:
                await self._ready(service, "service_healthy or has ended")
        else:
            # In a project of its own; a compose program would replace the container that has the agent's work.
            await self._make(f"{self._project}-tests", self._of_tests(document))
            self._name = f"{self._project}-tests-{MAIN}"
            await self.engine("start", self._name)
        await self._services.make_folders(self._name)

    async def close(self) -> None:
        """Implement `Box.close`."""
        await remove_project(self._engine, self._project)
        await asyncio.to_thread(self._folder.cleanup)

    def _document(self) -> dict[str, Any]:
        """Return the file of this episode, with its labels and copies of the files that its services may change."""
        document = self._services.file.project(self._project, public=self._networks["agent"])
        ours = labels(self._project)
        copies: dict[str, str] = {}
        for spec in document["services"].values():
            spec["labels"] = [*_as_list(spec.get("labels")), *_as_list(ours)]
            for mount in spec.get("volumes", ()):
                if isinstance(mount, dict) and mount["type"] == "bind":
                    mount["source"] = copies.setdefault(mount["source"], self._copied(mount, len(copies)))
        for kind in ("networks", "volumes"):
            for spec in document.get(kind, {}).values():
                spec["labels"] = [*_as_list(spec.get("labels")), *_as_list(ours)]
        return document

    def _copied(self, mount: Mapping[str, Any], number: int) -> str:
        """Return the path of an episode's own copy of what is mounted; the path itself if nobody can change it."""
        source, copy = Path(mount["source"]), Path(self._folder.name) / f"mount-{number}"
        if source.exists() and mount.get("read_only"):
            return str(source)
        if copy.exists():
            return str(copy)
        if source.is_file():
            shutil.copy2(source, copy)
        elif source.is_dir():
            shutil.copytree(source, copy, symlinks=True)
        else:
            copy.mkdir()
        return str(copy)

    def _of_tests(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the file of the tests' container: the service ``main`` alone, in the networks of the episode."""
        main = {**document["services"][MAIN], "container_name": f"{self._project}-tests-{MAIN}"}
        # Under other names: podman-compose makes a network "default" even if the file has an external one.
        own = {key: f"of-{key}" for key in document.get("networks", {})}
        networks = {own[key]: {"external": True, "name": document["networks"][key]["name"]} for key in own}
        if "networks" in main:
            main["networks"] = {own[key]: how for key, how in main["networks"].items()}
            if self._networks["verifier"] and not self._networks["agent"]:
                main["networks"][TESTS_NETWORK] = {}
                labelled = _as_list(labels(self._project))
                networks[TESTS_NETWORK] = {"name": f"{self._project}-tests", "labels": labelled}
        volumes = {key: {"external": True, "name": spec["name"]} for key, spec in document.get("volumes", {}).items()}
        return {**document, "services": {MAIN: main}, "networks": networks, "volumes": volumes}

    async def _make(self, project: str, document: dict[str, Any]) -> None:
        """Make containers without starting them, with their networks and volumes."""
        await self._services.run_compose(project, document, Path(self._folder.name), "up", "--no-start")

    async def _ready(self, service: str, condition: str) -> None:
        """Wait until a service meets a condition of Compose.

        Raises:
            BoxFailed: it ended with an error, or is not ready in its time.
        """
        name = f"{self._project}-{service}"
        config = await self._inspected(name)
        check = config["Config"].get("Healthcheck") or {}
        is_checked = (check.get("Test") or ["NONE"])[0] != "NONE"
        if condition == "service_healthy" and not is_checked:
            raise BoxFailed(f"service {service!r} has no health check, which another one waits for")
        to_end = condition == "service_completed_successfully"
        timeout_s = self._services.task.config.environment.build_timeout_sec
        if not to_end:
            interval, each = (check.get(key) or 30 * _NS for key in ("Interval", "Timeout"))
            tries = check.get("Retries") or 3
            timeout_s = min(timeout_s, (check.get("StartPeriod", 0) + tries * (interval + each)) / _NS)
        is_waited_for = is_checked and condition != "service_started"
        deadline = time.monotonic() + timeout_s
        while (state := config["State"])["Status"] not in ("exited", "stopped", "dead"):
            if not to_end and (not is_waited_for or await self._is_healthy(name, state)):
                return
            if time.monotonic() > deadline:
                what = "has not ended" if to_end else "is not healthy"
                raise BoxFailed(f"service {service!r} {what} after {timeout_s:g} s{await self._said(name)}")
            await asyncio.sleep(_POLL_S)
            config = await self._inspected(name)
        if state["ExitCode"] or condition == "service_healthy" or service == MAIN:
            raise BoxFailed(f"service {service!r} ended with status {state['ExitCode']}{await self._said(name)}")

    async def _is_healthy(self, name: str, state: Mapping[str, Any]) -> bool:
        if self._engine == "docker":
            return bool((state.get("Health") or {}).get("Status") == "healthy")
        try:
            await self.engine("healthcheck", "run", name)
        except BoxFailed:
            return False
        return True

    async def _inspected(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.engine("container", "inspect", name))[0]
        return found

    async def _said(self, name: str) -> str:
        """Return the end of what a service has printed."""
        pipe = f"{self._engine} logs --tail 15 {name} 2>&1"
        return last_lines(await command("sh", "-c", pipe, timeout_s=COMMAND_TIMEOUT_S))


def _as_list(given: Any) -> list[str]:
    """Return labels, which a file has as a mapping or a list, as a list."""
    return [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else list(given or ())
