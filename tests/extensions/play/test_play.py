"""``mcpenv play``: an episode played by hand, from lines on stdin."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mcpenv import load
from mcpenv.cli import execute
from mcpenv.server.serve import serving

ENVS = Path(__file__).parents[3] / "envs"
GOODBYE = 'echo_message message="hi there"\nnonsense\nsay_goodbye\necho_message message=late\n'


def played(monkeypatch: pytest.MonkeyPatch, lines: str, *arguments: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return execute(["play", *arguments])


@pytest.mark.parametrize("served", [False, True], ids=["in process", "at a URL"])
def test_an_episode_is_played_and_its_calls_are_an_oracle(
    served: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if served:
        with serving(lambda: load(ENVS / "echo_mcp")) as url:
            assert played(monkeypatch, GOODBYE, url, "--json") == 0
    else:
        assert played(monkeypatch, GOODBYE, str(ENVS / "echo_mcp"), "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    # The episode ends with the goodbye: the line after it is not played.
    assert [call["tool_name"] for call in document["calls"]] == ["echo_message", "say_goodbye"]
    assert document["oracle"][0] == {"tool_name": "echo_message", "arguments": {"message": "hi there"}}
    assert document["return"] == pytest.approx(sum(call["reward"] for call in document["calls"] if call["reward"]))
    assert "there is no command and no tool 'nonsense'" in err


def test_the_oracle_of_a_task_solves_it_when_it_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = load(ENVS / "ledger_mcp")
    tasks = type(env).tasks
    assert tasks is not None
    task = tasks.get("train", 0)
    env.close()
    lines = "".join(f"{call.tool_name} {json.dumps(call.arguments)}\n" for call in task.oracle or ())
    assert lines
    assert played(monkeypatch, lines, str(ENVS / "ledger_mcp"), "--task", task.id, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["return"] == 1.0
    assert document["oracle"] == [call.model_dump() for call in task.oracle or ()]


@pytest.mark.smoke
def test_a_result_that_is_an_error_is_no_part_of_the_oracle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Path(__file__).parents[1] / "mcp_proxy" / "mcp_servers" / "everything.py"
    target = f"mcp:{sys.executable} {server}"
    assert played(monkeypatch, "add by=text\nadd by=1\nend\n", target, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [call["error"] is None for call in document["calls"]] == [False, True]
    assert document["oracle"] == [{"tool_name": "add", "arguments": {"by": 1}}]


def test_the_end_of_the_input_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, "help\nlist\nstate\n", str(ENVS / "maze_mcp"), "--seed", "3") == 0
    out = capsys.readouterr().out
    assert "The episode is over after 0 calls: return 0." in out and '"oracle": []' in out
    assert "TOOL key=value" in out and '"step_count": 0' in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["http://127.0.0.1:9/mcp"], "without '/mcp'"),
        (["http://127.0.0.1:9", "--set", "a=1"], "--set and --tasks are for an environment's code"),
        ([str(ENVS / "echo_mcp"), "--control-token", "x" * 32], "--control-token is for a server at a URL"),
    ],
)
def test_what_cannot_be_played_is_refused_with_status_2(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, "", *arguments) == 2
    assert text in capsys.readouterr().err


def test_call_takes_a_seed_and_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    seen = set()
    for seed in ("1", "1", "2"):
        assert execute(["call", str(ENVS / "maze_mcp"), "look", "--seed", seed, "--json"]) == 0
        seen.add(json.loads(capsys.readouterr().out)["result"]["content"][0]["text"])
    assert len(seen) == 2
    assert execute(["call", str(ENVS / "ledger_mcp"), "list_accounts", "owner=Ana", "--task", "none-such"]) != 0
    assert "none-such" in capsys.readouterr().err
    assert execute(["call", str(ENVS / "maze_mcp"), "look", "--seed", "1", "--mode", "production"]) == 2


def test_wrong_json_is_named_as_the_user_wrote_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, 'echo_message {"message": }\n', str(ENVS / "echo_mcp")) == 0
    out = capsys.readouterr().out
    assert "what follows the tool's name is not JSON: Expecting value" in out and "--json-arguments" not in out


@pytest.mark.process
def test_on_a_terminal_lines_are_edited_completed_and_remembered(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "mcpenv", "play", str(ENVS / "echo_mcp")]
    environ = os.environ | {"TERM": "dumb", "COLUMNS": "200", "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ) as process:
        os.close(slave)
        said = _until(master, "> ")
        os.write(master, b"echo_m\tmessage=heplo\x02\x02\x7fl\n")  # completed, and corrected in the middle
        said += _until(master, "> ")
        os.write(master, b"\x10\n")  # the line before
        said += _until(master, "> ")
        os.write(master, b"end\n")
        said += _until(master, "oracle")
        process.wait(30)
    os.close(master)
    assert "The episode is over after 2 calls" in said
    assert said.count('"arguments": {"message": "hello"}') == 2


@pytest.mark.process
def test_on_a_terminal_arguments_are_completed_calls_undone_and_lines_kept_for_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text(SWITCH)
    command = [sys.executable, "-m", "mcpenv", "play", str(tmp_path)]
    environ = os.environ | {"TERM": "dumb", "COLUMNS": "200", "XDG_STATE_HOME": str(tmp_path / "state")}
    for typed, expected in (
        # the tool, both arguments and their values are completed
        (b"tu\tc\tr\td\tf\t\n|undo\n|undo\n|turn colour=green\n", [["green", None]]),
        (b"\x10\x10\n", [["green", None]]),  # the line before `end` of the run before
    ):
        master, slave = pty.openpty()
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ) as process:
            os.close(slave)
            said = _until(master, "> ")
            for line in typed.split(b"|"):
                os.write(master, line)
                said += _until(master, "> ")
            os.write(master, b"end\n")
            said += _until(master, "oracle")
            process.wait(30)
        os.close(master)
        assert 'undone: turn {"colour": "red", "dim": false}' in said or typed == b"\x10\x10\n"
        assert "not undone: there is no call to undo" in said or typed == b"\x10\x10\n"
        oracle = json.loads(said.rpartition('"oracle": ')[2])
        assert [[call["arguments"].get("colour"), call["arguments"].get("dim")] for call in oracle] == expected, said
    kept = tmp_path / "state" / "mcpenv" / "play_history"
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("served", [False, True], ids=["in process", "at a URL"])
def test_calls_are_undone_one_after_another(
    served: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "walk direction=north\n" * 12 + "undo\n" * 11
    target = str(ENVS / "maze_mcp")
    if served:
        with serving(lambda: load(target)) as url:
            assert played(monkeypatch, lines, url, "--seed", "3") == 0
    else:
        assert played(monkeypatch, lines, target, "--seed", "3") == 0
    out = capsys.readouterr().out
    assert out.count("undone: walk") == 10 and out.count("not undone: there is no call to undo") == 1
    assert "The episode is over after 2 calls" in out


SWITCH = '''
from typing import Literal

from mcpenv import MCPEnvironment


class Switch(MCPEnvironment):
    """Turn a light on."""

    def __init__(self) -> None:
        self.light = ""
        self.tool(self.turn)

    def turn(self, colour: Literal["red", "green"], dim: bool = True) -> str:
        """Turn it on."""
        self.light = colour
        return f"{colour} {dim}"
'''


def _until(terminal: int, text: str) -> str:
    """Return what a terminal shows until a text."""
    said = ""
    while text not in said:
        said += os.read(terminal, 4096).decode()
    return said
