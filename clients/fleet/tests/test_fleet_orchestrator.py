"""Episodes on an instance: reset, step, end, rewards, blocking and async."""

from __future__ import annotations

import asyncio
import sys

import pytest
from conftest import QUICK
from fleet_platform import API, PNG, Fault, Platform

from mcpenv_client import (
    Action,
    CallToolAction,
    EpisodeDone,
    InvalidMessage,
    ListingFailed,
    ListToolsAction,
    Observation,
    SessionLost,
    StatusCode,
    StepResult,
    ToolErrorType,
)
from mcpenv_client.types.observations import ListToolsObservation
from mcpenv_fleet import FleetEnv, FleetTask, FleetTools, PlatformFailed

Made = tuple[FleetEnv, FleetTools]

NAMES = ["add_ticket", "list_tickets", "shared", "answer", "computer"]
COMPUTER = {"key": "t", "prompt": "Look.", "env_id": "fira", "task_modality": "computer_use"}


def names_in(result: StepResult[Observation]) -> list[str]:
    """Return the names of the tools of an observation."""
    assert isinstance(result.observation, ListToolsObservation)
    return [tool.name for tool in result.observation.tools]


def test_line_1_a_step_takes_both_actions_and_the_tools_handle_works_too(made: Made) -> None:
    env, tools = made
    env.reset()
    assert names_in(env.step(ListToolsAction())) == NAMES
    result = env.step(CallToolAction(tool_name="add_ticket", arguments={"title": "second"}))
    assert (result.text, result.reward, result.done) == ("added second", None, False)
    assert tools.call_tool("list_tickets").data == ["first", "second"]


def test_line_1_a_listing_is_no_step(made: Made) -> None:
    env, _ = made
    env.reset()
    env.step(ListToolsAction())
    assert env.call_tool("shared").info["step_count"] == 1


def test_line_1_another_action_is_refused(made: Made) -> None:
    env, _ = made
    env.reset()
    with pytest.raises(InvalidMessage, match="takes no Action; use CallToolAction"):
        env.step(Action())


def test_line_3_the_platform_scores_no_step_and_a_result_says_who_computed_a_reward(made: Made) -> None:
    env, _ = made
    assert "the platform scores no step" in str(FleetEnv.__doc__)
    env.reset()
    result = env.call_tool("shared")
    assert (result.reward, result.info["reward_by"]) == (None, "nobody")
    end = env.end()
    assert (end.reward, end.info["reward_by"], end.terminated) == (None, "nobody", True)


def test_line_3_a_reward_function_overrides_the_platform(platform: Platform) -> None:
    task = FleetTask.from_json(
        {"key": "t", "prompt": "p", "env_id": "fira", "verifier_func": "def verify(env): return 0.5"}
    )

    def score(action: CallToolAction | None, observation: Observation) -> float:
        return 7.0 if action is None else float(len(observation.text))

    env, _ = FleetEnv.from_task(task, reward_fn=score, **QUICK)
    with env:
        env.reset()
        assert env.call_tool("shared").reward == len("of api")
        end = env.end()
    assert (end.reward, end.info["reward_by"], end.info["return"]) == (7.0, "reward_fn", 13.0)
    assert platform.executed == []


def test_line_6_from_fleet_returns_orchestrator_and_tools(platform: Platform) -> None:
    env, tools = FleetEnv.from_fleet("fira", **QUICK)
    with env:
        assert isinstance(env, FleetEnv)
        assert isinstance(tools, FleetTools)
        assert env.tools is tools
    assert platform.running == []


def test_line_13_a_reset_takes_a_seed_or_none(platform: Platform, made: Made) -> None:
    env, tools = made
    env.reset(seed=7)
    assert tools.call_tool("list_tickets").data == ["first of 7"]
    env.call_tool("add_ticket", {"title": "second"})
    env.reset()
    assert tools.call_tool("list_tickets").data == ["first"]
    asked = [seen.body for seen in platform.seen if seen.what == "POST api/v1/env/reset"]
    assert asked == [{"seed": 7, "timestamp": None}, {"seed": None, "timestamp": None}]


def test_line_15_reset_and_reset_async_give_the_same_tools_included(made: Made) -> None:
    env, _ = made
    blocking, by_coroutine = env.reset(seed=1), asyncio.run(env.reset_async(seed=1))
    assert blocking == by_coroutine
    assert names_in(blocking) == NAMES
    assert blocking.metadata["environment"]["env_key"] == "fira"


def test_line_16_everything_blocking_works_inside_a_running_loop(platform: Platform) -> None:
    async def main() -> None:
        env, tools = FleetEnv.from_fleet("fira", **QUICK)
        env.reset()
        assert env.call_tool("shared").text == tools.call_tool("shared").text == "of api"
        assert (await env.call_tool_async("shared")).text == "of api"
        env.close()

    asyncio.run(main())


def test_line_16_coroutines_of_several_loops_use_one_environment(platform: Platform) -> None:
    env, tools = asyncio.run(FleetEnv.from_fleet_async("fira", **QUICK))
    asyncio.run(env.reset_async())
    assert [tool.name for tool in asyncio.run(tools.list_tools_async())] == NAMES
    assert asyncio.run(tools.call_tool_async("shared")).text == "of api"
    assert asyncio.run(env.step_async(CallToolAction(tool_name="shared"))).text == "of api"
    assert asyncio.run(env.end_async()).terminated
    asyncio.run(env.close_async())
    assert platform.running == []


def test_line_16_the_package_supports_this_python() -> None:
    assert sys.version_info >= (3, 11)


def test_line_19_tools_are_listed_at_construction(platform: Platform) -> None:
    env, tools = FleetEnv.from_fleet("fira", **QUICK)
    with env:
        assert platform.count(f"{API} tools/list") == 1
        assert [each["function"]["name"] for each in tools.to_openai()] == NAMES
        platform.fail(f"{API} tools/list", Fault(status=500, times=9))
        assert names_in(env.reset()) == NAMES


def test_line_19_a_listing_that_fails_at_construction_is_raised_there(platform: Platform) -> None:
    platform.endpoints = ()
    with pytest.raises(ListingFailed, match="404"):
        FleetEnv.from_fleet("fira", **QUICK)
    assert platform.running == []


def test_line_19_errors_of_reset_surface(platform: Platform, made: Made) -> None:
    env, _ = made
    platform.fail("POST api/v1/env/reset", Fault(status=500, body={"detail": "the disk is full"}))
    with pytest.raises(PlatformFailed, match="the disk is full") as failure:
        env.reset()
    assert failure.value.http_status == 500
    platform.fail("POST api/v1/env/reset", Fault(status=200, body={"success": False, "message": "no such seed"}))
    with pytest.raises(PlatformFailed, match="no such seed"):
        env.reset()
    with pytest.raises(InvalidMessage, match="no episode has begun"):
        env.call_tool("shared")


def test_line_27_the_reset_of_a_task_of_computer_use_has_the_screenshot(platform: Platform) -> None:
    env, _ = FleetEnv.from_task(FleetTask.from_json(COMPUTER), **QUICK)
    with env:
        blocks = env.reset().metadata["screenshot"]
    assert blocks[-1] == {"type": "image", "data": PNG, "mimeType": "image/png"}
    assert next(iter(platform.instances.values())).request["image_type"] == "mcp"


def test_a_call_that_was_lost_truncates_the_episode_with_its_status(platform: Platform, made: Made) -> None:
    env, _ = made
    env.reset()
    platform.fail(f"{API} tools/call", Fault(status=502, before=False))
    result = env.call_tool("add_ticket", {"title": "second"})
    assert result.error is not None
    assert result.error.error_type is ToolErrorType.TRANSPORT_ERROR
    assert (result.truncated, result.reward, result.info["reason"]) == (True, None, "transport_lost")
    assert result.status is not None
    assert result.status.code is StatusCode.TRANSPORT_LOST
    assert result.status == result.episode_status
    with pytest.raises(EpisodeDone):
        env.call_tool("shared")
    assert env.end() is env.end()
    env.reset()
    assert env.call_tool("shared").text == "of api"


def test_a_tools_own_error_and_an_unknown_tool_are_data(made: Made) -> None:
    env, _ = made
    env.reset()
    failed = env.call_tool("answer", {"kind": "error"})
    assert failed.result is not None
    assert failed.result.is_error
    unknown = env.call_tool("delete_all")
    assert unknown.error is not None
    assert unknown.error.error_type is ToolErrorType.TOOL_NOT_FOUND
    assert not unknown.done


def test_an_episode_is_truncated_after_its_last_step(platform: Platform) -> None:
    env, _ = FleetEnv.from_fleet("fira", max_steps=2, **QUICK)
    with env:
        env.reset()
        assert not env.call_tool("shared").done
        last = env.call_tool("shared")
    assert (last.truncated, last.info["reason"], last.text) == (True, "max_steps", "of api")


def test_what_cannot_be_done_says_what_to_do(platform: Platform) -> None:
    env, _ = FleetEnv.from_fleet("fira", **QUICK)
    with pytest.raises(InvalidMessage, match=r"call reset\(\) first"):
        env.call_tool("shared")
    with pytest.raises(InvalidMessage, match=r"call reset\(\) first"):
        env.end()
    env.close()
    with pytest.raises(SessionLost, match="from_fleet or from_task makes another one"):
        env.reset()
    with pytest.raises(TypeError, match="data_kye"):
        FleetEnv.from_fleet("fira", data_kye="acme")
