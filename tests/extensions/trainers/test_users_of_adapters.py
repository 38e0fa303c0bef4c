"""Episodes with a user in the adapters that need no library, and in Gymnasium: one rule for all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from door_player import DoorPlayer
from served import served
from trainer_worlds import Booth

from mcpenv.server.app import create_app
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.trainers.agent_function import EpisodeAgent
from mcpenv_client.trainers.nemo_gym import rows
from mcpenv_client.trainers.trl import McpenvSpec

pytestmark = pytest.mark.timeout(120)

ROW = {"split": "train", "index": 0}


@pytest.fixture(scope="module")
def booth() -> Iterator[str]:
    with served(create_app(Booth)) as address:
        yield address.removesuffix("/mcp")


def test_where_the_trainer_only_calls_tools_the_model_speaks_by_a_tool(booth: str) -> None:
    for target in (Booth, booth):
        spec = McpenvSpec(target)
        assert {tool["function"]["name"] for tool in spec.tools} == {"respond", "sell"}
        episode: Any = spec.environment_factory()
        assert [name for name, _ in inspect.getmembers(type(episode), inspect.isfunction) if name == "respond"]
        assert episode.reset(**spec.train_dataset[0]) == "Tickets, please."
        assert episode.respond(message="How many?") == "Two."
        assert episode.sell(count=2) == "sold"
        assert "Goodbye" in episode.respond(message="Here you are.")
        assert episode.get_reward() == 1.0


@pytest.mark.world
@pytest.mark.parametrize("remote", [False, True])
def test_a_call_among_gymnasiums_actions_speaks_to_the_user_and_the_last_number_ends(booth: str, remote: bool) -> None:
    from mcpenv_client.trainers.gymnasium import McpenvEnv

    calls: list[tuple[str, dict[str, Any]]] = [("respond", {"message": "How many?"}), ("sell", {"count": 2})]
    env = McpenvEnv(booth if remote else Booth, actions=calls, split="train")
    env.reset(seed=1)
    assert env.step(0)[:4] == ("Two.", 0.0, False, False)
    assert env.step(1)[0] == "sold"
    assert env.step(len(calls))[1:4] == (1.0, True, False)
    env.close()


@pytest.mark.world
def test_a_text_without_a_call_goes_to_the_user_who_may_end_the_episode() -> None:
    from mcpenv_client.trainers.gymnasium import McpenvEnv

    env = McpenvEnv(Booth, split="train")
    _, info = env.reset(seed=1)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["sell"]
    assert env.step("How many?")[:4] == ("Two.", 0.0, False, False)
    assert env.step('<tool_call>{"name": "sell", "arguments": {"count": 2}}</tool_call>')[0] == "sold"
    said, reward, terminated, _, info = env.step("Here you are.")
    assert (said, reward, terminated, info["reason"]) == ("That was all. Goodbye.", 1.0, True, "user_left")
    env.close()


def test_the_agent_of_an_endpoint_writes_to_the_user(booth: str) -> None:
    player = DoorPlayer()
    with served(player.app) as address:
        ending = asyncio.run(EpisodeAgent(booth).play(ROW, f"{address.removesuffix('/mcp')}/v1"))
    assert (ending.reward, ending.reason) == (1.0, "user_left")
    assert {tool["function"]["name"] for tool in player.tools} == {"sell"}
    assert [message["role"] for message in player.asked[-1]["messages"]] == [
        *("user", "assistant", "user", "assistant", "tool")
    ]


def test_over_nemo_gyms_and_orss_wires_the_user_is_a_tool() -> None:
    with serving(Booth, ServerConfig(wires=("nemo-gym", "ors"))) as url:
        (row,) = rows(url)
        names = {tool["name"] for tool in row["responses_create_params"]["tools"]}
        with httpx.Client(base_url=url, timeout=30) as http:
            http.post("/seed_session", json={**row, "responses_create_params": {"input": []}})
            asked = http.post("/respond", json={"message": "How many?"}).text
            http.post("/sell", json={"count": 2})
            verified = http.post("/verify", json={}).json()
            listed = {tool["name"] for tool in http.get("/tools").json()["tools"]}
    assert names == listed == {"respond", "sell"}
    assert (asked, verified["reward"], verified["mask_sample"]) == ("Two.", 1.0, False)
