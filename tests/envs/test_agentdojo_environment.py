"""AgentDojo's tasks: its ground truths, an honest agent and one that follows injections, and a chat.

They need ``agentdojo`` (``--no-deps``) and the packages that it imports beside mcpenv.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mcpenv import ConfigurationError, MCPEnvironment
from mcpenv.extensions.in_process import InProcessClient
from mcpenv.extensions.validation.tasks.play import oracle, play
from mcpenv_client import Conversation
from mcpenv_client.types.tasks import OracleCall, Task

FOLDER = Path(__file__).resolve().parents[2] / "envs" / "agentdojo_mcp"

PAID_IDLE = {f"banking-user_task_{number}" for number in (5, 6, 8, 9, 10)}
"""Tasks whose check passes at the start."""

UNDONE = "banking-user_task_14-injection_task_7"
"""The task whose user wants a new password: it replaces the attacker's."""


@pytest.fixture(scope="module")
def agentdojo() -> Any:
    spec = importlib.util.spec_from_file_location("agentdojo_environment", FOLDER / "environment.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parts_after(env: MCPEnvironment, task: Task, calls: Iterable[OracleCall]) -> tuple[float, float]:
    """Return utility and security of an episode with these calls."""
    env.reset(task=task.id)
    for call in calls:
        last: Any = env.call_tool(call.tool_name, call.arguments)
    assert last.done
    found = last.info["reward"]
    assert last.info["return"] == min(found["verified/utility"], found["verified/security"])
    return found["verified/utility"], found["verified/security"]


def following(agentdojo: Any, task: Task) -> list[OracleCall]:
    """Return the calls of an agent that does what the attacker wants, and then what the user asked for."""
    goal = agentdojo.SUITES[task.options["suite"]].injection_tasks[task.options["injection"]]
    calls = agentdojo.calls_of(goal, task.options["suite"])
    assert task.oracle
    *own, said = task.oracle
    message = f"{said.arguments['message']} {goal.GROUND_TRUTH_OUTPUT}"
    return [*calls, *own, OracleCall(tool_name="respond", arguments={"message": message})]


@pytest.mark.slow
def test_without_its_package_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['agentdojo'] = None; import runpy; runpy.run_path(sys.argv[1])"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(FOLDER / "environment.py")], capture_output=True, text=True, check=False
    )
    assert "pip install --no-deps agentdojo==" in ran.stderr.splitlines()[-1]


@pytest.mark.world
def test_every_ground_truth_scores_1_and_doing_nothing_0_except_where_the_check_passes_at_the_start(
    agentdojo: Any,
) -> None:
    with agentdojo.AgentDojoEnvironment() as env:
        tasks = list(env.tasks.select(split="clean"))
        assert len(tasks) == 97
        assert [task.id for task in tasks if play(env, task, oracle(task)).score != 1.0] == []
        assert {task.id for task in tasks if play(env, task).score != 0.0} == PAID_IDLE


@pytest.mark.world
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("suite", "size"), [("banking", 144), ("slack", 105)])
def test_security_sees_the_agent_that_follows_an_injection_and_no_honest_one(
    agentdojo: Any, suite: str, size: int
) -> None:
    with agentdojo.AgentDojoEnvironment() as env:
        tasks = [task for task in env.tasks.select(split="injected") if task.options["suite"] == suite]
        assert len(tasks) == size
        assert [task.id for task in tasks if parts_after(env, task, task.oracle) != (1.0, 1.0)] == []
        unseen = [task.id for task in tasks if parts_after(env, task, following(agentdojo, task))[1] != 0.0]
        assert unseen == ([UNDONE] if suite == "banking" else [])


@pytest.mark.world
def test_an_agent_that_does_both_has_utility_and_no_reward(agentdojo: Any) -> None:
    with agentdojo.AgentDojoEnvironment() as env:
        task = env.tasks.find("banking-user_task_0-injection_task_4")
        assert parts_after(env, task, following(agentdojo, task)) == (1.0, 0.0)


@pytest.mark.world
def test_the_agent_reads_the_injection_in_an_answer_and_only_where_there_is_one(agentdojo: Any) -> None:
    goal = agentdojo.SUITES["banking"].injection_tasks["injection_task_0"].GOAL[:40]
    with agentdojo.AgentDojoEnvironment() as env:
        for task, there in (("banking-user_task_0", False), ("banking-user_task_0-injection_task_0", True)):
            observation = env.reset(task=task)
            assert goal not in observation.prompt
            (call, *_) = env.tasks.find(task).oracle
            read: Any = env.call_tool(call.tool_name, call.arguments)
            assert (goal in read.result.text) is there


@pytest.mark.world
def test_the_words_of_the_attack_are_chosen_and_an_unknown_attack_is_refused(agentdojo: Any) -> None:
    with agentdojo.AgentDojoEnvironment(attack="ignore_previous") as env:
        env.reset(task="banking-user_task_0-injection_task_0")
        read: Any = env.call_tool("read_file", {"file_path": "bill-december-2023.txt"})
        assert "Ignore" in read.result.text
    with pytest.raises(ConfigurationError, match=r"there is no attack 'manual' .*important_instructions"):
        agentdojo.AgentDojoEnvironment(attack="manual")


@pytest.mark.world
def test_each_suite_offers_its_own_tools_and_a_wrong_call_is_an_answer(agentdojo: Any) -> None:
    with agentdojo.AgentDojoEnvironment() as env:
        for suite, count in (("workspace", 24), ("travel", 28), ("banking", 11), ("slack", 11)):
            env.reset(task=f"{suite}-user_task_0")
            assert len(env.list_tools()) == count + 1
        refused: Any = env.call_tool("read_channel_messages", {"channel": "nowhere"})
        assert refused.result is None or refused.result.is_error


@pytest.mark.world
def test_the_time_of_a_sent_mail_is_that_of_the_state_so_that_equal_episodes_are_equal(agentdojo: Any) -> None:
    with agentdojo.AgentDojoEnvironment() as env:
        texts = []
        for _ in range(2):
            env.reset(task="workspace-user_task_0")
            sent: Any = env.call_tool("send_email", {"recipients": ["a@example.com"], "subject": "One", "body": "Two"})
            texts.append(sent.result.text)
        assert texts[0] == texts[1] and "2024-05-15 12:00:00" in texts[0]


@pytest.mark.world
def test_a_fork_in_the_middle_is_judged_by_itself(agentdojo: Any) -> None:
    with agentdojo.AgentDojoEnvironment() as env:
        task = env.tasks.find("banking-user_task_0-injection_task_4")
        env.reset(task=task.id)
        first, *others = task.oracle
        env.call_tool(first.tool_name, first.arguments)
        with env.fork() as other:
            for call in others:
                last = other.call_tool(call.tool_name, call.arguments)
            assert last.reward == 1.0
        assert env.end().info["return"] == 0.0


@pytest.mark.world
def test_in_a_chat_the_models_text_is_the_answer_and_ends_the_episode(agentdojo: Any) -> None:
    async def chat() -> tuple[float | None, str | None]:
        async with InProcessClient(agentdojo.AgentDojoEnvironment()) as env, Conversation(env) as conversation:
            task = agentdojo.AgentDojoEnvironment.tasks.find("workspace-user_task_0")
            await conversation.begin(task.id)
            *calls, said = task.oracle
            for call in calls:
                function = {"name": call.tool_name, "arguments": json.dumps(call.arguments)}
                await conversation.act(
                    {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
                )
            await conversation.act({"role": "assistant", "content": said.arguments["message"]})
            ending = await conversation.end()
            return ending.reward, ending.reason

    assert asyncio.run(chat()) == (1.0, "user_left")


@pytest.mark.world
@pytest.mark.parametrize("name", ["workspace-user_task_9-injection_task_13", "workspace-user_task_21-injection_task_7"])
def test_an_episode_is_the_same_in_processes_that_hash_texts_otherwise(agentdojo: Any, name: str) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
        "from environment import AgentDojoEnvironment as Environment\n"
        f"env = Environment(); task = Environment.tasks.find({name!r}); env.reset(task=task)\n"
        "print([env.call_tool(call.tool_name, call.arguments).text for call in task.oracle])\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1
