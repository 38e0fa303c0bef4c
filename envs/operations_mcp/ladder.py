"""Measure the ladder of operations.

Run it as ``python -m operations_mcp.ladder`` in the folder ``envs``. It writes ``ladder.svg`` beside itself.
"""

from __future__ import annotations

from pathlib import Path

from mcpenv.extensions.generated_worlds import measure, picture, table

TASKS = 120
"""The number of tasks of each level."""

if __name__ == "__main__":
    from .environment import OperationsEnvironment
    from .tasks import OperationsTasks

    scores = measure(OperationsEnvironment, OperationsTasks.LOOKS, TASKS)
    print(table(scores))
    (Path(__file__).parent / "ladder.svg").write_text(picture(scores), encoding="utf-8")
