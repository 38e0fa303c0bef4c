"""The way in which a class starts a server that is a process: by command, isolated or forked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError

from .command import Command
from .config import ServerSettings, StateOf
from .delivery import DiscoveryFailed
from .home import caches_of_launchers, make_home
from .host_files import WORKSPACE
from .paths import PathNames
from .process import Process, spawn
from .sandbox import ServerSandbox
from .workspace import Workspace, remove_in_background
from .zygote import ForkRefused, Zygote


class Launcher:
    """Starts the processes of one server, for all instances of a class.

    Args:
        name: the server's name in the configuration.
        settings: its settings.

    Raises:
        DiscoveryFailed: there is no such program.
    """

    def __init__(self, name: str, settings: ServerSettings) -> None:
        self.name = name
        self._settings = settings
        try:
            self._command = Command.find(str(settings.command), settings.args)
        except FileNotFoundError as error:
            raise DiscoveryFailed(f"server {name!r} did not start: {error}") from error
        self._sandbox: ServerSandbox | None = None
        self._first: tuple[Process, list[str]] | None = None
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()

    async def prepare(self) -> None:
        """Decide whether to isolate the server. Called once, on the loop of `UPSTREAMS`, before the first start.

        Raises:
            ConfigurationError: the server must be isolated or forked, and cannot be.
        """
        if self._command.launches:
            return  # it needs the network and its caches; `pin` decides
        try:
            self._sandbox = await ServerSandbox.of(self._settings, self._command)
        except ConfigurationError as error:
            raise ConfigurationError(f"server {self.name!r}: {error}") from error

    async def pin(self) -> bool:
        """Replace a launcher (``uvx``, ``npx``) by the program that it started.

        Return True if that changed the command.

        Called while the first process runs.

        Raises:
            ConfigurationError: the program cannot be determined, but must be isolated or forked.
        """
        if self._first is None:
            return False
        (process, arguments), self._first = self._first, None
        found = await asyncio.to_thread(self._command.pinned, process.program, arguments)
        if found is not None:
            self._command = found
            await self.prepare()
            return True
        if self._settings.isolation == "bubblewrap" or self._settings.per_episode == "fork":
            raise ConfigurationError(
                f"server {self.name!r} cannot be isolated or forked: the program that {self._settings.command} runs is "
                "not known. Install the server, and name its own command"
            )
        return False

    @property
    def isolated(self) -> bool:
        """True if the server runs in a sandbox."""
        return self._sandbox is not None

    @property
    def has_own_home(self) -> bool:
        """True if each process has a home folder of its own, so that a reset leaves nothing new in the user's."""
        keeps = self._settings.where in (StateOf.PROCESS, StateOf.WORKSPACE)
        return keeps and "HOME" not in self._settings.env and not self.isolated and not self._command.launches

    @property
    def program(self) -> str:
        """The words that name the program, for display."""
        return " ".join(self._command.program)

    def names(self, workspace: Workspace | None) -> PathNames | None:
        """Return the names of the episode's folder for the server and for agents."""
        return None if workspace is None else PathNames(workspace.path, isolated=self.isolated)

    async def start(self, workspace: Workspace | None) -> Process:
        """Start a process.

        Raises:
            OSError: it cannot be started.
            ForkRefused: it cannot be forked.
        """
        self._command.check()
        names = self.names(workspace)

        def fill(value: Any) -> Any:
            return value if workspace is None or names is None else workspace.fill(value, names.server_side)

        env = self._command.variables() | fill(self._settings.env)
        if self._command.launches:
            env |= caches_of_launchers(env)
        home = await asyncio.to_thread(make_home) if self.has_own_home else None
        if home is not None:
            env["HOME"] = str(home)
        try:
            process = await self._started(workspace, env, fill)
        except BaseException:
            if home is not None:
                remove_in_background(home)
            raise
        process.home = home
        return process

    async def _started(self, workspace: Workspace | None, env: dict[str, str], fill: Callable[[Any], Any]) -> Process:
        cwd = None if self._settings.cwd is None else str(fill(self._settings.cwd))
        if cwd is not None and self._sandbox is None and not await asyncio.to_thread(os.path.isdir, cwd):
            raise FileNotFoundError(f"there is no folder {cwd!r}, which is its cwd")
        if self._settings.per_episode == "fork" and not self._command.launches:
            zygote = await self._forking()
            arguments = fill(list(zygote.program.arguments))
            return await zygote.fork(arguments, env, cwd or (os.getcwd() if workspace is None else str(workspace.path)))
        words = [*self._command.program, *fill(list(self._command.arguments))]
        if self._sandbox is not None:
            if "TMPDIR" not in self._settings.env:
                env.pop("TMPDIR", None)  # of this process; the sandbox has /tmp
            words = self._sandbox.command(words, None if workspace is None else workspace.path, cwd)
            return await spawn(words, env, None, guarded=False)  # all processes of a sandbox end with it
        if cwd is None and workspace is not None:
            cwd = str(workspace.path)
        process = await spawn(words, env, None if cwd is None else Path(cwd))
        if self._command.launches:
            self._first = process, words[len(self._command.program) :]
        return process

    async def _forking(self) -> Zygote:
        async with self._starting:
            if self._zygote is None or self._zygote.dead:
                program = self._command.python()
                if program is None:
                    raise ForkRefused(f"{self.program} is no Python program")
                env = {name: value for name, value in self._settings.env.items() if WORKSPACE not in value}
                self._zygote = await Zygote.start(
                    program, self._command.variables() | env, self._settings.start_timeout_s
                )
            return self._zygote
