"""Print the Python files below the given folders, in lines within which no two have one name.

A folder with an ``environment.py`` has a line of its own: examples import another module of that name.
"""

from __future__ import annotations

import sys
from pathlib import Path

ALONE = "environment.py"


def main(tops: list[str]) -> None:
    """Print a line for each group."""
    names: dict[Path, set[str]] = {}
    for file in (file for top in tops for file in Path(top).rglob("*.py")):
        names.setdefault(file.parent, set()).add(file.name)
    groups: list[tuple[list[Path], set[str]]] = []
    for folder, own in sorted(names.items()):
        for folders, taken in groups:
            if not taken & own and ALONE not in taken | own:
                folders.append(folder)
                taken |= own
                break
        else:
            groups.append(([folder], set(own)))
    for folders, _ in groups:
        print(*(file for folder in folders for file in sorted(folder.glob("*.py"))))


if __name__ == "__main__":
    main(sys.argv[1:])
