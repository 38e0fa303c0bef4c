"""Hosts: where their files are, what is written there, and that nothing else of them changes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from command_line import Cli, command_lines
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from hypothesis import given
from hypothesis import strategies as st

from mcpenv import ConfigurationError
from mcpenv.cli.output import Page
from mcpenv.extensions.hosts.config_files import add_to_json, add_to_toml
from mcpenv.extensions.hosts.hosts import HOSTS, PASTED, Machine, Server, compact_json
from mcpenv.extensions.hosts.pasted import print_pasted
from mcpenv_client import Mode

URL = "http://127.0.0.1:8000/mcp"
OVER_HTTP = Server("echo", url=URL)
OVER_STDIO = Server("echo", ("/bin/python", "-m", "mcpenv", "run", "/envs/echo"))
WITH_FILE = [key for key, host in HOSTS.items() if host.locate is not None]
WITH_JSON = [key for key in WITH_FILE if key not in ("codex", "goose")]

ENVIRONMENT = '''
from mcpenv import MCPEnvironment


class Counter(MCPEnvironment):
    """Counts."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

        @self.tool
        def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool(mode="simulation")
        def hint() -> str:
            """Only in episodes."""
            return "add"
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with an environment, apart from the user's folder ``home``."""
    folder = tmp_path / "work"
    (folder / "counter").mkdir(parents=True)
    (folder / "counter" / "environment.py").write_text(ENVIRONMENT, encoding="utf-8")
    (tmp_path / "home").mkdir()
    return folder


@pytest.fixture
def connect(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """``mcpenv connect`` in the working directory, with a user's folder of its own."""
    monkeypatch.setenv("HOME", str(folder.parent / "home"))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    with command_lines(folder, monkeypatch, capfd) as run:
        yield partial(run, "connect")


# -- files


@pytest.mark.parametrize(
    ("key", "platform", "environ", "file"),
    [
        ("claude-desktop", "darwin", {}, "/u/Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {}, "/u/.config/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {"XDG_CONFIG_HOME": "/x"}, "/x/Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", {}, "/u/AppData/Roaming/Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", {"APPDATA": "/data"}, "/data/Claude/claude_desktop_config.json"),
        ("cursor", "linux", {}, "/u/.cursor/mcp.json"),
        ("vscode", "linux", {}, "/w/.vscode/mcp.json"),
        ("codex", "linux", {}, "/u/.codex/config.toml"),
        ("codex", "darwin", {"CODEX_HOME": "/c"}, "/c/config.toml"),
        ("gemini-cli", "linux", {}, "/u/.gemini/settings.json"),
        ("goose", "linux", {}, "/w/goose.yaml"),
    ],
)
def test_each_host_has_its_file(key: str, platform: str, environ: dict[str, str], file: str) -> None:
    assert HOSTS[key].file(Machine(platform, Path("/u"), Path("/w"), environ)) == Path(file)


@pytest.mark.parametrize("key", ["claude-code", "inspector"])
def test_hosts_with_a_command_have_no_file(key: str) -> None:
    assert HOSTS[key].file(Machine.here()) is None


# -- what is written


def test_the_entries_of_a_url() -> None:
    def read(key: str) -> Any:
        return json.loads(HOSTS[key].text(OVER_HTTP))

    assert read("claude-desktop") == {"mcpServers": {"echo": {"command": "npx", "args": ["-y", "mcp-remote", URL]}}}
    assert read("cursor") == {"mcpServers": {"echo": {"url": URL}}}
    assert read("vscode") == {"servers": {"echo": {"type": "http", "url": URL}}}
    assert read("gemini-cli") == {"mcpServers": {"echo": {"httpUrl": URL}}}
    assert read("claude-code") == {"mcpServers": {"echo": {"type": "http", "url": URL}}}
    assert tomllib.loads(HOSTS["codex"].text(OVER_HTTP)) == {"mcp_servers": {"echo": {"url": URL, "required": True}}}


def test_the_entries_of_a_command() -> None:
    entry = {"command": "/bin/python", "args": ["-m", "mcpenv", "run", "/envs/echo"]}
    for key in ("claude-desktop", "cursor", "gemini-cli"):
        assert json.loads(HOSTS[key].text(OVER_STDIO)) == {"mcpServers": {"echo": entry}}
    assert json.loads(HOSTS["vscode"].text(OVER_STDIO)) == {"servers": {"echo": {"type": "stdio", **entry}}}
    assert tomllib.loads(HOSTS["codex"].text(OVER_STDIO)) == {"mcp_servers": {"echo": {**entry, "required": True}}}


def test_goose_gets_a_recipe_because_it_names_tools_by_the_extension() -> None:
    prompt = {"key": "prompt", "input_type": "string", "requirement": "required", "description": "What to do."}
    recipe = yaml.safe_load(HOSTS["goose"].text(OVER_HTTP))
    assert recipe["extensions"] == [{"type": "streamable_http", "name": "echo", "uri": URL, "timeout": 300}]
    assert (recipe["parameters"], recipe["prompt"]) == ([prompt], "{{ prompt | indent(2) }}")
    (extension,) = yaml.safe_load(HOSTS["goose"].text(OVER_STDIO))["extensions"]
    arguments = ["-m", "mcpenv", "run", "/envs/echo"]
    assert extension == {"type": "stdio", "name": "echo", "cmd": "/bin/python", "args": arguments, "timeout": 300}


def test_a_recipe_that_is_there_is_replaced_only_by_force(folder: Path, connect: Cli) -> None:
    assert "goose run --recipe" in connect("goose", URL, "--name", "echo").out
    first = connect("goose", URL, "--write", "--name", "echo")
    assert first.status == 0 and f"goose run --recipe {folder / 'goose.yaml'}" in first.out
    assert connect("goose", URL, "--write", "--name", "echo").out.startswith("Goose has echo already:")
    refused = connect("goose", URL, "--write", "--name", "other")
    assert refused.status == 2 and "is unchanged: it has another recipe" in refused.err
    assert connect("goose", URL, "--write", "--name", "other", "--force").status == 0


def test_the_commands_that_are_pasted() -> None:
    assert HOSTS["claude-code"].snippet(OVER_HTTP) == f"claude mcp add --transport http echo {URL}"
    assert HOSTS["claude-code"].snippet(OVER_STDIO) == "claude mcp add echo -- /bin/python -m mcpenv run /envs/echo"
    inspector = "npx -y @modelcontextprotocol/inspector"
    assert HOSTS["inspector"].snippet(OVER_HTTP) == f"{inspector} --transport http --server-url {URL}"
    assert HOSTS["inspector"].snippet(OVER_STDIO) == f"{inspector} -- /bin/python -m mcpenv run /envs/echo"


@pytest.mark.parametrize(
    ("url", "allowed"),
    [(URL, False), ("http://localhost/mcp", False), ("https://x.org/mcp", False), ("http://x.org/mcp", True)],
)
def test_plain_http_elsewhere_is_allowed_by_name(url: str, allowed: bool) -> None:
    assert ("--allow-http" in Server("echo", url=url).bridged().command) is allowed


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "é", "a\n"])
def test_names_that_some_host_does_not_take_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a server"):
        Server(name, url=URL)


def test_awkward_paths_survive_every_form() -> None:
    path = '/tmp/a "b" \\c/é\t$HOME'
    server = Server("echo", (path, path))
    for host in PASTED:
        if host.entry is not None:
            text = host.text(server)
            read = tomllib.loads(text) if host.key == "codex" else json.loads(text)
            entry = read[host.servers_key]["echo"]
            assert (entry["command"], entry["args"]) == (path, [path])


def test_a_server_on_a_terminal_prints_lines_to_paste() -> None:
    printed = io.StringIO()
    print_pasted(Page(printed), "echo", "/envs/echo", Mode.SIMULATION)
    text = printed.getvalue()
    assert all(host.title in text for host in PASTED)
    assert "run /envs/echo --transport stdio --mode simulation" in text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_compact_json_is_the_same_json(value: Any) -> None:
    assert json.loads(compact_json(value)) == value


def test_compact_json_breaks_lines_only_where_it_must() -> None:
    assert compact_json({"a": {"b": [1, 2]}}) == '{"a": {"b": [1, 2]}}'
    long = {"first": "x" * 40, "second": ["y" * 40]}
    assert compact_json(long) == f'{{\n  "first": "{"x" * 40}",\n  "second": ["{"y" * 40}"]\n}}'


# -- merging JSON


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.sampled_from([None, 2, 4, "\t"]), st.booleans())
def test_nothing_of_a_json_file_is_lost(config: dict[str, Any], indent: int | str | None, ascii_only: bool) -> None:
    config = {**config, "mcpServers": {"other": {"command": "x", "args": [], "env": {"KEY": "é"}}}}
    text = json.dumps(config, indent=indent, ensure_ascii=ascii_only)
    written = add_to_json(text, "mcpServers", "echo", {"url": URL}, force=False)
    read = json.loads(written)
    assert list(read) == list(config)
    assert read.pop("mcpServers") == {**config.pop("mcpServers"), "echo": {"url": URL}}
    assert read == config


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", '{\n  "s": {\n    "echo": {}\n  }\n}\n'),
        (" \n", '{\n  "s": {\n    "echo": {}\n  }\n}\n'),
        ("{}", '{"s": {"echo": {}}}'),
        ('{\n    "a": 1\n}\n\n', '{\n    "a": 1,\n    "s": {\n        "echo": {}\n    }\n}\n\n'),
        ('{\n\t"a": 1\n}', '{\n\t"a": 1,\n\t"s": {\n\t\t"echo": {}\n\t}\n}'),
        ('{\r\n  "a": 1\r\n}\r\n', '{\r\n  "a": 1,\r\n  "s": {\r\n    "echo": {}\r\n  }\r\n}\r\n'),
        ('{"s": null, "a": "é"}', '{"s": {"echo": {}}, "a": "é"}'),
        ('{"a": "\\u00e9"}', '{"a": "\\u00e9", "s": {"echo": {}}}'),
    ],
)
def test_indentation_line_ends_and_escapes_stay(text: str, written: str) -> None:
    assert add_to_json(text, "s", "echo", {}, force=False) == written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,}', "it is not JSON: line 1, column"),
        ('{\n  // mine\n  "a": 1\n}', r"it is not JSON: line 2, column 3: .* \(comments\?\)"),
        ("[]", "it is not a JSON object"),
        ('{"s": []}', "its 's' is not a JSON object"),
        ('{"a": 1, "a": 2}', "its key 'a' occurs twice"),
        ('{"a": NaN}', "it is not JSON: NaN"),
        ('{"a": 1e999}', "Out of range float"),
        ('{"s": {"echo": {"url": "other"}}}', "it has another server 'echo'"),
    ],
)
def test_json_that_cannot_be_kept_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        add_to_json(text, "s", "echo", {"url": URL}, force=False)


def test_a_json_entry_that_is_there_changes_nothing() -> None:
    text = '{"s":{"echo":{"url":"x"}}}'
    assert add_to_json(text, "s", "echo", {"url": "x"}, force=False) is text


def test_force_replaces_one_json_entry() -> None:
    text = '{"s": {"a": 1, "echo": {"url": "old"}, "b": 2}}'
    assert add_to_json(text, "s", "echo", {"url": "new"}, force=True) == text.replace("old", "new")


# -- merging TOML

TABLE = f'[mcp_servers.echo]\nurl = "{URL}"'
ENTRY = {"url": URL}


def extend(text: str, force: bool = False) -> str:
    return add_to_toml(text, ("mcp_servers", "echo"), ENTRY, TABLE, force)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        '# mine\nmodel = "o3" # fast\n',
        'model = "o3"',
        '[mcp_servers.other]\ncommand = "x"\n\n[mcp_servers.other.env]\nKEY = "é"\n\n[[rules]]\na = 1\n[[rules]]\n',
        'text = """\n[mcp_servers.echo]\nurl = "not a table"\n"""\n',
    ],
)
def test_a_toml_table_is_added_at_the_end(text: str) -> None:
    written = extend(text)
    assert written.startswith(text.rstrip())
    assert written.endswith(f"{TABLE}\n")
    before = tomllib.loads(text)
    servers = {**before.get("mcp_servers", {}), "echo": ENTRY}
    assert tomllib.loads(written) == {**before, "mcp_servers": servers}


def test_windows_line_ends_of_toml_stay() -> None:
    assert extend("a = 1\r\n") == f'a = 1\r\n\r\n[mcp_servers.echo]\r\nurl = "{URL}"\r\n'


def test_force_replaces_one_toml_table_with_those_inside_it() -> None:
    before = "# first\na = 1\n\n[mcp_servers.x]\nargs = [\n  ['y'],\n]\n\n"
    old = '[mcp_servers.echo]\nargs = [\n["a"],\n]\ncommand = "old"\n\n[mcp_servers.echo.env]\nKEY = "v"\n\n'
    after = '[mcp_servers.echoes]\ncommand = "stays"\n# last\n'
    with pytest.raises(ValueError, match="it has another server 'echo'"):
        extend(before + old + after)
    assert extend(before + old + after, force=True) == f"{before}{after}\n{TABLE}\n"


def test_a_toml_table_that_is_there_changes_nothing() -> None:
    text = f'mcp_servers = {{echo = {{url = "{URL}"}}}}'
    assert extend(text) is text


@pytest.mark.parametrize(
    ("text", "force", "said"),
    [
        ("a = ", False, "it is not TOML"),
        ("mcp_servers = 1", False, "its 'mcp_servers' is not a table"),
        ("mcp_servers = {other = {}}", False, "written in a way that cannot be extended"),
        ("mcp_servers.echo.url = 'other'", False, "it has another server 'echo'"),
        ("mcp_servers.echo.url = 'other'", True, "written in a way that cannot be extended"),
        ("[mcp_servers]\necho = {url = 'other'}", True, "written in a way that cannot be extended"),
    ],
)
def test_toml_that_cannot_be_kept_is_refused(text: str, force: bool, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        extend(text, force)


# -- changing files


@pytest.mark.parametrize("key", WITH_FILE)
def test_a_file_is_made_with_its_folders(key: str, tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "config"
    done = HOSTS[key].install(OVER_HTTP, file)
    assert (done.file, done.changed, done.backup) == (file, True, None)
    assert file.read_text(encoding="utf-8").strip()
    again = HOSTS[key].install(OVER_HTTP, file)
    assert (again.changed, again.backup) == (False, None)
    assert [entry.name for entry in file.parent.iterdir()] == ["config"]


def test_a_changed_file_keeps_its_mode_mark_and_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    old = b'\xef\xbb\xbf{"mcpServers": {"other": {"command": "x"}}, "token": "secret"}'
    file.write_bytes(old)
    file.chmod(0o640)
    first = HOSTS["cursor"].install(OVER_HTTP, file)
    assert first.backup == tmp_path / "mcp.json.bak"
    assert first.backup.read_bytes() == old
    assert file.read_bytes().startswith(b"\xef\xbb\xbf{")
    for path in (file, first.backup):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    second = HOSTS["cursor"].install(Server("more", url=URL), file)
    assert second.backup == tmp_path / "mcp.json.bak1"
    assert first.backup.read_bytes() == old
    read = json.loads(file.read_text(encoding="utf-8-sig"))
    assert read["token"] == "secret"
    assert list(read["mcpServers"]) == ["other", "echo", "more"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    real.write_text("{}", encoding="utf-8")
    link.symlink_to(real)
    HOSTS["cursor"].install(OVER_HTTP, link)
    assert link.is_symlink()
    assert "echo" in real.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{\x00}\x00", b'{"mcpServers": {"echo": {"url": "other"}}}'])
def test_a_file_that_is_refused_is_left_alone(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is unchanged"):
        HOSTS["cursor"].install(OVER_HTTP, file)
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_in_the_files_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        HOSTS["cursor"].install(OVER_HTTP, tmp_path)


# -- the command


@pytest.mark.parametrize("key", list(HOSTS))
def test_a_target_is_printed_as_a_command_that_works_from_anywhere(key: str, folder: Path, connect: Cli) -> None:
    done = connect(key, "counter", "--set", "start=5", "--json")
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["name"] == "counter"
    assert document["command"] == [
        sys.executable,
        *("-m", "mcpenv", "run", str(folder / "counter"), "--transport", "stdio"),
        *("--mode", "production", "--set", "start=5"),
    ]
    assert document["written"] is False
    assert not list((folder.parent / "home").iterdir())


def test_what_is_printed_can_be_pasted(folder: Path, connect: Cli) -> None:
    done = connect("cursor", "counter")
    assert done.status == 0
    head, snippet, end = done.out.split("\n\n")
    assert head.endswith(str(folder.parent / "home" / ".cursor" / "mcp.json"))
    assert json.loads(snippet)["mcpServers"]["counter"]["command"] == sys.executable
    assert end == "Add --write to install it.\n"


async def _started_by(entry: dict[str, Any], cwd: Path) -> tuple[list[str], Any]:
    """Return what a host sees that starts the entry's command in ``cwd``."""
    transport = StdioTransport(command=entry["command"], args=entry["args"], cwd=str(cwd), keep_alive=False)
    async with asyncio.timeout(60), Client(transport) as client:
        tools = [tool.name for tool in await client.list_tools()]
        return tools, (await client.call_tool("add", {"by": 2})).data


@pytest.mark.process
@pytest.mark.parametrize("key", ["claude-desktop", "vscode", "codex"])
def test_what_is_installed_starts_the_environment(key: str, folder: Path, connect: Cli) -> None:
    done = connect(key, "counter", "--set", "start=5", "--write", "--json")
    assert done.status == 0, done.err
    file = Path(json.loads(done.out)["file"])
    assert file.is_relative_to(folder if key == "vscode" else folder.parent / "home")
    text = file.read_text(encoding="utf-8")
    entry = (tomllib.loads(text) if key == "codex" else json.loads(text))[HOSTS[key].servers_key]["counter"]
    # The production tools only, and the setting in force.
    assert asyncio.run(_started_by(entry, folder.parent)) == (["add"], 7)


def test_a_url_is_installed_with_its_endpoint(folder: Path, connect: Cli) -> None:
    file = folder / "mcp.json"
    done = connect("cursor", "http://127.0.0.1:8000", "--write", "--config", str(file))
    assert (done.status, done.err) == (0, "")
    assert json.loads(file.read_text(encoding="utf-8")) == {"mcpServers": {"mcpenv": {"url": URL}}}
    assert connect("cursor", URL, "--write", "--config", str(file)).out.startswith("Cursor has mcpenv already")
    refused = connect("cursor", "http://127.0.0.1:9000/mcp", "--write", "--config", str(file))
    assert refused.status == 2
    assert refused.err == (
        f"error: {file} is unchanged: it has another server 'mcpenv'; "
        "choose another --name, or replace it with --force\n"
    )
    forced = connect("cursor", "http://127.0.0.1:9000/mcp", "--write", "--config", str(file), "--force")
    assert forced.status == 0
    assert "mcp.json.bak" in forced.out
    assert ":9000" in file.read_text(encoding="utf-8")


STAND_IN = """#!/bin/sh
if [ "$1" = "--version" ]; then echo "2.0.0 (Claude Code)"; exit 0; fi
printf '%s\\n' "$@" >> "{log}"
if [ "$2 $3" = "add taken" ]; then echo "MCP server taken already exists" >&2; exit 1; fi
if [ "$2 $5" = "add same" ]; then echo "MCP server same already exists" >&2; exit 1; fi
if [ "$2 $3" = "get same" ]; then printf 'same:\\n  Type: http\\n  URL: {url}\\n'; fi
"""


@pytest.fixture
def claude(tmp_path: Path) -> Path:
    """A stand-in for Claude Code's command, which writes down its arguments."""
    command = tmp_path / "bin" / "claude"
    command.parent.mkdir()
    command.write_text(STAND_IN.format(log=tmp_path / "log", url=URL), encoding="utf-8")
    command.chmod(0o755)
    return command


@pytest.mark.smoke
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for claude is a shell script")
def test_claude_code_is_told_by_its_own_command(
    folder: Path, claude: Path, connect: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{claude.parent}{os.pathsep}{os.environ['PATH']}")
    done = connect("claude-code", "counter", "--write")
    assert (done.status, done.err) == (0, "")
    expected = ["mcp", "add", "counter", "--", sys.executable, "-m", "mcpenv", "run", str(folder / "counter")]
    expected += ["--transport", "stdio", "--mode", "production"]
    log = folder.parent / "log"
    assert log.read_text(encoding="utf-8").split("\n")[:-1] == expected
    log.unlink()
    assert connect("claude-code", URL, "--write", "--force").status == 0
    removed, added = ["mcp", "remove", "mcpenv"], ["mcp", "add", "--transport", "http", "mcpenv", URL]
    assert log.read_text(encoding="utf-8").split("\n")[:-1] == removed + added
    refused = connect("claude-code", "counter", "--write", "--name", "taken")
    assert refused.status == 2
    assert refused.err == "error: claude mcp add: MCP server taken already exists\n"
    same = connect("claude-code", URL, "--write", "--name", "same")
    assert (same.status, same.out) == (0, "Claude Code has same already.\n")
    other = connect("claude-code", "http://127.0.0.1:9000/mcp", "--write", "--name", "same")
    assert (other.status, other.err) == (2, "error: claude mcp add: MCP server same already exists\n")


@pytest.mark.skipif(
    sys.platform == "win32" or Path("/usr/local/bin/claude").exists(), reason="claude is where it is looked for"
)
def test_without_claude_code_the_command_to_run_is_said(connect: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    done = connect("claude-code", URL, "--write")
    assert done.status == 2
    assert done.err.startswith("error: Claude Code's command, claude, is not installed")
    assert f"claude mcp add --transport http mcpenv {URL}" in done.err


def test_a_project_file_of_claude_code_may_be_named(folder: Path, connect: Cli) -> None:
    assert connect("claude-code", URL, "--config", ".mcp.json", "--write").status == 0
    text = (folder / ".mcp.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"mcpServers": {"mcpenv": {"type": "http", "url": URL}}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "counter"), 'Invalid value "nothing"'),
        (("cursor", "nowhere"), "nowhere: is not a folder"),
        (("cursor", "counter", "--set", "goal=1"), "counter: --set goal=1: there is no setting 'goal'"),
        (("cursor", URL, "--set", "a=1"), "--mode and --set are for an environment's code"),
        (("cursor", URL, "--name", "a b"), "'a b' cannot be the name of a server"),
        (("cursor", "http://[bad"), "http://[bad: Invalid IPv6 URL"),
        (("inspector", URL, "--write"), "Inspector has no configuration file; run: npx -y"),
        (("inspector", URL, "--config", "x.json"), "Inspector has no configuration file; run: npx -y"),
    ],
)
def test_what_cannot_be_connected_is_one_line(arguments: tuple[str, ...], said: str, connect: Cli) -> None:
    done = connect(*arguments)
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1
