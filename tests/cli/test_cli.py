"""The command line: what it prints, where, its exit status, and one line for everything that can be wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from command_line import TIMEOUT_S, Cli, Done, command_lines, free_port, started, write
from command_worlds import WORLD
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.utilities.tests import run_server_in_process

import mcpenv
from mcpenv.cli.remote import base_url, mcp_url
from mcpenv.server.extension import installed
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Command lines in this process, in a working directory of their own."""
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


# -- the command itself


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version") == Done(0, f"{mcpenv.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("run",),
        ("call",),
        pytest.param(("inspect",), marks=pytest.mark.extension("inspection")),
        pytest.param(("tasks", "list"), marks=pytest.mark.extension("inspection")),
        pytest.param(("tasks", "show"), marks=pytest.mark.extension("inspection")),
        pytest.param(("dev",), marks=pytest.mark.extension("reload")),
        pytest.param(("connect",), marks=pytest.mark.extension("hosts")),
    ],
)
def test_every_command_explains_itself(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command, "--help")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"Usage: mcpenv {' '.join(command) or 'COMMAND'}")
    assert "TARGET" in done.out


def test_the_forms_of_target_are_listed_once(cli: Cli) -> None:
    for command in ("run", "call"):
        assert cli(command, "--help").out.count("folder:Class") == 1


def test_without_a_command_help_is_shown(cli: Cli) -> None:
    done = cli()
    assert done.status == 0
    assert "Commands" in done.out


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "call",
        pytest.param("inspect", marks=pytest.mark.extension("inspection")),
        pytest.param("tasks list", marks=pytest.mark.extension("inspection")),
        pytest.param("tasks show", marks=pytest.mark.extension("inspection")),
        pytest.param("dev", marks=pytest.mark.extension("reload")),
        pytest.param("connect", marks=pytest.mark.extension("hosts")),
    ],
)
def test_every_option_is_explained(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = re.findall(
        r"│\s+(--[a-z-]+)(?: -\w)?(?: --no-[a-z-]+)?(?: [A-Z.]+)?\s+(\S?)", cli(*command.split(), "--help").out
    )
    assert {"--set", "--debug"} <= {name for name, _ in options}
    assert [name for name, explained in options if not explained.isalpha()] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("walk",), 'Unknown command "walk"'),
        (("run",), "name one environment: a TARGET, or --mcp"),
        (("call", "world"), 'Command "call" parameter'),
        (("run", "world", "--prot", "1"), "Unknown option: --prot"),
        (("run", "world", "--port", "http"), 'Invalid value for --port: unable to convert "http" into int'),
        (("run", "world", "--mode", "test"), 'Invalid value "test" for --mode'),
        (("run", "world", "--transport", "sse"), 'Invalid value "sse" for --transport'),
        (("run", "world", "--step-timeout-s", "0"), "--step-timeout-s is 0; it must be a number of seconds above 0"),
        (("run", "world", "--session-timeout-s", "nan"), "--session-timeout-s is nan"),
        (("run", "world", "--port", "0", "--max-sessions", "0"), "--max-sessions is 0; it must be 1 or more"),
        (("run", "world", "--host", "0.0.0.0"), "host 0.0.0.0 is not loopback"),
        (("run", "world", "--port", "99999"), 'Invalid value "99999" for --port. Must be <= 65535.'),
        (("run", "world", "--control-port", "-1"), 'Invalid value "-1" for --control-port. Must be >= 0.'),
        pytest.param(
            ("run", "world", "--reload", "--transport", "stdio"),
            "--reload needs --transport http",
            marks=pytest.mark.extension("stdio"),
        ),
        *(
            pytest.param(command, "nowhere: is not a folder with environment.py", marks=pytest.mark.extension("reload"))
            for command in (("run", "nowhere", "--reload"), ("dev", "nowhere"))
        ),
        pytest.param(
            ("inspect", "world", "--mode", "test"),
            'Invalid value "test" for --mode',
            marks=pytest.mark.extension("inspection"),
        ),
        (("call", "world", "add", "--timeout-s", "0"), "--timeout-s is 0; it must be a number of seconds above 0"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(cli: Cli, world: str, arguments: tuple[str, ...], said: str) -> None:
    done = cli(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


def test_a_mode_of_the_environment_variable_is_checked(cli: Cli, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_MODE", "test")
    for command in (("run", world), ("call", world, "add")):
        assert cli(*command) == Done(2, "", "error: MCPENV_MODE is 'test'; use 'simulation' or 'production'\n")
    monkeypatch.setenv("MCPENV_MODE", "production")
    assert cli("call", world, "live").out == "live\n"


BROKEN = {
    "nowhere": (None, "nowhere: is not a folder with environment.py"),
    "none": ("x = 1", "none: environment.py defines no MCPEnvironment subclass"),
    "two": (
        "import mcpenv\nclass A(mcpenv.MCPEnvironment): ...\nclass B(mcpenv.MCPEnvironment): ...",
        "two: has several environments: A, B; choose one, such as two:A",
    ),
    "syntax": ("def f(:", "syntax: cannot be loaded: SyntaxError: invalid syntax (syntax/environment.py:1)"),
    "imports": (
        "\nimport nowhere_to_be_found",
        "imports: cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found' (",
    ),
    "reserved": (
        """
        from mcpenv import MCPEnvironment
        class Bad(MCPEnvironment):
            def __init__(self):
                self.tool(lambda: 1, name="reset")
        """,
        None,
    ),
    "raises": (
        """
        from mcpenv import MCPEnvironment
        class Bad(MCPEnvironment):
            def __init__(self):
                raise OSError("no [red]database[/red]")
        """,
        None,
    ),
}


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--port", "0"),
        pytest.param(("run", "--transport", "stdio"), marks=pytest.mark.extension("stdio")),
        ("call", "add"),
        pytest.param(("inspect",), marks=pytest.mark.extension("inspection")),
    ],
)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_one_line_and_status_2(
    cli: Cli, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    text, said = BROKEN[name]
    if text is not None:
        write(tmp_path, name, text)
    done = cli(command[0], name, *command[1:])
    assert (done.status, done.out) == (2, "")
    lines = [line for line in done.err.split("\n") if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.err
    if said is not None:
        assert lines[0].startswith(f"error: {said}")
    elif name == "raises":
        assert "OSError: no [red]database[/red]" in lines[0]
    else:
        assert "'reset'" in lines[0]


@pytest.mark.process
def test_warnings_are_one_line(tmp_path: Path) -> None:
    write(tmp_path, "old", "import warnings\nwarnings.warn('is old')\n" + WORLD)
    with started(tmp_path, "call", "old", "add") as process:
        assert process.end() == 0
    assert process.err[0] == f"warning: is old ({tmp_path}/old/environment.py:2)\n"


def test_debug_shows_the_traceback(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "syntax", "def f(:")
    done = cli("call", "syntax", "add", "--debug")
    assert done.status == 2
    assert "Traceback (most recent call last)" in done.err
    assert done.err.endswith("(syntax/environment.py:1)\n")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "world"),
        ("call", "world", "add"),
        pytest.param(("inspect", "world"), marks=pytest.mark.extension("inspection")),
    ],
)
@pytest.mark.usefixtures("world")
def test_settings_that_do_not_fit_are_one_line(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command, "--set", "goal=1")
    assert done == Done(2, "", "error: world: --set goal=1: there is no setting 'goal' (there are: start)\n")


# -- run


@pytest.mark.smoke
def test_run_serves_and_says_how_to_use_it(tmp_path: Path, world: str) -> None:
    with started(tmp_path, "run", world, "--port", "0", COLUMNS="20", HOME=str(tmp_path)) as process:
        url = process.url()
        text = "".join(process.out)
        assert asyncio.run(_listed(f"{url}/mcp")) == [
            "add",
            "say",
            "shape",
            "draw",
            "finish",
            "both",
            "refuse",
            "crash",
        ]
        assert httpx.get(f"{url}/metadata").json()["mode"] == "simulation"
        assert process.end(signal.SIGTERM) == 0
    assert [line.partition("mcpenv: ")[2] for line in process.err] == [
        "SIGTERM: this server takes no new sessions, and ends\n",
        "this server has ended\n",
    ]
    assert text.startswith("World in simulation mode\n\n")
    docs = f"  docs     {url}/docs\n" if "api-docs" in installed() else ""
    assert f"  MCP      {url}/mcp\n  control  {url.replace('http', 'ws')}/ws\n{docs}\n" in text
    assert "Anonymous stateless MCP clients share one instance of the environment.\n" in text
    assert "Without a control token, an agent on this machine can reach the control plane.\n" in text
    assert "\x1b" not in text
    assert f"  agents   mcpenv connect claude-code {url}/mcp\n" in text
    assert f'  Python   EnvClient("{url}").sync()\n' in text
    assert len(text.splitlines()) <= 14


async def _listed(url: str) -> list[str]:
    async with asyncio.timeout(TIMEOUT_S), Client(url) as client:
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.smoke
def test_run_in_production_has_no_control_plane(tmp_path: Path, world: str) -> None:
    options = ("--mode", "production", "--set", "start=40", "--max-sessions", "2")
    with started(tmp_path, "run", world, "--port", "0", *options) as process:
        url = process.url()
        assert httpx.post(f"{url}/reset").status_code == 404
        assert asyncio.run(_called(f"{url}/mcp")) == 42
        assert process.end(signal.SIGINT) == 0
    text = "".join(process.out)
    assert text.startswith("World in production mode\n")
    assert "control" not in text
    assert "token" not in text


async def _called(url: str) -> Any:
    async with asyncio.timeout(TIMEOUT_S), Client(url) as client:
        return (await client.call_tool("add", {"by": 2})).data


NOISY = '''
import os
from mcpenv import MCPEnvironment

print("while loading")
os.system("echo by a child")


class Noisy(MCPEnvironment):
    """Prints wherever it can."""

    def __init__(self) -> None:
        print("while made")

        @self.tool
        def work() -> int:
            print("while working")
            os.system("echo by a child")
            return 7
'''


@pytest.mark.extension("stdio")
@pytest.mark.smoke
@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_stdio_belongs_to_the_protocol(tmp_path: Path, era: Literal["auto", "legacy"]) -> None:
    folder = tmp_path / write(tmp_path, "noisy", NOISY)
    arguments = ["-m", "mcpenv", "run", str(folder), "--transport", "stdio"]

    async def use(transport: StdioTransport) -> Any:
        async with asyncio.timeout(TIMEOUT_S), Client(transport, mode=era) as client:
            return (await client.call_tool("work")).data

    with open(tmp_path / "log", "w+", encoding="utf-8") as file:
        transport = StdioTransport(command=sys.executable, args=arguments, keep_alive=False, log_file=file)
        assert asyncio.run(use(transport)) == 7
        file.seek(0)
        log = file.read()
    assert "Noisy in simulation mode: MCP on stdin and stdout\n" in log
    assert log.count("by a child") == 2


@pytest.mark.extension("stdio")
@pytest.mark.process
def test_stdio_ends_with_its_input(tmp_path: Path, world: str) -> None:
    with started(tmp_path, "run", world, "--transport", "stdio") as process:
        assert process.end() == 0
    assert process.out == []


@pytest.mark.extension("reload")
@pytest.mark.slow
def test_reload_waits_for_a_broken_file_to_change(tmp_path: Path) -> None:
    text = 'from mcpenv import MCPEnvironment\nclass First(MCPEnvironment):\n    """One."""\n'
    write(tmp_path, "game", text)
    with started(tmp_path, "run", "game", "--port", "0", "--reload") as process:
        url = process.url()
        assert httpx.get(f"{url}/metadata").json()["name"] == "First"
        write(tmp_path, "game", "def f(:")
        process.wait_for(r"environment\.py changed, loading")
        process.wait_for(r"^error: game/environment\.py:1: SyntaxError: invalid syntax$")
        write(tmp_path, "game", text.replace("First", "Second"))
        process.wait_for(rf"^Second reloaded in \d+\.\d\d s  {url}/console$")
        assert httpx.get(f"{url}/metadata").json()["name"] == "Second"
        assert process.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(process.err)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


# -- servers at a URL

WITH_A_URL = [("call", "add"), pytest.param(("inspect",), marks=pytest.mark.extension("inspection"))]


def _serve_plain(host: str, port: int, path: str) -> None:
    server: FastMCP = FastMCP("plain", version="9", instructions="No environment.")
    server.tool(lambda a, b: f"{a}{b}", name="join")
    server.run(transport="http", host=host, port=port, path=path, show_banner=False, log_level="error")


@pytest.fixture(scope="module")
def plain_server() -> Iterator[str]:
    """An MCP server of somebody else, whose endpoint has another name."""
    with run_server_in_process(_serve_plain, path="/tools") as url:
        yield f"{url}/tools"


@pytest.mark.smoke
def test_any_mcp_server_can_be_called(cli: Cli, plain_server: str) -> None:
    assert cli("call", plain_server, "join", "a=1", "b=x").out == "1x\n"


@pytest.mark.smoke
@pytest.mark.extension("inspection")
def test_any_mcp_server_can_be_inspected(cli: Cli, plain_server: str) -> None:
    done = cli("inspect", plain_server)
    assert (done.status, done.err) == (0, "")
    assert done.out == "plain 9\n  No environment.\n\nTools\n  join(a: any, b: any)\n"
    document = json.loads(cli("inspect", plain_server, "--json").out)
    assert (document["modes"], document["state"]) == (None, None)


@pytest.mark.parametrize("command", WITH_A_URL)
def test_a_url_where_nobody_listens_is_one_line(cli: Cli, command: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = cli(command[0], url, *command[1:])
    assert (done.status, done.out) == (2, "")
    assert done.err == f"error: cannot connect to {url}: All connection attempts failed\n"


@pytest.mark.parametrize("command", WITH_A_URL)
def test_a_url_without_mcp_is_one_line(cli: Cli, world_url: str, command: tuple[str, ...]) -> None:
    done = cli(command[0], f"{world_url}/docs", *command[1:])
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: cannot connect to {world_url}/docs: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", WITH_A_URL)
def test_a_running_server_has_its_own_mode_and_settings(cli: Cli, command: tuple[str, ...]) -> None:
    for option in (("--mode", "production"), ("--set", "a=1")):
        done = cli(command[0], "http://127.0.0.1:1", *command[1:], *option)
        assert done.status == 2
        assert done.err.startswith("error: --mode and --set are for an environment's code")


@pytest.mark.parametrize(
    ("url", "endpoint", "base"),
    [
        ("http://h:1", "http://h:1/mcp", "http://h:1"),
        ("http://h:1/", "http://h:1/mcp", "http://h:1"),
        ("http://h:1/mcp", "http://h:1/mcp", "http://h:1"),
        ("http://h:1/mcp/", "http://h:1/mcp/", "http://h:1"),
        ("https://h/env", "https://h/env/mcp", "https://h/env"),
        ("https://h/env/mcp?key=1", "https://h/env/mcp?key=1", "https://h/env"),
        ("https://h/sse", "https://h/sse", "https://h"),
    ],
)
def test_urls_with_and_without_endpoint(url: str, endpoint: str, base: str) -> None:
    assert (mcp_url(url), base_url(url)) == (endpoint, base)


# -- call


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("add",), "1\n"),
        (("add", "by=41"), "41\n"),
        (("add", "by=-2"), "-2\n"),
        (("add", "--json-arguments", '{"by": 3}'), "3\n"),
        (("add", "--json-arguments", '{"by": 3}', "by=4"), "4\n"),
        (("say", "text=5"), "'5' None 'low'\n"),
        (("say", "text=null", "times=2", "level=high"), "'null' 2 'high'\n"),
        (("say", "text=a=b é", "times=null"), "'a=b é' None 'low'\n"),
        (("shape", 'size={"width": 2}', 'names=["a"]'), "Size(width=2, height=1) ['a'] None None\n"),
        (("shape", 'size={"width": 2}', "anything=word"), "Size(width=2, height=1) [] 'word' None\n"),
        (("shape", 'size={"width": 2}', "anything=[1]"), "Size(width=2, height=1) [] [1] None\n"),
        (("shape", 'size={"width": 2}', "anything=NaN"), "Size(width=2, height=1) [] 'NaN' None\n"),
        (("shape", 'size={"width": 2}', "maybe=5"), "Size(width=2, height=1) [] None '5'\n"),
        (("shape", 'size={"width": 2}', "maybe=null"), "Size(width=2, height=1) [] None None\n"),
        (("draw",), "a picture:\n[image image/png, 5 bytes]\n"),
    ],
)
def test_call_prints_the_result(cli: Cli, world: str, world_url: str, arguments: tuple[str, ...], out: str) -> None:
    for target in (world, world_url):
        done = cli("call", target, *arguments)
        assert (done.status, done.out) == (0, out), done.err


def test_call_shows_reward_and_end_aside(cli: Cli, world: str) -> None:
    assert cli("call", world, "add") == Done(0, "1\n", "reward 0.5\n")
    assert cli("call", world, "finish") == Done(0, "the end\n", "not scored, the episode is over\n")
    assert cli("call", world, "add", "--mode", "production") == Done(0, "1\n", "")
    assert cli("call", world, "add", "--set", "start=9").out == "10\n"


def test_call_as_json_is_the_whole_observation(cli: Cli, world: str, world_url: str) -> None:
    here = json.loads(cli("call", world, "add", "--json").out)
    assert (here["result"]["data"], here["reward"], here["error"]) == (1, 0.5, None)
    there = json.loads(cli("call", world_url, "add", "--json").out)
    assert there["result"] == here["result"]
    assert there["reward"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("refuse",), "not today"),
        (("add", "by=much"), "by: Input should be a valid integer"),
        (("add", "how=1"), "how: "),
        (("say",), "text: "),
    ],
)
def test_a_call_that_fails_is_status_1(
    cli: Cli, world: str, world_url: str, arguments: tuple[str, ...], said: str
) -> None:
    for target in (world, world_url):
        done = cli("call", target, *arguments)
        assert (done.status, done.out) == (1, "")
        assert said in done.err
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
        as_json = cli("call", target, *arguments, "--json")
        assert as_json.status == 1
        assert said in json.loads(as_json.out)["error"]["message"]
        assert as_json.err == done.err


BROKEN_TEXT = '''
from mcpenv import MCPEnvironment


def instructions_of():
    return {}["missing"]


class Env(MCPEnvironment):
    """It cannot say its instructions."""

    @classmethod
    def instructions(cls):
        return instructions_of()

    def __init__(self):
        self.tool(lambda: 1, name="one")
'''


def test_an_exception_of_the_authors_code_is_no_bug_in_mcpenv(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken_text.py").write_text(BROKEN_TEXT)
    done = cli("run", str(tmp_path / "broken_text.py"), "--port", "0")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: KeyError: 'missing' (") and "broken_text.py:6; --debug" in done.err
    assert "a bug in" not in done.err


def test_a_tool_that_crashes_is_one_line_and_with_debug_a_traceback(cli: Cli, world: str) -> None:
    done = cli("call", world, "crash")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: ValueError: on [bold]purpose[/bold]")
    assert done.err.count("\n") == 1
    assert 'raise ValueError("on [bold]purpose[/bold]")' in cli("call", world, "crash", "--debug").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fly",), "there is no tool 'fly' in simulation mode (there are: add, say,"),
        (("live",), "there is no tool 'live' in simulation mode"),
        (("finish", "--mode", "production"), "there is no tool 'finish' in production mode"),
        (("add", "2"), "argument '2': write key=value"),
        (("add", "=2"), "argument '=2': write key=value"),
        (("add", "--json-arguments", "[1]"), "--json-arguments is not a JSON object"),
        (("add", "--json-arguments", "{"), "--json-arguments is not JSON"),
    ],
)
def test_a_call_that_cannot_be_made_is_status_2(cli: Cli, world: str, arguments: tuple[str, ...], said: str) -> None:
    done = cli("call", world, *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("typed", "meant"), [("ad", "add"), ("cras", "crash")])
def test_a_mistyped_tool_is_refused_with_the_one_that_was_meant(cli: Cli, world: str, typed: str, meant: str) -> None:
    assert cli("call", world, typed).err.endswith(f"). Did you mean {meant!r}?\n")


def test_an_unknown_tool_of_a_server_is_status_2(cli: Cli, world_url: str) -> None:
    done = cli("call", world_url, "finish")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: there is no tool 'finish' at {world_url} (there are: add,")


@pytest.mark.parametrize(
    ("kind", "waits"), [("async def", "await asyncio.Event().wait()"), ("def", "threading.Event().wait()")]
)
def test_a_call_has_a_deadline(cli: Cli, tmp_path: Path, kind: str, waits: str) -> None:
    write(
        tmp_path,
        "slow",
        f"""
        import asyncio, threading
        from mcpenv import MCPEnvironment

        class Slow(MCPEnvironment):
            SUPPORTS_CONCURRENT_SESSIONS = True

            def __init__(self) -> None:
                @self.tool
                {kind} work() -> None:
                    {waits}
        """,
    )
    done = cli("call", "slow", "work", "--timeout-s", "0.2")
    assert (done.status, done.out) == (1, "")
    assert "0.2 s" in done.err


def test_a_call_of_a_server_has_a_deadline(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path,
        "slow",
        """
        import asyncio
        from mcpenv import MCPEnvironment

        class Slow(MCPEnvironment):
            def __init__(self) -> None:
                @self.tool
                async def work() -> None:
                    await asyncio.Event().wait()
        """,
    )
    with serving(load_target("slow").factory) as url:
        done = cli("call", url, "work", "--timeout-s", "0.5")
    assert (done.status, done.out) == (1, "")
    assert done.err.count("\n") == 1


RAISING = """
from mcpenv import MCPEnvironment

class Raising(MCPEnvironment):
    def __init__(self, where: str) -> None:
        self.where = where
        self.tool(self.work)

    def work(self) -> str:
        return "done"

    def reset(self, seed=None, episode_id=None):
        if self.where == "reset":
            raise RuntimeError("no\\nworld")

    def score(self, call, outcome):
        if self.where == "score":
            raise RuntimeError("no score")

    def close(self):
        if self.where == "close":
            raise RuntimeError("no end")
"""


@pytest.mark.parametrize(
    ("where", "said", "out"),
    [
        ("reset", "reset raised RuntimeError: no world (raising/environment.py:14)", ""),
        ("score", "score raised RuntimeError: no score (raising/environment.py:18)", ""),
        ("close", "close raised RuntimeError: no end (raising/environment.py:22)", ""),
    ],
)
def test_an_environment_that_fails_around_the_tool_is_status_1(
    cli: Cli, tmp_path: Path, where: str, said: str, out: str
) -> None:
    write(tmp_path, "raising", RAISING)
    done = cli("call", "raising", "work", "--set", f"where={where}")
    assert done == Done(1, out, f"error: the environment's {said}\n")


def test_tools_that_depend_on_the_instance_can_be_called(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path,
        "dynamic",
        """
        from mcpenv import MCPEnvironment

        class Dynamic(MCPEnvironment):
            DYNAMIC_TOOLS = True

            def reset(self, seed=None, episode_id=None):
                self.tool(lambda: "made", name="late")
        """,
    )
    assert cli("call", "dynamic", "late").out == "made\n"


def test_results_stand_alone_on_stdout(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "noisy", NOISY)
    assert cli("call", "noisy", "work").out == "7\n"


@pytest.mark.process
def test_the_lifespan_is_entered_for_one_call(tmp_path: Path) -> None:
    write(
        tmp_path,
        "shared",
        """
        from contextlib import asynccontextmanager
        from mcpenv import MCPEnvironment

        class Shared(MCPEnvironment):
            def __init__(self) -> None:
                self.tool(lambda: self.shared, name="look")

            @classmethod
            @asynccontextmanager
            async def lifespan(cls):
                yield "an index"
                print("left")
        """,
    )
    with started(tmp_path, "call", "shared", "look") as process:
        assert process.end() == 0
    assert process.out == ["an index\n"]
    assert process.err == ["left\n"]


# -- interrupts and pipes

SLOW = """
import threading
from mcpenv import MCPEnvironment

class Slow(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        def work() -> None:
            print("under way", flush=True)
            threading.Event().wait()
"""
CLOSES = """
    def close(self) -> None:
        print("closes", flush=True)
        open("go").read()
        print("closed", flush=True)
"""


@pytest.mark.smoke
def test_ctrl_c_is_status_130_without_a_stack(tmp_path: Path) -> None:
    write(tmp_path, "slow", SLOW)
    with started(tmp_path, "call", "slow", "work") as process:
        process.wait_for("under way")
        assert process.end(signal.SIGINT) == 130
    assert process.out == []
    assert "Traceback" not in "".join(process.err)


@contextlib.contextmanager
def ignoring(number: signal.Signals) -> Iterator[None]:
    """Let processes that are started in the block ignore a signal, as ``nohup`` and jobs in the background do."""
    usual = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, usual)


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "ignored"),
    [(signal.SIGTERM, None), (signal.SIGHUP, None), (signal.SIGTERM, signal.SIGINT)],
    ids=["SIGTERM", "SIGHUP", "in the background"],
)
def test_sigterm_and_sighup_close_the_environment_of_a_command(
    tmp_path: Path, number: signal.Signals, ignored: signal.Signals | None
) -> None:
    write(tmp_path, "slow", SLOW + CLOSES)
    os.mkfifo(tmp_path / "go")
    with contextlib.ExitStack() as stack:
        with contextlib.nullcontext() if ignored is None else ignoring(ignored):
            process = stack.enter_context(started(tmp_path, "call", "slow", "work"))
        process.wait_for("under way")
        process.popen.send_signal(number)
        process.wait_for("closes")
        for _ in range(20):
            process.popen.send_signal(number)
        (tmp_path / "go").write_text("on")
        assert process.end() == 130
    assert process.err[-1] == "closed\n"


@pytest.mark.process
def test_a_command_under_nohup_goes_on_after_sighup(tmp_path: Path, world: str) -> None:
    with contextlib.ExitStack() as stack:
        with ignoring(signal.SIGHUP):
            process = stack.enter_context(started(tmp_path, "run", world, "--port", "0"))
        url = process.url()
        process.popen.send_signal(signal.SIGHUP)
        assert httpx.get(f"{url}/health").is_success
        assert process.end(signal.SIGTERM) == 0


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_a_reader_that_goes_away_is_no_stack(tmp_path: Path, world: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "mcpenv", "call", world, "add", "--json"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.process
def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path, world: str) -> None:
    with started(tmp_path, "call", world, "say", "text=é", PYTHONIOENCODING="ascii") as process:
        assert process.end() == 0
    assert process.out == ["'\\xe9' None 'low'\n"]


def test_a_warning_that_is_repeated_is_printed_once(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path,
        "noisy",
        """
        import logging

        from mcpenv import MCPEnvironment

        class Noisy(MCPEnvironment):
            def __init__(self):
                @self.tool
                def warn() -> str:
                    for word in ("slow", "slow", "full", "slow"):
                        logging.getLogger("mcpenv").warning("the disk is %s", word)
                    return "warned"
        """,
    )
    done = cli("call", "noisy", "warn")
    assert done == Done(0, "warned\n", "warning: the disk is slow\nwarning: the disk is full\n")
