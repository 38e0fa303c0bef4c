"""The agent for trainers that give a base URL, called as they call it."""

from __future__ import annotations

import asyncio
import pickle
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import pytest
from door_player import DoorPlayer
from interrupted import ends_at_ctrl_c
from served import served
from trainer_worlds import Diary, Doors, Shop

from mcpenv.server.app import create_app
from mcpenv_client import EnvClient
from mcpenv_client.trainers.agent_function import EpisodeAgent
from mcpenv_client.trainers.failures import EndpointFailed, EpisodeFailed

ROW = {"split": "train", "index": 0, "messages": []}


@pytest.fixture(scope="module")
def doors() -> Iterator[str]:
    with served(create_app(Doors)) as address:
        yield address.removesuffix("/mcp")


@pytest.fixture
def player() -> Iterator[tuple[DoorPlayer, str]]:
    made = DoorPlayer()
    with served(made.app) as address:
        yield made, f"{address.removesuffix('/mcp')}/v1"


def test_the_return_is_the_reward_as_areal_calls_an_agent(doors: str, player: tuple[DoorPlayer, str]) -> None:
    async def rewards() -> list[float]:
        agent: EpisodeAgent = pickle.loads(pickle.dumps(EpisodeAgent(doors, request={"temperature": 1.0})))
        async with httpx.AsyncClient() as http:
            given = {"base_url": player[1], "api_key": "session", "http_client": http}
            return await asyncio.gather(*(agent.run(ROW, **given) for _ in range(4)))

    assert asyncio.run(rewards()) == [1.25] * 4
    assert {(body["model"], body["temperature"]) for body in player[0].asked} == {("default", 1.0)}


def test_the_base_url_may_be_in_the_environment(
    doors: str, player: tuple[DoorPlayer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = EpisodeAgent(doors)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="no base_url"):
        asyncio.run(agent.run(ROW))
    monkeypatch.setenv("OPENAI_BASE_URL", player[1])
    assert asyncio.run(agent.run({"split": "train", "index": 1})) == 1.25


def test_a_failed_environment_raises_and_has_its_status(doors: str, player: tuple[DoorPlayer, str]) -> None:
    agent, broken = EpisodeAgent(doors), {"split": "train", "index": 2}
    with pytest.raises(EpisodeFailed, match="judge_error"):
        asyncio.run(agent.run(broken, base_url=player[1]))
    ending = asyncio.run(agent.play(broken, player[1]))
    assert (ending.reward, ending.status.code.value) == (None, "judge_error")


def test_an_episode_that_nothing_scored_has_no_reward_and_not_one_of_zero(player: tuple[DoorPlayer, str]) -> None:
    with served(create_app(Diary)) as diary:
        agent = EpisodeAgent(diary.removesuffix("/mcp"))
        with pytest.raises(EpisodeFailed, match="its status is completed: nothing scored it"):
            asyncio.run(agent.run(ROW, base_url=player[1]))
        ending = asyncio.run(agent.play(ROW, player[1]))
    assert (ending.reward, ending.status.code.value) == (None, "completed")


def test_a_limit_of_turns_asks_the_verifier(doors: str, player: tuple[DoorPlayer, str]) -> None:
    ending = asyncio.run(EpisodeAgent(doors, max_turns=1).play(ROW, player[1]))
    assert (ending.reward, ending.truncated, ending.reason) == (0.25, True, "max_turns")
    assert ending.parts["verified"] == 0.0


def test_at_the_token_limit_the_verifier_is_asked_before_the_endpoint_refuses_a_prompt(
    doors: str, player: tuple[DoorPlayer, str]
) -> None:
    # Each answer of the endpoint has 13 tokens with its prompt.
    ending = asyncio.run(EpisodeAgent(doors, token_limit=13).play(ROW, player[1]))
    assert (ending.reward, ending.truncated, ending.reason, ending.turns) == (0.25, True, "token_limit", 1)
    assert ending.parts["verified"] == 0.0
    ending = asyncio.run(EpisodeAgent(doors, token_limit=14).play(ROW, player[1]))
    assert (ending.reward, ending.truncated, ending.reason) == (1.25, False, None)


def test_a_message_that_is_cut_off_before_a_call_ends_the_episode_as_truncated(doors: str) -> None:
    with served(DoorPlayer(cut=True).app) as model:
        ending = asyncio.run(EpisodeAgent(doors).play(ROW, f"{model.removesuffix('/mcp')}/v1"))
    assert (ending.reward, ending.truncated, ending.reason, ending.turns) == (0.0, True, "length", 1)


def test_an_endpoint_that_fails_ends_the_episode(doors: str) -> None:
    with served(create_app(Doors)) as other, pytest.raises(EndpointFailed, match="HTTP 404") as raised:
        asyncio.run(EpisodeAgent(doors).play(ROW, other.removesuffix("/mcp")))
    assert raised.value.http_status == 404
    with pytest.raises(EndpointFailed, match="ConnectError") as raised:
        asyncio.run(EpisodeAgent(doors).play(ROW, "http://127.0.0.1:1/v1"))
    assert raised.value.http_status is None
    with EnvClient(doors).sync() as client:
        assert client.capacity().active_sessions == 1


def _run(agent: EpisodeAgent, base_url: str) -> float:
    return asyncio.run(agent.run(ROW, base_url=base_url))


def test_an_endpoint_that_fails_leaves_a_trainers_process_pool_usable(
    doors: str, player: tuple[DoorPlayer, str]
) -> None:
    # AReaL's mode "subproc" runs agents in such a pool, which an error that does not unpickle breaks for good.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(EndpointFailed, match="HTTP 404") as raised:
            pool.submit(_run, EpisodeAgent(doors), doors).result(timeout=60)
        assert raised.value.http_status == 404
        assert pool.submit(_run, EpisodeAgent(doors), player[1]).result(timeout=60) == 1.25


def test_a_schema_reaches_the_model_whole_and_nested_arguments_the_tool(player: tuple[DoorPlayer, str]) -> None:
    with served(create_app(Shop)) as shop:
        ending = asyncio.run(EpisodeAgent(shop.removesuffix("/mcp")).play(ROW, player[1]))
    with Shop() as world:
        (tool,) = world.list_tools()
    assert player[0].tools == [tool.to_openai()] and ending.reward == 1.0


def test_calls_in_the_text_are_read_where_the_endpoint_does_not_read_them(doors: str) -> None:
    with served(DoorPlayer(as_text=True).app) as model:
        base_url = f"{model.removesuffix('/mcp')}/v1"
        assert asyncio.run(EpisodeAgent(doors, text_calls="hermes").run(ROW, base_url=base_url)) == 1.25
        assert asyncio.run(EpisodeAgent(doors).run(ROW, base_url=base_url)) == 0.0


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_an_episode_and_its_session(stuck: str, by: str) -> None:
    ends_at_ctrl_c(sys.executable, "agent", stuck, by)


class _Trainer:
    """Stands for AReaL's trainer, which makes the agent of a name and arguments in its workers."""

    def train(self, *, workflow: str, workflow_kwargs: dict[str, Any]) -> None:
        module, _, name = workflow.rpartition(".")
        self.agent = getattr(import_module(module), name)(**workflow_kwargs)


def test_the_lines_of_the_page_name_what_the_agent_has() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "train-agent-function.md").read_text(encoding="utf-8")
    (lines, areal, *others) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for block in (lines, areal, *others):
        compile(block, "page", "exec")
        assert len(list(filter(None, block.splitlines()))) <= 10
    trainer = _Trainer()
    scope: dict[str, Any] = {"trainer": trainer}
    exec(lines + areal, scope)
    assert isinstance(scope["agent"], EpisodeAgent)
    assert isinstance(trainer.agent, EpisodeAgent) and trainer.agent.token_limit == 28000
