"""Resolve the OpenEnv environment that the command line names, and the Python that has OpenEnv."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcpenv.errors import TargetError
from mcpenv.targets.external import FolderKind
from mcpenv_client.errors import McpenvError

from . import MANIFEST
from .adapter import OpenEnvEnvironment, adapted
from .process import OpenEnvProcess

PYTHON_VARIABLE = "MCPENV_OPENENV"
"""The environment variable with the path of the Python interpreter that has OpenEnv."""

_PACKAGES = ("openenv", "openenv_core")

APP = "server/app.py"
"""The application of an environment, by which older folders without `MANIFEST` are found."""

_NOT_IMPORTED = (ImportError.__name__, ModuleNotFoundError.__name__)
_REQUIREMENTS = ("server/requirements.txt", "requirements.txt")


def load_folder(target: str, folder: Path, attribute: str | None) -> type[OpenEnvEnvironment]:
    """Return the class that represents the environment of an OpenEnv folder.

    Args:
        target: the target as the user wrote it.
        folder: the folder.
        attribute: the name of the environment's class, if its application serves several.

    Raises:
        TargetError: if no Python has OpenEnv, or the environment cannot be loaded.
    """
    if not ((folder / MANIFEST).is_file() or "openenv" in _text(folder / APP)):
        raise TargetError(target, f"the folder has no environment.py and no {MANIFEST}, and {APP} serves no OpenEnv")
    return _load(target, {"folder": str(folder), "attribute": attribute}, folder)


def load_attribute(target: str, module: str, file: Path | None, attribute: str) -> type[OpenEnvEnvironment]:
    """Return the class that represents an OpenEnv class, or the result of a factory.

    Raises:
        TargetError: as `load_folder`.
    """
    where = {"module": module} if file is None else {"file": str(file)}
    return _load(target, {**where, "attribute": attribute}, None if file is None else file.parent)


def _owns(made: Any) -> bool:
    """Return True if ``made`` is an OpenEnv class, in a Python that has both OpenEnv and mcpenv."""
    interfaces = sys.modules.get("openenv.core.env_server.interfaces")
    return interfaces is not None and isinstance(made, type) and issubclass(made, interfaces.Environment)


def _explains(error: BaseException | None, missing: bool) -> bool:
    """Return True if code that failed to load may be an environment for the Python that has OpenEnv.

    The code imports OpenEnv, which this Python does not have, or is itself installed in the other Python only.
    """
    needed = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _PACKAGES
    return needed or (missing and bool(os.environ.get(PYTHON_VARIABLE)))


def python_of(target: str, folder: Path | None) -> Path:
    """Return the interpreter that has OpenEnv: the named one, the one of the folder's virtual environment, or this one.

    Raises:
        TargetError: if none has it.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        path = Path(os.path.abspath(Path(named).expanduser()))
        if not path.is_file():
            raise TargetError(
                target, f"{PYTHON_VARIABLE} is {named}, which is not a file. Set it to a Python interpreter"
            )
        return path
    for python in (".venv/bin/python", ".venv/Scripts/python.exe"):
        if folder is not None and (folder / python).is_file():
            return folder / python
    if importlib.util.find_spec("openenv") is not None:
        return Path(sys.executable)
    raise TargetError(
        target,
        "is an OpenEnv environment, and this Python has no openenv. Install it into a virtual environment of its own, "
        f"and set {PYTHON_VARIABLE} to the interpreter of that environment",
    )


def _load(target: str, place: Mapping[str, Any], folder: Path | None) -> type[OpenEnvEnvironment]:
    python = python_of(target, folder)
    process = OpenEnvProcess(python, place, folder)
    try:
        described = process.describe()
    except McpenvError as error:
        process.stop()
        raise TargetError(target, str(error)) from error
    except Exception as error:  # of the type that user code raised in the process
        process.stop()
        kind = type(error).__name__
        remedy = _remedy(python, folder) if kind in _NOT_IMPORTED and folder is not None else ""
        raise TargetError(target, f"cannot be loaded: {kind}: {error}{remedy}") from error
    return adapted(process, described)


def _remedy(python: Path, folder: Path) -> str:
    """Return the command that installs the packages of an environment, which is not installed itself."""
    for file, what in (("pyproject.toml", f"-e {folder}"), *((each, f"-r {folder}/{each}") for each in _REQUIREMENTS)):
        if (folder / file).is_file():
            return f". If it is one of the environment's packages: {python} -m pip install {what}"
    return ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


FOLDER = FolderKind(
    framework="OpenEnv",
    advice="mcpenv share import-openenv --help",
    load_folder=load_folder,
    load_attribute=load_attribute,
    owns=_owns,
    explains=_explains,
)
"""Folders with ``openenv.yaml``, older ones with ``server/app.py``, and classes of OpenEnv."""
