"""A failure of a command with ``--json``: one JSON object on stdout, beside the line on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from command_line import TIMEOUT_S, Cli, command_lines, write
from cyclopts import App

from mcpenv.cli import command_line
from mcpenv.cli.commands import new_name_of
from mcpenv.cli.failure import asks_for_json

NOWHERE = "no where/at all"
"""A value that no argument can have: no name, no path, no URL, no `key=value`."""


def commands(of: App, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the commands that have ``--json``."""
    for name in of:
        if not name.startswith("-"):
            yield from commands(of[name], (*names, name))
    if of.default_command is not None and any("--json" in each.names for each in of.assemble_argument_collection()):
        yield names


COMMANDS = [names for names in commands(command_line()) if new_name_of(names[0]) is None]  # others print a hint


def given(command: tuple[str, ...]) -> list[str]:
    """Return arguments that can be parsed, each with a value that it cannot have."""
    of = command_line()
    for name in command:
        of = of[name]
    found = []
    for argument in of.assemble_argument_collection():
        name = argument.names[0] if argument.names else ""
        value = get_args(argument.hint)[0] if get_origin(argument.hint) is Literal else NOWHERE
        if argument.hint is int:
            value = "-1"
        if not name.startswith("-") and argument.index is not None:
            found.append(value)
        elif argument.required:
            found.append(f"{name}={value}")
    return found


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def error_of(out: str) -> dict[str, Any]:
    """Return the error that is all of stdout."""
    assert out.count("\n") == 1
    document = json.loads(out)
    assert list(document) == ["error"]
    error: dict[str, Any] = document["error"]
    return error


def test_the_commands_with_json_are_found() -> None:
    assert ("call",) in COMMANDS
    assert ("run",) not in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_refused_command_prints_its_error_as_json(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = cli(*command, *given(command), "--json")
    error = error_of(done.out)
    assert error["type"] != "UsageError" and (done.status, error["exit_status"]) == (2, 2)
    assert done.err == f"error: {error['message']}\n"
    assert list(tmp_path.iterdir()) == []
    # Without the option, nothing but that line is printed.
    plain = cli(*command, *given(command))
    assert (plain.status, plain.out, plain.err) == (2, "", done.err)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_line_that_cannot_be_parsed_is_an_error_as_json(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command, *given(command), "--json", "--no-such-option")
    error = error_of(done.out)
    assert (error["type"], done.status, error["exit_status"]) == ("UsageError", 2, 2)
    assert "--no-such-option" in error["message"] and "(see --help)" in error["message"]
    assert done.err == f"error: {error['message']}\n"


FAILING = """
    from mcpenv import MCPEnvironment
    class Failing(MCPEnvironment):
        def __init__(self):
            self.tool(lambda: 1, name="anything")
        def reset(self):
            raise RuntimeError("no \\u2603")
"""


def test_an_error_of_the_wire_has_the_fields_of_the_wire(cli: Cli, tmp_path: Path) -> None:
    done = cli("call", write(tmp_path, "failing", FAILING), "anything", "--json")
    error = error_of(done.out)
    assert (error["type"], error["code"]) == ("ExecutionError", "EXECUTION_ERROR")
    assert (done.status, error["exit_status"]) == (1, 1)
    assert error["status"]["code"] == "env_error" and error["message"] in done.err


def test_a_bug_is_an_error_as_json(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a\nbug")

    monkeypatch.setattr("mcpenv.cli.call.quiet_logs", broken)
    done = cli("call", "world", "add", "--json")
    assert error_of(done.out) == {
        "type": "ZeroDivisionError",
        "message": "ZeroDivisionError: a bug (a bug in mcpenv; --debug shows the traceback)",
        "exit_status": 1,
    }
    assert done.status == 1


@pytest.mark.process
def test_the_error_is_json_where_the_encoding_lacks_its_characters(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcpenv", "call", "n\u2603where", "add", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 2 and error_of(done.stdout.decode())["message"].startswith("n\u2603where: ")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["inspect", "a", "--json"], True),
        (["--json=true"], True),
        (["inspect", "a"], False),
        (["call", "a", "b", "--json-arguments", "{}"], False),
        (["call", "a", "b", "--", "--json"], False),
    ],
)
def test_json_is_asked_for_by_its_option_alone(arguments: list[str], asked: bool) -> None:
    assert asks_for_json(arguments) is asked
