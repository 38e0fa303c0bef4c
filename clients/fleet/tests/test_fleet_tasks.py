"""Tasks of exported files, and the platform's verification of them."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
from pathlib import Path
from typing import Any

import fleet
import pytest
from conftest import QUICK
from fleet_platform import Fault, Platform

from mcpenv_fleet import FleetEnv, FleetTask, InvalidTask, VerificationFailed, load_tasks

HELPED = """
import json

def has(env, title):
    return title in env.tickets

def check_ticket(env, final_answer=None):
    if final_answer is not None and final_answer != "two":
        return TASK_FAILED_SCORE
    return TASK_SUCCESSFUL_SCORE if has(env, "second") else 0.25
"""
ROW: dict[str, Any] = {
    "key": "add-second",
    "prompt": "Add a ticket: second.",
    "env_id": "fira",
    "version": "v1.2.0",
    "data_id": "acme",
    "data_version": "v3",
    "env_variables": {"LANG": "C"},
    "verifier_func": HELPED,
    "created_at": "2025-11-01T00:00:00",
    "metadata": {"difficulty": "easy"},
}


def task(**changes: Any) -> FleetTask:
    """Return the task with some fields changed."""
    return FleetTask.from_json({**ROW, **changes})


def played(platform: Platform, of: FleetTask, answer: str | None = None) -> float | None:
    """Return the reward of an episode that solves the task."""
    env, _ = FleetEnv.from_task(of, **QUICK)
    with env:
        env.reset()
        env.call_tool("add_ticket", {"title": "second"})
        return env.end(answer).reward


def test_line_18_an_exported_task_is_played_in_its_versions_with_prompt_and_verifier(
    platform: Platform, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([ROW]))
    (loaded,) = load_tasks(file)
    env, _ = FleetEnv.from_task(loaded, **QUICK)
    with env:
        first = env.reset(seed=1)
        assert first.prompt == "Add a ticket: second."
        assert env.end().reward == 0.25
        env.reset()
        env.call_tool("add_ticket", {"title": "second"})
        end = env.end()
        assert (end.reward, end.info["return"], end.info["reward_by"]) == (1.0, 1.0, "verifier")
    asked = next(iter(platform.instances.values())).request
    assert [asked[name] for name in ("env_key", "env_version", "data_key", "data_version")] == [
        "fira",
        "v1.2.0",
        "acme",
        "v3",
    ]
    assert asked["env_variables"] == {"LANG": "C"}


def test_line_18_the_same_by_coroutines(platform: Platform) -> None:
    async def play() -> float | None:
        env, _ = await FleetEnv.from_task_async(task(), **QUICK)
        async with env:
            assert (await env.reset_async()).prompt == ROW["prompt"]
            await env.call_tool_async("add_ticket", {"title": "second"})
            return (await env.end_async("two")).reward

    assert asyncio.run(play()) == 1.0
    assert platform.running == []


@pytest.mark.parametrize("form", ["list", "object", "lines"])
def test_line_18_a_task_file_is_a_list_or_an_object_with_tasks_or_lines(tmp_path: Path, form: str) -> None:
    rows = [ROW, {**ROW, "key": "other"}]
    file = tmp_path / "tasks"
    file.write_text(
        "\n".join(map(json.dumps, rows))
        if form == "lines"
        else json.dumps({"tasks": rows} if form == "object" else rows)
    )
    assert [each.key for each in load_tasks(file)] == ["add-second", "other"]


def test_line_18_the_other_names_of_fields_are_understood() -> None:
    other = FleetTask.from_json(
        {
            "task_key": "k",
            "prompt": "p",
            "env_key": "fira",
            "env_version": "v1",
            "data_key": "acme",
            "data_version": "v2",
        }
    )
    assert (other.env_key, other.data_key) == ("fira:v1", "acme:v2")
    assert FleetTask.from_json({"key": "k", "prompt": "p", "env_id": "fira", "version": "None"}).env_key == "fira"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "neither JSON nor JSONL"),
        ("3", "a int is not a list of tasks"),
        ("[]", "there are no tasks in it"),
        ("[3]", "row 1: a int is not a task"),
        (json.dumps([ROW, {"key": "second", "env_id": "fira"}]), "row 2: task 'second': prompt: Field required"),
        (json.dumps([ROW, ROW]), "row 2: task 'add-second' occurs twice"),
    ],
)
def test_line_18_a_task_file_that_cannot_be_used_says_where(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(text)
    with pytest.raises(InvalidTask, match=told) as refused:
        load_tasks(file)
    assert str(file) in str(refused.value)


def test_line_20_no_code_of_a_verifier_is_run_in_this_process(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "pids"
    code = f"import os\nwith open({str(ran)!r}, 'a') as file:\n    file.write(f'{{os.getpid()}} ')\n" + HELPED
    real_exec = builtins.exec

    def refuse(source: Any, *names: Any) -> None:
        assert not isinstance(source, str) or "check_ticket" not in source, "exec of verifier code"
        real_exec(source, *names)

    monkeypatch.setattr(builtins, "exec", refuse)
    for name in ("load_task_from_json", "load_tasks"):
        monkeypatch.setattr(fleet.Fleet, name, lambda *_, **__: pytest.fail("the SDK would run the code"))
    assert played(platform, task(verifier_func=code)) == 1.0
    assert [int(pid) != os.getpid() for pid in ran.read_text().split()] == [True]


def test_line_21_the_platform_runs_the_whole_source_by_its_api(platform: Platform) -> None:
    assert played(platform, task(), "two") == 1.0
    assert played(platform, task(), "three") == 0.0
    one, other = platform.executed
    assert (one["key"], one["function_name"]) == ("add-second", "check_ticket")
    assert one["args_array"] == [{"env": "i0"}]
    assert "bundle" in one
    assert "bundle" not in other  # the platform has it by its hash


@pytest.mark.parametrize(
    ("code", "function"),
    [
        ("def anything(env):\n    return 1", "anything"),
        ("def helper(env):\n    return 1\n\ndef check(env):\n    return helper(env)", "check"),
        ("@verifier(key='k')\ndef judged(env):\n    return 1\n\ndef other(env):\n    return 0", "judged"),
        ("async def verify(env):\n    return 1", "verify"),
    ],
)
def test_line_21_the_function_may_have_any_name(platform: Platform, code: str, function: str) -> None:
    platform.result = {"success": True, "result": 1, "execution_time_ms": 1}
    assert played(platform, task(verifier_func=code)) == 1.0
    assert platform.executed[0]["function_name"] == function


def test_line_21_a_function_that_is_not_clear_can_be_named(platform: Platform) -> None:
    code = "def one(env):\n    return 0.1\n\ndef other(env):\n    return 0.2"
    with pytest.raises(VerificationFailed, match=r"which function .* \(one, other\); name it by verifier_function"):
        FleetEnv.from_task(task(verifier_func=code), **QUICK)
    assert platform.instances == {}
    assert played(platform, task(verifier_func=code, verifier_function="other")) == 0.2
    with pytest.raises(VerificationFailed, match="has no function 'third'; it has: one, other"):
        FleetEnv.from_task(task(verifier_func=code, verifier_function="third"), **QUICK)


def test_line_21_a_verifier_that_the_platform_keeps_is_run_by_its_id(platform: Platform) -> None:
    assert played(platform, task(verifier_func=None, verifier_id="kept")) == 0.25


@pytest.mark.parametrize(
    "fields",
    [{"verifier_code": HELPED}, {"verifier_func": HELPED}, {"verifier": {"code": HELPED, "verifier_id": "v"}}],
    ids=lambda fields: next(iter(fields)),
)
def test_line_22_the_code_is_verifier_code_or_verifier_func(platform: Platform, fields: dict[str, Any]) -> None:
    row = {name: value for name, value in ROW.items() if name != "verifier_func"}
    assert played(platform, FleetTask.from_json({**row, **fields})) == 1.0


def test_line_23_a_syntax_error_is_told_with_the_task_before_an_instance_is_made(platform: Platform) -> None:
    with pytest.raises(VerificationFailed, match=r"'add-second' .* syntax error in line 2: .*expected") as failure:
        FleetEnv.from_task(task(verifier_func="def verify(env):\nreturn 1"), **QUICK)
    assert failure.value.task_key == "add-second"
    assert platform.instances == {}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def verify(env):\n    return None", "ended without a result"),
        ("def verify(env):\n    return {}", "ended without a result"),
        ("def verify(env):\n    return 'passed'", "is not a number: 'passed'"),
        ("def verify(env):\n    raise KeyError('tickets')", "the verifier failed: KeyError: 'tickets'"),
    ],
)
def test_line_23_a_verifier_without_a_score_is_a_failure_and_never_0_or_1(
    platform: Platform, code: str, told: str
) -> None:
    env, _ = FleetEnv.from_task(task(verifier_func=code), **QUICK)
    with env:
        env.reset()
        with pytest.raises(VerificationFailed, match=told) as failure:
            env.end()
        assert "'add-second'" in str(failure.value)
        assert (env.end().reward, env.end().done) == (None, True)


def test_line_23_success_without_a_result_is_never_1(platform: Platform) -> None:
    platform.result = {"success": True, "result": None, "execution_time_ms": 1}
    with pytest.raises(VerificationFailed, match="'add-second' is not verified: the verifier ended without a result"):
        played(platform, task())


@pytest.mark.parametrize("status", [429, 500])
def test_line_23_a_platform_that_does_not_verify_is_a_failure(platform: Platform, status: int) -> None:
    platform.fail("POST /v1/verifiers/execute", Fault(status=status))
    with pytest.raises(VerificationFailed, match=f"'add-second' .*HTTP {status}"):
        played(platform, task())


@pytest.mark.parametrize(("result", "score"), [(1, 1.0), (0.5, 0.5), (True, 1.0), ({"score": 0.75, "why": "x"}, 0.75)])
def test_a_score_is_a_number_or_the_score_of_an_object(platform: Platform, result: Any, score: float) -> None:
    platform.result = {"success": True, "result": result, "execution_time_ms": 1}
    assert played(platform, task()) == score
