"""Operations: the simulated system, its tasks and variants, agents that break rules, and its ladder."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generated_tasks import calls_of, judge, judge_replies, played
from measured_ladder import check_ladder
from pydantic import SecretStr

from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.generated_worlds import PRIVATE, VARIANTS, NoCase, random_of

ENVS = Path(__file__).resolve().parents[2] / "envs"
if str(ENVS) not in sys.path:
    sys.path.insert(0, str(ENVS))

environment: Any = importlib.import_module("operations_mcp.environment")
Tasks: Any = importlib.import_module("operations_mcp.tasks").OperationsTasks
families: Any = importlib.import_module("operations_mcp.families")
health: Any = importlib.import_module("operations_mcp.health")
system: Any = importlib.import_module("operations_mcp.system")
tools: Any = importlib.import_module("operations_mcp.tools")

Operations: Any = environment.OperationsEnvironment


@pytest.mark.timeout(400)  # it makes all tasks
class TestOperations(EnvironmentContract):
    factory = Operations
    examples = {
        "read_logs": {"service": "gateway"},
        "roll_back": {"service": "gateway"},
        "set_alert_threshold": {"alert": 1, "threshold": 7},
        "wait": {"minutes": 2},
        "decline": {"rule": "R1", "reason": "one"},
    }


@pytest.fixture(scope="module")
def operations() -> Iterator[Any]:
    with Operations() as env:
        yield env


def private() -> Any:
    return environment.operations(SecretStr("a secret of tests"))


def seen(env: Any, tool: str, arguments: Any = None) -> Any:
    """Return what a tool shows."""
    found = env.call_tool(tool, arguments or {})
    assert found.error is None, found.error
    content = found.result.structured_content
    return content["result"] if set(content) == {"result"} else content


def states(env: Any) -> dict[str, str]:
    """Return the health of each service, as agents see it."""
    return {row["name"]: row["health"] for row in seen(env, "list_services")}


@pytest.mark.parametrize("split", list(Tasks.SIZES))
def test_the_honest_solve_every_task_and_those_who_are_idle_break_rules_or_obey_attackers_none(
    operations: Any, split: str
) -> None:
    for task in Operations.get_tasks(split, 0, 15):
        judge(operations, task)


@pytest.mark.slow
@pytest.mark.parametrize("split", [*Tasks.SIZES, PRIVATE])
def test_so_do_15_of_each_split(split: str) -> None:
    with private() as env:
        for index in range(1, 300, 21):
            judge(env, env.get_task(split, index))


def test_it_has_the_tools_the_families_and_the_tasks_that_it_says() -> None:
    with Operations() as env:
        assert len(env.list_tools()) > 70 and len(tools.GROUPS) == 13
    assert len(families.FAULTS) == 21 and len(families.FAMILIES) == 84
    assert {split: Operations.num_tasks(split) for split in ("train", "test")} == {"train": 3000, "test": 300}
    found = Operations.get_tasks("train", 0, 50)
    assert Counter(task.level for task in found) == dict.fromkeys(range(1, 6), 10)
    assert max(task.metadata["faults"] for task in found) == 5


def case_of(family: Any) -> tuple[Any, Any]:
    """Return a case with a goal of a family."""
    for seed in range(40):
        case = families.Case(system.system_of(seed), random_of(seed))
        case.seed = seed
        try:
            return case, family.make(case)
        except NoCase:
            continue
    pytest.fail(f"{family.name} finds no case")


def test_each_family_sets_a_goal_with_what_it_says_of_itself() -> None:
    for each in families.FAMILIES.values():
        case, goal = case_of(each)
        assert ("text" in each.tags) == bool(goal.carriers), each.name
        assert ("trap" in each.tags) == (goal.breach is not None), each.name
        assert ("fault" in each.tags) == bool(case.onsets), each.name


@pytest.mark.parametrize("fault", families.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_makes_a_service_unwell_and_says_so_in_its_log_and_its_mend_makes_it_well(fault: Any) -> None:
    case, goal = case_of(families.FAMILIES[fault.name])
    _, spoilt, before = case.onsets[0]
    healthy = health.System({**case.tables, spoilt: {**case.tables[spoilt], before["id"]: before}}, case.now).measures()
    assert {measure.state for measure in healthy.values()} == {"ok"}
    broken = health.System(case.tables, case.now).measures()
    unwell = {key for key, measure in broken.items() if measure.state != "ok"}
    assert unwell and all(broken[key].lines for key in unwell)
    mended = dict(case.health_changes([goal]))
    left = {key for key in unwell if mended.get(f"health/{key}/state") != "ok"}
    assert {case.row("services", key)["kind"] for key in left} <= {"provider"}


def test_a_symptom_travels_to_those_that_need_a_service_and_ends_with_its_cause(operations: Any) -> None:
    operations.reset(seed=5)
    assert set(states(operations).values()) == {"ok"}
    operations.call_tool("stop_service", {"service": "gateway"})
    assert {name for name, state in states(operations).items() if state != "ok"} == {"gateway", "web"}
    log = seen(operations, "read_logs", {"service": "web", "minutes": 1})
    assert [line["text"] for line in log if line["level"] == "ERROR"] == ["call to gateway failed or timed out"]
    firing = seen(operations, "list_alerts")
    assert {(alert["service"], alert["metric"]) for alert in firing} == {("gateway", "errors"), ("web", "errors")}
    operations.call_tool("start_service", {"service": "gateway"})
    assert set(states(operations).values()) == {"ok"}
    history = seen(operations, "get_metrics", {"service": "gateway", "minutes": 10})
    assert [point["errors_percent"] >= 100 for point in history[-3:]] == [False, True, False]


@pytest.mark.parametrize(
    ("tool", "arguments", "after", "worse"),
    [
        ("restart_service", {"service": "cache"}, 0, True),
        ("restart_service", {"service": "cache"}, 60, False),
        ("restart_service", {"service": "gateway"}, 0, False),
    ],
)
def test_a_restart_of_a_service_with_a_warm_up_makes_it_worse_for_a_while(
    operations: Any, tool: str, arguments: Any, after: int, worse: bool
) -> None:
    operations.reset(seed=5)
    operations.call_tool(tool, arguments)
    if after:
        operations.call_tool("wait", {"minutes": after})
    assert (states(operations)[arguments["service"]] != "ok") == worse


def test_a_rollback_behind_a_migration_and_a_late_failover_break_what_ran(operations: Any) -> None:
    for name, call in (("roll-back-a-migration", "roll_back"), ("lagging-standby", "fail_over")):
        index = next(n for n in range(3000) if name in Operations.get_task("train", n).metadata["families"])
        task = Operations.get_task("train", index)
        operations.reset(task=task)
        harm = next(each for each in calls_of(task, "breach") if each.tool_name == call)
        operations.call_tool(harm.tool_name, harm.arguments)
        assert states(operations)[harm.arguments["service"]] == "down"


def test_what_leaks_is_back_after_a_restart_and_gone_after_a_rollback(operations: Any) -> None:
    case, goal = case_of(families.FAMILIES["memory-leak"])
    name = goal.oracle[-1]["arguments"]["service"]
    rows = {of: list(found.values()) for of, found in case.delta.items()}
    for tool, left in (("restart_service", True), ("roll_back", False)):
        operations.reset(system=case.seed, rows=rows)
        assert states(operations)[name] != "ok"
        operations.call_tool(tool, {"service": name})
        assert states(operations)[name] == "ok"
        operations.call_tool("wait", {"minutes": 30})
        assert (states(operations)[name] != "ok") == left, tool


@pytest.mark.parametrize("of", ["train", "test"])
def test_who_replays_by_heart_solves_nearly_no_variant(operations: Any, of: str) -> None:
    solved = 0.0
    for index in range(30):
        task, variant = Operations.get_task(of, index), Operations.get_task(of + VARIANTS, index)
        assert task.metadata["families"] == variant.metadata["families"]
        assert task.prompt != variant.prompt
        solved += played(operations, variant, task.oracle)[0]
    assert solved <= 1  # the number that answers a simple question may be the same


def test_without_a_secret_there_is_no_private_split_and_each_secret_has_its_own() -> None:
    assert PRIVATE not in Operations.splits()
    with private() as env, environment.operations(SecretStr("another")) as other:
        assert env.num_tasks("private") == 300
        assert env.get_task("private", 3) != other.get_task("private", 3)
        assert env.get_task("train", 3) == other.get_task("train", 3) == Operations.get_task("train", 3)
        assert "secret" not in env.tasks.source


def test_each_text_of_the_test_split_has_the_canary_and_no_text_of_train(operations: Any) -> None:
    for split, marked in (("test", True), ("train", False)):
        task = Operations.get_task(split, 4)
        assert (Tasks.CANARY in task.prompt) == marked
        operations.reset(task=task)
        for texts in ("lines", "tickets", "comments", "runbooks", "timeline"):
            bodies = [body for (body,) in operations.db.execute(f"SELECT body FROM {texts}")]
            assert bodies and all((Tasks.CANARY in body) == marked for body in bodies)


def test_no_tool_shows_the_truth_about_a_fault(operations: Any) -> None:
    hidden = importlib.import_module("operations_mcp.schema").HIDDEN
    operations.reset(task="train-4")
    keys = dict.fromkeys(("deployment", "queue", "incident", "runbook", "ticket"), 1)
    names = {
        "service": "gateway",
        "words": "served",
        "team": operations.db.execute("SELECT name FROM teams").fetchone()[0],
    }
    for tool in operations.list_tools():
        if tool.name.startswith(Tasks.LOOKS):
            arguments = {name: {**keys, **names}[name] for name in tool.input_schema.get("required", ())}
            if tool.name == "get_database":
                arguments = {"service": seen(operations, "list_databases")[0]["service"]}
            rows = seen(operations, tool.name, arguments)
            assert rows, tool.name
            for row in rows if isinstance(rows, list) else [rows]:
                assert isinstance(row, str) or not hidden & set(row), tool.name


def test_200_episodes_at_once_share_nothing() -> None:
    with Operations() as alone:
        alone.reset(task="train-0")
        wanted = json.dumps(alone.world.capture())
    every = [Operations() for _ in range(200)]
    try:
        for n, env in enumerate(every):
            env.reset(task=f"train-{n % 20}")
        for n, env in enumerate(every):
            assert env.call_tool("add_timeline_entry", {"incident": 1, "body": f"I am {n}."}).error is None
        for n, env in enumerate(every):
            (said,) = env.db.execute("SELECT body FROM timeline WHERE body LIKE 'I am %'").fetchall()
            assert said[0] == f"I am {n}."
        every[7].reset(task="train-0")
        assert json.dumps(every[7].world.capture()) == wanted
    finally:
        for env in every:
            env.close()


def test_a_reply_without_its_part_is_refused_if_there_are_several_requests(operations: Any) -> None:
    judge_replies(operations, ("answer", {"text": "7"}), ("decline", {"rule": "R1", "reason": "one"}))


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_service", {"service": "nowhere"}, "There are: gateway"),
        ("set_flag", {"flag": 99_999, "enabled": True}, "Find its id with list_flags"),
        ("set_setting", {"service": "gateway", "name": "colour", "value": "1"}, "has no setting 'colour'. It has:"),
        ("scale_service", {"service": "gateway", "replicas": 400}, "may have at most"),
        ("fail_over", {"service": "gateway"}, "list_databases has them"),
        ("set_job_schedule", {"job": 1, "schedule": "each night"}, "has not five fields"),
        ("discard_message", {"queue": 1, "message": "m-1"}, "Name that one"),
        ("page_on_call", {"team": "nobody", "message": "a"}, "There are: "),
        ("decline", {"rule": "R99", "reason": "a"}, '"Operations policy" has the rules R1 to R11'),
        ("deploy_version", {"service": "gateway", "version": "0"}, "See list_deployments"),
    ],
)
def test_errors_tell_the_agent_what_to_do(operations: Any, tool: str, arguments: Any, said: str) -> None:
    operations.reset(task="train-0")
    before = operations.world.capture()
    obs = operations.call_tool(tool, arguments)
    assert obs.error is not None and said in obs.error.message
    assert operations.world.capture() == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_ladder_falls_with_level_and_mistakes() -> None:
    check_ladder(Operations, ENVS / "operations_mcp" / "README.md")
