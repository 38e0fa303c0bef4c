"""Write tasks.jsonl: pages with seeds, and the calls that solve them.

A task is kept if its calls earn 1.0 from the page, played anew. Run it in envs/: python -m miniwob_mcp.make_tasks, or
with the names of pages, to see only whether they are solved.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from .environment import CLOSE, TASKS, MiniWoBEnvironment
from .solutions import SOLVERS, Player

SEEDS = {"train": range(1, 7), "test": (1001, 1002)}
ATTEMPTS = 6


class Over(Exception):
    """The page is over."""


def play(env: MiniWoBEnvironment, page: str, seed: int, attempt: int) -> tuple[str, list[Any], float]:
    """Play a page once. Return what it asks for, the calls, and its reward."""
    env.reset(seed=seed, page=page)
    calls: list[Any] = []

    def act(tool: str, **arguments: Any) -> list[str]:
        step: Any = env.call_tool(tool, arguments)
        if tool != "look":
            calls.append([tool, arguments])
        if step.done:
            raise Over
        assert step.result is not None and not step.result.is_error, step.result
        return env.seen

    wish = env.instruction
    with suppress(Over):
        SOLVERS[page](Player(act, wish, env.fields, attempt))
    return wish, calls, float(env.outcome["reward"])


def task_of(env: MiniWoBEnvironment, page: str, seed: int) -> dict[str, Any] | str:
    """Return a task, or why there is none."""
    tried: list[Any] = []
    for attempt in range(ATTEMPTS):
        try:
            wish, calls, reward = play(env, page, seed, attempt)
        except (AssertionError, StopIteration, IndexError, KeyError, ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        if reward >= CLOSE:
            return {"page": page, "seed": seed, "prompt": wish, "calls": calls}
        if calls in tried:
            break
        tried.append(calls)
    return f"no reward of 1 after {tried}"


def main(pages: list[str]) -> None:
    """Solve pages; write the file if they are all."""
    lines, missing = [], {}
    with MiniWoBEnvironment() as env:
        for page in pages:
            for split, seeds in SEEDS.items():
                for seed in seeds:
                    found = task_of(env, page, seed)
                    if isinstance(found, str):
                        missing[f"{page} {seed}"] = found
                    else:
                        lines.append(json.dumps({"split": split, **found}, ensure_ascii=False))
            print(page, sum(f'"page": "{page}"' in line for line in lines), file=sys.stderr)
    for name, why in missing.items():
        print(f"{name}: {why[:300]}", file=sys.stderr)
    if not sys.argv[1:]:
        TASKS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(SOLVERS))
