"""Test commands of servers: resolved once, launchers pinned to what they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from proxying import PLAIN, about, call, environment, plain

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.command import Command, interpreter_of


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A stand-in for ``uvx``: it counts its starts, and runs the server as a child that it waits for."""
    program = tmp_path / "bin" / "uvx"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$UV_INDEX" >> {tmp_path}/starts\nshift\n{sys.executable} {PLAIN} "$@"\nexit $?\n'
    )
    program.chmod(0o755)
    return program


def starts(launcher: Path) -> list[str]:
    return (launcher.parent.parent / "starts").read_text().splitlines()


def test_a_launcher_runs_once_and_each_episode_starts_what_it_came_to(
    launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", "https://example.com/simple")
    args = ["the-server", "{workspace}", "--flag"]
    with environment(server={"command": str(launcher), "args": args, "isolation": "none"})() as env:
        for _ in range(2):
            env.reset()
            told = about(env)
            assert told["arguments"] == ["/episode", "--flag"] and "UV_INDEX" not in told["variables"]
            # The parent is the process that guards the server, so the launcher is gone.
            assert int(Path(f"/proc/{told['parent']}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    assert starts(launcher) == ["https://example.com/simple"]


def test_what_a_launcher_came_to_can_be_isolated_and_forked(launcher: Path) -> None:
    for more in ({"isolation": "auto"}, {"per_episode": "fork"}):
        with environment(server={"command": str(launcher), "args": ["x", "{workspace}"], **more})() as env:
            env.reset()
            assert call(env, "write", name="a", text="b").text == "written to /episode/a"


def test_a_launcher_that_hides_its_program_cannot_be_isolated(tmp_path: Path) -> None:
    hidden = tmp_path / "npx"  # it reads for the server
    hidden.write_text(f"#!/bin/sh\ncat | {sys.executable} {PLAIN}\n")
    hidden.chmod(0o755)
    settings = {"command": str(hidden), "args": ["x"]}
    with environment(server=settings)() as env:
        env.reset()
        assert about(env)["arguments"] == []
    with pytest.raises(
        ConfigurationError, match=r"server 's' cannot be isolated or forked: the program that .*npx runs"
    ):
        environment(s={**settings, "isolation": "bubblewrap"})


def test_a_program_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "server").write_text("#!/bin/sh\n")
    (tmp_path / "server").chmod(0o755)
    assert Command.find("server", ["a"]) == Command((str(tmp_path / "server"),), ("a",))
    with pytest.raises(FileNotFoundError, match="there is no program 'other'"):
        Command.find("other", [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("#!/opt/v/bin/python3.12\n", "/opt/v/bin/python3.12"),
        ("#!/bin/sh\n'''exec' \"/a long/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a long/bin/python"),
        ("#!/bin/sh\n'''exec' /long/bin/python \"$0\" \"$@\"\n' '''\n", "/long/bin/python"),
        ("#!/usr/bin/env node\n", None),
        ("\x7fELF", None),
    ],
)
def test_a_console_script_names_its_interpreter(tmp_path: Path, text: str, found: str | None) -> None:
    (tmp_path / "script").write_text(text)
    assert interpreter_of(str(tmp_path / "script")) == found


def test_env_finds_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/usr/bin/env -S python3 -u\n")
    found = interpreter_of(str(tmp_path / "script"))
    assert found is not None
    assert subprocess.run([found, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\n"


def test_python_programs_are_told_apart() -> None:
    python = sys.executable
    module = Command((python,), ("-m", "pkg", "{workspace}")).python()
    script = Command((python,), ("server.py", "-v")).python()
    pinned = Command((python, "/x/bin/server"), ("-v",)).python()
    assert module is not None and (module.kind, module.target, module.arguments) == ("module", "pkg", ("{workspace}",))
    assert script is not None and (script.target, script.arguments) == (os.path.abspath("server.py"), ("-v",))
    assert pinned is not None and (pinned.target, pinned.arguments) == ("/x/bin/server", ("-v",))
    assert Command((python,), ("-c", "pass")).python() is None
    assert Command(("/bin/true",), ()).python() is None


def test_a_server_with_resources_may_lack_the_method_that_lists_templates() -> None:
    offered = environment(server=plain())().catalog.offered["server"]
    assert [str(resource.uri) for resource in offered.resources] == ["plain://note"]
    assert list(offered.templates) == []
