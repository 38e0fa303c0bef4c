"""Run one rollout function, unchanged, on an environment in this process and on a server.

Run it::

    python examples/remote_rollout.py                         # starts a server of its own
    python examples/remote_rollout.py http://127.0.0.1:8000   # mcpenv run examples/write_an_environment.py
"""

import sys
from contextlib import ExitStack
from typing import Any

from serving import GUESS_NUMBER, served
from write_an_environment import GuessNumber

from mcpenv_client import EnvClient


def rollout(env: Any, seed: int) -> tuple[float, list[str]]:
    """Play one game by bisection, and return its return and the tool's answers."""
    env.reset(seed=seed)
    low, high, answers = 1, 100, []
    while True:
        number = (low + high) // 2
        step = env.call_tool("guess", {"number": number})
        assert step.error is None
        answers.append(step.text)
        if step.done:
            return step.info["return"], answers
        low, high = (number + 1, high) if step.text == "higher" else (low, number - 1)


with ExitStack() as stack:
    url = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(served(GUESS_NUMBER))
    here = stack.enter_context(GuessNumber())
    there = stack.enter_context(EnvClient(url).sync())
    for seed in (1, 2, 3):
        score, answers = rollout(there, seed)
        print(f"seed {seed}: return {score}, {' '.join(answers)}")
        assert (score, answers) == rollout(here, seed)
        assert score == 1.0 and answers[-1] == "right"
    assert there.state().step_count == len(answers)
