"""Measure the ladder of an environment whose tasks a composer makes.

``python -m mcpenv.extensions.generated_worlds envs/office_mcp`` prints the table, and writes ``ladder.svg`` there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcpenv import load

from . import ComposedEnvironment, measure, picture, table

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with load(folder) as env:
        if not isinstance(env, ComposedEnvironment):
            sys.exit(f"{folder}: its tasks are not those of a Composer")
        scores = measure(env, env.COMPOSER.LOOKS, env.COMPOSER.LADDER)
    print(table(scores))
    (folder / "ladder.svg").write_text(picture(scores), encoding="utf-8")
