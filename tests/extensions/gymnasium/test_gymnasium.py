"""Text environments of Gymnasium, with the real package."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mcpenv.errors import TargetError
from mcpenv.targets.target import load_target


def made(target: str, *settings: str) -> Any:
    return load_target(target, settings).make()


def test_without_the_package_the_target_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "mcpenv.extensions.gymnasium.environment", raising=False)
    with pytest.raises(TargetError, match="needs the package gymnasium; run: pip install gymnasium"):
        load_target("gymnasium:FrozenLake-v1")


@pytest.mark.world
def test_an_episode_is_won_by_discrete_actions() -> None:
    with made("gymnasium:FrozenLake-v1", "is_slippery=false") as env:
        observation = env.reset(seed=1)
        assert observation.metadata["observation"] == 0 and "FHFH" in observation.prompt
        (tool,) = env.list_tools()
        assert tool.input_schema["properties"]["action"]["maximum"] == 3
        assert env.call_tool("act", {"action": 4}).error.error_type == "invalid_args"
        steps = [env.call_tool("act", {"action": action}) for action in (1, 1, 2, 2, 1, 2)]
        assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 1]
        assert steps[-1].terminated and steps[-1].result.structured_content["observation"] == 15


@pytest.mark.world
def test_a_time_limit_truncates_and_a_seed_repeats() -> None:
    with made("gymnasium:Taxi-v4", "max_episode_steps=2") as env:
        first = env.reset(seed=7).metadata["observation"]
        assert env.reset(seed=7).metadata["observation"] == first
        env.call_tool("act", {"action": 0})
        assert env.call_tool("act", {"action": 0}).truncated


@pytest.mark.world
def test_text_actions_and_observations_of_several_parts_pass() -> None:
    import gymnasium
    from gymnasium import spaces

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Any:
        gymnasium.Env.reset(self, seed=seed)
        return {"said": "abc", "parts": (0, self.np_random.integers([2, 3]))}, {}

    def step(self: Any, action: str) -> Any:
        return {"said": action, "parts": (1, self.np_random.integers([2, 3]))}, float(action == "abc"), True, False, {}

    repeat = type(
        "Repeat",
        (gymnasium.Env,),
        {
            "action_space": spaces.Text(8, charset="abc"),
            "observation_space": spaces.Dict(
                {"said": spaces.Text(8), "parts": spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3])))}
            ),
            "reset": reset,
            "step": step,
        },
    )
    gymnasium.register("mcpenv/Repeat-v0", entry_point=repeat)
    try:
        with made("gymnasium:mcpenv/Repeat-v0") as env:
            assert env.reset(seed=1).metadata["observation"]["said"] == "abc"
            done = env.call_tool("act", {"action": "abc"})
            assert done.reward == 1 and done.result.structured_content["observation"]["parts"][0] == 1
    finally:
        del gymnasium.registry["mcpenv/Repeat-v0"]


@pytest.mark.world
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gymnasium:CartPole-v1", "its observations have a Box space"),
        ("gymnasium:Pendulum-v1", "its actions are a Box space"),
        ("gymnasium:NoSuch-v1", "Gymnasium cannot make it"),
    ],
)
def test_what_cannot_be_served_is_refused(target: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        load_target(target)
