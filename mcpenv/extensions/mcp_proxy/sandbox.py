"""The sandbox of a server: bubblewrap shows it the workspace at one path, a read-only system, and no network."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.sandbox.bubblewrap import command_line, find_bubblewrap, tmpfs
from mcpenv.extensions.sandbox.mounts import Mount, installation_of, mount_arguments, temporary_mounts

from .command import Command
from .config import ServerSettings
from .paths import SEEN

_APART = frozenset({"dev", "proc", SEEN[1:]})

_FOLDERS_OF_PYTHON = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, *sys.path]))"

_ASKED_WITHIN_S = 30.0


class ServerSandbox:
    """The sandboxes of one server of a class, one for each process.

    Args:
        bwrap: the path of bubblewrap's program.
        network: True to share the network.
        shown: files and folders below temporary folders that the server may read.
    """

    def __init__(self, bwrap: str, network: bool, shown: Iterable[Path]) -> None:
        hidden = temporary_mounts()
        named = (each for path in shown for each in (path, path.resolve()))
        mounts = hidden | {path: Mount.READ for path in named if path not in hidden}
        self._bwrap = bwrap
        self._network = network
        self._system = list(_system())
        self._mounts = [argument for mount in mount_arguments(mounts, tmpfs(bwrap)) for argument in mount]

    @classmethod
    async def of(cls, settings: ServerSettings, command: Command) -> ServerSandbox | None:
        """Return the sandbox of a server; None if it is not isolated.

        Raises:
            ConfigurationError: it must be isolated, and this machine cannot isolate it.
        """
        if settings.isolation == "none" or (settings.isolation == "auto" and not settings.isolated_by_default):
            return None
        try:
            bwrap = await asyncio.to_thread(find_bubblewrap, "--unshare-net")
        except ConfigurationError as error:
            if settings.isolation == "auto":
                return None
            raise ConfigurationError(f'isolation "bubblewrap": {error}; use "auto" or "none"') from error
        return cls(bwrap, settings.network, await asyncio.to_thread(_needed, settings, command))

    def command(self, words: Sequence[str], workspace: Path | None, cwd: str | None) -> list[str]:
        """Return the command line that runs ``words`` in a sandbox.

        Args:
            workspace: the episode's folder, which the server sees as `SEEN`; None if it has none.
            cwd: the working directory in the sandbox.
        """
        bound = [] if workspace is None else ["--bind", str(workspace), SEEN]
        folder = cwd or (SEEN if workspace is not None else os.getcwd())
        mounts = [*self._mounts, *bound, "--remount-ro", "/", "--chdir", folder]
        return command_line(self._bwrap, words, root=self._system, mounts=mounts, network=self._network)


def _system() -> Iterator[str]:
    """Yield the options for a writable root folder that contains everything of the system's root."""
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.name in _APART:
            continue
        if entry.is_symlink():
            yield from ("--symlink", os.readlink(entry.path), entry.path)
        else:
            yield from ("--ro-bind-try", entry.path, entry.path)


def _needed(settings: ServerSettings, command: Command) -> list[Path]:
    """Return the files that a server needs from temporary folders: its program, and files that its settings name."""
    named = [*command.program, *command.arguments, *settings.env.values(), settings.cwd or ""]
    paths = [Path(word.rpartition("=")[2]) for word in named]
    paths = [path for path in paths if path.is_absolute() and path.exists()]
    found = [Path.cwd(), *(installation_of(each) for path in paths for each in (path, path.resolve()))]
    found += [script.resolve().parent for script in paths[1:] if script.is_file()][:1]  # it imports from there
    python = command.python()
    if python is not None:
        found += _folders_of(python.interpreter)
    return found


def _folders_of(interpreter: str) -> list[Path]:
    """Return the folders that an interpreter imports from."""
    try:
        done = subprocess.run(
            [interpreter, "-c", _FOLDERS_OF_PYTHON],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKED_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"the Python interpreter {interpreter} cannot be run: {error}") from error
    return [Path(folder) for folder in json.loads(done.stdout) if folder and Path(folder).is_dir()]
