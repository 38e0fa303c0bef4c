"""tau2's domains with the package ``inspect-evals``: scores beside those of tau2's own code, users, and state."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from evaluate_endpoint import called, said, scripted_endpoint
from fastmcp.exceptions import ToolError

from mcpenv import MCPEnvironment
from mcpenv.extensions.records.replay import Verdict, replay
from mcpenv.extensions.tau2.environment import Tau2Environment, load
from mcpenv.extensions.users import user_turns
from mcpenv.extensions.validation.tasks.play import Call, Calls, Play, oracle, play
from mcpenv.trajectories import Recorder, read_episodes
from mcpenv.worlds import capture
from mcpenv_client import Observation, Task

pytestmark = [pytest.mark.world, pytest.mark.timeout(7200)]

EVERY = int(os.environ.get("MCPENV_TAU2_EVERY", 0))
"""Which tasks are played beside tau2's own code: with 1 all of them, which takes an hour; 0: a few of each domain."""

SPLITS = {
    "retail": {"train": 74, "test": 40},
    "airline": {"train": 30, "test": 20},
    "telecom": {"train": 74, "test": 40, "rest": 2171},
    "banking": {"test": 97},
}
FEW = {"retail": 23, "airline": 10, "telecom": 120, "banking": 12}

PAID_IDLE: dict[str, set[str]] = {
    "airline": {str(n) for n in (0, 1, 4, 5, 6, 10, 13, 26, 28, 31, 34, 36, 41, 43, 45, 46, 47, 48, 49)},
    "retail": {"10", "12", "25", "50", "57", "65", "105"},
}
"""Tasks whose reference actions change nothing, and in which nothing must be said."""

PHONE = "[mobile_data_issue]airplane_mode_on|data_saver_mode_on[PERSONA:Easy]"
AT_ONCE = 32


@functools.cache
def of(domain: str, **settings: str) -> type[Tau2Environment]:
    return load(domain, **settings)


def found(domain: str, task: str, **settings: str) -> Task:
    tasks = of(domain, **settings).tasks
    assert tasks is not None
    return tasks.find(task)


def making(calls: Sequence[Call]) -> Any:
    def player(env: MCPEnvironment, observation: Observation) -> Calls:
        yield from (call for call in calls)  # a generator, which is sent the observations

    return player


def solved(task: Task) -> list[Call]:
    return [(call.tool_name, call.arguments) for call in task.oracle or ()]


PAID_IN_PART = {f"task_{number:03}" for number in (34, *range(77, 83), 84, 85, 86)}
"""Tasks of banking that are paid in full without some of their reference actions."""


def transferred(task: Task) -> bool:
    return {call.tool_name for call in task.oracle or ()} == {"transfer_to_human_agents", "respond"}


@pytest.mark.parametrize("domain", SPLITS)
def test_a_domain_has_tau2s_splits_and_says_licence_source_and_labels(domain: str) -> None:
    tasks = of(domain).tasks
    assert tasks is not None and tasks.sizes() == SPLITS[domain]
    origin = tasks.origin()
    assert origin["licence"] == "MIT" and origin["source"] == f"inspect-evals {of(domain).VERSION}"
    task = tasks.get("test", 0)
    assert task.family == domain and task.metadata["tau2"]["domain"] == domain
    if domain == "telecom":
        labelled = tasks.find(PHONE)
        assert labelled.level == 2
        assert labelled.tags == ["mobile_data_issue", "airplane_mode_on", "data_saver_mode_on", "persona easy"]


@pytest.mark.parametrize("domain", SPLITS)
def test_oracles_score_1_and_every_agent_what_tau2s_own_code_gives_it(
    domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tau2_scores import DIFFERS, own_score

    from mcpenv.extensions.tau2.domains import Call as Made

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # tau2's own code leaves files there
    cls = of(domain)
    assert cls.tasks is not None
    tasks = list(cls.tasks)[:: EVERY or FEW[domain]]
    unsolved, paid, differs = [], set(), set()
    with cls() as env:
        for task in tasks:
            calls = solved(task)
            agents: dict[str, list[Call]] = {
                "oracle": calls,
                "idle": [],
                "half": calls[: len(calls) // 2],
                "transfers": [("transfer_to_human_agents", {"summary": "I cannot help."})],
            }
            for agent, made in agents.items():
                played = play(env, task, making(made))
                assert played.error is None, played.error
                own = own_score(
                    domain,
                    cls.domain.task(task.id),
                    [Made(cls.domain.tools[name].side, name, given) for name, given in made if name != "respond"],
                    [given["message"] for name, given in made if name == "respond"],
                )
                if agent == "oracle" and played.score != 1.0:
                    unsolved.append((task.id, played.reasons))
                if agent == "idle" and played.score != 0.0:
                    paid.add(task.id)
                if played.score != own:
                    differs.add((task.id, agent, played.score, own))
    assert unsolved == []
    assert paid == {task.id for task in tasks} & PAID_IDLE.get(domain, set())
    said = {task.id for task in tasks if "source_pays" in task.metadata}
    transfers = {task.id for task in tasks if domain in ("telecom", "banking") and transferred(task)}
    assert said == paid | transfers | {task.id for task in tasks if domain == "banking" and task.id in PAID_IN_PART}
    assert {each for each in differs if each[0] not in DIFFERS.get(domain, ()) or each[2:] != (1.0, 0.0)} == set()
    assert {task for task, agent, *_ in differs if agent == "oracle"} == {t.id for t in tasks} & DIFFERS.get(
        domain, set()
    )


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_an_episode_copies_the_rows_it_reads_and_two_hashes_are_equal_where_tau2s_are(domain: str) -> None:
    from mcpenv.extensions.tau2 import domains

    flat = of(domain).domain
    own = flat.hash_of(flat.store(None))
    hashes: dict[str, set[str]] = {}

    def databases() -> Iterator[Any]:
        for task_id in list(flat.rows)[:15]:
            store = flat.store(flat.task(task_id))
            for call in domains.references(flat.task(task_id)):
                with contextlib.suppress(ToolError):
                    flat.call(store, call)
            yield from (store, pickle.loads(pickle.dumps(store)))
        left = flat.store(None)
        tables = list(vars(domains._inside(left, flat.bound)[0].db).values())
        tables[0][next(iter(tables[0]))]  # read only
        yield left
        del tables[1][next(iter(tables[1]))]
        yield left
        yield pickle.loads(pickle.dumps(left))

    for store in databases():
        tau2s = domains._inside(store, flat.bound)[0].db.get_hash()
        hashes.setdefault(tau2s, set()).add(flat.hash_of(store))
    assert all(len(ours) == 1 for ours in hashes.values())
    assert len(set.union(*hashes.values())) == len(hashes) > 5
    assert flat.hash_of(flat.store(None)) == own


@pytest.mark.parametrize(("domain", "every"), [("telecom", 100), ("banking", 10)])
def test_a_customer_who_does_what_the_agent_says_makes_every_oracle_score_1(domain: str, every: int) -> None:
    cls = of(domain, user="script")
    assert cls.tasks is not None
    with cls() as env:
        own = {tool.name for tool in env.list_tools()}
        assert "toggle_airplane_mode" not in own and "apply_for_credit_card" not in own
        for task in list(cls.tasks)[::every]:
            assert (task.id, play(env, task, oracle(task)).score) == (task.id, 1.0)


def test_an_agent_that_tells_the_customer_what_to_press_sees_only_the_customers_words() -> None:
    with of("telecom", user="script")() as env:
        prompt = env.reset(task=PHONE).prompt
        assert "tech_support_policy" in prompt and "John Smith" not in prompt
        first: Any = env.call_tool("respond", {"message": "How can I help you?"})
        assert "mobile data" in first.result.text.lower() and "toggle_airplane_mode" in first.result.text
        pressed: Any = env.call_tool("respond", {"message": "Please do this:\ntoggle_airplane_mode"})
        assert "Airplane Mode is now OFF" in pressed.result.text
        env.call_tool("respond", {"message": "toggle_data_saver_mode"})
        last: Any = env.call_tool("respond", {"message": "It works now."})
        assert last.done and last.reward == 1.0
        assert env.trajectory is not None
        made = [call.name for turn in user_turns(env.trajectory) for call in turn.calls]
        assert made == ["toggle_airplane_mode", "toggle_data_saver_mode"]


def test_a_model_plays_the_customer_with_tau2s_guidelines_and_presses_the_phone() -> None:
    with scripted_endpoint() as endpoint:
        endpoint.first = [
            called(("toggle_airplane_mode", {})),
            said("It is off."),
            called(("toggle_data_saver_mode", {})),
            said("###STOP###"),
        ]
        with of("telecom", user_url=endpoint.url, user_model="customer")() as env:
            env.reset(task=PHONE, seed=7)
            told: Any = env.call_tool("respond", {"message": "Is the airplane mode on?"})
            assert told.result.text == "It is off."
            last: Any = env.call_tool("respond", {"message": "Please switch the saver off."})
            assert last.done and last.reward == 1.0
        asked = endpoint.asked[0]
        system = asked["messages"][0]["content"]
        assert "# User Simulation Guidelines" in system and "John Smith" in system and "{goal}" not in system
        assert asked["seed"] == 7 and len(asked["tools"]) == 30


@pytest.mark.parametrize(("score", "reward"), [(1.0, 1.0), (0.0, 0.0)])
def test_statements_are_left_out_unless_a_judge_is_given(score: float, reward: float) -> None:
    task = found("airline", "1")
    with of("airline")() as env:
        assert "nl_assertions" not in play_parts(env, task)
    with scripted_endpoint() as endpoint:
        endpoint.first = [said(f'{{"reason": "so", "score": {score}}}')]
        with of("airline", judge_url=endpoint.url, judge_model="judge")() as env:
            parts = play_parts(env, task)
            assert parts["verified/nl_assertions"] == score and parts["verified"] == reward
        shown = endpoint.asked[0]["messages"][1]["content"]
        assert '"statements"' in shown and '"conversation"' in shown


def play_parts(env: MCPEnvironment, task: Task) -> dict[str, float]:
    """Play the oracle, and return the parts of the reward."""
    env.reset(task=task)
    for name, arguments in solved(task):
        last: Any = env.call_tool(name, arguments)
    assert last.done
    parts: dict[str, float] = last.info["reward"]
    return parts


@pytest.mark.parametrize("domain", ["telecom", "banking"])
def test_episodes_at_once_are_equal_to_episodes_alone_in_threads_and_in_one_loop(domain: str) -> None:
    cls = of(domain)
    assert cls.tasks is not None
    tasks = [*cls.tasks.range("test", 0, AT_ONCE // 2)] * 2
    with cls() as alone:
        expected = [play(alone, task, oracle(task) if n % 2 else None) for n, task in enumerate(tasks)]

    def episode(number: int) -> Play:
        with cls() as env:
            return play(env, tasks[number], oracle(tasks[number]) if number % 2 else None)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        at_once = list(pool.map(episode, range(AT_ONCE)))
    assert [each.digest for each in at_once] == [each.digest for each in expected]
    assert [each.score for each in at_once] == [float(number % 2) for number in range(AT_ONCE)]

    async def step_by_step() -> list[float | None]:
        envs = [cls() for _ in tasks]
        for env, task in zip(envs, tasks, strict=True):
            await env.reset_async(task=task)
        longest = max(len(task.oracle or ()) for task in tasks)
        for step in range(longest - 1):  # all but the last word
            for env, task in zip(envs[1::2], tasks[1::2], strict=True):
                if step < len(calls := solved(task)) - 1:
                    await env.call_tool_async(*calls[step])
        ended = [await env.end_async() for env in envs]
        for env in envs:
            await env.close_async()
        return [each.reward for each in ended]

    assert asyncio.run(step_by_step()) == [float(number % 2) for number in range(AT_ONCE)]


@pytest.mark.parametrize("domain", ["telecom", "banking", "retail"])
def test_a_fork_goes_its_own_way_and_the_world_is_what_differs_from_the_domains_data(domain: str) -> None:
    cls = of(domain)
    assert cls.tasks is not None
    task = next(each for each in cls.tasks if len(each.oracle or ()) > 4 and each.split == "test")
    calls = solved(task)
    with cls() as env:
        env.reset(task=task)
        before = capture(env.world)
        for name, arguments in calls[:2]:
            env.call_tool(name, arguments)
        with env.fork() as other:
            assert capture(other.world) == capture(env.world)
            for name, arguments in calls[2:]:
                last: Any = other.call_tool(name, arguments)
            assert last.reward == 1.0
            assert capture(other.world) != before
        assert env.end().reward == 0.0
        env.reset(task=task)
        assert capture(env.world) == before


@pytest.mark.parametrize("domain", ["telecom", "banking", "airline"])
def test_a_record_is_replayed_with_the_same_hash_and_names_licence_and_labels(domain: str, tmp_path: Path) -> None:
    cls = of(domain)
    assert cls.tasks is not None
    task = cls.tasks.get("test", 3)
    with Recorder(tmp_path) as recorder, cls() as env:
        recorder.attach(env)
        play(env, task, oracle(task))
        recorder.flush()
    (episode,) = read_episodes(tmp_path)
    with cls() as env:
        again = replay(env, episode)
    assert (again.verdict, again.difference) == (Verdict.AGREES, None)
    assert again.recorded_hash == again.replayed_hash
    recorded = episode.trajectory.task
    assert recorded is not None and recorded.labels == task.labels
    assert episode.environment.tasks == cls.tasks.origin()


def test_another_process_plays_an_episode_with_the_same_digest() -> None:
    code = (
        "import sys; from mcpenv.extensions.tau2.environment import load\n"
        "from mcpenv.extensions.validation.tasks.play import oracle, play\n"
        "cls = load('telecom'); task = cls.tasks.find(sys.argv[1])\n"
        "with cls() as env: print(play(env, task, oracle(task)).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, PHONE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_refused_call_is_tau2s_own_answer_and_without_a_task_there_is_no_reward() -> None:
    with of("retail")() as env:
        env.reset(task="0")
        wrong: Any = env.call_tool("get_order_details", {"order_id": "W0"})
        assert wrong.result is None or wrong.result.is_error
        assert "Order not found" in wrong.text
        strange: Any = env.call_tool("get_order_details", {"number": 3})
        assert strange.error is not None and strange.error.error_type == "invalid_args"
        env.reset()
        alone: Any = env.call_tool("respond", {"message": "Is anybody there?"})
        assert "no user" in alone.text
        assert env.end().reward is None


@pytest.mark.parametrize("knowledge", ["grep", "full_kb", "no_knowledge"])
def test_the_documents_of_banking_are_searched_or_in_the_prompt_or_neither(knowledge: Any) -> None:
    from inspect_evals.tau2.banking.agents import _get_domain_policy

    cls = of("banking", knowledge=knowledge)
    assert cls.tasks is not None
    assert _get_domain_policy(knowledge) in cls.tasks.get("test", 0).prompt
    with cls() as env:
        assert ("grep" in {tool.name for tool in env.list_tools()}) is (knowledge == "grep")
