"""BFCL's multi-turn tasks: its ground truths, an agent that makes mistakes against BFCL's own checker, and a chat.

They need ``bfcl-eval`` (``--no-deps``) and ``mpmath`` beside mcpenv.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpenv import MCPEnvironment
from mcpenv.extensions.in_process import InProcessClient
from mcpenv.extensions.users import user_turns
from mcpenv.extensions.validation.tasks.play import oracle, play
from mcpenv.server.serve import serving
from mcpenv_client import Conversation, Ending, EnvClient
from mcpenv_client.types.tasks import OracleCall, Task

FOLDER = Path(__file__).resolve().parents[2] / "envs" / "bfcl_mcp"

FAULTS = {
    "base": {"multi_turn_base_173"},
    "long_context": {"multi_turn_long_context_173"},
    "miss_func": {"multi_turn_miss_func_173", "multi_turn_miss_func_49"},
    "miss_param": {"multi_turn_miss_param_173"},
}
"""Tasks whose ground truth cannot be played: number 173 calls an integer parameter with 'ticket_001', and number 49 of
``miss_func`` calls a tool before the task offers it."""

Turns = list[list[OracleCall]]


@pytest.fixture(scope="module")
def bfcl() -> Any:
    spec = importlib.util.spec_from_file_location("bfcl_environment", FOLDER / "environment.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_without_its_package_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['bfcl_eval'] = None; import runpy; runpy.run_path(sys.argv[1])"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(FOLDER / "environment.py")], capture_output=True, text=True, check=False
    )
    assert "pip install --no-deps bfcl-eval==" in ran.stderr.splitlines()[-1]


@pytest.mark.world
@pytest.mark.parametrize("category", list(FAULTS))
def test_every_ground_truth_scores_1_except_those_with_a_fault_and_doing_nothing_0(bfcl: Any, category: str) -> None:
    with bfcl.BFCLEnvironment() as env:
        tasks = list(env.tasks.select(split=category))
        assert len(tasks) == 200
        wrong = {task.id for task in tasks if play(env, task, oracle(task)).score != 1.0}
        assert wrong == FAULTS[category]
        assert [task.id for task in tasks if play(env, task).score != 0.0] == []


# -- an agent that makes mistakes


def turns_of(task: Task) -> Turns:
    """Return the calls of a task's oracle, by turn."""
    turns: Turns = [[]]
    for call in task.oracle or ():
        if call.tool_name == "respond":
            turns.append([])
        else:
            turns[-1].append(call)
    return turns[:-1]


def without_one(turns: Turns, chance: random.Random) -> Turns:
    turn = chance.choice([turn for turn in turns if turn])
    turn.pop(chance.randrange(len(turn)))
    return turns


def with_a_wrong_argument(turns: Turns, chance: random.Random) -> Turns:
    places = [(turn, at, key) for turn in turns for at, call in enumerate(turn) for key in call.arguments]
    if places:
        turn, at, key = chance.choice(places)
        value = other(turn[at].arguments[key])
        turn[at] = OracleCall(tool_name=turn[at].tool_name, arguments={**turn[at].arguments, key: value})
    return turns


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return type(value)()


def with_two_swapped(turns: Turns, chance: random.Random) -> Turns:
    places = [
        (one, two)
        for one, two in itertools.pairwise((t, at) for t, turn in enumerate(turns) for at in range(len(turn)))
    ]
    if places:
        (one, a), (two, b) = chance.choice(places)
        turns[one][a], turns[two][b] = turns[two][b], turns[one][a]
    return turns


def with_one_twice(turns: Turns, chance: random.Random) -> Turns:
    turn = chance.choice([turn for turn in turns if turn])
    turn.append(chance.choice(turn))
    return turns


Mistake = Callable[[Turns, random.Random], Turns]
MISTAKES: list[tuple[Mistake, int]] = [
    (without_one, 0),
    (with_a_wrong_argument, 8),
    (with_two_swapped, 48),
    (with_one_twice, 168),
]
"""Mistakes, and the number of tasks of 199 that BFCL counts as solved all the same."""
numbers = itertools.count()


def verdict_of_bfcl(bfcl: Any, task: Task, turns: Turns) -> bool:
    """Return what BFCL's own checker says to these calls, each of them a step of the model."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    name = f"BFCL_v4_multi_turn_{task.split}.json"
    (entry,) = (row for row in bfcl.read(name) if row["id"] == task.id)
    (truth,) = (row["ground_truth"] for row in bfcl.read(f"possible_answer/{name}") if row["id"] == task.id)
    written = [[[in_python(call)] for call in turn] for turn in turns]
    # The checker keeps its instances in a module, by the model's name.
    checked = multi_turn_checker(written, truth, entry, f"multi_turn_{task.split}", f"scripted_{next(numbers)}")
    return bool(checked["valid"])


def in_python(call: OracleCall) -> str:
    return f"{call.tool_name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def played(turns: Turns) -> list[OracleCall]:
    said = OracleCall(tool_name="respond", arguments={"message": "Done."})
    return [call for turn in turns for call in (*turn, said)]


@pytest.mark.world
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mistake", "right"), MISTAKES)
def test_an_agent_with_mistakes_scores_what_bfcls_own_checker_says(bfcl: Any, mistake: Mistake, right: int) -> None:
    chance = random.Random(mistake.__name__)
    verdicts: list[tuple[str, bool, bool]] = []
    with bfcl.BFCLEnvironment() as env:
        for task in env.tasks.select(split="base"):
            if task.id not in FAULTS["base"]:
                turns = mistake(turns_of(task), chance)
                ours = play(env, task, oracle(task.model_copy(update={"oracle": played(turns)}))).score == 1.0
                verdicts.append((task.id, ours, verdict_of_bfcl(bfcl, task, turns)))
    assert len(verdicts) == 199
    assert [verdict for verdict in verdicts if verdict[1] != verdict[2]] == []
    assert sum(theirs for _, _, theirs in verdicts) == right


# -- as a model plays it


def messages_of(turns: Turns) -> Iterator[dict[str, Any]]:
    """Yield the messages of a model that makes these calls, one a message, and then says something."""
    for turn in turns:
        for call in turn:
            function = {"name": call.tool_name, "arguments": json.dumps(call.arguments)}
            yield {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
        yield {"role": "assistant", "content": "Done."}


async def chatted(env: Any, task: Task) -> tuple[Conversation, Ending]:
    async with Conversation(env) as conversation:
        await conversation.begin(task.id)
        for message in messages_of(turns_of(task)):
            await conversation.act(message)
        return conversation, await conversation.end()


@pytest.mark.world
def test_in_a_chat_the_requests_are_the_users_messages_and_new_tools_come_with_them(bfcl: Any) -> None:
    task = bfcl.BFCLEnvironment.tasks.find("multi_turn_miss_func_0")

    async def play_it() -> tuple[Conversation, Ending, set[str]]:
        with serving(bfcl.BFCLEnvironment) as url:
            async with EnvClient(url) as env:
                await env.reset(task=task.id)
                first = {tool.name for tool in await env.list_tools()}
                return (*(await chatted(env, task)), first)

    conversation, ending, first = asyncio.run(play_it())
    assert ending.reward == 1.0 and ending.reason == "user_left"
    users = [message["content"] for message in conversation.messages if message["role"] == "user"]
    assert users[:-1] == bfcl.BY_ID[task.id].requests
    names = {tool["function"]["name"] for tool in conversation.tools.listed}
    assert names - first == {"sort"} and first - names == {"respond"}


@pytest.mark.world
def test_the_record_has_the_verdict_of_each_turn_and_the_agent_does_not_see_it(bfcl: Any) -> None:
    env: MCPEnvironment = bfcl.BFCLEnvironment()
    with env:
        env.reset(task="multi_turn_base_0")
        assert "no tool" not in repr(env.call_tool("respond", {"message": "Done."}))
        assert env.trajectory is not None
        (turn,) = user_turns(env.trajectory)
        assert turn.calls[0].name == "end_turn" and "turn 1: no tool was called" in turn.calls[0].result


@pytest.mark.world
def test_a_fork_in_the_middle_is_judged_by_itself(bfcl: Any) -> None:
    with bfcl.BFCLEnvironment() as env:
        task = env.tasks.find("multi_turn_miss_func_0")
        env.reset(task=task.id)
        for call in task.oracle[:5]:
            env.call_tool(call.tool_name, call.arguments)
        with env.fork() as other:
            for call in task.oracle[5:]:
                last = other.call_tool(call.tool_name, call.arguments)
            assert last.reward == 1.0
        assert env.end().info["return"] == 0.0


@pytest.mark.world
@pytest.mark.timeout(300)
def test_64_episodes_at_once_over_a_server_score_as_alone(bfcl: Any) -> None:
    tasks = [task for task in bfcl.BFCLEnvironment.tasks.select(split="base") if task.id not in FAULTS["base"]]

    async def one(url: str, task: Task, gate: asyncio.Semaphore) -> float | None:
        async with gate, EnvClient(url) as env:
            _, ending = await chatted(env, task)
            return ending.reward

    async def all_of_them() -> list[float | None]:
        gate = asyncio.Semaphore(64)
        with serving(bfcl.BFCLEnvironment, max_concurrent_envs=80) as url:
            return await asyncio.gather(*(one(url, task, gate) for task in tasks))

    assert asyncio.run(all_of_them()) == [1.0] * 199


@pytest.mark.world
def test_in_process_it_plays_as_on_a_server(bfcl: Any) -> None:
    async def alone() -> float | None:
        async with InProcessClient(bfcl.BFCLEnvironment()) as env:
            _, ending = await chatted(env, bfcl.BFCLEnvironment.tasks.find("multi_turn_base_7"))
            return ending.reward

    assert asyncio.run(alone()) == 1.0
