"""Boxes by Docker or Podman: the container that the task's Dockerfile or image names."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
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
    last_lines,
)
from .task import HarborTask

logger = logging.getLogger("mcpenv.harbor")

ENGINES = ("docker", "podman")
PROBE_S = 20.0
COMMAND_TIMEOUT_S = 120.0
"""Maximum seconds of an engine command that runs no command of a task."""

_PID = "/tmp/.mcpenv-"


def find_engine(engine: str) -> str | None:
    """Return None if an engine can be used, else the reason. Blocks until the engine has answered."""
    program = shutil.which(engine)
    if program is None:
        return f"{engine} is not installed"
    try:
        done = subprocess.run(
            [program, "version", "--format", "{{.Server.Version}}" if engine == "docker" else "{{.Client.Version}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{engine} cannot be run: {error}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"{engine} does not work here: {lines[0] if lines else f'exit status {done.returncode}'}"


class Image:
    """The image of a task, pulled or built once.

    Args:
        engine: "docker" or "podman".
        task: the task.
    """

    def __init__(self, engine: str, task: HarborTask) -> None:
        self.engine = engine
        self.task = task
        self._mutex = asyncio.Lock()
        self._name = task.config.environment.docker_image

    async def box(self, networks: Mapping[str, bool]) -> ContainerBox:
        """Return a new container. The first one waits for the build.

        Args:
            networks: True for each phase ("agent", "verifier") that has a network; both phases must agree.

        Raises:
            BoxFailed: the build failed, or the container does not start.
        """
        async with self._mutex:
            if self._name is None:
                self._name = await self._build()
        name = f"mcpenv-{secrets.token_hex(8)}"
        environment = self.task.config.environment
        options = ["--name", name, "--label", "mcpenv=harbor"]
        options += [] if networks["agent"] else ["--network", "none"]
        options += [] if environment.cpus is None else ["--cpus", f"{environment.cpus:g}"]
        options += [] if environment.memory_mb is None else ["--memory", f"{environment.memory_mb}m"]
        options += [f"--env={key}={value}" for key, value in self.task.env.items()]
        box = ContainerBox(self.engine, name, environment.workdir)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(box.close)
            await box.engine("run", "--detach", *options, self._name, "sh", "-c", "sleep infinity")
            await box.engine("exec", name, "mkdir", "-p", "/logs/agent", "/logs/artifacts")
            on_failure.pop_all()
        return box

    async def _build(self) -> str:
        tag = f"mcpenv-harbor:{self.task.digest[:16]}"
        timeout_s = self.task.config.environment.build_timeout_sec
        await command(self.engine, "build", "--tag", tag, str(self.task.environment), timeout_s=timeout_s)
        return tag


class ContainerBox(Box):
    """A container.

    Args:
        engine: "docker" or "podman".
        name: its name.
        workdir: the working folder, instead of the image's.
    """

    def __init__(self, engine: str, name: str, workdir: str | None) -> None:
        self._engine = engine
        self._name = name
        self._workdir = [] if workdir is None else ["--workdir", workdir]

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
        talk = asyncio.create_task(process.communicate(stdin))
        timed_out = False
        try:
            await asyncio.wait_for(asyncio.shield(talk), timeout_s)
        except TimeoutError:
            timed_out = True
            await self._kill(process, talk, pid)
        except asyncio.CancelledError:
            await self._kill(process, talk, pid)
            raise
        stdout, stderr = (cut(output, max_output) for output in await talk)
        return Done(TIMED_OUT if timed_out else process.returncode or 0, stdout, stderr, timed_out=timed_out)

    async def begin_verification(self, tests: Path) -> None:
        """Implement `Box.begin_verification`, by a restart of the container."""
        await self.engine("kill", self._name)
        await self.engine("start", self._name)
        fresh = shlex.join(["rm", "-rf", "--", str(TESTS), str(VERIFIER_LOGS)])
        script = f"{fresh} && mkdir -p {TESTS} {VERIFIER_LOGS} && chmod 777 {VERIFIER_LOGS}"
        await self.engine("exec", "--user", "0", self._name, "sh", "-c", script)
        await self.engine("cp", f"{tests}/.", f"{self._name}:{TESTS}")

    async def close(self) -> None:
        """Implement `Box.close`."""
        # Without it, podman waits 10 s for a container's end. A container that does not run cannot be killed.
        with suppress(BoxFailed):
            await self.engine("kill", self._name)
        try:
            await self.engine("rm", "--force", "--volumes", self._name)
        except BoxFailed as error:
            logger.warning("container %s is not removed: %s", self._name, error)

    async def _kill(self, process: asyncio.subprocess.Process, talk: asyncio.Task[Any], pid: str) -> None:
        """Kill a command in the container; the file ``pid`` has its process id. Its output so far is returned."""
        await self.engine("exec", "--user", "0", self._name, "sh", "-c", f"kill -KILL $(cat {pid}) || true")
        # Background processes of the command may keep its outputs open.
        _, unfinished = await asyncio.wait([talk], timeout=KILLED_WITHIN_S)
        if unfinished:
            process.kill()


async def command(*words: str, timeout_s: float) -> bytes:
    """Run a program and return its output.

    Raises:
        BoxFailed: it failed, or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError as error:
        raise BoxFailed(f"{' '.join(words[:2])} took more than {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = last_lines(stderr.strip() or stdout) or f" exit status {process.returncode}"
        raise BoxFailed(f"{' '.join(words[:2])} failed:{said}")
    return stdout
