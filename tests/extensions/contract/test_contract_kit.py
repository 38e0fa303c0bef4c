from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import random
import re
import sqlite3
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from environments import (
    EVERYTHING_CALLS,
    CounterEnvironment,
    EverythingEnvironment,
    NotesEnvironment,
    SharedNotesEnvironment,
)
from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

import mcpenv
from mcpenv import (
    Action,
    Evidence,
    MCPEnvironment,
    Observation,
    State,
    Task,
    TaskSet,
    ToolCall,
    ToolError,
    ToolOutcome,
)
from mcpenv.extensions.contract import (
    CHECKS,
    ContractViolation,
    EnvironmentContract,
    Report,
    Verdict,
    check_environment,
)
from mcpenv.extensions.contract.arguments import arguments_for, wrong_arguments

ECHO = Path(__file__).parents[3] / "envs" / "echo_mcp" / "environment.py"


def _load_echo() -> Any:
    spec = importlib.util.spec_from_file_location("echo_environment", ECHO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


echo = _load_echo()


# -- our own environments keep the contract


class TestEcho(EnvironmentContract):
    factory = echo.EchoEnvironment
    examples = {"echo_message": {"message": "hello world"}}


@pytest.mark.filterwarnings("ignore::mcpenv.extensions.contract.ContractWarning")
class TestEverything(EnvironmentContract):
    factory = EverythingEnvironment
    examples = EVERYTHING_CALLS


class TestNotes(EnvironmentContract):
    factory = NotesEnvironment


class TestCounter(EnvironmentContract):
    factory = staticmethod(lambda: CounterEnvironment(target=1))


def test_the_echo_environment_gives_what_its_page_says() -> None:
    env = echo.EchoEnvironment(max_steps=4)
    assert "0.1" in env.reset().metadata["task"]
    step = env.call_tool("echo_message", {"message": "hello there you"})
    assert (step.text, step.reward, step.done) == ("hello there you", 0.3, False)
    step = env.call_tool("echo_with_length", {"message": "x " * 40})
    assert step.reward == 1.0 and step.result.data == {"message": "x " * 40, "length": 80}
    assert env.call_tool("echo_message", {"message": " "}).reward == 0.0
    assert env.call_tool("statistics").reward is None
    assert env.trajectory.truncated and env.trajectory.reason == "max_steps"
    assert (env.state.messages, env.state.words, env.state.last_message) == (3, 43, " ")
    env.reset()
    assert env.call_tool("say_goodbye").terminated and env.state.messages == 0


def test_the_report_has_every_check() -> None:
    report = check_environment(CounterEnvironment, examples={"add": {"by": 3}})
    assert [finding.check for finding in report.findings] == list(CHECKS)
    assert {finding.verdict for finding in report.findings} == {Verdict.OK}
    lines = str(report).splitlines()
    assert lines[0] == "CounterEnvironment" and lines[1] == "ok       constructor" and len(lines) == len(CHECKS) + 1


def test_the_kit_works_inside_a_running_event_loop() -> None:
    async def main() -> Report:
        return check_environment(CounterEnvironment)

    assert asyncio.run(main())["calls"].verdict is Verdict.OK


def test_every_check_is_a_test_of_the_contract_class() -> None:
    tests = [name.removeprefix("test_") for name in vars(EnvironmentContract) if name.startswith("test_")]
    assert tests == list(CHECKS)


# -- what breaks it, one environment per check


class Base(MCPEnvironment):
    """A sound environment with one tool."""

    def __init__(self) -> None:
        @self.tool
        def say(text: str = "hello") -> str:
            """Say something."""
            return text


class NeedsArguments(Base):
    def __init__(self, path: str) -> None:
        super().__init__()


class OpensNothing(Base):
    def __init__(self) -> None:
        super().__init__()
        raise TypeError("no file")


ONE = Base()


class ResetsOnce(Base):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        if hasattr(self, "was_reset"):
            raise RuntimeError("already reset")
        self.was_reset = True


class HangsInReset(Base):
    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        await asyncio.Event().wait()


class ResetsToNaN(Base):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        return Observation(metadata={"score": float("nan")})


class StaleState(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = State(episode_id="mine", step_count=0)

    @property
    def state(self) -> State:
        return self.kept


class OtherState(Base):
    class Mine(State):
        pass

    state_type = Mine

    @property
    def state(self) -> State:
        return State()


class CrashingState(Base):
    @property
    def state(self) -> State:
        raise LookupError("no position")


class ClosesWhatResetOpened(Base):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)

    def close(self) -> None:
        self.connection.close()


class OwnStep(Base):
    """A step of the environment's own, which goes on after close."""

    closed = False

    def step(self, action: Action, *, timeout_s: float | None = None) -> Observation:
        return Observation() if self.closed else super().step(action, timeout_s=timeout_s)

    def close(self) -> None:
        self.closed = True


class NeverOver(Base):
    """An end that the environment's own step goes beyond."""

    def __init__(self) -> None:
        super().__init__()

        @self.tool(terminal=True)
        def end() -> str:
            """End it."""
            return "over"

    def step(self, action: Action, *, timeout_s: float | None = None) -> Observation:
        if self.trajectory is not None and self.trajectory.ended_at is not None and self.step_count == 2:
            return Observation()
        return super().step(action, timeout_s=timeout_s)


class MountsReset(MCPEnvironment):
    server = FastMCP("outer")
    inner = FastMCP("inner")
    inner.tool(name="reset")(lambda: "reset")
    server.mount(inner)

    def __init__(self) -> None:
        super().__init__(self.server)


class BrokenSchema(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool(output_schema={"type": "object", "properties": {"a": {"type": "nonsense"}}})
        def give() -> dict[str, Any]:
            """Give."""
            return {"a": 1}


class NoDescription(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        def undocumented() -> int:
            return 1


class Crashes(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        def look_up(key: str) -> str:
            """Look it up."""
            return {"known": "value"}[key]


class GivesNaN(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        def measure() -> dict[str, float]:
            """Measure."""
            return {"mean": float("nan")}


class BeliesItsSchema(MCPEnvironment):
    def __init__(self) -> None:
        schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}

        @self.tool(output_schema=schema)
        def total() -> dict[str, Any]:
            """Sum up."""
            return {"sum": 3}


class HangsInTool(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        async def wait() -> str:
            """Wait for ever."""
            await asyncio.Event().wait()
            return ""


class CrashingValidator(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        def take(key: Annotated[str, BeforeValidator(str.strip)] = "", size: int = 0) -> str:
            """Take."""
            return key


class Catches(Middleware):
    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        try:
            return await call_next(context)
        except Exception as error:
            raise ToolError("Something went wrong.") from error


class HidesWhatIsWrong(MCPEnvironment):
    server = FastMCP("catching", middleware=[Catches()])

    def __init__(self) -> None:
        super().__init__(self.server)

        @self.tool
        def say(text: str) -> str:
            """Say something."""
            return text


class RewardsNaN(Base):
    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float("inf") - float("inf")


class ScoreCrashes(Base):
    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return 1 / 0


class Dice(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        def roll() -> int:
            """Roll the dice."""
            return random.randint(1, 10**9)


class RandomRewards(Base):
    numbers = itertools.count()

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float(next(self.numbers))


class RandomReset(Base):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        return Observation(metadata={"task": random.random()})


class BlocksInTool(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        async def fetch() -> str:
            """Fetch."""
            time.sleep(0.2)  # noqa: ASYNC251 - what the check is about
            return "fetched"


class BlocksInReset(Base):
    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        time.sleep(0.2)  # noqa: ASYNC251 - what the check is about


BROKEN: list[tuple[Any, str, str]] = [
    (
        NeedsArguments,
        "constructor",
        r"missing 1 required positional argument: 'path'.* Give every constructor argument",
    ),
    (OpensNothing, "constructor", r"failed: TypeError: no file \(test_contract_kit.py:\d+ in __init__\)$"),
    (lambda: ONE, "constructor", "the same instance twice.* Return a new instance"),
    (lambda: "env", "constructor", "returned a str, not an MCPEnvironment"),
    (
        ResetsOnce,
        "reset",
        r"the second reset failed: reset raised RuntimeError: already reset \(test_contract_kit.py:\d+ in reset\)",
    ),
    (HangsInReset, "reset", "the first reset failed: .*took longer than 2 s"),
    (ResetsToNaN, "reset", r"metadata\.score: nan .* Use finite numbers"),
    (StaleState, "state", "state has episode 'mine' and step 0.* the framework fills them in"),
    (OtherState, "state", "state returns a State, but state_type is Mine"),
    (CrashingState, "state", r"state raised LookupError: no position \(test_contract_kit.py"),
    (
        ClosesWhatResetOpened,
        "close",
        "close of an instance that was never reset failed.* Set what close uses in __init__",
    ),
    (OwnStep, "close", "Do not override step; handle own actions in act"),
    (NeverOver, "end", "Do not override step; handle own actions in act"),
    (MountsReset, "names", "tools named 'reset'.* Rename them, or mount with a namespace"),
    (BrokenSchema, "schemas", "the output schema of 'give' is not valid JSON Schema: 'nonsense' is not valid"),
    (NoDescription, "descriptions", "no description: undocumented. Add a docstring or description="),
    (Crashes, "calls", r"look_up with arguments made from its schema failed: KeyError: 'text' \(.*Raise ToolError"),
    (GivesNaN, "calls", r"measure .*mean: nan has no JSON form"),
    (BeliesItsSchema, "calls", r"result of 'total' cannot be used: result: 'total' is a required property"),
    (HangsInTool, "calls", "wait with arguments made from its schema failed: timeout"),
    (
        CrashingValidator,
        "bad_calls",
        r"gave TypeError.* instead of invalid_args. Validators must raise only ValueError",
    ),
    (HidesWhatIsWrong, "bad_calls", "instead of tool_not_found. Middleware must not catch FastMCP's NotFoundError"),
    (RewardsNaN, "rewards", "score raised ValueError: reward is nan.* Give a finite number, or None"),
    (ScoreCrashes, "rewards", r"score raised ZeroDivisionError.*\(test_contract_kit.py:\d+ in score\)"),
    (Dice, "determinism", r"differ at roll: result\..* Draw from a random.Random\(seed\)"),
    (RandomRewards, "determinism", "differ at say: .*reward"),
    (RandomReset, "determinism", r"differ at reset: metadata\.task"),
    (
        SharedNotesEnvironment,
        "threads",
        r"works in one thread and fails when threads change: .*thread.* THREAD_AFFINE = True",
    ),
    (
        BlocksInTool,
        "event_loop",
        r"fetch blocked the event loop, and so every other session, "
        r"for more than 0.05 s \(test_contract_kit.py:\d+ in fetch\)",
    ),
    (BlocksInReset, "event_loop", r"reset blocked the event loop, .*in reset\).* make it a plain def"),
]


@pytest.mark.parametrize(("factory", "check", "text"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_environment_fails_its_check_with_advice(factory: Any, check: str, text: str) -> None:
    limit_s = 0.05 if check == "event_loop" else 5.0  # a loaded machine may block the loop of any environment
    with pytest.raises(ContractViolation) as raised:
        # Each of its calls takes all of the time.
        check_environment(factory, block_limit_s=limit_s, call_timeout_s=0.3 if factory is HangsInTool else 2.0)
    report = raised.value.report
    assert report is not None
    assert [finding.check for finding in report.of(Verdict.FAILED)] == [check]
    assert f"- {check}: " in str(raised.value)

    assert re.search(text, report[check].text, re.DOTALL), report[check].text


class Solves(MCPEnvironment):
    """Something to do."""

    def __init__(self) -> None:
        @self.tool
        def say(text: str) -> str:
            """Say."""
            return text


def _with_tasks(tasks: Any, **attributes: Any) -> Any:
    return type("WithTasks", (Solves,), {"tasks": tasks, **attributes})


def _verifying(verify: Any, tasks: Any = None) -> Any:
    return _with_tasks(tasks, verify=verify)


def _raises(self: Any, evidence: Evidence) -> bool:
    raise KeyError("answer")


async def _raises_later(self: Any, evidence: Evidence) -> bool:
    raise KeyError("answer")


def _raises_for_b(self: Any, evidence: Evidence) -> bool:
    return evidence.task is not None and {"a": True}[evidence.task.id]


def _raises_after_calls(self: Any, evidence: Evidence) -> float:
    return 1 / (1 - min(int(self.step_count), 1))


def _a_generator_that_raises(draw: random.Random, index: int) -> Task:
    raise ZeroDivisionError("no such world")


TASKS_FILES = {
    "not json": ('{"id": "a", "prompt": "x"}\n{"id": "b"', r"tasks.jsonl, line 2.* the line is not JSON"),
    "an id twice": ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', r"line 2.*'a' is the id of another task"),
    "no task": ('{"id": "a", "prompt": 7}', r"tasks.jsonl, line 1.*prompt"),
    "an unknown option": ('{"id": "a", "prompt": "x", "options": {"colour": "red"}}', r"task 'a'.*colour|colour"),
    "a bad verifier": ('{"id": "a", "prompt": "x", "verifier": {"kind": "vibes"}}', r"verifier"),
}


@pytest.mark.parametrize("name", TASKS_FILES)
def test_tasks_that_cannot_be_used_fail_their_check(tmp_path: Path, name: str) -> None:
    content, text = TASKS_FILES[name]
    (tmp_path / "tasks.jsonl").write_text(content, encoding="utf-8")
    factory = _with_tasks(TaskSet.from_jsonl(tmp_path / "tasks.jsonl"))
    test_a_broken_environment_fails_its_check_with_advice(factory, "tasks", text)


def test_a_tasks_file_that_is_not_there_and_a_generator_that_raises_fail_their_check(tmp_path: Path) -> None:
    absent = _with_tasks(TaskSet.from_jsonl(tmp_path / "none.jsonl"))
    test_a_broken_environment_fails_its_check_with_advice(absent, "tasks", "none.jsonl.*cannot be read")
    raising = _with_tasks(TaskSet.generate(_a_generator_that_raises, seed=1, sizes={"train": 2}))
    test_a_broken_environment_fails_its_check_with_advice(raising, "tasks", "ZeroDivisionError: no such world")


A_AND_B = TaskSet([Task(id="a", prompt="x"), Task(id="b", prompt="y")])


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (_verifying(_raises), r"the end could not be verified: verify raised KeyError: 'answer' \(.* in _raises\)"),
        (_verifying(_raises_later), r"KeyError: 'answer'"),
        (_verifying(_raises_for_b, A_AND_B), r"the end of task 'b' could not be verified.*KeyError"),
        (_verifying(_raises_after_calls), r"ZeroDivisionError"),
        (_verifying(lambda self, evidence: "good"), r"verify raised TypeError"),
        (_verifying(lambda self, evidence: float("nan")), r"verify raised ValueError"),
        (_verifying(lambda self, evidence: {"value": 1.0}), r"verify raised TypeError"),
        (
            _with_tasks(TaskSet([Task(id="a", prompt="x", verifier={"kind": "expect_only", "changes": {}})])),
            r"task 'a'.*reads the world, but the environment has none",
        ),
    ],
)
def test_a_verification_that_fails_or_gives_no_reward_fails_its_check(factory: Any, text: str) -> None:
    test_a_broken_environment_fails_its_check_with_advice(factory, "verify", text)


@pytest.mark.parametrize(
    "factory",
    [
        _with_tasks(A_AND_B),
        _verifying(lambda self, evidence: True, A_AND_B),
        _verifying(lambda self, evidence: mcpenv.Verdict(True)),
        _verifying(lambda self, evidence: None),
    ],
)
def test_the_kit_is_silent_about_tasks_and_verification_that_work(factory: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = check_environment(factory)
    assert report["tasks"].verdict is report["verify"].verdict is Verdict.OK
    assert not report.of(Verdict.WARNING)


class PerInstance(MCPEnvironment):
    """A FastMCP server per instance."""

    def __init__(self) -> None:
        server: FastMCP = FastMCP("mine")

        @server.tool
        def say() -> str:
            """Say."""
            return ""

        super().__init__(server)


class ParsedAnew(MCPEnvironment):
    """A dependency per instance."""

    def __init__(self) -> None:
        @self.tool
        def say(text: str = "x", name: str = Depends(lambda: "me")) -> str:
            """Say."""
            return text


class Refuses(MCPEnvironment):
    """An environment with a tool that accepts less than its schema."""

    def __init__(self) -> None:
        @self.tool
        def open_box(key: str) -> str:
            """Open the box."""
            if key != "sesame":
                raise ToolError("That is not the key.")
            return "gold"

        @self.tool
        def match(code: Annotated[str, AfterValidator(str.strip)], kind: Literal["a"]) -> str:
            """Match."""
            return code


@pytest.mark.parametrize(
    ("factory", "check", "text"),
    [
        (PerInstance, "sharing", "a FastMCP server with functions of its own.* Build one per class or module"),
        (ParsedAnew, "sharing", "FastMCP parses say again for every instance.* Define it at module level"),
        (Refuses, "calls", r"no successful call: open_box \(That is not the key.\). Give examples"),
    ],
)
def test_what_costs_something_or_was_not_seen_is_a_warning(factory: Any, check: str, text: str) -> None:
    report = check_environment(factory)
    assert [finding.check for finding in report.of(Verdict.WARNING)] == [check]

    assert re.search(text, report[check].text, re.DOTALL), report[check].text


def test_an_example_takes_the_warning_away_and_must_work() -> None:
    report = check_environment(Refuses, examples={"open_box": {"key": "sesame"}})
    assert report["calls"].verdict is Verdict.OK
    for examples, text in (
        ({"open_box": {"key": "wrong"}}, "open_box with the example failed: execution_error: That is not the key."),
        ({"open_box": {"lock": "x"}}, "open_box with the example failed: invalid_args"),
        ({"shut_box": {}}, "examples for shut_box, but the tools are: open_box, match"),
    ):
        with pytest.raises(ContractViolation, match="violates its contract") as raised:
            check_environment(Refuses, examples=examples)
        assert text in str(raised.value)


def test_checks_that_do_not_apply_are_skipped_with_the_reason() -> None:
    report = check_environment(NotesEnvironment, deterministic=False)
    skipped = {finding.check: finding.reason for finding in report.of(Verdict.SKIPPED)}
    assert skipped == {
        "end": "no call ended an episode. If there is an end, give an example that reaches it",
        "determinism": "deterministic=False",
        "threads": "THREAD_AFFINE = True: all code of an instance runs in one thread",
    }


class BeginsDone(MCPEnvironment):
    """Its episodes are over at once."""

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.finish(0.0)


def test_what_cannot_be_made_or_reset_is_not_tried_further() -> None:
    for factory, ground in ((NeedsArguments, "constructor"), (ResetsOnce, "reset"), (BeginsDone, "reset")):
        with pytest.raises(ContractViolation) as raised:
            check_environment(factory)  # type: ignore[arg-type]
        report = raised.value.report
        assert report is not None
        after = report.findings[CHECKS.index(ground) + 1 :]
        assert {finding.reason for finding in after} == {f"not run, because {ground} failed"}


class Move(Action):
    type: Literal["move"] = "move"
    by: int = 1


class Board(MCPEnvironment):
    """Own actions and a reset that needs an option."""

    action_types = (Move,)

    def reset(self, seed: int | None = None, episode_id: str | None = None, *, level: int) -> Observation:
        self.random = random.Random(seed)
        return Observation(metadata={"level": level})

    def act(self, action: Action) -> Observation:
        self.finish(1.0)
        return Observation(metadata={"rolled": self.random.random()})


def test_own_actions_and_reset_options_are_tried_when_they_are_given() -> None:
    report = check_environment(Board, actions=[Move()], reset_options={"level": 2}, seed=7)
    verdicts = {finding.check: finding.verdict for finding in report.findings}
    assert verdicts.pop("reset") is Verdict.WARNING and "Give them defaults" in report["reset"].remedy
    assert set(verdicts.values()) == {Verdict.OK}


CONTRACT = """
    import pytest
    from environments import SharedNotesEnvironment, CounterEnvironment
    from mcpenv.extensions.contract import EnvironmentContract

    class TestSound(EnvironmentContract):
        factory = CounterEnvironment

    class TestBroken(EnvironmentContract):
        factory = SharedNotesEnvironment
"""


@pytest.mark.smoke
def test_the_contract_class_runs_in_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_contract.py").write_text(textwrap.dedent(CONTRACT))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={Path(__file__).parents[2]}",
    ]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert "1 failed, 33 passed, 2 skipped" in done.stdout, done.stdout
    assert "TestBroken::test_threads" in done.stdout and "THREAD_AFFINE = True" in done.stdout


# -- arguments made from schemas


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "minLength": 30, "maxLength": 40},
        {"type": "string", "maxLength": 2},
        {"type": "string", "format": "date-time"},
        {"type": "string", "enum": ["a", "b"]},
        {"const": 3},
        {"type": "integer", "minimum": 5, "maximum": 9},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
        {"type": "integer", "minimum": 5, "multipleOf": 5},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
        {"type": "number", "maximum": -3},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["null", "string"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
        {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        {"anyOf": [{"type": "string", "pattern": "^x+$"}, {"type": "integer"}]},
        {"oneOf": [{"$ref": "#/$defs/Cat"}, {"type": "null"}]},
        {"allOf": [{"$ref": "#/$defs/Cat"}]},
        {"$ref": "#/$defs/Tree"},
        {},
        True,
        {"examples": ["given"], "type": "string", "pattern": "^g"},
    ],
    ids=lambda schema: json.dumps(schema)[:60],
)
def test_arguments_are_made_that_fit(schema: Any) -> None:
    whole = {
        "type": "object",
        "properties": {"value": schema, "other": {"type": "string", "pattern": "^never$"}},
        "required": ["value"],
        "$defs": {
            "Cat": {"type": "object", "properties": {"lives": {"type": "integer"}}, "required": ["lives"]},
            "Tree": {
                "type": "object",
                "properties": {"children": {"items": {"$ref": "#/$defs/Tree"}, "type": "array"}},
            },
        },
    }
    made = arguments_for(whole)  # validates what it makes
    assert made is not None and set(made) == {"value"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[0-9]{4}-[A-Z]$"},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "nonsense"},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "#/properties/value"},
        False,
    ],
    ids=json.dumps,
)
def test_arguments_that_cannot_be_made_are_none(schema: Any) -> None:
    assert arguments_for({"type": "object", "properties": {"value": schema}, "required": ["value"]}) is None


def test_wrong_arguments_are_wrong_in_one_way_each() -> None:
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"a": {"type": "string"}, "b": {"type": "object"}, "c": {}},
        "required": ["a"],
    }
    wrong = list(wrong_arguments(schema, {"a": "good"}))
    assert wrong == [
        {"a": "good", "mcpenv_no_such_argument": 1},
        {},
        {"a": {"mcpenv": ["wrong"]}},
        {"a": "good", "b": [["mcpenv wrong"]]},
    ]


@pytest.mark.parametrize(
    "broken",
    [{"type": "integr"}, {"type": "string", "maxLength": "5"}, {"type": "number", "minimum": "1"}],
    ids=json.dumps,
)
def test_a_schema_that_is_not_valid_is_a_finding_about_its_tool_and_ends_nothing(broken: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": broken}, "required": ["a"]}
    assert {"a": {"mcpenv": ["wrong"]}} in list(wrong_arguments(schema, {"a": "good"}))

    def weigh(b: Any, a: str = "x") -> str:
        """Weigh."""
        return a

    weigh.__annotations__["b"] = Annotated[Any, WithJsonSchema(broken)]

    class Broken(MCPEnvironment):
        """An environment with a schema that is not valid."""

        def __init__(self) -> None:
            self.tool(weigh)

    with pytest.raises(ContractViolation, match="'weigh' is not valid JSON Schema"):
        check_environment(Broken)


def test_the_kits_own_seeds_warn_nobody_and_a_users_seed_without_effect_does_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unseeded(MCPEnvironment):
        def reset(self, episode_id: str | None = None) -> None:  # type: ignore[override]
            pass

    said = "reset has no parameter 'seed', so the given seed has no effect"
    check_environment(Unseeded)
    assert said not in caplog.messages
    with Unseeded() as env:
        env.reset()
        assert said not in caplog.messages
        for seed in (3, 4):
            env.reset(seed)
    assert caplog.messages.count(said) == 1
