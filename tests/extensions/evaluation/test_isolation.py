"""Programs that play: their directory, their variables, what bubblewrap is told, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Cli, command_lines
from evaluate_world import Counting

from mcpenv import ConfigurationError
from mcpenv.extensions.evaluation import Evaluated, ProgramAgent, evaluate
from mcpenv.extensions.evaluation.isolation import Isolation, history_of
from mcpenv.extensions.sandbox.mounts import installation_of

COUNTING = f"{Path(__file__).with_name('evaluate_world.py')}:Counting"
PRINTS = "import json, os, sys; print(json.dumps([os.getcwd(), sorted(os.listdir()), dict(os.environ), sys.argv]))"


def printing(*arguments: str) -> str:
    return f"{sys.executable} -c '{PRINTS}' {' '.join(arguments)}"


def printed(done: Evaluated) -> list[tuple[Path, list[str], dict[str, str], list[str]]]:
    """The directory, the files in it, the variables and the arguments of each episode's program."""
    said = [json.loads(log.read_text().splitlines()[-1]) for log in sorted((done.directory / "agents").iterdir())]
    return [(Path(where), files, variables, arguments) for where, files, variables, arguments in said]


def own(path: Path) -> Path:
    """A stand-in for bubblewrap that does not work."""
    path.mkdir()
    command = path / "bwrap"
    command.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    command.chmod(0o755)
    return command


def without_bubblewrap(patch: pytest.MonkeyPatch, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    patch.setenv("PATH", str(folder))


# -- the directory


def test_each_episode_has_an_empty_directory_of_its_own_apart_from_the_results(tmp_path: Path) -> None:
    done = evaluate(Counting, ProgramAgent(printing()), out=tmp_path, split="odd", k=2)
    (first, files, *_), (second, others, *_) = printed(done)
    assert files == others == [] and first != second
    for directory in (first, second):
        assert not directory.is_relative_to(tmp_path) and not directory.is_relative_to(Path.cwd())
        assert not directory.exists()


def test_a_workspace_is_copied_for_each_episode(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("mine")
    (workspace / "agent.py").write_text(f"import pathlib; {PRINTS}; pathlib.Path('left.txt').write_text('here')")
    agent = ProgramAgent(f"{sys.executable} agent.py", workspace=workspace)
    done = evaluate(Counting, agent, out=tmp_path / "out", split="odd", k=2)
    assert [files for _, files, *_ in printed(done)] == [["agent.py", "notes.txt"]] * 2
    assert sorted(each.name for each in workspace.iterdir()) == ["agent.py", "notes.txt"]
    assert done.settings["agent"]["workspace"] == str(workspace)


@pytest.mark.world
@pytest.mark.parametrize(("folder", "remedy"), [("agent", "move it elsewhere"), ("agent/of mine", "--show '{}'")])
def test_a_crash_of_a_script_whose_neighbours_are_hidden_says_how_to_show_them(
    tmp_path: Path, folder: str, remedy: str
) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True)
    (place / "neighbour.py").write_text("")
    (place / "main.py").write_text("import neighbour")
    command, hidden = f"{sys.executable} '{place}/main.py'", (tmp_path / "agent",)
    done = evaluate(Counting, ProgramAgent(command, hide=hidden), out=tmp_path / "out", split="odd")
    (detail,) = {result.detail for result in done.results}
    assert detail is not None and "No module named 'neighbour' (it does not see" in detail
    assert remedy.format(place) in detail
    if folder != "agent":
        shown = evaluate(Counting, ProgramAgent(command, hide=hidden, show=(place,)), out=tmp_path / "b", split="odd")
        assert {result.detail for result in shown.results} == {None}


def test_a_workspace_with_the_environment_or_the_results_is_refused(tmp_path: Path) -> None:
    agent = ProgramAgent("true", workspace=tmp_path)
    with pytest.raises(ConfigurationError, match=r"--workspace .* contains .*, which agents must not see"):
        evaluate(Counting, agent, out=tmp_path / "out", split="odd")


def test_a_file_of_the_working_directory_in_the_command_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.py").write_text(PRINTS)
    monkeypatch.chdir(tmp_path)
    agent = ProgramAgent(f"{Path(sys.executable).name} ./agent.py agent.py agent no.py")
    done = evaluate(Counting, agent, out=tmp_path / "out", split="odd")
    ((_, _, _, arguments),) = printed(done)
    assert arguments == [str(tmp_path / "agent.py"), str(tmp_path / "agent.py"), "agent", "no.py"]


def test_its_variables_name_neither_task_nor_folders_nor_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN", "secret")
    monkeypatch.setenv("OLDPWD", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{Path(__file__).parent}")
    monkeypatch.setenv("RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    done = evaluate(Counting, ProgramAgent(printing()), out=tmp_path, split="odd")
    ((directory, _, variables, _),) = printed(done)
    assert {name for name in variables if name.startswith("MCPENV")} == {"MCPENV_MCP_URL", "MCPENV_PROMPT"}
    assert not {"OLDPWD", "PYTHONPATH", "RESULTS"} & set(variables)
    assert (variables["PWD"], variables["OPENAI_API_KEY"]) == (str(directory), "key")


# -- what bubblewrap is told


@contextmanager
def mounted(scratch: Path, hidden: Sequence[Path], shown: Sequence[Path] = ()):  # type: ignore[no-untyped-def]
    """The mounts, one line each."""
    with Isolation("/bin/bwrap").command(["agent"], scratch, hidden, shown) as (command, (descriptor,)):
        assert "/bin/bwrap" in command and command[-2:] == ["--", "agent"]
        assert command[command.index("--args") + 1] == str(descriptor)
        words = iter(os.read(descriptor, 1_000_000).decode().split("\0")[:-1])
        mounts = [(word, *(next(words) for _ in range({"--tmpfs": 1, "--size": 1}.get(word, 2)))) for word in words]
        yield [mount for mount in mounts if mount[0] != "--size"]


def test_mounts_go_from_the_outside_in_and_name_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    world, agent, scratch = home / "world", home / "world" / "agent.py", tmp_path / "scratch"
    world.mkdir(parents=True)
    scratch.mkdir()
    for file in (agent, world / "tasks.jsonl", home / "tasks.jsonl"):
        file.touch()
    monkeypatch.setenv("HOME", str(home))
    hidden = [world / "tasks.jsonl", world, home / "tasks.jsonl", tmp_path / "not_there"]
    with mounted(scratch, hidden, [agent]) as mounts:
        last = mounts[-5:]
    assert ("--tmpfs", "/tmp") in mounts
    assert set(last) == {
        ("--bind", str(home), str(home)),
        ("--bind", str(scratch), str(scratch)),
        ("--tmpfs", str(world)),  # and with it the tasks
        ("--ro-bind", "/dev/null", str(home / "tasks.jsonl")),
        ("--ro-bind", str(agent), str(agent)),
    }
    assert last.index(("--bind", str(home), str(home))) < last.index(("--tmpfs", str(world)))
    assert last[-1] == ("--ro-bind", str(agent), str(agent))


def test_a_folder_around_the_home_folder_cannot_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, tmp_path):
        with pytest.raises(ConfigurationError, match="contains the home folder"), mounted(tmp_path, [folder]):
            pass


def test_the_repository_of_the_environment_is_hidden_also_from_a_worktree(tmp_path: Path) -> None:
    assert history_of(tmp_path) == []
    repository, worktree = tmp_path / "repository", tmp_path / "worktree"
    git = ("git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c")
    repository.mkdir()
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "a"), ("worktree", "add", str(worktree))):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (repository / "envs").mkdir()
    assert history_of(repository / "envs") == history_of(worktree) == [repository / ".git"]


def test_what_a_program_needs_is_its_virtual_environment_or_its_packages(tmp_path: Path) -> None:
    venv, modules = tmp_path / "venv", tmp_path / "node_modules"
    for folder in (venv / "bin", modules / ".bin"):
        folder.mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    assert installation_of(venv / "bin" / "python") == venv
    assert installation_of(modules / "codex" / "node_modules" / "x" / "codex.js") == modules
    assert installation_of(tmp_path / "agent") == tmp_path / "agent"


# -- what is chosen, and refused


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    with command_lines(None, monkeypatch, capfd) as run:
        yield lambda *arguments: run("eval", COUNTING, "--out", str(tmp_path / "out"), *arguments)


def test_isolation_that_is_asked_for_and_missing_is_one_line_and_status_2(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--agent", "/bin/true", "--isolation", "bubblewrap")
    without_bubblewrap(monkeypatch, tmp_path / "bin")
    done = cli(*asked)
    assert (done.status, done.out) == (2, "")
    assert done.err == "error: the agent cannot be isolated: bubblewrap (bwrap) is not installed\n"
    monkeypatch.setenv("PATH", str(own(tmp_path / "broken").parent))
    broken = cli(*asked)
    said = "bubblewrap does not work here: bwrap: No permissions to create new namespace"
    assert (broken.status, broken.err) == (2, f"error: the agent cannot be isolated: {said}\n")


def test_where_bubblewrap_does_not_work_the_figures_say_not_isolated(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{own(tmp_path / 'broken').parent}{os.pathsep}{os.environ['PATH']}")
    done = cli("--agent", "true", "--split", "odd", "--json")
    assert json.loads(done.out)["agent"]["isolation"] == "not isolated"
    assert "The agent is not isolated: bubblewrap does not work here: bwrap: No permissions" in done.err


def test_an_evaluation_in_which_no_tool_is_called_fails_the_command(cli: Cli, tmp_path: Path) -> None:
    done = cli("--agent", "true", "--split", "odd", "--isolation", "none")
    assert done.status == 1
    said = "error: no episode has a tool call: is the agent connected to the environment?"
    assert f"{said} Its output is in {tmp_path}/out/agents. --fresh repeats the episodes\n" in done.err
    assert "No episode has a tool call." in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "a", "--hide", ".", "--isolation", "none"), "--hide, --isolation: only for --agent"),
        (("--agent", "true", "--workspace", "no-such-folder"), "--workspace no-such-folder: there is no such folder"),
        (("--agent", "true", "--hide", "no-such-file"), "--hide, --show: there is no no-such-file"),
        (("--agent", "true", "--isolation", "docker"), 'Invalid value "docker"'),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    done = cli(*arguments)
    assert (done.status, done.out) == (2, "")
    assert said in done.err and done.err.count("\n") == 1


# -- with bubblewrap


@pytest.mark.world
def test_what_is_hidden_is_empty_and_what_is_shown_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("more", "seen", ".claude/projects"):
        (home / name).mkdir(parents=True)
        (home / name / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(home))
    places = " ".join(map(str, (home / "more", home / "seen", home / ".claude" / "projects", tmp_path)))
    listing = f"sh -c 'for each in {places}; do ls $each; echo .; done; touch $HOME/written /tmp/written && id -u'"
    agent = ProgramAgent(listing, isolation="bubblewrap", hide=[home / "more"])
    done = evaluate(Counting, agent, out=tmp_path / "out", split="odd")
    (log,) = (done.directory / "agents").iterdir()
    assert log.read_text().split() == [".", "file", ".", ".", "home", ".", str(os.getuid())]
    assert (home / "written").exists() and not Path("/tmp/written").exists()
    assert done.isolation == "bubblewrap"


@pytest.mark.world
@pytest.mark.parametrize(
    "command", ["umount /tmp", "umount -l $HOME/more", "mount --bind / /mnt", "unshare -Urm umount $HOME/more"]
)
def test_an_isolated_program_cannot_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    home = tmp_path / "home"
    (home / "more").mkdir(parents=True)
    (home / "more" / "file").touch()
    monkeypatch.setenv("HOME", str(home))
    agent = ProgramAgent(f"sh -c '{command}; ls $HOME/more'", isolation="bubblewrap", hide=[home / "more"])
    done = evaluate(Counting, agent, out=tmp_path / "out", split="odd")
    (log,) = (done.directory / "agents").iterdir()
    assert "file" not in log.read_text().split() and log.read_text() != ""
