"""Commands of other distributions: entry points of the group ``mcpenv.commands``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from command_line import Cli, Done, command_lines

from mcpenv.cli import command_line

TABLE = """
    from mcpenv.cli.commands import Command

    GREET = Command(help="Greet.", run="greeting.greet:greet", order=50)
    GROUP = Command(help="Greet in other ways.", order=51, takes_target=True)
    LOUD = Command(help="Greet loudly.", run="greeting.greet:shout")
    FAIL = Command(help="Fail.", run="greeting.greet:fail")
    SHOUTS = Command(help="Shout.", run="greeting.greet:shouts", is_app=True)
    NOTHING = Command(help="Not there.", run="greeting.nowhere:greet")
    NO_NAME = Command(help="Not there.", run="greeting.greet:nothing")
    RAISES = Command(help="Raises.", run="greeting.raises:greet")
    EXITS = Command(help="Exits.", run="greeting.exits:greet")
    OLD = Command(help="Greet.", run="greeting.greet:greet", moved="greetings loud")
    WRONG = print
"""
GREETING = """
    from cyclopts import App

    def greet(name: str = "you", /) -> int:
        print(f"Hello {name}.")
        return 3

    def shout(*, twice: bool = False) -> int:
        '''Shout at everybody.

        Exit status 0: all have heard it.

        Args:
            twice: Shout twice.
        '''
        print("HELLO" * (1 + twice))
        return 0

    shouts = App(name="shouts")
    shouts.default(greet)
    shouts.command(shout, name="aloud")

    def fail() -> int:
        raise ZeroDivisionError("too loud")
"""
ENTRIES = """
    [mcpenv.commands]
    greet = greeting.commands:GREET
    greetings = greeting.commands:GROUP
    greetings.loud = greeting.commands:LOUD
    greetings.list = greeting.commands:LOUD
    others.loud = greeting.commands:LOUD
    run.loud = greeting.commands:LOUD
    run = greeting.commands:GREET
    fail = greeting.commands:FAIL
    shouts = greeting.commands:SHOUTS
    not-there = greeting.commands:NOTHING
    wrong = greeting.commands:WRONG
    broken = greeting.nothing:GREET
    no-name = greeting.commands:NO_NAME
    raises = greeting.commands:RAISES
    greetings.exits = greeting.commands:EXITS
    greetings.lout = greeting.commands:OLD
    greetinx = greeting.commands:OLD
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    site = tmp_path / "site"
    for name, text in (
        ("greeting/__init__.py", ""),
        ("greeting/commands.py", TABLE),
        ("greeting/greet.py", GREETING),
        ("greeting/raises.py", "raise RuntimeError('no database')"),
        ("greeting/exits.py", "raise SystemExit(3)"),
        ("greeting-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1\n"),
        ("greeting-1.dist-info/entry_points.txt", ENTRIES),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(dedent(text))
    monkeypatch.syspath_prepend(str(site))
    command_line.cache_clear()
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run
    command_line.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "greeting"]:
        del sys.modules[name]


def test_a_command_and_its_groups_are_run_and_explained(cli: Cli) -> None:
    assert cli("greet", "Ann") == Done(3, "Hello Ann.\n", "")
    assert cli("greetings", "loud", "--twice").out == "HELLOHELLO\n"
    assert cli("others", "loud").out == "HELLO\n"
    help_of_group = cli("greetings", "--help").out
    assert "Greet loudly." in help_of_group and "TARGET is" in help_of_group
    assert "TARGET is" not in cli("greet", "--help").out


def test_a_group_that_is_given_what_it_lists_names_the_command(cli: Cli) -> None:
    done = cli("greetings", "world")
    assert done.status == 2 and done.err.endswith(
        ". To list those of world: mcpenv greetings list world (see --help)\n"
    )
    assert "To list" not in cli("greetings", "--no-such-option").err


def test_the_help_of_mcpenv_lists_them_without_loading_them(cli: Cli) -> None:
    lines = [line.strip("│ ") for line in cli("--help").out.splitlines()]
    assert [line.split()[0] for line in lines if "Greet" in line] == ["greet", "greetings"]
    assert "greeting.commands" in sys.modules and "greeting.greet" not in sys.modules


def test_one_that_cannot_be_loaded_is_refused_when_it_is_used_and_leaves_the_others(cli: Cli) -> None:
    broken = cli("broken", "--all", "of", "-it")
    assert broken.status == 2
    assert "the command broken of greeting: greeting.nothing:GREET cannot be loaded: ModuleNotFoundError" in broken.err
    wrong = cli("wrong")
    assert (wrong.status, "not a mcpenv.cli.commands.Command" in wrong.err) == (2, True)
    missing = cli("not-there")
    assert (missing.status, "No module named 'greeting.nowhere'" in missing.err) == (2, True)
    assert cli("run.loud").err.endswith("run.loud: run is a command and no group of commands\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("not-there",), "greeting: greeting.commands:NOTHING cannot be loaded: ModuleNotFoundError: No module named"),
        (
            ("no-name", "--help"),
            "the command no-name of greeting: greeting.commands:NO_NAME cannot be loaded: ",
        ),
        (("raises", "--json"), "the command raises of greeting: greeting.commands:RAISES cannot be loaded: R"),
        (
            ("greetings", "exits"),
            "the command greetings exits of greeting: greeting.commands:EXITS cannot be loaded: ",
        ),
    ],
)
def test_one_whose_function_cannot_be_imported_names_its_distribution(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    done = cli(*words)
    assert done.status == 2 and said in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gret",), 'Unknown command "gret". Did you mean "greet" or "greetings"? (see --help)'),
        (("greetings", "lot"), 'Unknown command "lot". Did you mean "loud"? (see --help)'),
        pytest.param(
            ("deploy", "envs/shop", "--kidn"),
            'Unknown command "envs/shop". Did you mean mcpenv deploy k8s envs/shop? (see --help)',
            marks=pytest.mark.extension("shipping"),
        ),
        (("CAL",), 'Unknown command "CAL". Did you mean "call"? (see --help)'),
        (("greetings", "lou"), 'Unknown command "lou". Did you mean "loud"? (see --help)'),
        (("version",), 'Unknown command "version". Did you mean "--version"'),
        (("help", "run"), 'Unknown command "help". Did you mean "--help"? (see --help)'),
        (("--vesion",), "Unknown option: --vesion. Did you mean --version? (see --help)"),
        (("--jsn", "greet"), "Unknown option: --jsn. Options follow the command: mcpenv COMMAND --json (see --help)"),
        (("-x",), "Unknown option: -x. Options follow the command: mcpenv COMMAND -x (see --help)"),
        (
            ("greetings", "--debug", "loud"),
            "Unknown option: --debug. Options follow the command: mcpenv greetings COMMAND --debug (see --help)",
        ),
    ],
)
def test_an_unknown_one_is_refused_with_those_like_it_and_none_is_loaded(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    done = cli(*words)
    assert done.status == 2 and said in done.err
    assert "greeting.greet" not in sys.modules


def test_an_unknown_one_like_no_other_lists_them_in_the_order_of_the_help(cli: Cli) -> None:
    said = cli("xyzzy").err
    assert said.startswith('error: Unknown command "xyzzy". Commands: ')
    assert said.index(" run, ") < said.index(" call, ") < said.index(" greet, ") < said.index(" greetings, ")
    assert "greetinx" not in said, "an old name is for those who have it in a script"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("greet", "you", "all"), 'Unexpected argument "all"'),
        (("greetings", "loud", "now"), 'Unexpected argument "now"'),
        (("greetings", "loud", "--twcie"), "Unknown option: --twcie. Did you mean --twice?"),
        (("shouts", "on", "5"), 'Unexpected argument "5"'),
        (("shouts", "alowd", "5"), '"alowd" is no command of mcpenv shouts. Did you mean mcpenv shouts aloud? U'),
        (("shouts", "--aloud"), '"--aloud" is no command of mcpenv shouts. Did you mean mcpenv shouts aloud? U'),
        (("shouts", "aloud", "5"), 'Unexpected argument "5"'),
    ],
)
def test_what_no_command_takes_is_refused_by_name(cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli(*words)
    assert (done.status, done.out) == (2, "") and done.err.startswith(f"error: {said}")


def test_the_help_of_a_command_has_its_whole_docstring_and_lists_have_its_line(cli: Cli) -> None:
    whole = cli("greetings", "loud", "--help").out
    assert "Shout at everybody." in whole and "Exit status 0: all have heard it." in whole and "Args:" not in whole
    assert "[default: " not in whole, "a flag is off by default"
    assert "Greet loudly." in cli("greetings", "--help").out
    assert "Greet in other ways." in cli("greetings", "--help").out, "a group has no docstring"


def test_a_bug_is_one_of_the_distribution_whose_command_raises(cli: Cli) -> None:
    failed = cli("fail")
    assert (failed.status, failed.out) == (1, "")
    assert "ZeroDivisionError: too loud (a bug in greeting; --debug shows the traceback)" in failed.err


def test_a_command_of_the_kernel_cannot_be_replaced(cli: Cli) -> None:
    assert "Serve an environment" in cli("run", "--help").out


@pytest.mark.smoke
def test_help_loads_no_command_no_server_and_no_models() -> None:
    program = (
        "import sys\nfrom mcpenv.cli import execute\nassert execute(['--help']) == 0\n"
        "print(*(name for name in sys.modules if name.startswith('mcpenv.extensions.')), file=sys.stderr)\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    extensions, packages = ran.stderr.splitlines()
    assert all(name.count(".") == 2 or name.endswith(".commands") for name in extensions.split())
    assert not {"pydantic", "fastmcp", "mcp", "starlette", "websockets", "httpx", "yaml"} & set(packages.split())


@pytest.mark.process
@pytest.mark.parametrize("command", ["run", "dev"])
def test_the_help_of_a_command_that_serves_loads_no_server(command: str) -> None:
    program = (
        f"import sys\nfrom mcpenv.cli import execute\nassert execute(['{command}', '--help']) == 0\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "--queue-timeout-s" in ran.stdout
    assert not {"fastmcp", "mcp", "starlette", "uvicorn"} & set(ran.stderr.split())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(old, new, marks=pytest.mark.extension(extension))
        for old, new, extension in (
            ("replay", "trajectories replay", "records"),
            ("rescore", "trajectories rescore", "records"),
            ("push", "share push", "shipping"),
            ("fork", "share fork", "shipping"),
            ("import-openenv", "share import-openenv", "openenv"),
            ("manifest", "init --manifest-schema", "shipping"),
        )
    ],
)
def test_a_moved_command_works_under_its_old_name_with_a_hint(cli: Cli, old: str, new: str) -> None:
    done = cli(old, "--help")
    assert (
        done.status == 0
        and done.err == f"hint: mcpenv {old} is now mcpenv {new}; the old name works until the next version\n"
    )
    hint = cli(*new.split(), *([] if "--" in new else ["--help"]))
    assert (hint.status, hint.err) == (0, "")
    assert f"│ {old} " not in cli("--help").out
