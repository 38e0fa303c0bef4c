"""Measure the office's ladder.

Run it as ``python -m office_mcp.ladder`` in the folder ``envs``. It writes ``ladder.svg`` beside itself.
"""

from __future__ import annotations

from pathlib import Path

from mcpenv.extensions.generated_worlds import measure, picture, table

if __name__ == "__main__":
    from .environment import OfficeEnvironment
    from .tasks import OfficeTasks

    scores = measure(OfficeEnvironment, OfficeTasks.LOOKS)
    print(table(scores))
    (Path(__file__).parent / "ladder.svg").write_text(picture(scores), encoding="utf-8")
