"""Continue stopped episodes in a process of its own: the other side of the part durability.

``python -m mcpenv.extensions.validation.parts.continued`` reads a job from stdin, and prints what each episode showed,
or the reason for which it cannot be continued. Both are JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from mcpenv.cli.instance import own_instances
from mcpenv.cli.output import author_output, quiet_logs
from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.walk import error_text
from mcpenv.extensions.durable.rerun import continue_from
from mcpenv.extensions.durable.sqlite_store import SqliteStore
from mcpenv.targets.target import load_target
from mcpenv.worlds import capture
from mcpenv_client.errors import McpenvError, SessionLost
from mcpenv_client.fingerprint import Facts, facts_of_end, facts_of_reset, facts_of_step

from .interleaved import state_of

Shown = list[tuple[int | None, Facts]]
"""The facts of an episode by step, as plain JSON data: 0 is the reset, None the end.

Those of steps after which it was looked at have its ``state`` and ``world``.
"""


def finish(env: MCPEnvironment, calls: Sequence[tuple[str, dict[str, Any]]]) -> Shown:
    """Make calls in a running episode, look at it before and after each, and end it. Return all that it showed."""
    looks: dict[int, Facts] = {}

    def look() -> None:
        world = None if env.world is None else capture(env.world)
        looks[env.step_count] = {"state": state_of(env), "world": world}

    trajectory = env.trajectory
    assert trajectory is not None
    look()
    for name, arguments in calls:
        if trajectory.done:
            break
        env.call_tool(name, arguments)
        look()
    if not trajectory.done:
        env.end()
    steps = [(step.call.step, facts_of_step(step, None)) for step in trajectory.steps]
    seen = [(number, facts | looks.get(number, {})) for number, facts in [(0, facts_of_reset(trajectory)), *steps]]
    shown: Shown = json.loads(json.dumps([*seen, (None, facts_of_end(trajectory))]))
    return shown


def main() -> None:
    """Continue the episodes of the job."""
    job = json.load(sys.stdin)
    quiet_logs(debug=False)
    answers: list[Shown | str] = []
    with author_output(), own_instances():
        target, store = load_target(*job["target"]), SqliteStore(job["store"])
        for session_id, calls in job["stops"]:
            env = target.make()
            try:
                env._execution.blocking.run(continue_from(store, session_id, env._execution))
                answers.append(finish(env, calls))
            except SessionLost as lost:
                answers.append(str(lost))  # with the first difference
            except McpenvError as error:
                answers.append(error_text(error))
            finally:
                env.close()
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
