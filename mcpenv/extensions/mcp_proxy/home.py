"""The home folder of a server's process: the user's, in which nothing new outlives the process."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from .workspace import make_folder

MAX_COPIED = 65_536
"""Bytes of a file in the home folder up to which it is copied. A larger one is shared, as folders are."""

_OF_MANY = (".cache", ".config", ".local", ".local/share", ".local/state")
"""Folders in which many programs have a folder each. A new one in them belongs to the process."""

_STARTUP = frozenset(
    {".profile", ".bash_profile", ".bash_login", ".bashrc", ".zshenv", ".zprofile", ".zshrc", ".zlogin"}
)
"""Files that shells run at their start. They run with the user's own home folder: version managers keep its path in
variables, and write it into the folders that are linked."""

_CACHES = {"npm_config_cache": ".npm", "UV_CACHE_DIR": ".cache/uv", "UV_PYTHON_INSTALL_DIR": ".local/share/uv/python"}


def make_home() -> Path:
    """Return a new home folder: small files of the user's are copied, and folders are linked. Blocks."""
    users, made = Path.home(), make_folder("mcpenv-home-")
    for folder in ("", *_OF_MANY):
        place = made / folder
        if folder and not (users / folder).is_dir():
            continue
        place.mkdir(exist_ok=True)
        for entry in _entries(users / folder):
            name = os.path.join(folder, entry.name)
            if name in _OF_MANY:
                continue
            try:
                if name in _STARTUP and entry.is_file():
                    homes = shlex.quote(str(users)), shlex.quote(str(made))
                    (made / name).write_text(f"HOME={homes[0]}\n. {shlex.quote(entry.path)}\nHOME={homes[1]}\n")
                elif entry.is_file() and entry.stat().st_size <= MAX_COPIED:
                    shutil.copy2(entry.path, made / name)
                else:
                    (made / name).symlink_to(entry.path)
            except OSError:  # another user's file
                continue
    return made


def caches_of_launchers(env: dict[str, str]) -> dict[str, str]:
    """Return variables that keep what launchers install in the user's home folder, whatever folder ``HOME`` is.

    Otherwise each episode would install the server, and its program would be gone with the workspace.
    """
    if env.get("HOME") in (None, os.environ.get("HOME")):
        return {}
    return {name: os.environ.get(name, str(Path.home() / folder)) for name, folder in _CACHES.items()}


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        yield from os.scandir(folder)
    except OSError:
        return
