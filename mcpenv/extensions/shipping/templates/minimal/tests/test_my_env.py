"""The contract of MyEnv, and its rules."""

from __future__ import annotations

from mcpenv.extensions.contract import EnvironmentContract

from my_env import environment


class TestMyEnv(EnvironmentContract):
    factory = environment.MyEnv
    examples = {"add": {"by": 5}}


def test_the_target_ends_the_episode_and_is_rewarded() -> None:
    with environment.MyEnv() as env:
        env.reset(seed=1)
        while env.target - env.count > 5:
            assert env.call_tool("add", {"by": 5}).reward == -0.1
        step = env.call_tool("add", {"by": env.target - env.count})
        assert (step.done, step.reward, step.info["reason"]) == (True, 0.9, "target")


def test_a_step_beyond_the_target_is_refused() -> None:
    with environment.MyEnv() as env:
        env.reset(seed=1)
        while env.target - env.count >= 5:
            env.call_tool("add", {"by": 5})
        step = env.call_tool("add", {"by": env.target - env.count + 1})
        assert step.error is not None and "beyond the target" in step.error.message
        assert not step.done
