"""The vector environment for Gymnasium, with the real package."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import served
from trainer_worlds import COLOURS, TOGETHER, Doors, Shop, Together

from mcpenv.server.app import create_app

pytestmark = [pytest.mark.world, pytest.mark.timeout(120)]

ID = "mcpenv_client.trainers.gymnasium:mcpenv/Env-v0"
ACTIONS = [("look", {}), *(("open_door", {"colour": colour}) for colour in COLOURS)]
LOOK, RED, LEAVE = 0, 1, len(ACTIONS)
SIZE = TOGETHER


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(Doors)) as address:
        yield address.removesuffix("/mcp")


def made(target: Any = Doors, size: int = SIZE, **arguments: Any) -> Any:
    from mcpenv_client.trainers.gymnasium_vector import McpenvVectorEnv

    return McpenvVectorEnv(target, size, **arguments)


def door_of(prompt: str) -> int:
    return int(prompt.removeprefix("Number ").rstrip("."))


def assert_alike(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Compare infos: names, kinds of arrays, and values."""
    assert list(theirs) == list(ours)
    for name, their in theirs.items():
        if isinstance(their, dict):
            assert_alike(their, ours[name])
        else:
            assert (their.dtype, repr(their.tolist())) == (ours[name].dtype, repr(ours[name].tolist())), name


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("on_server", [False, True])
def test_it_plays_as_environments_one_by_one_do(on_server: bool, mode: str, url: str) -> None:
    import gymnasium

    from mcpenv_client.trainers.gymnasium import McpenvEnv

    target: Any = url if on_server else Doors
    arguments: Any = {"actions": ACTIONS, "split": "train", "max_steps": 3}
    resets: Any = gymnasium.vector.AutoresetMode(mode)
    alone = gymnasium.vector.SyncVectorEnv([lambda: McpenvEnv(target, **arguments)] * SIZE, autoreset_mode=resets)
    vector = made(target, autoreset_mode=mode, **arguments)
    first, began = alone.reset(seed=7), vector.reset(seed=7)
    assert first[0] == began[0]
    assert_alike(first[1], began[1])
    for actions in ([LOOK] * 4, [1, 2, 3, LEAVE], [LOOK] * 4, [LOOK] * 4, [1, 1, 1, 1]):
        theirs, ours = alone.step(np.array(actions)), vector.step(np.array(actions))
        assert theirs[0] == ours[0]
        for their, our in zip(theirs[1:4], ours[1:4], strict=True):
            assert their.dtype == our.dtype and their.tolist() == our.tolist()
        assert_alike(theirs[4], ours[4])
    alone.close()
    vector.close()
    vector.close()


def test_all_environments_take_a_step_at_the_same_time() -> None:
    with served(create_app(Together)) as address:
        vector = made(address.removesuffix("/mcp"), actions=[("meet", {})])
        vector.reset(seed=1)
        assert vector.step([0] * SIZE)[0] == ("True",) * SIZE
        vector.close()


def test_texts_are_actions_and_structured_observations_have_the_data() -> None:
    vector = made(size=2, split="train", observations="structured")
    first, _ = vector.reset(seed=1)
    assert all(door_of(observed["text"]) == COLOURS.index(vector_door(observed)) for observed in first)
    look = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    observed, rewards, terminated, _, infos = vector.step((look, "I give up."))
    assert observed[0]["data"]["colour"] == COLOURS[door_of(first[0]["text"])]
    assert rewards.tolist() == [0.25, 0.0] and terminated.tolist() == [False, True]
    assert infos["_status"].tolist() == [False, True]
    vector.close()


def vector_door(observed: dict[str, Any]) -> str:
    return COLOURS[door_of(observed["data"]["prompt"])]


def test_in_the_same_step_the_next_episode_begins_and_the_last_is_in_info() -> None:
    vector = made(size=2, actions=ACTIONS, split="train", autoreset_mode="SameStep")
    vector.reset(seed=1)
    observed, _, terminated, _, infos = vector.step([LEAVE, LOOK])
    assert terminated.tolist() == [True, False] and observed[0].startswith("Number")
    assert infos["final_info"]["status"][0] == "completed" and infos["_final_obs"].tolist() == [True, False]
    assert vector.step([LOOK, LOOK])[2].tolist() == [False, False]
    vector.close()


def test_without_resets_of_its_own_only_those_in_the_mask_begin_again() -> None:
    vector = made(size=2, actions=ACTIONS, split="train", autoreset_mode="Disabled")
    with pytest.raises(ValueError, match="call reset"):
        vector.step([LOOK, LOOK])
    before, _ = vector.reset(seed=[5, 6])
    looked = vector.step([LEAVE, LOOK])[0]
    with pytest.raises(ValueError, match="reset_mask"):
        vector.step([LOOK, LOOK])
    after, infos = vector.reset(seed=[5, 6], options={"reset_mask": np.array([True, False])})
    assert after == (before[0], looked[1]) and infos["_tools"].tolist() == [True, False]
    vector.close()


def test_a_failed_environment_has_no_reward_and_the_others_go_on() -> None:
    from mcpenv_client.trainers.gymnasium import EpisodeFailed

    vector = made(size=2, actions=[("break_verifier", {}), ("look", {})])
    vector.reset(seed=1)
    vector.step([0, 1])
    _, rewards, terminated, truncated, infos = vector.step([2, 1])
    assert math.isnan(rewards[0]) and rewards[1] == 0.25
    assert truncated.tolist() == [True, False] and not terminated.any()
    assert infos["status"][0] in ("judge_error", "env_error")
    assert vector.step([1, 1])[1].tolist() == [0.0, 0.25]  # the first is reset
    vector.close()
    vector = made(size=2, actions=[("break_verifier", {}), ("look", {})], on_failure="raise")
    vector.reset(seed=1)
    vector.step([0, 1])
    with pytest.raises(EpisodeFailed):
        vector.step([2, 1])
    vector.close()


def test_gymnasium_makes_it_by_id_with_its_autoreset_mode() -> None:
    import gymnasium

    vector: Any = gymnasium.make_vec(ID, num_envs=3, target=Doors, actions=ACTIONS, split="train")
    assert type(vector).__name__ == "McpenvVectorEnv"
    assert vector.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    assert vector.action_space.nvec.tolist() == [5, 5, 5]
    prompts, _ = vector.reset(seed=2)
    assert prompts in vector.observation_space and vector.action_space.sample().shape == (3,)
    vector.close()


def test_a_schema_arrives_whole() -> None:
    vector = made(Shop, 2)
    _, infos = vector.reset(seed=1)
    with Shop() as shop:
        (tool,) = shop.list_tools()
    assert list(infos["tools"]) == [[tool.to_openai()]] * 2
    vector.close()


def test_a_wrong_number_of_seeds_is_refused() -> None:
    vector = made(size=2)
    with pytest.raises(ValueError, match="3 seeds for 2 environments"):
        vector.reset(seed=[1, 2, 3])
    vector.close()


def test_the_lines_of_the_page_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "train.md"
    (lines,) = re.findall(
        r"^```py\n(import gymnasium\n[^`]*make_vec[^`]*)^```$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(list(filter(None, lines.splitlines()))) <= 10
    ended = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
