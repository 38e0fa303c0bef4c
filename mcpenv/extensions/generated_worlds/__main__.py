"""Measure scripted agents in an environment whose tasks a composer makes.

``python -m mcpenv.extensions.generated_worlds envs/office_mcp`` prints two tables, and writes ``ladder.svg`` there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcpenv import load

from . import ComposedEnvironment, agents_table, measure, picture, table

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with load(folder) as env:
        if not isinstance(env, ComposedEnvironment):
            sys.exit(f"{folder}: its tasks are not those of a Composer")
        scores = measure(env, env.COMPOSER.LOOKS, env.COMPOSER.LADDER)
        agents = agents_table(env, env.COMPOSER.LADDER)
    print(table(scores), agents, sep="\n\n")
    (folder / "ladder.svg").write_text(picture(scores), encoding="utf-8")
