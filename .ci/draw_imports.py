"""Draw the packages and their imports, by levels, as docs/architecture.svg.

The levels are those of the import-linter contract in pyproject.toml; the arrows are the real imports.

    python .ci/draw_imports.py            write the picture
    python .ci/draw_imports.py --check    exit with 1 if the picture in the repository is another one
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT, MARGIN = 960, 84, 150, 40, 24
STYLE = """
  text { font: 14px ui-sans-serif, system-ui, sans-serif; fill: #1f2937; text-anchor: middle; }
  rect { fill: #eef2ff; stroke: #6366f1; rx: 6px; }
  path { fill: none; stroke: #9ca3af; }
"""


def levels() -> list[list[str]]:
    """Return the rows of the layers contract, from the top, each with its packages."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in config["contracts"] if each["type"] == "layers")
    return [[name.strip() for name in row.replace("|", ":").split(":")] for row in layers]


def imports(packages: list[str]) -> Counter[tuple[str, str]]:
    """Count the imports between packages: how many module pairs each arrow stands for."""
    graph = grimp.build_graph("mcpenv", "mcpenv_client", exclude_type_checking_imports=True)
    found: Counter[tuple[str, str]] = Counter()
    for importer in graph.modules:
        source = _package(importer, packages)
        for imported in graph.find_modules_directly_imported_by(importer):
            target = _package(imported, packages)
            if source is not None and target is not None and source != target:
                found[source, target] += 1
    return found


def _package(module: str, packages: list[str]) -> str | None:
    return next((name for name in packages if module == name or module.startswith(f"{name}.")), None)


def reduced(counted: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Leave out the imports between packages that a longer path of imports implies."""
    direct: dict[str, set[str]] = {}
    for source, target in counted:
        direct.setdefault(source, set()).add(target)

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = list(direct.get(start, ()))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(direct.get(name, ()))
        return found

    return Counter(
        {
            (source, target): number
            for (source, target), number in counted.items()
            if not any(target in reached(other) for other in direct[source] - {target})
        }
    )


def picture(rows: list[list[str]], counted: Counter[tuple[str, str]]) -> str:
    """Return the SVG: one row a level, a line for each pair of packages, thicker with more imports."""
    centres: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        for place, name in enumerate(row, 1):
            centres[name] = (WIDTH * place / (len(row) + 1) + _offset(level), MARGIN + BOX_HEIGHT / 2 + level * ROW)
    height = 2 * MARGIN + BOX_HEIGHT + (len(rows) - 1) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The packages of mcpenv by level, and their imports</title>",
        f"<style>{STYLE}</style>",
        '<rect x="0" y="0" width="100%" height="100%" style="fill:#ffffff;stroke:none"/>',
    ]
    for (source, target), number in sorted(counted.items()):
        (from_x, from_y), (to_x, to_y) = centres[source], centres[target]
        from_y, to_y = from_y + BOX_HEIGHT / 2, to_y - BOX_HEIGHT / 2
        if from_y > to_y:  # two packages of one level
            from_y, to_y = from_y - BOX_HEIGHT / 2, to_y + BOX_HEIGHT / 2
        bend = (to_y - from_y) / 2
        curve = (
            f"M{from_x:.0f},{from_y:.0f} C{from_x:.0f},{from_y + bend:.0f} "
            f"{to_x:.0f},{to_y - bend:.0f} {to_x:.0f},{to_y:.0f}"
        )
        width = min(1 + number / 12, 4)
        tip = f"{source} imports {target}: {number}"
        lines.append(f'<path d="{curve}" stroke-width="{width:.1f}"><title>{escape(tip)}</title></path>')
    for name, (x, y) in sorted(centres.items()):
        shown = name.removeprefix("mcpenv.")
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        lines.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 5:.0f}">{escape(shown)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _offset(level: int) -> float:
    """Shift every second level a little, so that lines between single boxes do not lie on each other."""
    return 60.0 if level % 2 else -60.0


def main() -> int:
    """Write or check the picture."""
    rows = levels()
    drawn = picture(rows, reduced(imports([name for row in rows for name in row])))
    if "--check" in sys.argv:
        if PICTURE.read_text() != drawn:
            print(f"{PICTURE.relative_to(ROOT)} shows other imports than the code has: run python .ci/draw_imports.py")
            return 1
        return 0
    PICTURE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
