"""The adapter for Gymnasium, with the real package."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import served
from trainer_worlds import COLOURS, Diary, Doors, Shop

from mcpenv.server.app import create_app
from mcpenv_client.trainers.failures import rest_of
from mcpenv_client.trainers.sessions import Sessions
from mcpenv_client.types.status import COMPLETED
from mcpenv_client.types.turns import Ending

pytestmark = pytest.mark.world

DOORS = "trainer_worlds:Doors"
ACTIONS = [("look", {}), *(("open_door", {"colour": colour}) for colour in COLOURS)]
LEAVE = len(ACTIONS)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(Doors)) as address:
        yield address.removesuffix("/mcp")


def made(target: Any = Doors, **arguments: Any) -> Any:
    from mcpenv_client.trainers.gymnasium import McpenvEnv

    return McpenvEnv(target, **arguments)


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize("observations", ["text", "structured"])
@pytest.mark.parametrize("actions", [None, ACTIONS])
@pytest.mark.parametrize("split", [None, "train"])
def test_check_env_passes(actions: Any, observations: str, split: str | None) -> None:
    from gymnasium.utils.env_checker import check_env

    env = made(actions=actions, observations=observations, split=split)
    check_env(env, skip_render_check=True)
    env.close()


def test_check_env_passes_on_a_server(url: str) -> None:
    from gymnasium.utils.env_checker import check_env

    env = made(url, actions=ACTIONS, split="train")
    check_env(env, skip_render_check=True)
    env.close()


def test_the_verifiers_reward_is_part_of_the_last_step(url: str) -> None:
    for target in (Doors, url):
        env = made(target, actions=ACTIONS, split="train", observations="structured")
        prompt, _ = env.reset(options={"index": 1})
        assert prompt["text"] == "Number 1." and prompt["data"]["prompt"] == "Number 1."
        looked, reward, terminated, truncated, info = env.step(0)
        assert (looked["data"], reward, terminated, truncated, info) == ({"colour": "green"}, 0.25, False, False, {})
        _, reward, terminated, truncated, info = env.step(2)
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert (info["status"], info["return"], info["parts"]["verified"]) == ("completed", 1.25, 1.0)
        env.close()


def test_what_the_turns_gave_leaves_nothing_but_for_rounding() -> None:
    def ending(worth: float) -> Ending:
        return Ending(worth, {}, COMPLETED)

    assert rest_of(ending(1.0), [0.1] * 10) == rest_of(ending(0.3), [0.1, 0.2]) == rest_of(ending(0.0), []) == 0.0
    assert rest_of(ending(2.0), [0.1] * 10) == pytest.approx(1.0, abs=1e-15)
    assert rest_of(ending(-0.5), [0.25, 0.25]) == -1.0


def test_texts_call_tools_and_a_text_without_a_call_ends_the_episode() -> None:
    env = made(split="train")
    assert env.reset(options={"index": 2})[0] == "Number 2."
    assert env.step(called("look"))[0] == '{"colour":"blue"}'
    _, reward, terminated, _, info = env.step("I give up.")
    assert terminated and reward == 0.0 and info["return"] == 0.25
    env.close()


def test_a_step_limit_truncates_and_asks_the_verifier() -> None:
    env = made(actions=ACTIONS, split="train", max_steps=2)
    env.reset(options={"index": 0})
    assert env.step(0)[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, reward, info["reason"]) == (False, True, 0.25, "max_turns")
    assert "verified" in info["parts"]
    env.close()


def test_a_failed_environment_has_no_reward_and_its_status_in_info() -> None:
    from mcpenv_client.trainers.gymnasium import EpisodeFailed

    broken: Any = [("break_verifier", {})]
    env = made(actions=broken)
    env.reset(seed=1)
    env.step(0)
    _, reward, terminated, truncated, info = env.step(1)
    assert math.isnan(reward) and truncated and not terminated
    assert info["status"] in ("judge_error", "env_error") and info["return"] is None
    env.close()
    env = made(actions=broken, on_failure="raise")
    env.reset(seed=1)
    env.step(0)
    with pytest.raises(EpisodeFailed, match="has no reward"):
        env.step(1)
    env.close()


def test_an_episode_that_nothing_scored_has_no_reward_and_not_one_of_zero() -> None:
    from mcpenv_client.trainers.gymnasium import EpisodeFailed

    writes: Any = [("write", {"text": "Dear diary"})]
    env = made(Diary, actions=writes)
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(0)
    assert math.isnan(reward) and (terminated, truncated) == (True, False)
    assert (info["status"], info["return"]) == ("completed", None)
    env.close()
    env = made(Diary, actions=writes, on_failure="raise")
    env.reset(seed=1)
    with pytest.raises(EpisodeFailed, match="nothing scored it"):
        env.step(0)
    env.close()


def test_a_step_without_an_episode_is_refused() -> None:
    import gymnasium

    env = made(actions=ACTIONS)
    for _ in range(2):
        with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
            env.step(LEAVE)
        env.reset(seed=1)
        env.step(LEAVE)
    env.close()


def test_an_action_for_a_tool_that_is_missing_is_refused_at_the_start() -> None:
    env = made(actions=[("look", {}), ("fly", {})])
    with pytest.raises(ValueError, match="no tool fly; it is in actions"):
        env.reset()
    env.close()


def test_a_schema_arrives_whole() -> None:
    env = made(Shop)
    _, info = env.reset(seed=1)
    with Shop() as shop:
        (tool,) = shop.list_tools()
    assert info["tools"] == [tool.to_openai()]
    assert info["tools"][0]["function"]["parameters"]["properties"]["amounts"]["minItems"] == 1
    env.close()


@pytest.mark.parametrize("in_processes", [False, True])
@pytest.mark.parametrize("on_server", [False, True])
def test_vectors_play_with_equal_results(in_processes: bool, on_server: bool, url: str) -> None:
    import functools

    import gymnasium

    functions = [functools.partial(made, url if on_server else DOORS, actions=ACTIONS, split="train") for _ in range(4)]
    vector: Any
    if in_processes:
        vector = gymnasium.vector.AsyncVectorEnv(functions, shared_memory=False)
    else:
        vector = gymnasium.vector.SyncVectorEnv(functions)
    prompts, _ = vector.reset(seed=7)
    vector.step([0, 0, 0, 0])
    _, rewards, terminated, truncated, infos = vector.step([1, 2, 3, 1])
    at = [int(prompt.removeprefix("Number ").rstrip(".")) for prompt in prompts]
    assert [float(reward) for reward in rewards] == [
        float(index == tried) for index, tried in zip(at, (0, 1, 2, 0), strict=True)
    ]
    assert terminated.all() and not truncated.any() and list(infos["status"]) == ["completed"] * 4
    vector.close()


def test_gymnasium_makes_it_by_id() -> None:
    import gymnasium

    from mcpenv_client.trainers.gymnasium import register

    env: Any = gymnasium.make("mcpenv_client.trainers.gymnasium:mcpenv/Env-v0", target=Doors, actions=ACTIONS)
    assert env.action_space.n == 5
    env.reset(seed=1)
    env.close()
    register("mcpenv/Doors-v0", DOORS, actions=ACTIONS, split="test")
    try:
        env = gymnasium.make("mcpenv/Doors-v0")
        env.reset(seed=3)
        assert env.step(LEAVE)[2]
        env.close()
    finally:
        del gymnasium.registry["mcpenv/Doors-v0"]


def test_settings_for_a_url_and_client_arguments_for_a_class_are_refused() -> None:
    with pytest.raises(ValueError, match="settings are for an environment in this process"):
        Sessions("http://127.0.0.1:1", settings=["size=1"])
    with pytest.raises(ValueError, match="arguments of EnvClient"):
        Sessions(Doors, client={"resume": True})


def test_the_lines_of_the_page_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "train.md"
    (lines,) = re.findall(
        r"^```py\n(import gymnasium\n[^`]*gymnasium\.make\([^`]*)^```$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(list(filter(None, lines.splitlines()))) <= 10
    ended = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
