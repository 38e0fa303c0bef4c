"""Validating tasks: honest environments are sound, and each way to be cheatable is found."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from cheating_worlds import GUESS, PAY, REPORT, Office
from command_line import command_lines

from mcpenv import MCPEnvironment, Observation, Reward, Verdict
from mcpenv.extensions.contract.findings import Verdict as Finding
from mcpenv.extensions.validation.parts.candidate import Candidate
from mcpenv.extensions.validation.parts.judged import Judged
from mcpenv.extensions.validation.parts.tasks import judge_tasks
from mcpenv.extensions.validation.tasks import Report, TaskReport, validate
from mcpenv.extensions.validation.tasks.random_player import RandomPlayer
from mcpenv.extensions.validation.tasks.validate import MAX_SHORTENED
from mcpenv.rewards.verifiers import Evidence
from mcpenv.targets.target import load_target
from mcpenv_client import worth_of
from mcpenv_client.types.tasks import OracleCall, Task
from mcpenv_client.types.tools import Tool

ENVS = Path(__file__).resolve().parents[3] / "envs"
NAMES = ("ledger", "workspace", "maze")


def environment(name: str) -> Any:
    """The class of an example environment."""
    return load_target(str(ENVS / f"{name}_mcp")).environment_class


def tasks_of(name: str, number: int = 1) -> list[Task]:
    tasks = environment(name).tasks
    return [tasks.get("train", index) for index in range(number)]


def altered(task: Task, **fields: Any) -> Task:
    return task.model_copy(update=fields)


def python(body: str) -> dict[str, Any]:
    return {"kind": "python", "code": f"def verify(task, before, after, changes):\n    {body}\n"}


def problems(make: Callable[[], MCPEnvironment], task: Task, **how: Any) -> str:
    (report,) = validate(make, [task], **how).tasks
    return "\n".join(report.problems)


# -- honest ones


@pytest.mark.parametrize("name", NAMES)
def test_the_tasks_of_an_honest_environment_are_sound(name: str) -> None:
    told: list[TaskReport] = []
    report = validate(environment(name), tasks_of(name, 5), random_seeds=2, on_report=told.append)
    assert report.ok, [task.problems for task in report.tasks]
    assert report.tasks == told and len(told) == 5
    for task in report.tasks:
        assert (task.oracle, task.nothing, task.repeats) == (1.0, 0.0, True)
        assert len(task.at_random) == 2 and all(score is not None and score < 1.0 for score in task.at_random)
    assert report.to_plain()["ok"] and report.to_plain()["without_oracle"] == []


def test_tasks_of_other_ranges_and_without_an_oracle_are_judged_as_they_are() -> None:
    graded = altered(PAY, reward_range=(-2.0, 3.0))
    unsolved = altered(REPORT, oracle=None)
    report = validate(Office, [graded, unsolved, GUESS], random_seeds=1)
    assert report.ok, [task.problems for task in report.tasks]
    assert [(task.oracle, task.nothing) for task in report.tasks] == [(3.0, -2.0), (None, 0.0), (1.0, 0.0)]
    assert report.to_plain()["without_oracle"] == ["report"] and report.tasks[1].repeats


@pytest.mark.parametrize("oracle", [[], None])
def test_a_task_that_must_be_refused_is_sound(oracle: Any) -> None:
    refused = altered(PAY, id="refuse", verifier={"kind": "expect_exactly", "changes": []}, oracle=oracle)
    report = validate(Office, [refused], random_seeds=3)
    assert report.ok, [task.problems for task in report.tasks]
    assert (
        report.tasks[0].nothing == 1.0 and min(map(float, filter(None, report.tasks[0].at_random)), default=1.0) <= 1.0
    )


def test_a_refusal_whose_verifier_allows_changes_or_pays_nothing_is_unsound() -> None:
    loose = altered(PAY, id="loose", verifier={"kind": "expect_only", "changes": {"**": {"$any": True}}}, oracle=[])
    strict = altered(PAY, id="strict", oracle=[])
    report = validate(Office, [loose, strict], random_seeds=3)
    problems = [task.problems for task in report.tasks]
    assert any("random play" in problem for problem in problems[0])
    assert any("doing nothing scores 0 instead of 1, although" in problem for problem in problems[1])


def test_what_the_source_of_a_task_pays_for_nothing_is_named_and_no_fault_of_the_environment() -> None:
    lax = {"kind": "expect_only", "changes": {"**": {"$any": True}}}
    paid = altered(PAY, id="paid", verifier=lax, metadata={"source_pays": "it asks for nothing"})
    (report,) = validate(Office, [paid], random_seeds=1).tasks
    said = "full score without the work, by the rule of the task's source: it asks for nothing"
    assert report.problems == [] and report.known[0] == "doing nothing scores 1, which is full"
    assert any(each.startswith("the oracle without call 1 (") for each in report.known)
    assert report.to_plain()["known"] == report.known
    wrong = altered(paid, oracle=[OracleCall(tool_name="no_such_tool")], verifier=PAY.verifier)
    assert "the oracle scores 0" in problems(Office, wrong, random_seeds=0)
    into = Judged("tasks")
    judge_tasks(Candidate(Office, [paid]), into, report=Report(), random_seeds=1, max_steps=5)
    assert into.verdict is Finding.WARNING and [each.reason for each in into.of(Finding.WARNING)] == [said]
    assert "1 paid without the work by their source's rule" in into.summary


class Desk(MCPEnvironment):
    """Ring the bell. Every call is paid, beside what the end is worth."""

    pay = 2.0

    def __init__(self) -> None:
        self.rung = False

        @self.tool
        def ring() -> str:
            """Ring the bell."""
            self.rung = True
            return "rung"

        @self.tool
        def wait() -> str:
            """Let time pass."""
            return "it passed"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.rung = False

    def score(self, call: Any, outcome: Any) -> float:
        return self.pay if call.name == "ring" else 0.0

    def verify(self, evidence: Evidence) -> bool | Verdict:
        return Verdict(self.rung) if evidence.task is not None and evidence.task.metadata else self.rung


@pytest.mark.parametrize("metadata", [{}, {"verdict": True}], ids=["bool", "verdict"])
def test_a_range_is_what_ends_are_worth_whatever_else_is_paid(metadata: dict[str, Any]) -> None:
    ring = OracleCall(tool_name="ring")
    task = Task(id="ring", oracle=[ring], reward_range=(-2.0, 3.0), metadata=metadata)
    report = validate(Desk, [task], random_seeds=0)
    assert report.ok, report.tasks[0].problems
    assert (report.tasks[0].oracle, report.tasks[0].nothing) == (3.0, -2.0)
    with Desk() as env:
        env.reset(task=task)
        env.call_tool("ring")
        assert env.end().info["return"] == 5.0 and env.trajectory is not None and worth_of(env.trajectory) == 3.0
        env.reset()
        env.call_tool("ring")
        assert env.end().reward == 1.0  # without a task


def test_to_return_as_much_as_the_oracle_without_solving_is_a_problem_of_the_task() -> None:
    class Idle(Desk):
        """An environment in which a solution costs more than it earns."""

        pay = -9.0

    task = Task(id="ring", oracle=[OracleCall(tool_name="ring")])
    assert problems(Idle, task, random_seeds=0) == "doing nothing returns 0, not less than the oracle (-8)"


# -- cheatable ones: each of them differs from an honest one in one thing


class EndlessBook(environment("ledger")):  # type: ignore[misc]
    """Forgets to clear the reports."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> None:
        reports = self.db.execute("SELECT * FROM reports").fetchall()
        super().reset(seed, episode_id, **options)
        self.db.executemany("INSERT INTO reports VALUES (?, ?)", reports)


class LuckyBook(environment("ledger")):  # type: ignore[misc]
    """Begins with a balance of its own each time."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> None:
        super().reset(seed, episode_id, **options)
        self.db.execute("UPDATE accounts SET balance = ? WHERE id = 8", (random.SystemRandom().randrange(10**9),))


class GreetingBook(environment("ledger")):  # type: ignore[misc]
    """Says the time in the observation of its reset."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        super().reset(seed, episode_id, **options)
        return Observation(metadata={"now": time.time_ns()})


class OpenMaze(environment("maze")):  # type: ignore[misc]
    """Pays for having walked."""

    def verify(self, evidence: Evidence) -> Reward:
        assert evidence.after is not None
        return Reward(float(evidence.after["walked"] > 0))


class GenerousMaze(environment("maze")):  # type: ignore[misc]
    """Pays a little for nothing at all."""

    def verify(self, evidence: Evidence) -> float:
        verified: Reward = super().verify(evidence)
        return max(0.1, verified.value)


class UnseededMaze(environment("maze")):  # type: ignore[misc]
    """Digs a maze of its own whatever the seed."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> None:
        super().reset(None, episode_id, **options)


class ShapedMaze(environment("maze")):  # type: ignore[misc]
    """Pays each look, so that looking often is worth more than leaving."""

    def score(self, call: Any, outcome: Any) -> float:
        return 0.5 if call.name == "look" else 0.0


class SilentMaze(environment("maze")):  # type: ignore[misc]
    """Scores nothing."""

    def verify(self, evidence: Evidence) -> None:
        return None


class BrokenMaze(environment("maze")):  # type: ignore[misc]
    """Cannot be verified unless somebody walked."""

    def verify(self, evidence: Evidence) -> float:
        assert evidence.after is not None
        walked: int = evidence.after["walked"]
        return float(evidence.after["escaped"]) * walked / walked


LEDGER, WORKSPACE, MAZE = environment("ledger"), environment("workspace"), environment("maze")
FREEZE = next(task for task in tasks_of("ledger", 15) if task.id == "freeze-bo")
RENT, CONTACT, ROOMS = tasks_of("ledger")[0], tasks_of("workspace")[0], tasks_of("maze")[0]
EXPECTED: dict[str, Any] = (RENT.verifier or {})["changes"]
NOTES = {
    "kind": "expect_only",
    "changes": {"**": {"$any": True}},
}

CHEATABLE: dict[str, tuple[Callable[[], MCPEnvironment], Task, str]] = {
    "a ledger that may stay as it is": (
        LEDGER,
        altered(RENT, verifier={"kind": "expect_only", "changes": EXPECTED}),
        "doing nothing scores 1, which is full",
    ),
    "a ledger in which everything is right": (
        LEDGER,
        altered(RENT, verifier=python("return True")),
        "doing nothing scores 1, which is full\nrandom play (seed 0) scores 1 in",
    ),
    "a ledger in which any change is right": (
        LEDGER,
        altered(RENT, verifier=python("return len(changes) > 0")),
        "random play (seed ",
    ),
    "a ledger in which nothing is right": (
        LEDGER,
        altered(RENT, verifier=python("return False")),
        "the oracle scores 0 instead of 1",
    ),
    "a ledger whose verifier expects something else": (
        LEDGER,
        altered(RENT, verifier={"kind": "expect_exactly", "changes": {**EXPECTED, "accounts/1/balance": 851}}),
        "the oracle scores 0 instead of 1",
    ),
    "a ledger whose verifier pays more than full": (
        LEDGER,
        altered(RENT, verifier=python("return 5")),
        "the oracle cannot be played: ",
    ),
    "a ledger whose verifier crashes": (
        LEDGER,
        altered(RENT, verifier=python("return before['nothing']")),
        "the oracle cannot be played: verify raised VerifierFailed: the verifier raised KeyError",
    ),
    "a ledger whose verifier is of no kind": (
        LEDGER,
        altered(RENT, verifier={"kind": "exactly"}),
        "verifier.kind: is 'exactly'; it must be one of expect_exactly, expect_only, python",
    ),
    "a ledger that pays for half of the work": (
        LEDGER,
        altered(
            FREEZE,
            verifier={
                "kind": "expect_only",
                "changes": {"accounts/5/status": "frozen"},
                "require": {"accounts/4/status": "frozen"},
            },
        ),
        "the oracle without call 3 (set_status) scores 1, which is full, and leaves another world, with accounts/5/",
    ),
    "a workspace that pays for one of two notes": (
        WORKSPACE,
        altered(
            CONTACT,
            oracle=[
                OracleCall(tool_name="write_file", arguments={"path": name, "text": "y"})
                for name in ("notes/a", "notes/b")
            ],
            verifier=python("return float(any(c['kind'] == 'added' and c['after'] == {'text': 'y'} for c in changes))"),
        ),
        "the oracle without call 1 (write_file) scores 1, which is full, and leaves another world, ",
    ),
    "a ledger whose oracle stops early": (
        LEDGER,
        altered(RENT, oracle=(RENT.oracle or [])[:-1]),
        "the oracle scores 0 instead of 1",
    ),
    "a ledger whose oracle pays too much": (
        LEDGER,
        altered(RENT, oracle=[OracleCall(tool_name="transfer", arguments={"source": 2, "target": 4, "amount": 10**8})]),
        "the oracle scores 0 instead of 1; call 1 (transfer) failed: account 2 has 120000 cents available",
    ),
    "a ledger whose oracle calls a tool that is not there": (
        LEDGER,
        altered(RENT, oracle=[OracleCall(tool_name="pay")]),
        "the oracle scores 0 instead of 1; call 1 (pay) failed: Unknown tool: 'pay'. The tools are: ",
    ),
    "a ledger that keeps what was done before": (
        EndlessBook,
        altered(
            RENT,
            oracle=[*(RENT.oracle or ()), OracleCall(tool_name="file_report", arguments={"subject": "x", "value": 1})],
            verifier={"kind": "expect_exactly", "changes": {**EXPECTED, "reports/*": {"$any": True}}},
        ),
        "two resets leave different worlds, the second without reports/x",
    ),
    "a ledger that begins differently each time": (
        LuckyBook,
        RENT,
        "two resets leave different worlds, the second with accounts/8/balance changed",
    ),
    "a ledger that tells the time": (
        GreetingBook,
        RENT,
        "two runs of doing nothing differ at the reset, the second with metadata/now changed",
    ),
    "a ledger that cannot be reset": (LEDGER, altered(RENT, options={"colour": "red"}), "no episode begins: "),
    "a workspace in which any file is right": (
        WORKSPACE,
        altered(CONTACT, verifier=python("return any(change['kind'] == 'added' for change in changes)")),
        "random play (seed ",
    ),
    "a workspace in which all may change and nothing must": (
        WORKSPACE,
        altered(CONTACT, verifier=NOTES),
        "doing nothing scores 1, which is full",
    ),
    "a workspace whose verifier believes what a file says": (
        WORKSPACE,
        altered(CONTACT, verifier=python("return 1.0 if 'contacts' in str(after) else 0.0")),
        "doing nothing scores 1, which is full",
    ),
    "a workspace whose oracle does something else": (
        WORKSPACE,
        altered(CONTACT, oracle=[OracleCall(tool_name="write_file", arguments={"path": "x", "text": "y"})]),
        "the oracle scores 0 instead of 1",
    ),
    "a maze that pays for walking": (OpenMaze, ROOMS, "random play (seed "),
    "a maze that pays for nothing": (GenerousMaze, ROOMS, "doing nothing scores 0.1 instead of 0"),
    "a maze that does not heed its seed": (UnseededMaze, ROOMS, "the oracle scores 0 instead of 1"),
    "a maze that pays for looking": (ShapedMaze, ROOMS, "random play (seed 0) returns "),
    "a maze that scores nothing": (SilentMaze, ROOMS, "the oracle scores nothing (it is not scored) instead of 1"),
    "a maze whose verifier breaks": (BrokenMaze, ROOMS, "doing nothing fails: "),
    "a maze whose oracle goes on after the end": (
        MAZE,
        altered(ROOMS, oracle=[*(ROOMS.oracle or ()), OracleCall(tool_name="look"), OracleCall(tool_name="look")]),
        "the episode ends before the last call of the oracle; calls left: 2",
    ),
}


@pytest.mark.parametrize("what", CHEATABLE)
def test_a_task_that_is_not_sound_is_found_out(what: str) -> None:
    make, task, said = CHEATABLE[what]
    assert said in problems(make, task)


def test_each_call_of_a_solution_is_left_out_once_and_only_one_that_changes_the_world_must_cost() -> None:
    (of_task,) = validate(LEDGER, [FREEZE], random_seeds=0).tasks
    assert of_task.problems == []
    assert [call.tool_name for call in FREEZE.oracle or ()] == ["list_accounts", "set_status", "set_status"]
    assert of_task.shortened == [1.0, 0.0, 0.0]
    alone = altered(
        FREEZE,
        oracle=(FREEZE.oracle or [])[1:2],
        verifier=python("return after['accounts']['4']['status'] == 'frozen'"),
    )
    assert validate(LEDGER, [alone], random_seeds=0).tasks[0].shortened == []


def test_of_a_long_solution_a_few_calls_are_left_out_with_the_first_and_the_last() -> None:
    rows = [OracleCall(tool_name="file_report", arguments={"subject": f"r{n}", "value": n}) for n in range(20)]
    first_and_last = {"reports/r0": {"$any": True}, "reports/r19": {"$any": True}}
    half = {"kind": "expect_only", "changes": {"reports/*": {"$any": True}}, "require": first_and_last}
    (of_task,) = validate(LEDGER, [altered(FREEZE, oracle=rows, verifier=half)], random_seeds=0).tasks
    assert of_task.shortened == [0.0, *[1.0] * (MAX_SHORTENED - 2), 0.0]
    assert len(of_task.problems) == MAX_SHORTENED - 2


def test_an_instance_that_broke_is_replaced() -> None:
    report = validate(BrokenMaze, tasks_of("maze", 2), random_seeds=0)
    assert [len(task.problems) for task in report.tasks] == [1, 1]
    assert [task.oracle is not None for task in report.tasks] == [True, True]


# -- the random player


def test_a_random_player_makes_arguments_that_fit_and_plays_the_same_again() -> None:
    with LEDGER() as env:
        tools: list[Tool] = env.list_tools()
        schemas = {tool.name: tool.input_schema for tool in tools}

        def calls(seed: int) -> list[Any]:
            player = RandomPlayer(seed)
            player.read({"prompt": "Pay 850 from account 2 to account 4, memo 'rent'."})
            return [player.call(tools) for _ in range(200)]

        made = calls(1)
        assert made == calls(1) != calls(2)
        assert {name for name, _ in made} == set(schemas)
        env.reset()
        errors = [env.call_tool(name, arguments).error for name, arguments in made]
        assert not [error for error in errors if error is not None and error.error_type == "invalid_args"]
        amounts = [arguments["amount"] for _, arguments in made if "amount" in arguments]
        assert 850 in amounts and len(set(amounts)) > 10


class Parrot(MCPEnvironment):
    """Say it."""

    def __init__(self) -> None:
        self.said = ""

        @self.tool(terminal=True)
        def say(word: str) -> str:
            """Say a word."""
            self.said = word
            return "said"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.said = ""

    def verify(self, evidence: Evidence) -> bool:
        return self.said == "heron"


def test_a_random_player_solves_what_can_be_solved_by_repeating_the_prompt() -> None:
    oracle = [OracleCall(tool_name="say", arguments={"word": "heron"})]
    told = Task(id="told", prompt="Say the word heron.", oracle=oracle)
    asked = Task(id="asked", prompt="Which bird?", oracle=oracle)
    assert "random play" in problems(Parrot, told, random_seeds=40)
    assert "random play" not in problems(Parrot, asked, random_seeds=40)


# -- the command


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command line; its exit status, and what it wrote on stdout and on stderr."""
    with command_lines(None, monkeypatch, capfd) as run:
        yield lambda *arguments: astuple(run(*arguments))


@pytest.mark.parametrize("name", NAMES)
def test_the_command_says_that_an_honest_environment_is_sound(name: str, command: Run) -> None:
    arguments = ("--only", "tasks", "-n", "3", "--random-seeds", "1")
    status, out, err = command("validate", str(ENVS / f"{name}_mcp"), *arguments)
    lines = out.splitlines()
    assert status == 0 and err == ""
    assert lines[0].split() == ["task", "split", "oracle", "nothing", "random", "malformed", "twice"]
    assert [line.split()[1:] for line in lines[1:4]] == [["train", "1", "0", "0", "0", "agree", "sound"]] * 3
    assert re.match(rf"{name}_mcp is sound; 3 of \d+ tasks played; skipped: contract, schemas, cheats", lines[-1])


def test_the_tables_on_the_page_are_what_is_printed(tmp_path: Path, command: Run) -> None:
    page = (ENVS.parent / "docs" / "how-to" / "validate-tasks.md").read_text(encoding="utf-8")
    honest, cheatable = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lax = altered(RENT, verifier={**(RENT.verifier or {}), "kind": "expect_only"})
    (tmp_path / "tasks.jsonl").write_text(lax.model_dump_json())
    ledger = ("validate", str(ENVS / "ledger_mcp"))
    for shown, arguments in (
        (honest, ("--only", "tasks", "--split", "test", "-n", "3")),
        (cheatable, ("--only", "tasks", "--tasks", str(tmp_path / "tasks.jsonl"))),
    ):
        _, out, _ = command(*ledger, *arguments)
        out = out.replace(str(ENVS.parent), "/home/ann/mcpenv").replace(str(tmp_path), "/home/ann")
        assert [line.rstrip() for line in out.splitlines()] == shown.splitlines()


def test_every_flag_of_the_command_is_on_the_page(command: Run) -> None:
    _, out, _ = command("validate", "--help")
    page = (ENVS.parent / "docs" / "reference" / "validation.md").read_text(encoding="utf-8")
    page = page.partition("## Options")[2].partition("Exit status")[0]
    assert set(re.findall(r"^│ (?:\*  )?(--[a-z-]+)", out, re.MULTILINE)) == set(re.findall(r"`(--[a-z-]+)[` ]", page))


def test_the_command_names_what_is_wrong_with_cheatable_tasks(tmp_path: Path, command: Run) -> None:
    rows = [json.loads(line) for line in (ENVS / "ledger_mcp" / "tasks.jsonl").read_text().splitlines()][:3]
    rows[0]["verifier"]["kind"] = "expect_only"
    rows[1]["oracle"] = rows[1]["oracle"][:1]
    del rows[2]["oracle"]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--tasks", str(tmp_path / "tasks.jsonl"), "--random-seeds", "1", "--only", "tasks")
    arguments = ("validate", str(ENVS / "ledger_mcp"), *given)
    status, out, _ = command(*arguments)
    assert status == 1 and "1 problem" in out
    assert f"plays: {rows[0]['id']}: doing nothing scores 1, which is full" in out
    assert f"plays: {rows[0]['id']}: the oracle without call 2 (transfer) scores 1, which is full" in out
    assert f"plays: {rows[1]['id']}: the oracle scores 0 instead of 1" in out
    assert f"oracles: {rows[2]['id']}: no oracle, so it is not known that the task can be solved" in out
    assert "ledger_mcp is unsound: 3 findings; 1 warning; skipped: " in out
    status, out, _ = command(*arguments, "--json")
    document = json.loads(out)
    assert status == 1 and not document["ok"] and document["without_oracle"] == [rows[2]["id"]]
    assert [len(task["problems"]) for task in document["tasks"]] == [2, 1, 0]


def test_a_cheatable_copy_of_a_folder_is_found_out_from_outside(tmp_path: Path) -> None:
    copy = tmp_path / "workspace_mcp"
    shutil.copytree(ENVS / "workspace_mcp", copy)
    text = (copy / "environment.py").read_text()
    (copy / "environment.py").write_text(
        text.replace("tasks = TaskSet(TASKS)", "tasks = TaskSet({**t, 'verifier': None} for t in TASKS)")
        + "\n    def verify(self, evidence):\n        print('verifying')\n        return len(evidence.changes) < 2\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "mcpenv", "validate", str(copy), "-n", "2", "--json", "--only", "tasks"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    tasks = json.loads(ended.stdout)["tasks"]  # what the environment prints is not in it
    assert len(tasks) == 2 and all("doing nothing scores 1, which is full" in task["problems"] for task in tasks)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("echo_mcp", "-n", "1"), "has no tasks for --split and -n; give it some with --tasks"),
        ((str(ENVS / "maze_mcp"), "--split", "nowhere"), "there is no split 'nowhere'"),
        ((str(ENVS / "maze_mcp"), "-n", "-1"), "-n is -1; it must be 0 or more"),
        (("echo_mcp", "--time-limit", "0"), "--time-limit is 0; it must be more than 0 seconds"),
        (("echo_mcp", "--only", "load", "--skip", "load"), "leave no part to judge"),
        (("echo_mcp", "--only", "loda"), "loda"),
        (("echo_mcp", "--only", "schemas", "--badge", "/nowhere/badge.svg"), "name a file in a folder that exists"),
        ((str(ENVS / "maze_mcp"), "--random-seeds", "-1"), "--random-seeds is -1"),
        ((str(ENVS / "maze_mcp"), "--tasks", "nowhere.jsonl"), "nowhere.jsonl"),
        (("nowhere",), "nowhere"),
    ],
)
def test_what_cannot_be_tried_is_refused(arguments: tuple[str, ...], said: str, command: Run) -> None:
    status, out, err = command("validate", *arguments)
    assert status == 2 and said in err and out == "" and err.count("\n") == 1


def test_a_report_is_plain_data() -> None:
    report = Report([TaskReport(RENT, 1.0, 0.0, [0.0, None], True, ["a problem"])])
    assert json.loads(json.dumps(report.to_plain())) == {
        "ok": False,
        "tasks": [
            {
                "id": RENT.id,
                "split": "train",
                "reward_range": [0.0, 1.0],
                "has_oracle": True,
                "oracle": 1.0,
                "nothing": 0.0,
                "random": [0.0, None],
                "malformed": None,
                "shortened": [],
                "repeats": True,
                "digest": None,
                "problems": ["a problem"],
                "known": [],
                "crashes": {},
            }
        ],
        "without_oracle": [],
    }
