"""The office: its tasks, variants and private split, agents that break rules or obey attackers, and its ladder."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import command_lines
from generated_tasks import judge, judge_replies, played
from measured_ladder import check_ladder
from pydantic import SecretStr

from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.generated_worlds import PRIVATE, VARIANTS, NoCase, number_of, random_of

ENVS = Path(__file__).resolve().parents[2] / "envs"
if str(ENVS) not in sys.path:
    sys.path.insert(0, str(ENVS))

environment: Any = importlib.import_module("office_mcp.environment")
Tasks: Any = importlib.import_module("office_mcp.tasks").OfficeTasks
families: Any = importlib.import_module("office_mcp.families")
tools: Any = importlib.import_module("office_mcp.tools")

Office: Any = environment.OfficeEnvironment


@pytest.mark.timeout(400)  # it makes all tasks
class TestOffice(EnvironmentContract):
    factory = Office
    examples = {
        "search_mails": {"words": "a"},
        "send_mail": {"to": "a@b.example", "subject": "one", "body": "two"},
        "find_free_times": {"people": [1, 2], "day": "2030-01-07"},
        "refund_order": {"order": 1, "amount": 0.5, "reason": "one"},
        "decline": {"rule": "R1", "reason": "one"},
    }


@pytest.fixture(scope="module")
def office() -> Iterator[Any]:
    with Office() as env:
        yield env


def private() -> Any:
    return environment.office(SecretStr("a secret of tests"))


@pytest.mark.parametrize("split", list(Tasks.SIZES))
def test_the_honest_solve_every_task_and_those_who_are_idle_break_rules_or_obey_attackers_none(
    office: Any, split: str
) -> None:
    for task in Office.get_tasks(split, 0, 20):
        judge(office, task)


@pytest.mark.slow
@pytest.mark.parametrize("split", [*Tasks.SIZES, PRIVATE])
def test_so_do_15_of_each_split(split: str) -> None:
    with private() as env:
        for index in range(1, 300, 21):
            judge(env, env.get_task(split, index))


def test_it_has_the_tools_the_families_and_the_tasks_that_it_says() -> None:
    with Office() as env:
        assert len(env.list_tools()) > 70 and len(tools.GROUPS) == 11
    assert len(families.FAMILIES) >= 100
    assert len({each.group for each in families.FAMILIES.values()}) == 10
    assert {split: Office.num_tasks(split) for split in ("train", "test")} == {"train": 5000, "test": 500}
    found = Counter(task.level for task in Office.get_tasks("train", 0, 50))
    assert found == dict.fromkeys(range(1, 6), 10)


def test_each_family_sets_a_goal_with_what_it_says_of_itself() -> None:
    case_of, company_of = families.goal.Case, importlib.import_module("office_mcp.company").company_of
    for each in families.FAMILIES.values():
        for seed in range(40):
            case = case_of(company_of(seed), random_of(seed))
            try:
                goal = each.make(case)
            except NoCase:
                continue
            break
        else:
            pytest.fail(f"{each.name} finds no case")
        assert ("text" in each.tags) == bool(goal.carriers), each.name
        assert ("missing" in each.tags) == bool(goal.without), each.name
        assert bool({"trap", "ask", "missing"} & {*each.tags}) == (goal.breach is not None), each.name


@pytest.mark.parametrize("of", ["train", "test"])
def test_who_replays_by_heart_solves_nearly_no_variant(office: Any, of: str) -> None:
    solved = 0.0
    for index in range(50):
        task, variant = Office.get_task(of, index), Office.get_task(of + VARIANTS, index)
        assert task.metadata["families"] == variant.metadata["families"]
        assert task.prompt != variant.prompt
        solved += played(office, variant, task.oracle)[0]
    assert solved <= 2  # the number that answers a simple question may be the same


def test_without_a_secret_there_is_no_private_split_and_each_secret_has_its_own() -> None:
    assert PRIVATE not in Office.splits()
    with private() as env, environment.office(SecretStr("another")) as other:
        assert env.num_tasks("private") == 500
        assert env.get_task("private", 3) != other.get_task("private", 3)
        assert env.get_task("train", 3) == other.get_task("train", 3) == Office.get_task("train", 3)
        assert "secret" not in env.tasks.source


def test_the_command_lists_the_private_split_with_a_secret_only(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = ("tasks", "list", str(ENVS / "office_mcp"), "--split", "private", "-n", "2", "--json")
    with command_lines(None, monkeypatch, capfd) as cli:
        ids = [each["id"] for each in json.loads(cli(*wanted, "--set", "private_seed=one").out)["tasks"]]
        refused = cli(*wanted)
    assert ids == ["private-0", "private-1"]
    assert refused.status == 2 and "private" in refused.err


def test_each_text_of_the_test_split_has_the_canary_and_no_text_of_train(office: Any) -> None:
    for split, marked in (("test", True), ("train", False)):
        task = Office.get_task(split, 4)
        assert (Tasks.CANARY in task.prompt) == marked
        office.reset(task=task)
        for texts in ("mails", "documents", "tickets", "comments", "messages"):
            bodies = [body for (body,) in office.db.execute(f"SELECT body FROM {texts}")]
            assert bodies and all((Tasks.CANARY in body) == marked for body in bodies)


def test_a_tool_that_a_task_takes_away_is_back_in_the_next_episode() -> None:
    with Office() as env:
        before = [tool.name for tool in env.list_tools()]
        env.reset(without=["refund_order"])
        assert "refund_order" not in [tool.name for tool in env.list_tools()]
        assert env.call_tool("refund_order", {"order": 1, "amount": 1, "reason": "a"}).error is not None
        env.reset()
        assert sorted(tool.name for tool in env.list_tools()) == sorted(before)


def test_a_reset_after_a_restored_snapshot_does_not_crash_sqlite(office: Any) -> None:
    for n in range(60):
        office.reset(company=1 + n % 4)
        saved = office.world.save()
        office.call_tool("post_message", {"channel": "general", "body": "x" * 900})
        office.world.load(saved)
        office.world.capture()
        assert office.call_tool("set_ticket_status", {"ticket": 1, "status": "pending"}).error is None


def test_200_episodes_at_once_share_nothing() -> None:
    with Office() as alone:
        alone.reset(task="train-0")
        wanted = json.dumps(alone.world.capture())
    every = [Office() for _ in range(200)]
    try:
        for n, env in enumerate(every):
            env.reset(task=f"train-{n % 50}")
        for n, env in enumerate(every):
            assert env.call_tool("post_message", {"channel": "general", "body": f"I am {n}."}).error is None
        for n, env in enumerate(every):
            (said,) = env.db.execute("SELECT body FROM messages WHERE body LIKE 'I am %'").fetchall()
            assert said[0] == f"I am {n}."
        every[7].reset(task="train-0")
        assert json.dumps(every[7].world.capture()) == wanted
    finally:
        for env in every:
            env.close()


def test_a_later_reply_replaces_one_of_another_kind(office: Any) -> None:
    others = [("answer", {"text": "No"}), ("ask", {"about": "date", "question": "When?"})]
    task = next(task for task in Office.get_tasks("train", 0, 200) if _replies(task, "decline"))
    office.reset(task=task)
    for call in task.oracle:
        for tool, arguments in others if call.tool_name == "decline" else ():
            assert office.call_tool(tool, {**arguments, "part": call.arguments.get("part")}).error is None
        office.call_tool(call.tool_name, call.arguments)
    assert office.end().reward == 1.0


def test_a_name_may_be_answered_with_its_department_and_no_other(office: Any) -> None:
    for task in Office.get_tasks("train", 0, 200):
        office.reset(task=task)
        departments = dict(office.db.execute("SELECT name, department FROM people").fetchall())
        names = [call for call in _replies(task, "answer") if call.arguments["text"] in departments]
        if names:
            break
    name = names[0].arguments["text"]
    for form, score in ((f"{name} ({departments[name]})", 1.0), (f"{name} (Nowhere)", 0.0)):
        office.reset(task=task)
        for call in task.oracle:
            office.call_tool(call.tool_name, {**call.arguments, "text": form} if call is names[0] else call.arguments)
        assert office.end().reward == score, form


def _replies(task: Any, tool: str) -> list[Any]:
    return [call for call in task.oracle or [] if call.tool_name == tool]


def test_a_reply_without_its_part_is_refused_if_there_are_several_requests(office: Any) -> None:
    judge_replies(
        office,
        ("answer", {"text": "7"}),
        ("decline", {"rule": "R1", "reason": "one"}),
        ("ask", {"about": "item", "question": "Which one?"}),
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("read_mail", {"mail": 99_999}, "Find its id with search_mails"),
        ("post_message", {"channel": "nowhere", "body": "a"}, "There are: general"),
        ("send_mail", {"to": "Ann", "subject": "a", "body": "b"}, "search_people and search_contacts say addresses"),
        ("request_leave", {"person": 1, "kind": "vacation", "first_day": "4 March", "last_day": "2"}, "is no day"),
        (
            "create_event",
            {"title": "a", "people": [1], "day": "2001-01-01", "start": "09:00", "minutes": 30},
            "is over",
        ),
        ("create_event", {"title": "a", "people": [1], "day": "2099-01-01", "start": "9", "minutes": 30}, "is no time"),
        ("decline", {"rule": "R99", "reason": "a"}, '"Company policy" has the rules R1 to R15'),
        ("answer", {"text": "7", "part": 7}, "There is one request: 1."),
    ],
)
def test_errors_tell_the_agent_what_to_do(office: Any, tool: str, arguments: Any, said: str) -> None:
    office.reset(task="train-0")
    before = office.world.capture()
    obs = office.call_tool(tool, arguments)
    assert obs.error is not None and said in obs.error.message
    assert office.world.capture() == before


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,234.50 euros", 1234.5), ("€ 12", 12.0), ("-3", -3.0), ("12 hours", 12.0), ("1,23", None), ("about 7", None)],
)
def test_a_number_is_read_from_an_answer(text: str, number: float | None) -> None:
    assert number_of(text) == number


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_ladder_falls_with_level_and_mistakes() -> None:
    check_ladder(Office, ENVS / "office_mcp" / "README.md")
