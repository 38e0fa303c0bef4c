"""Measure the ladder of terminal.

Run it as ``python -m terminal_mcp.ladder`` in the folder ``envs``. It writes ``ladder.svg`` beside itself.
"""

from __future__ import annotations

from pathlib import Path

from mcpenv.extensions.generated_worlds import measure, picture, table

LOOKS = ("read_",)
"""How the names of tools begin that change nothing."""

TASKS = 40
"""The number of tasks of each level."""

if __name__ == "__main__":
    from .environment import TerminalEnvironment

    scores = measure(TerminalEnvironment, LOOKS, TASKS)
    print(table(scores))
    (Path(__file__).parent / "ladder.svg").write_text(picture(scores), encoding="utf-8")
