"""The files of an author: neither mcpenv's, nor Python's, nor an installed package's."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import mcpenv_client

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_OTHERS = (
    Path(__file__).parents[2],
    Path(str(mcpenv_client.__file__)).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def is_authors(name: str, root: Path) -> bool:
    """Return True if a file, as modules and tracebacks name it, is an author's.

    Args:
        root: the watched folder. Its files are the author's even inside mcpenv's own package.
    """
    file = Path(name)
    if not file.is_absolute():  # such as <string>, <frozen importlib>
        return False
    if file.is_relative_to(root):
        return _INSTALLED.isdisjoint(file.relative_to(root).parts)
    return _INSTALLED.isdisjoint(file.parts) and not any(file.is_relative_to(other) for other in _OTHERS)
