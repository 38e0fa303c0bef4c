"""Run commands by bash in a container of Docker, or of Podman behind its socket. Needs ``mcpenv[docker]``."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ClassVar

from mcpenv.errors import ConfigurationError
from mcpenv_client.providers import owner

from .archive import packed, reader, unpacked
from .sandbox import (
    FOLDER,
    HAVE,
    LIMITS,
    MAX_BYTES,
    TIMED_OUT,
    VARIABLES,
    Completed,
    Entry,
    Kept,
    Sandbox,
    SandboxFailed,
    counted,
)

try:
    import docker
    import docker.errors

    from mcpenv_client.providers.docker_engine import FAILURES, LABEL, NO_ENGINE, Engine
except ImportError as error:
    raise ConfigurationError("the backend 'container' needs the Docker SDK: pip install 'mcpenv[docker]'") from error

_KIND = "sandbox"
_INPUT = "/run/mcpenv"
"""The volume with the standard input of a command."""

_WAITS = "while :; do sleep 3600; done"
"""The first process. As a shell that waits, it also collects the processes whose parents have ended."""

_RUN = (
    f'exec 3>&2 2>/dev/null; {LIMITS}; bash -c "$1" <"$2" 2>&3 3>&-; code=$?; '
    "kill -KILL -1; exit $code"  # what the command left, which may hold its outputs open
)
_END = "kill -KILL -1; exit 0"
"""Ends all processes but the first: a command could have ended the shell that ends them."""

_ENDS_WITHIN_S = 30.0


class ContainerSandbox(Sandbox):
    """A sandbox with the programs of an image, without a network.

    The container has no capabilities and a read-only system; its user 0, without rights, owns all files. A `fill` or
    `load` of a used sandbox starts a new container.

    Args:
        image: an image with bash that the engine has. It is not pulled.
        memory: the limit of memory, such as "512m".
        pids: the limit of processes and threads.

    Raises:
        ConfigurationError: there is no Docker SDK, no engine, no such image, or it has no bash.
    """

    backend = "container"
    capabilities: ClassVar = HAVE["container"]
    max_file: ClassVar = MAX_BYTES

    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        env: dict[str, str] | None = None,
        image: str | None = None,
        memory: str = "512m",
        pids: int = 256,
    ) -> None:
        super().__init__(timeout_s=timeout_s, env=env)
        if image is None:
            raise ConfigurationError(
                "the backend 'container' needs image=, an image with bash, such as debian:bookworm"
            )
        self._image, self._memory, self._pids = image, memory, pids
        self._client = _connected(image)
        self._reading = ThreadPoolExecutor(1, "sandbox-output")
        self._container: Any = None
        self._is_used = True
        try:
            Engine(self._client).remove_orphans(_KIND)
            self.fill(())
            done = self.run("true")
        except (SandboxFailed, *FAILURES) as error:
            self.close()
            raise ConfigurationError(f"no sandbox can be made of the image {image!r}: {error}") from error
        if done.exit_code:
            self.close()
            raise ConfigurationError(f"the image {image!r} has no bash that works: {done.stdout}{done.stderr}")
        self._is_used = False

    def run(self, command: str, *, stdin: bytes = b"") -> Completed:
        """Run a command, as `Sandbox.run`."""
        self.check_size("stdin", stdin)
        container, api = self._live(), self._client.api
        self._is_used = True
        with _refusals():
            source = "/dev/null"
            if stdin:
                source = f"{_INPUT}/stdin"
                container.put_archive(_INPUT, packed([Entry("stdin", stat.S_IFREG | 0o644, stdin)]))
            words = ["bash", "-c", _RUN, "bash", command, source]
            command_id = api.exec_create(
                container.id, words, environment={**VARIABLES, **self.env}, workdir=str(FOLDER), user="0"
            )["Id"]
            out, err = Kept(), Kept()
            reading = self._reading.submit(_read, api.exec_start(command_id, stream=True, demux=True), out, err)
            wait([reading], self.timeout_s)
            if not reading.done():
                self._restart(container, reading)
                note = f"the command exceeded its time limit ({self.timeout_s:g} s)\n"
                return Completed(TIMED_OUT, out.text(), err.text() + note, True)
            reading.result()
            code = self._exit_code(command_id)
            if not self._ends_all(container):
                self._restart(container)
        return Completed(code, out.text(), err.text())

    def entries(self) -> list[Entry]:
        """Return everything in the folder, as `Sandbox.entries`."""
        container = self._live()
        with _refusals():
            chunks, _ = container.get_archive(str(FOLDER))
            with contextlib.closing(chunks):
                return counted(unpacked(reader(chunks), FOLDER.name))

    def fill(self, entries: Iterable[Entry]) -> None:
        """Start anew with these files."""
        given = self.checked(entries)
        self._live()
        with _refusals():
            if self._is_used:
                self._remove()
                self._container = self._started()
                self._is_used = False
            if given:
                self._is_used = True
                self._container.put_archive(str(FOLDER), packed(given))

    def close(self) -> None:
        """End the sandbox, and delete its files. A second call does nothing."""
        if self._client is not None:
            with _refusals():
                self._remove()
            self._reading.shutdown(wait=False)
            self._client.close()
            self._client = None

    def _live(self) -> Any:
        if self._client is None:
            raise SandboxFailed("the sandbox is closed")
        return self._container

    def _started(self) -> Any:
        container = self._client.containers.create(
            self._image,
            ["-c", _WAITS],
            entrypoint=["bash"],
            labels={LABEL: _KIND, **owner.labels()},
            user="0",
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            tmpfs={"/tmp": f"rw,mode=1777,size={MAX_BYTES}"},
            volumes=[str(FOLDER), _INPUT],
            mem_limit=self._memory,
            pids_limit=self._pids,
        )
        try:
            container.start()
        except FAILURES:
            container.remove(force=True, v=True)
            raise
        return container

    def _remove(self) -> None:
        if self._container is not None:
            with contextlib.suppress(docker.errors.NotFound):
                self._container.remove(force=True, v=True)
            self._container = None

    def _restart(self, container: Any, reading: Future[None] | None = None) -> None:
        """End all processes by those means that no process can resist."""
        container.restart(timeout=0)
        if reading is not None and wait([reading], _ENDS_WITHIN_S).not_done:
            raise SandboxFailed(f"the output of a command does not end {_ENDS_WITHIN_S:g} s after its container")

    def _exit_code(self, command_id: str) -> int:
        ends = time.monotonic() + _ENDS_WITHIN_S
        while (about := self._client.api.exec_inspect(command_id))["Running"]:
            if time.monotonic() > ends:
                raise SandboxFailed("the engine does not tell the exit status of a command that has ended")
            time.sleep(0.01)
        return int(about["ExitCode"])

    def _ends_all(self, container: Any) -> bool:
        """End what a command left, and return True; False if a process prevents it."""
        try:
            return bool(container.exec_run(["bash", "-c", _END], user="0").exit_code == 0)
        except docker.errors.APIError:  # the limit of processes, say, or the first process was killed for its memory
            return False


def _connected(image: str) -> Any:
    needs = "the backend 'container' needs"
    try:
        client = docker.from_env()
    except FAILURES as error:
        raise ConfigurationError(
            f"{needs} a container engine, Docker or Podman (Debian: apt install podman): {NO_ENGINE.format(error)}"
        ) from error
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound as error:
        client.close()
        raise ConfigurationError(
            f"{needs} the image {image!r}, which the engine does not have; run: docker pull {image}"
        ) from error
    except FAILURES as error:
        client.close()
        raise ConfigurationError(f"{needs} the image {image!r}: {error}") from error
    return client


def _read(chunks: Iterator[tuple[bytes | None, bytes | None]], out: Kept, err: Kept) -> None:
    for from_out, from_err in chunks:
        out.add(from_out or b"")
        err.add(from_err or b"")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise SandboxFailed(f"the engine refused: {error}") from error
