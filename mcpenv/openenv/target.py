"""What names an OpenEnv environment on the command line, and which Python has OpenEnv."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcpenv_client.errors import McpenvError

from ..errors import TargetError
from .adapter import OpenEnvEnvironment, adapted
from .process import OpenEnvProcess

PYTHON_VARIABLE = "MCPENV_OPENENV"
"""The environment variable that names the Python interpreter that has OpenEnv."""

MANIFEST = "openenv.yaml"
"""The file that makes a folder an OpenEnv environment."""

_PACKAGES = ("openenv", "openenv_core")


def load_folder(target: str, folder: Path, attribute: str | None) -> type[OpenEnvEnvironment]:
    """The class that stands for the environment of an OpenEnv folder.

    Args:
        target: as the user wrote it.
        attribute: the name of the environment's class, if its application serves several.

    Raises:
        TargetError: no Python has OpenEnv, or the environment does not load.
    """
    return _load(target, {"folder": str(folder), "attribute": attribute}, folder)


def load_attribute(target: str, module: str, file: Path | None, attribute: str) -> type[OpenEnvEnvironment]:
    """The class that stands for an OpenEnv class, or for what a factory makes.

    Raises:
        TargetError: as `load_folder`.
    """
    where = {"module": module} if file is None else {"file": str(file)}
    return _load(target, {**where, "attribute": attribute}, None if file is None else file.parent)


def needs_openenv(error: BaseException | None) -> bool:
    """Whether a module could not be loaded because it imports OpenEnv, which this Python does not have."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _PACKAGES


def is_openenvs(made: Any) -> bool:
    """Whether something is a class of OpenEnv's, in a Python that has it beside mcpenv."""
    interfaces = sys.modules.get("openenv.core.env_server.interfaces")
    return interfaces is not None and isinstance(made, type) and issubclass(made, interfaces.Environment)


def has_openenv_elsewhere() -> bool:
    """Whether the user says which Python has OpenEnv; what is installed there is not installed here."""
    return bool(os.environ.get(PYTHON_VARIABLE))


def python_of(target: str, folder: Path | None) -> Path:
    """The interpreter that has OpenEnv: the one that is named, the folder's own virtual environment's, or this one.

    Raises:
        TargetError: none has.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        path = Path(os.path.abspath(Path(named).expanduser()))
        if not path.is_file():
            raise TargetError(target, f"{PYTHON_VARIABLE} is {named}, which is no file; name a Python interpreter")
        return path
    for python in (".venv/bin/python", ".venv/Scripts/python.exe"):
        if folder is not None and (folder / python).is_file():
            return folder / python
    if importlib.util.find_spec("openenv") is not None:
        return Path(sys.executable)
    raise TargetError(
        target,
        "is an OpenEnv environment, and this Python has no openenv; install it into a virtual environment of its own "
        f"and name that one's interpreter in {PYTHON_VARIABLE}",
    )


def _load(target: str, place: Mapping[str, Any], folder: Path | None) -> type[OpenEnvEnvironment]:
    process = OpenEnvProcess(python_of(target, folder), place, folder)
    try:
        described = process.describe()
    except McpenvError as error:
        process.stop()
        raise TargetError(target, str(error)) from error
    except Exception as error:  # of the type that loading the author's code raised over there
        process.stop()
        raise TargetError(target, f"cannot be loaded: {type(error).__name__}: {error}") from error
    return adapted(process, described)
