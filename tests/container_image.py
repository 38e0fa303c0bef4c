"""Make a container image of this machine's shell and a few programs, for engines without a registry."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PROGRAMS = (
    "bash", "sh", "cat", "head", "mkdir", "dirname", "rm", "chmod", "sleep", "ls", "cp", "env", "true", "id", "mv",
)  # fmt: skip


def import_image(engine: str, name: str, programs: tuple[str, ...] = PROGRAMS) -> None:
    """Import the image into an engine."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", dereference=True) as archive:
        files = {}
        for program in programs:
            path = str(Path(shutil.which(program) or program).resolve())
            files[f"bin/{program}"] = path
            libraries = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            files |= {library.lstrip("/"): library for library in re.findall(r"(/\S+)", libraries)}
        for place, path in files.items():
            archive.add(path, place)
        for folder in ("tmp", "root"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
    subprocess.run([engine, "import", "-", name], input=data.getvalue(), capture_output=True, check=True)
