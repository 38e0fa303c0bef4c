"""Boxes by Docker or Podman: the container that the task's Dockerfile or image names."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from .box import (
    KILLED_WITHIN_S,
    MAX_OUTPUT,
    TESTS,
    TIMED_OUT,
    VERIFIER_LOGS,
    Box,
    BoxFailed,
    Done,
    cut,
    exports,
)
from .engine import COMMAND_TIMEOUT_S, command, pipe
from .left import options, remove_left
from .pristine import LOGS, Carried
from .task import HarborTask

logger = logging.getLogger("mcpenv.harbor")

MAX_WORK = 16 * 1024**3
"""Maximum bytes that are carried over from the container of the agent to the one of the tests, as archives."""

MOST_AT_ONCE = 16
"""Maximum lines of a script about paths of the agent: an argument of a program has at most 128 KiB."""

CHUNK = 65_536
"""Maximum bytes to read of an output at a time."""

ENGINES = ("docker", "podman")
_PID = "/tmp/.mcpenv-"
_KEEP_OWNER = {"docker": ("--archive",), "podman": ("--archive=false",)}
"""The options of a copy that keeps the owners of files; each engine gives ``--archive`` another meaning."""
_NETWORKS = {"docker": "bridge", "podman": "private"}
"""The network of a container's own, where no loopback port of this machine answers. The engine's settings may have
another default, such as the host's network."""
_DEPTHS = {"home": 3, "root": 2, "var": 2}
"""How deep the paths are that are carried over as a whole, by the folder in ``/``; elsewhere 1."""


class Image:
    """The image of a task, pulled or built once.

    Args:
        engine: "docker" or "podman".
        task: the task.
        fresh: False to run the tests in the agent's own container.
    """

    def __init__(self, engine: str, task: HarborTask, *, fresh: bool = True) -> None:
        self.engine = engine
        self.task = task
        self.fresh = fresh
        self._mutex = asyncio.Lock()
        self._name = task.config.environment.docker_image
        self._is_built = False

    async def box(self, networks: Mapping[str, bool]) -> ContainerBox:
        """Return a new container. The first one waits for the build.

        Args:
            networks: True for each phase ("agent", "verifier") that has a network.

        Raises:
            BoxFailed: the build failed, or the container does not start.
        """
        await self.prepare()
        box = self._new(networks)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(box.close)
            await box.start("agent")
            on_failure.pop_all()
        return box

    async def prepare(self) -> None:
        """Build what boxes are made of, once.

        Raises:
            BoxFailed: the build failed.
        """
        async with self._mutex:
            if not self._is_built:
                await remove_left(self.engine)
                await self._build()
                self._is_built = True

    async def run(self, name: str, network: bool) -> None:
        """Start a container of this name.

        Raises:
            BoxFailed: it does not start.
        """
        environment = self.task.config.environment
        assert self._name is not None
        own = ["--name", name, *options(name)]
        own += ["--network", _NETWORKS[self.engine] if network else "none"]
        own += [] if environment.cpus is None else ["--cpus", f"{environment.cpus:g}"]
        own += [] if environment.memory_mb is None else ["--memory", f"{environment.memory_mb}m"]
        own += [f"--env={key}={value}" for key, value in self.task.env.items()]
        words = ("run", "--detach", *own, self._name, "sh", "-c", "sleep infinity")
        await command(self.engine, *words, timeout_s=COMMAND_TIMEOUT_S)
        await self.make_folders(name)

    async def make_folders(self, name: str) -> None:
        """Make the folders of logs in a container.

        Raises:
            BoxFailed: it does not run commands.
        """
        words = ("exec", "--user", "0", name, "mkdir", "-p", *map(str, LOGS))
        await command(self.engine, *words, timeout_s=COMMAND_TIMEOUT_S)

    async def carried(self, name: str) -> Carried:
        """Return what is carried over to a new container of this name, whose ``/etc/passwd`` is the image's."""
        told = await command(self.engine, "container", "inspect", name, timeout_s=COMMAND_TIMEOUT_S)
        config = json.loads(told)[0]["Config"] or {}
        variables = dict(word.partition("=")[::2] for word in config.get("Env") or ())
        workdir = self.task.config.environment.workdir or config.get("WorkingDir") or "/"
        words = ("exec", "--user", "0", name, "sh", "-c", "cat /etc/passwd || true")
        users = (await command(self.engine, *words, timeout_s=COMMAND_TIMEOUT_S)).decode("utf-8", "surrogateescape")
        homes = [fields[5] for fields in (line.split(":") for line in users.splitlines()) if len(fields) > 5]
        return Carried.of({**variables, **self.task.env}, workdir, self.task.keep, self.task.tests_env, homes)

    def _new(self, networks: Mapping[str, bool]) -> ContainerBox:
        return ContainerBox(self, networks)

    async def _build(self) -> None:
        if self._name is not None:
            return
        tag = f"mcpenv-harbor:{self.task.tag}"
        timeout_s = self.task.config.environment.build_timeout_sec
        await command(self.engine, "build", "--tag", tag, str(self.task.environment), timeout_s=timeout_s)
        self._name = tag


class ContainerBox(Box):
    """A container.

    Args:
        image: its image.
        networks: True for each phase that has a network.
    """

    def __init__(self, image: Image, networks: Mapping[str, bool]) -> None:
        self._image = image
        self._engine = image.engine
        self._networks = networks
        self._name = ""
        self._env: list[str] = []  # of commands that run beside the agent's files
        self._kept: str | None = None  # the container of the agent, while another one has its tests
        workdir = image.task.config.environment.workdir
        self._workdir = [] if workdir is None else ["--workdir", workdir]

    async def start(self, phase: str) -> None:
        """Start a new container for a phase.

        Raises:
            BoxFailed: it does not start.
        """
        self._name = f"mcpenv-{secrets.token_hex(8)}"
        await self._image.run(self._name, self._networks[phase])

    async def engine(self, *words: str) -> bytes:
        """Run a command of the engine, and return its output.

        Raises:
            BoxFailed: it failed.
        """
        return await command(self._engine, *words, timeout_s=COMMAND_TIMEOUT_S)

    async def run(
        self,
        script: str,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Done:
        """Implement `Box.run`."""
        pid = f"{_PID}{secrets.token_hex(8)}"
        whole = f"echo $$ > {pid}\n{exports(env)}{script}\n"
        as_user = [] if user is None else ["--user", user]
        process = await asyncio.create_subprocess_exec(
            self._engine,
            *("exec", "--interactive", *self._workdir, *as_user, self._name, "bash", "-c", whole),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        talk = asyncio.create_task(_communicate(process, stdin, max_output))
        timed_out = False
        try:
            await asyncio.wait_for(asyncio.shield(talk), timeout_s)
        except TimeoutError:
            timed_out = True
            await self._kill(process, talk, pid)
        except asyncio.CancelledError:
            await self._kill(process, talk, pid)
            raise
        stdout, stderr = await talk
        return Done(TIMED_OUT if timed_out else process.returncode or 0, stdout, stderr, timed_out=timed_out)

    async def begin_verification(self, tests: Sequence[Path], *, goes_on: bool = False) -> str | None:
        """Implement `Box.begin_verification`, in a new container with the work of the old one."""
        await self.engine("kill", self._name)
        dropped = None
        if self._image.fresh:
            dropped = await self._carry_over(goes_on=goes_on)
        else:
            await self.engine("start", self._name)
        await self._empty_folders(f" && chmod 777 {VERIFIER_LOGS}")
        for folder in tests:
            await self.engine("cp", f"{folder}/.", f"{self._name}:{TESTS}")
        return dropped

    async def resume(self) -> None:
        """Implement `Box.resume`, in the container of the agent."""
        if self._kept is None:
            await self.engine("kill", self._name)
        else:
            await self._remove(self._name)
            self._name, self._kept = self._kept, None
        await self.engine("start", self._name)
        await self._empty_folders()

    async def _empty_folders(self, then: str = "") -> None:
        paths = f"{TESTS} {VERIFIER_LOGS}"
        await self._in_new(f"rm -rf -- {paths} && mkdir -p {paths}{then}")

    async def close(self) -> None:
        """Implement `Box.close`."""
        for name in (self._name, self._kept):
            if name is not None:
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        # Without it, podman waits 10 s for a container's end. A container that does not run cannot be killed.
        with suppress(BoxFailed):
            await self.engine("kill", name)
        try:
            await self.engine("rm", "--force", "--volumes", name)
        except BoxFailed as error:
            logger.warning("container %s is not removed: %s", name, error)

    async def _carry_over(self, *, goes_on: bool) -> str | None:
        """Start a new container with the agent's changes outside of the system's files.

        Args:
            goes_on: False to remove the old one.

        Returns:
            A sentence about the changes that are not carried over.
        """
        changed = (await self.engine("diff", self._name)).decode("utf-8", "surrogateescape").splitlines()
        volumes = await self._mounts()
        deleted = {line[2:] for line in changed if line.startswith("D ")}
        self._kept = old = self._name
        try:
            await self.start("verifier")
            carried = await self._image.carried(self._name)
            self._env = [f"--env={name}={value}" for name, value in carried.env.items()]
            mounted = await self._mounts()
            shared = [path for path, source in mounted.items() if volumes.get(path) == source]
            paths = [PurePosixPath(line[2:]) for line in changed]
            # The folders of logs are made in every container, so that they are copied only for what is in them.
            found = (*_roots([path for path in paths if path not in LOGS or str(path) in deleted], carried), *volumes)
            roots = dict.fromkeys(part for root in found for part in _beside(root, shared, paths))
            reached = (path for path in carried.programs if any(_overlap(path, root) for root in roots))
            programs = [(_q(path), _q(path.parent), f"/.mcpenv-{number}") for number, path in enumerate(reached)]
            away = (f"if [ -e {path} ] || [ -L {path} ]; then mv {path} {kept}; fi" for path, _, kept in programs)
            cleared = [f"rm -rf -- {_q(root)} || true; mkdir -p -- {_q(root.parent)}" for root in roots]
            await self._in_new(*away, *cleared)
            left = MAX_WORK
            for root, clear in zip(roots, cleared, strict=True):
                if not roots.keys().isdisjoint(root.parents):  # it was copied with the one above
                    await self._in_new(clear)
                copy = (self._engine, "cp", *_KEEP_OWNER[self._engine])
                if str(root) not in deleted:
                    left -= await pipe((*copy, f"{old}:{root}", "-"), (*copy, "-", f"{self._name}:{root.parent}"), left)
            again = (
                f"rm -rf -- {path}; if [ -e {kept} ] || [ -L {kept} ]; then mkdir -p -- {above} && mv {kept} {path}; fi"
                for path, above, kept in programs
            )
            await self._in_new(*again)
        finally:
            if not goes_on:
                await self._remove(old)
                self._kept = None
        return carried.dropped(path for path in paths if not any(mount in (path, *path.parents) for mount in mounted))

    async def _mounts(self) -> dict[PurePosixPath, str]:
        """Return the volumes and folders of this machine in the container, with the place of each."""
        mounts = json.loads(await self.engine("container", "inspect", self._name))[0].get("Mounts") or ()
        kinds = ("volume", "bind")
        return {PurePosixPath(each["Destination"]): each["Source"] for each in mounts if each.get("Type") in kinds}

    async def _in_new(self, *lines: str) -> None:
        for begin in range(0, len(lines), MOST_AT_ONCE):
            script = "\n".join(("set -e", *lines[begin : begin + MOST_AT_ONCE]))
            await self.engine("exec", *self._env, "--user", "0", "--workdir", "/", self._name, "sh", "-c", script)

    async def _kill(self, process: asyncio.subprocess.Process, talk: asyncio.Task[Any], pid: str) -> None:
        """Kill a command in the container; the file ``pid`` has its process id. Its output so far is returned."""
        await self.engine("exec", "--user", "0", self._name, "sh", "-c", f"kill -KILL $(cat {pid}) || true")
        # Background processes of the command may keep its outputs open.
        _, unfinished = await asyncio.wait([talk], timeout=KILLED_WITHIN_S)
        if unfinished:
            process.kill()


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes, most: int) -> tuple[bytes, bytes]:
    """Return the outputs of a process, cut to ``most`` bytes each. What is left out is not kept in memory either."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    outputs = asyncio.gather(_beginning_and_end(process.stdout, most), _beginning_and_end(process.stderr, most))
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()
    stdout, stderr = await outputs
    await process.wait()
    return stdout, stderr


async def _beginning_and_end(stream: asyncio.StreamReader, most: int) -> bytes:
    kept, size = bytearray(), 0
    while chunk := await stream.read(CHUNK):
        kept += chunk
        size += len(chunk)
        if len(kept) > 2 * most:
            del kept[most:-most]
    return cut(bytes(kept), most, size)


def _q(path: object) -> str:
    return shlex.quote(str(path))


def _overlap(path: PurePosixPath, other: PurePosixPath) -> bool:
    return path == other or path in other.parents or other in path.parents


def _beside(
    root: PurePosixPath, shared: Sequence[PurePosixPath], changed: Sequence[PurePosixPath]
) -> Iterator[PurePosixPath]:
    """Yield a path, or the changed parts of it that are not in what both containers have mounted."""
    if any(mount == root or mount in root.parents for mount in shared):
        return
    if not any(root in mount.parents for mount in shared):
        yield root
        return
    depth = len(root.parts) + 1
    for part in dict.fromkeys(PurePosixPath(*path.parts[:depth]) for path in changed if root in path.parents):
        yield from _beside(part, shared, changed)


def _roots(changed: Sequence[PurePosixPath], carried: Carried) -> dict[PurePosixPath, None]:
    """Return the paths to carry over as a whole: those that contain the changed paths."""
    found: dict[PurePosixPath, None] = {}
    for path in changed:
        folder = next((own for own in carried.folders if own == path or own in path.parents), None)
        depth = _DEPTHS.get(path.parts[1], 1) if len(path.parts) > 1 else 1
        if folder is not None:
            found[folder] = None
        elif carried.is_system(path) or len(path.parts) <= depth:
            continue
        elif depth > 1 or len(path.parts) > 2 or carried.in_root:  # a file in the root folder only if tasks work there
            found[PurePosixPath(*path.parts[: depth + 1])] = None
    return found
