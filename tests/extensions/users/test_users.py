"""Simulated users: scripts and models, over real HTTP; their turns, their tools, their costs and their failures."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from evaluate_endpoint import Endpoint, called, refused, said, scripted_endpoint
from fastmcp import Client
from user_worlds import LINES, Boxes, Phone

from mcpenv import ExecutionError, InvalidTool, MCPEnvironment, Trajectory
from mcpenv.extensions.in_process import InProcessClient
from mcpenv.extensions.users import ModelUser, UserTurn, add_user, user_turns
from mcpenv.server.serve import serving
from mcpenv.trajectories.summary import fault_of
from mcpenv_client import Conversation, EnvClient, Stage, StatusCode
from mcpenv_client.types.users import user_tool_of


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_endpoint() as found:
        yield found


def record_of(env: MCPEnvironment) -> Trajectory:
    assert env.trajectory is not None
    return Trajectory.from_plain(env.trajectory.to_plain())  # as files have it


def test_a_script_answers_line_by_line_and_its_end_is_the_end_of_the_episode() -> None:
    with Boxes() as env:
        env.reset(task="boxes")
        said = []
        for by in (1, 1, -1):
            env.call_tool("change", {"by": by})
            said.append(env.call_tool("respond", {"message": "Done."}))
        assert [answer.result.text for answer in said[:2]] == list(LINES)
        assert [answer.done for answer in said] == [False, False, True]
        record = record_of(env)
        assert record.reason == "user_left" and record.terminated and record.total_reward == 1.0
        assert [(turn.text, turn.done) for turn in user_turns(record)][:2] == [(line, False) for line in LINES]
        assert user_turns(record)[-1].done


def test_a_fork_of_an_episode_has_a_user_of_its_own() -> None:
    with Boxes() as env:
        env.reset(task="boxes")
        env.call_tool("respond", {"message": "Done."})
        with env.fork() as other:
            assert other.call_tool("respond", {"message": ""}).result.text == LINES[1]
            assert other.call_tool("respond", {"message": ""}).done
        assert env.call_tool("respond", {"message": ""}).result.text == LINES[1]


def test_a_fork_of_an_episode_whose_user_has_tools_changes_its_own_world(endpoint: Endpoint) -> None:
    endpoint.first = [called(("switch_data", {"on": True})), said("It is on. ###STOP###")]
    with Phone(endpoint.url) as env:
        env.reset(task="data")
        with env.fork() as other:
            assert other.call_tool("respond", {"message": "Switch it on."}).reward == 1.0
            assert other.data_on and not env.data_on and not env.user.messages


def test_without_a_user_the_tool_refuses_and_the_episode_goes_on() -> None:
    class Alone(MCPEnvironment):
        def __init__(self) -> None:
            add_user(self, name="say", description="Say it.")

    with Alone() as env:
        env.reset()
        answer = env.call_tool("say", {"message": "Hello?"})
        assert answer.error is not None and answer.error.message == "This episode has no user." and not answer.done
        assert user_tool_of(env.list_tools()) is env.list_tools()[0]


def test_tools_of_a_user_that_cannot_be_tools_are_refused_when_they_are_given() -> None:
    class Wrong(MCPEnvironment):
        def __init__(self) -> None:
            add_user(self, lambda: 1)

    with pytest.raises(InvalidTool, match="the function has no name"):
        Wrong()


def test_a_model_answers_with_its_goal_its_tools_and_its_seed_and_its_cost_is_in_the_record(
    endpoint: Endpoint,
) -> None:
    endpoint.first = [
        called(("look", {})),
        said("My phone has no data."),
        called(("switch_data", {"on": "perhaps"}), ("switch_data", {"on": True}), ("fly", {})),
        said("It works. ###STOP###"),
    ]
    with Phone(endpoint.url) as env:
        env.reset(task="data", seed=7)
        assert [tool.name for tool in env.list_tools()] == ["respond"]
        first = env.call_tool("respond", {"message": "What is wrong?"})
        assert first.result.text == "My phone has no data." and not first.done
        last = env.call_tool("respond", {"message": "Switch data on."})
        assert last.result.text == "It works." and last.done and last.reward == 1.0
        one, two = user_turns(record_of(env))
    assert {"seed": 7, "model": "user-model"}.items() <= endpoint.asked[-1].items()
    assert [tool["function"]["name"] for tool in endpoint.asked[0]["tools"]] == ["switch_data", "look"]
    system, *messages = endpoint.asked[-1]["messages"]
    assert "Your phone has no data." in system["content"] and "###STOP###" in system["content"]
    assert [message["role"] for message in messages][:5] == ["user", "assistant", "tool", "assistant", "user"]
    assert [(call.name, call.result) for call in one.calls] == [("look", '{"data":false}')]
    wrong, right, unknown = two.calls
    assert wrong.result.startswith("Error: ") and "on" in wrong.result
    assert right.result == "Data is on." and "fly" in unknown.result
    assert (one.seed, one.model, one.requests, one.prompt_tokens, one.completion_tokens) == (7, "user-model", 2, 20, 6)


def test_what_a_user_does_is_hidden_from_agents_and_not_from_orchestrators(endpoint: Endpoint) -> None:
    endpoint.first = [called(("look", {})), said("No data.")]

    async def play() -> tuple[Any, Trajectory | None]:
        with serving(functools.partial(Phone, endpoint.url)) as url:
            async with EnvClient(url) as env:
                first = await env.reset(task="data")
                async with Client(first.info["mcp_url"]) as agent:
                    answer = await agent.call_tool("respond", {"message": "What?"})
                return answer, await env.trajectory()

    answer, record = asyncio.run(play())
    assert "look" not in repr(answer) and "No data." in repr(answer)
    assert record is not None and [call.name for call in user_turns(record)[0].calls] == ["look"]


@pytest.mark.parametrize("kind", ["refuses", "down", "empty", "only_tools"])
def test_a_user_that_fails_is_an_error_of_the_environment_and_no_reward_of_0(endpoint: Endpoint, kind: str) -> None:
    endpoint.first = {
        "refuses": [refused(400, "no")],
        "down": [(503, {}), (503, {})],
        "empty": [said(""), said(" ")],
        "only_tools": [called(("look", {}))] * 10,
    }[kind]
    spent = {"refuses": 1, "down": 2, "empty": 2, "only_tools": 10}[kind]
    with Phone(endpoint.url) as env:
        env.reset(task="data")
        with pytest.raises(ExecutionError, match=r"the environment's user raised UserFailed"):
            env.call_tool("respond", {"message": "What is wrong?"})
        record = record_of(env)
        assert record.steps[0].status.code is StatusCode.ENV_ERROR and record.steps[0].status.stage is Stage.TOOL
        (turn,) = user_turns(record)
        assert turn.error and turn.requests == spent
        assert fault_of(record) is not None


def test_the_user_is_as_before_a_turn_that_failed(endpoint: Endpoint) -> None:
    endpoint.first = [refused(400, "no"), said("My phone has no data.")]
    with Phone(endpoint.url) as env:
        env.reset(task="data")
        with pytest.raises(ExecutionError):
            env.call_tool("respond", {"message": "What is wrong?"})
        assert env.call_tool("respond", {"message": "Hello?"}).result.text == "My phone has no data."
    assert [message["content"] for message in endpoint.asked[-1]["messages"][1:]] == ["Hello?"]


@pytest.mark.parametrize("arguments", [{"stops": ()}, {"stops": ("",)}, {"base_url": "ftp://x"}])
def test_a_model_that_could_not_be_asked_or_could_not_leave_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"stops|base_url"):
        ModelUser(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", "goal": "g", **arguments})


def test_a_log_that_is_no_users_turn_is_refused_and_one_of_a_newer_version_is_read() -> None:
    entry = UserTurn("Hello").to_log()
    assert entry.message is not None
    newer = type(entry)(entry.level, entry.message.replace("{", '{"mood": "good", ', 1))
    assert UserTurn.from_log(newer).text == "Hello"
    with pytest.raises(ValueError, match="no user's turn"):
        UserTurn.from_log(type(entry)("user", "[]"))


async def chat(env: Any, messages: list[Any], **options: Any) -> tuple[list[Any], Any, Conversation]:
    conversation = Conversation(env, **options)
    opening = await conversation.begin("boxes")
    turns: list[Any] = [opening.tools]
    for message in messages:
        turns.append(await conversation.act(message))
    return turns, await conversation.end(), conversation


def change(by: int) -> dict[str, Any]:
    return {"tool_calls": [{"type": "function", "function": {"name": "change", "arguments": f'{{"by": {by}}}'}}]}


@pytest.mark.parametrize("served", [False, True])
def test_in_a_chat_a_text_is_said_to_the_user_whose_answer_is_the_next_message(served: bool) -> None:
    script = [change(1), "Done.", change(1), "Done.", change(-1), "Done."]

    async def play() -> tuple[list[Any], Any, Conversation]:
        if not served:
            async with InProcessClient(Boxes()) as env:
                return await chat(env, script)
        with serving(Boxes) as url:
            async with EnvClient(url) as client:
                return await chat(client, script)

    (tools, *turns), ending, conversation = asyncio.run(play())
    assert [tool["function"]["name"] for tool in tools] == ["change"]
    assert [turn.messages[0]["role"] for turn in turns] == ["tool", "user"] * 3
    assert [turn.messages[0]["content"] for turn in turns][1:4:2] == list(LINES)
    assert [turn.done for turn in turns] == [False] * 5 + [True]
    assert ending.reward == 1.0 and ending.status.usable and ending.reason == "user_left"
    assert conversation.steps == 6


def test_a_chat_may_offer_the_tool_instead_and_then_a_text_ends_it() -> None:
    async def play() -> tuple[list[Any], Any, Conversation]:
        async with InProcessClient(Boxes()) as env:
            return await chat(env, ["I am done."], user_as_tool=True)

    (tools, turn), ending, _ = asyncio.run(play())
    assert {tool["function"]["name"] for tool in tools} == {"change", "respond"}
    assert turn.done and turn.messages == [] and ending.reward == 0.0


def test_a_chat_that_only_talks_ends_at_its_limit_of_turns() -> None:
    async def play() -> tuple[list[Any], Any, Conversation]:
        async with InProcessClient(Boxes()) as env:
            return await chat(env, ["Hm.", ""], max_turns=2)

    (_, one, two), ending, _ = asyncio.run(play())
    assert not one.done and two.done and two.limit == "max_turns"
    assert ending.truncated and ending.reason == "max_turns"


def test_in_a_chat_a_user_that_fails_leaves_no_reward(endpoint: Endpoint) -> None:
    endpoint.first = [refused(400, "no")]

    async def play() -> tuple[Any, Any]:
        async with InProcessClient(Phone(endpoint.url)) as env, Conversation(env) as conversation:
            await conversation.begin("data")
            return await conversation.act("Hello."), await conversation.end()

    turn, ending = asyncio.run(play())
    assert turn.done and isinstance(turn.error, ExecutionError)
    assert ending.reward is None and ending.status.code is StatusCode.ENV_ERROR
