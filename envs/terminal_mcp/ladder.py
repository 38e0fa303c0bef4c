"""Measure the ladder of terminal.

Run it as ``python -m terminal_mcp.ladder`` in the folder ``envs``. It writes ``ladder.svg`` beside itself.
"""

from __future__ import annotations

from pathlib import Path

from mcpenv.extensions.generated_worlds import measure, picture, table

TASKS = 40
"""The number of tasks of each level."""

if __name__ == "__main__":
    from .environment import TerminalEnvironment
    from .tasks import TerminalTasks

    scores = measure(TerminalEnvironment, TerminalTasks.LOOKS, TASKS)
    print(table(scores))
    (Path(__file__).parent / "ladder.svg").write_text(picture(scores), encoding="utf-8")
