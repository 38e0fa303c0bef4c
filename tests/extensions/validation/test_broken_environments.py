"""`mcpenv validate` names the fault of each broken environment and what to do, and finds none in sound ones."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_environments import FAULTS, write
from command_line import Cli, command_lines

ROOT = Path(__file__).resolve().parents[3]
SOUND = ("conformance_mcp", "echo_mcp", "ledger_mcp")
"""Without tasks, with every kind of tool, and with tasks."""

FOUND = {
    "answer_in_sight": ("cheats", "answers", "bird", "expected_answer is 'kingfisher-4711'", "metadata or verifier"),
    "callable_verifier": ("cheats", "scoring tools", "confirm", "runs the environment's verify", "Remove the tool"),
    "writable_expectation": ("cheats", "scored files", "copy", "expected.txt", "out of the agent's folder"),
    "paid_for_nothing": ("tasks", "plays", "bird", "doing nothing scores 1, which is full", "require what the task"),
    "unsolved_by_its_oracle": ("tasks", "plays", "bird", "the oracle scores 0 instead of 1", "Correct the oracle"),
    "paid_for_errors": ("tasks", "plays", "bird", "malformed calls return", "Score nothing for a call whose outcome"),
    "seeded_by_the_clock": ("contract", "determinism", "", "differ at roll", "random.Random(seed)"),
    "shared_between_sessions": ("load", "isolation", "", "call 1 (write)", "Keep state in the instance"),
    "shared_between_tasks": ("load", "isolation", "three-letters", "call 1 (list_bins)", "Keep state in the instance"),
    "open_to_the_disk": ("security", "reach", "read_file", "read a file outside of the workspace", "is_relative_to"),
    "lying_annotation": ("security", "annotations", "visit", "readOnlyHint is True", "Set readOnlyHint=False"),
    "key_in_the_folder": ("security", "secrets", "cloud.py:3", "a key of AWS", "Replace it at its issuer"),
    "undeclared_import": ("packaging", "dependencies", "environment.py:5", "imports pytest", "Add the distribution"),
    "file_outside_the_folder": ("packaging", "layout", "", "words.txt", "relative to __file__"),
    "grows_with_each_episode": ("load", "growth", "", "each episode leaves", "Empty in reset"),
    "leaves_folders_behind": ("load", "close", "", "temporary files behind (broken-", "Remove in close"),
    "undescribed_tool": ("schemas", "descriptions", "", "no description: echo", "Add a docstring"),
}
"""Part, check, place, words of the problem and words of the remedy of what each is broken by."""
ONE_OF_EACH_PART = {found[0]: name for name, found in FOUND.items()}.values()

ALSO = {"seeded_by_the_clock": [("durability", "durability")]}
"""What else each of them is named for."""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(ROOT, monkeypatch, capfd) as run:
        yield run


def failed_in(document: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    return [
        (part["part"], finding)
        for part in document["parts"]
        for finding in part["findings"]
        if finding["verdict"] == "failed"
    ]


def test_each_broken_environment_has_its_row() -> None:
    assert set(FAULTS) == {*FOUND, "never_returns"}


@pytest.mark.parametrize("name", FOUND)
def test_the_part_that_concerns_it_names_the_fault_the_place_and_the_remedy(
    name: str, cli: Cli, tmp_path: Path
) -> None:
    part, check, where, problem, remedy = FOUND[name]
    done = cli("validate", str(write(name, tmp_path)), "--only", part, "--json")
    assert done.status == 1, done.err
    document = json.loads(done.out)
    assert not document["ok"]
    findings = [finding for _, finding in failed_in(document)]
    assert {finding["check"] for finding in findings} == {check}
    assert any(finding["where"] == where and problem in finding["reason"] for finding in findings), findings
    assert all(remedy in finding["remedy"] + finding["reason"] for finding in findings if problem in finding["reason"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH_PART)
def test_nothing_but_its_fault_is_found_in_a_broken_environment(name: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("validate", str(write(name, tmp_path)), "--json")
    assert done.status == 1, done.err
    found = {(part, finding["check"]) for part, finding in failed_in(json.loads(done.out))}
    assert found == {FOUND[name][:2], *ALSO.get(name, ())}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_shipped_environment_is_sound_in_every_part(name: str, cli: Cli) -> None:
    done = cli("validate", str(ROOT / "envs" / name), "--json")
    assert done.status == 0, done.out
    document = json.loads(done.out)
    assert document["ok"] and failed_in(document) == []
    assert {part["part"] for part in document["parts"] if part["verdict"] == "not applicable"} <= {"tasks"}


def test_a_tool_that_never_returns_is_named_and_the_command_ends(tmp_path: Path) -> None:
    folder = write("never_returns", tmp_path)
    lines = (folder / "environment.py").read_text(encoding="utf-8").splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if "Event().wait()" in text)
    how = ("--only", "contract", "--only", "load", "--time-limit", "3")
    ended = subprocess.run(
        [sys.executable, "-m", "mcpenv", "validate", str(folder), *how, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    document = json.loads(ended.stdout)
    (found,) = [finding for _, finding in failed_in(document)]
    assert found["check"] == "time" and found["remedy"]
    assert found["reason"] == f"did not end within 3 s; it is at environment.py:{line} in wait"
    verdicts = {part["part"]: part["verdict"] for part in document["parts"]}
    assert verdicts["contract"] == "failed" and verdicts["load"] == "skipped" == verdicts["packaging"]


def test_a_broken_environment_is_left_as_it_was(tmp_path: Path, cli: Cli) -> None:
    folder = write("open_to_the_disk", tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    cli("validate", str(folder), "--only", "security", "--only", "cheats")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_verifier_that_needs_a_missing_package_is_not_called_a_fault_of_the_tasks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic_monty" else found(name))
    done = cli("validate", str(ROOT / "envs" / "ledger_mcp"), "-n", "0", "--only", "tasks")
    assert done.status == 2
    assert "cannot be judged here: its verifier needs pydantic-monty: pip install 'mcpenv[sandbox]'" in done.err
    assert cli("validate", str(ROOT / "envs" / "ledger_mcp"), "-n", "0", "--only", "packaging").status == 0
    # The chosen tasks can be judged; the check of the task set warns of the others.
    judged = cli("validate", str(ROOT / "envs" / "ledger_mcp"), "--split", "test", "-n", "3", "--only", "tasks")
    assert judged.status == 0, judged.out
    assert "cannot be judged here: the verifier of" in judged.out
