"""Install the stock clients.

``install.py FOLDER`` makes their virtual environments, ``install.py --npm`` names their packages. Needs Python
alone. The environments are made with uv, from wheels of PyPI, which takes seconds for each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from stock_clients import CLIENTS

UV = "uv==0.13.8"


def python_of(folder: Path, packages: tuple[str, ...]) -> Path:
    """The interpreter of the environment in FOLDER that has these packages and what they need; made if it is not there.

    Raises:
        subprocess.CalledProcessError: it could not be made.
    """
    home = folder / re.sub(r"[^a-z0-9.]+", "-", packages[0])
    python = home / "bin" / "python"
    done = home / "packages.txt"
    if not done.exists() or done.read_text() != "\n".join(packages):
        # uv keeps what it downloads in the same folder, so that environments share files by hard links.
        uv = [str(_uv(folder)), "--quiet", "--cache-dir", str(folder / "cache")]
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(home)], check=True)
        subprocess.run(
            [*uv, "pip", "install", "--only-binary", ":all:", "--python", str(python), *packages], check=True
        )
        done.write_text("\n".join(packages))
    return python


def _uv(folder: Path) -> Path:
    home = folder / "uv"
    if not (home / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", UV], check=True)
    return home / "bin" / "uv"


def main(argument: str) -> None:
    """Do what the module's first line says."""
    if argument == "--npm":
        print("\n".join(sorted({package for client in CLIENTS for package in client.npm})))
        return
    for client in CLIENTS:
        if client.pypi:
            print(python_of(Path(argument).resolve(), client.pypi))


if __name__ == "__main__":
    main(sys.argv[1])
