"""``mcpenv init``: what it prints, asks and refuses."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import TIMEOUT_S, Cli, command_lines

from mcpenv.extensions.shipping.scaffold import TEMPLATES


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def test_it_ends_with_the_next_commands(cli: Cli) -> None:
    done = cli("init", "corner_shop", "--template", "http-api")
    assert (done.status, done.err) == (0, "")
    assert [line.strip() for line in done.out.partition("Next:")[2].splitlines() if line] == [
        "cd corner_shop",
        "export ROOMS_API_TOKEN=any",
        'pip install -e ".[test]"',
        "python -m pytest -q",
        "mcpenv validate .",
        "mcpenv dev .",
    ]
    assert Path("corner_shop/corner_shop/environment.py").is_file()


def test_one_json_document_says_what_was_made(cli: Cli, tmp_path: Path) -> None:
    done = cli("init", "corner_shop", "--into", "work/shop", "--description", "Mind the shop.", "--json")
    document = json.loads(done.out)
    assert (document["name"], document["class"], document["template"]) == ("corner_shop", "CornerShopEnv", "minimal")
    assert document["folder"] == str(tmp_path / "work" / "shop")
    assert document["next"][0] == "cd work/shop"
    assert all((tmp_path / "work" / "shop" / file).is_file() for file in document["files"])
    assert 'description: "Mind the shop."' in Path("work/shop/mcpenv.yaml").read_text(encoding="utf-8")


def test_the_templates_are_listed(cli: Cli) -> None:
    assert [line.split()[0] for line in cli("init", "--list").out.splitlines()] == list(TEMPLATES)
    assert json.loads(cli("init", "--list", "--json").out) == {"templates": TEMPLATES}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the name is missing; write mcpenv init NAME"),
        (("shop", "--template", "none"), "there is no template 'none'; there are minimal, tasks"),
        (("random",), "'random' is a module of Python"),
        (("echo_mcp",), "'echo_mcp' is the name of an installed environment (mcpenv.envs.echo_mcp.environment:"),
        (("echo_mcp",), "Choose another name, such as my_echo_mcp"),
        (("shop", "--into", "full"), "full is not empty; choose another folder with --into"),
        (("shop", "--description", "a\nb"), "the description must be one line"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: tuple[str, ...], said: str, cli: Cli) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    done = cli("init", *arguments)
    assert done.status == 2 and said in done.err and done.out == ""
    assert sorted(path.name for path in Path.cwd().rglob("*")) == ["file", "full"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_a_person_is_asked_for_what_was_not_said(tmp_path: Path) -> None:
    said = _in_a_terminal(
        tmp_path,
        ["init", "corner_shop"],
        [
            ("[minimal]: ", "9"),
            ("[minimal]: ", "2"),
            ("[as the template]: ", 'a "quote"'),
            ("[as the template]: ", "Mind the shop."),
        ],
    )
    assert "There is no template '9'." in said and "The description must be one line" in said
    text = (tmp_path / "corner_shop" / "mcpenv.yaml").read_text(encoding="utf-8")
    assert 'description: "Mind the shop."' in text
    assert (tmp_path / "corner_shop" / "corner_shop" / "tasks.jsonl").is_file()
    said = _in_a_terminal(tmp_path, ["init", "other_shop", "--template", "minimal", "--description", "Said."], [])
    assert "is made in other_shop, from the template minimal" in said


@pytest.mark.slow
def test_nobody_is_asked_where_the_output_is_piped(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mcpenv", "init", "corner_shop"],
            cwd=tmp_path,
            stdin=slave,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(slave)
        os.close(master)
    assert done.returncode == 0 and "template minimal" in done.stdout


def _in_a_terminal(folder: Path, arguments: list[str], answers: list[tuple[str, str]]) -> str:
    """Run a command in a pseudo-terminal, type an answer after each question, and return all that it shows."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "mcpenv", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said, unread = "", ""
    end = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < end:
            if answers and answers[0][0] in unread:
                unread = unread.partition(answers[0][0])[2]
                os.write(master, f"{answers.pop(0)[1]}\n".encode())
            if not select.select([master], [], [], 1)[0]:
                continue
            try:
                heard = os.read(master, 4096).decode()
            except OSError:  # Linux says so at the end of the program
                heard = ""
            if not heard:
                break
            said, unread = said + heard, unread + heard
        assert process.wait(TIMEOUT_S) == 0 and not answers, said
        return said
    finally:
        os.close(master)
        if process.poll() is None:
            process.kill()
            process.wait()
