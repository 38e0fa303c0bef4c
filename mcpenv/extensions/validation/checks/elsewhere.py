"""Load an environment from another place, as if it were an installed package or in an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from mcpenv.extensions.shipping.folder_files import shipped_files
from mcpenv.targets.manifest import Manifest
from mcpenv.targets.target import Target

LOADING_S = 300.0
"""Maximum seconds for loading the copy."""

_INSTALLED = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
made = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
made
"""
_COPIED = """
import sys
from mcpenv.targets.target import load_target
load_target(sys.argv[1]).make().close()
"""


def fault_elsewhere(target: Target) -> tuple[str, str] | None:
    """Return the layout in which a copy of the environment does not load, and the error; None if it does.

    A fresh process with another working directory loads the copy.
    """
    assert target.folder is not None
    with tempfile.TemporaryDirectory(prefix="mcpenv-elsewhere-", ignore_cleanup_errors=True) as place:
        copy = Path(place) / target.folder.name
        _copy(target.folder, copy)
        fault = _run(_COPIED, f"{copy}{_attribute_of(target)}")
        if fault is not None:
            return "a copy of the folder", fault
        package = _package_of(target.folder, target.manifest)
        if package is None or target.manifest is None:
            return None
        site = Path(place) / "site-packages"
        _copy(target.folder / package, site / package)
        module = target.manifest.entry_file.removesuffix(".py").replace("/", ".")
        fault = _run(_INSTALLED, str(site), module, target.manifest.entry_attribute)
        return None if fault is None else (f"the package {package!r} alone, as in a wheel,", fault)


def _attribute_of(target: Target) -> str:
    """Return ``:NAME``, if the target names one in its folder."""
    return "" if target.manifest is not None or ":" not in target.spec else ":" + target.spec.rpartition(":")[2]


def _package_of(folder: Path, manifest: Manifest | None) -> str | None:
    """Return the package that has the entry; None if the entry is in no package."""
    if manifest is None or "/" not in manifest.entry_file:
        return None
    package = manifest.entry_file.partition("/")[0]
    return package if (folder / package / "__init__.py").is_file() else None


def _copy(source: Path, copy: Path) -> None:
    for file in shipped_files(source):
        place = copy / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # something works in the folder
            shutil.copy2(file, place, follow_symlinks=False)


def _run(program: str, *arguments: str) -> str | None:
    """Run a program in a fresh process, in a folder of its own. Return its last line of error; None if it succeeded."""
    with tempfile.TemporaryDirectory(prefix="mcpenv-cwd-") as cwd:
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-c", program, *arguments],
                cwd=cwd,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=LOADING_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not load within {LOADING_S:g} s"
    if ended.returncode == 0:
        return None
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {ended.returncode}"
