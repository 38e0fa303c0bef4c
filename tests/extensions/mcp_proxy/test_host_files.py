"""Files of MCP hosts are read as their hosts read them, or refused with the key to write instead."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.extensions.mcp_proxy.config import ProxyConfig, read_config
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.mcp_proxy.host_files import WITHOUT_EFFECT, parse
from mcpenv.extensions.mcp_proxy.target import with_absolute_paths
from mcpenv.targets.target import load_target

SERVER = {"command": "x"}
URL = {"url": "http://127.0.0.1:9/mcp"}


def read(folder: Path, content: Any) -> ProxyConfig:
    file = folder / "mcp.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_config(file)


def entry(folder: Path, entry: Any, **top: Any) -> Any:
    return read(folder, {"mcpServers": {"a": entry}, **top}).servers["a"]


@pytest.mark.parametrize(
    "content",
    [
        '{\n// local\n"mcpServers": {/* one */ "a": {"command": "x", "args": ["http://a", "/*", ",]",],},},\n}',
        '\ufeff{"mcpServers": {"a": {"command": "x", "args": ["http://a", "/*", ",]"]}}}',
        {"servers": {"a": {"command": "x", "args": ["http://a", "/*", ",]"]}}, "inputs": []},
        {"mcp": {"servers": {"a": {"command": "x", "args": ["http://a", "/*", ",]"]}}}, "editor.fontSize": 12},
        {"a": {"command": "x", "args": ["http://a", "/*", ",]"]}},
        {"mcpServers": [{"name": "a", "command": "x", "args": ["http://a", "/*", ",]"]}]},
        {"mcpServers": {"a": {"command": "x", "args": ["http://a", "/*", ",]"]}}, "$schema": "s", "theme": "Dark"},
    ],
)
def test_the_forms_of_a_file_are_read(tmp_path: Path, content: Any) -> None:
    config = read(tmp_path, content)
    assert config.servers["a"].args == ["http://a", "/*", ",]"]


def test_the_place_of_a_fault_is_the_place_in_the_file_with_its_comments() -> None:
    with pytest.raises(ValueError, match="line 3 column 4"):
        parse("{// one\n/* two\n*/ oops}")


@pytest.mark.parametrize(
    "more",
    [
        {"name": "A", "description": "d", "icon": "i", "gallery": True, "alwaysAllow": ["t"], "trust": True},
        {"enabled": True, "disabled": False, "isActive": True},
        {"type": "stdio"},
        {"type": "local"},
        {"transport": "stdio"},
        {"transportType": "stdio", "watchPaths": ["src"]},
        {"tools": ["*"]},
        {"disabledTools": [], "excludeTools": [], "roots": []},
    ],
)
def test_keys_without_an_effect_are_taken(tmp_path: Path, more: dict[str, Any]) -> None:
    assert entry(tmp_path, {**SERVER, **more}) == entry(tmp_path, SERVER)


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp", "streamable_http"])
def test_the_names_of_streamable_http_are_taken(tmp_path: Path, kind: str) -> None:
    assert entry(tmp_path, {**URL, "type": kind}).url == URL["url"]


@pytest.mark.parametrize("key", ["httpUrl", "serverUrl"])
def test_addresses_of_gemini_and_windsurf_are_taken(tmp_path: Path, key: str) -> None:
    assert entry(tmp_path, {key: URL["url"], "headers": {"A": "b"}}).url == URL["url"]
    assert entry(tmp_path, {key: URL["url"], "url": "http://127.0.0.1:9/sse"}).url == URL["url"]


def test_limits_are_in_the_units_of_their_hosts(tmp_path: Path) -> None:
    assert entry(tmp_path, {**SERVER, "timeout": 90}).call_timeout_s == 90
    assert entry(tmp_path, {**SERVER, "timeout": 600_000}).call_timeout_s == 600


def test_numbers_are_texts_and_null_is_nothing(tmp_path: Path) -> None:
    found = entry(tmp_path, {**SERVER, "args": ["--port", 80], "env": {"PORT": 80, "NOTHING": None}})
    assert (found.args, found.env) == (["--port", "80"], {"PORT": "80"})


@pytest.mark.parametrize(
    "disabled",
    [
        {"mcpServers": {"a": SERVER, "b": {**SERVER, "disabled": True, "env": {"T": "${NOT_SET_ANYWHERE}"}}}},
        {"mcpServers": {"a": SERVER, "b": {**SERVER, "enabled": False, "zzz": 1}}},
        {"mcpServers": {"a": SERVER, "b": {**SERVER, "httpUrl": "x"}}, "mcp": {"excluded": ["b"]}},
        {"mcpServers": {"a": SERVER, "b": {}}, "mcp": {"allowed": ["a"]}},
    ],
)
def test_nothing_is_read_of_a_disabled_server(tmp_path: Path, disabled: Any) -> None:
    assert list(read(tmp_path, disabled).servers) == ["a"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endpoint": URL["url"]}, "mcpServers.a.endpoint: unknown key 'endpoint': write 'url' instead"),
        ({"httpUrl": "x"}, "mcpServers.a.httpUrl: 'x' is no address of a server"),
        (
            {"serverUrl": "http://${NOT_SET_ANYWHERE}"},
            "mcpServers.a.serverUrl: the environment variable NOT_SET_ANYWHERE",
        ),
        (
            {"transport": {"type": "http", **URL}},
            "mcpServers.a.transport: a name is needed, stdio or http; put command",
        ),
        ({**SERVER, "type": ["stdio"]}, "mcpServers.a.type: a name is needed"),
        ({**URL, "type": "sse"}, "SSE is not supported; give the server's address for streamable HTTP"),
        ({**URL, "transport": "ws"}, "there is no transport 'ws'; the transports are stdio and http"),
        ({**SERVER, "type": "http"}, "the type 'http' needs a url, and there is none"),
        ({**URL, "type": "stdio"}, "the type 'stdio' needs a command, and there is none"),
        ({**SERVER, "disabledTools": ["t"]}, '"hidden": true'),
        ({**SERVER, "includeTools": ["t"]}, "hide the other tools by name"),
        ({**SERVER, "tools": ["*", "t"]}, "an object of settings by name is needed"),
        ({**SERVER, "envFile": ".env"}, "envFile is not read; put its variables into env"),
        ({**URL, "oauth": {}}, "mcpenv does not sign in; put a token into headers"),
        ({**SERVER, "timeout": "60"}, "mcpServers.a.timeout: a number is needed"),
        *(
            ({**SERVER, key: value}, f"mcpServers.a.{key}: true or false is needed")
            for key in ("disabled", "enabled", "isActive")
            for value in (None, "false", 0)
        ),
        ({"tcp": "ws://localhost:1"}, "WebSocket is not supported; write the server's address for streamable HTTP as"),
        ({**URL, "targetAudience": "x"}, "mcpenv does not sign in; put a token into headers"),
        ({**SERVER, "includeTools": []}, "hide the other tools by name"),
        ({"command": ["npx", "x"]}, "put the other words into args"),
        ({"url": "localhost:3000/mcp"}, "'localhost:3000/mcp' is no address of a server"),
        ({"url": "http://[::1/mcp"}, "is no address of a server"),
        ({"url": "http://localhost:99999/mcp"}, "is no address of a server"),
        ({**SERVER, "env": {"A": "$HOME"}}, "$HOME is not filled in; write ${HOME}"),
        ({**URL, "headers": {"Authorization": "Bearer $TOKEN"}}, "$TOKEN is not filled in; write ${TOKEN}"),
        ({**SERVER, "env": {"A": "https://$HOST/x"}}, "mcpServers.a.env: $HOST is not filled in; write ${HOST}"),
        ({**SERVER, "env": {"A": "${NOT_SET_ANYWHERE:-$HOST}"}}, "$HOST is not filled in; write ${HOST}"),
        ({"url": "http://$HOST/mcp"}, "mcpServers.a.url: $HOST is not filled in; write ${HOST}"),
        ({"serverUrl": "http://a/mcp?$filter=b"}, "mcpServers.a.serverUrl: $filter is not filled in"),
        ({**SERVER, "args": ["a ${NOT_SET_ANYWHERE:-{}"]}, "'${NOT_SET_ANYWHERE:-{}' has no closing brace; write $${"),
        ({**SERVER, "args": ["${HOME"]}, "mcpServers.a.args: '${HOME' has no closing brace"),
        ({**SERVER, "args": ["${${HOME}}"]}, "${${HOME}} is known to hosts only"),
        ({**SERVER, "args": ["${HOME:+x}"]}, "${HOME:+x} is known to hosts only"),
        ({**SERVER, "args": ["${workspaceFolder}/a"]}, "write {workspace} or an absolute path"),
        ({**SERVER, "args": ["${command:pick}"]}, "${command:pick} is known to hosts only"),
        ({**SERVER, "args": ["${NOT_SET_ANYWHERE}"]}, "mcpServers.a.args: the environment variable NOT_SET_ANYWHERE"),
        ({**SERVER, "env": {"A": True}}, "mcpServers.a.env.A: Input should be a valid string"),
    ],
)
def test_a_key_that_means_something_else_is_refused_with_what_to_write(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        entry(tmp_path, given)
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"context_servers": {}}, "context_servers: write 'mcpServers' instead"),
        ({"projects": {"/a": {"mcpServers": {}}}}, "copy the mcpServers of one project"),
        ({"mcpServers": {"a": SERVER}, "mcpEnv": {}}, "mcpEnv: unknown key 'mcpEnv'. Did you mean 'mcpenv'?"),
        ({"openapi": "3.1.0"}, "there is no key mcpServers, and no key servers. It has openapi"),
        ({"theme": "Dark", "mcp": 1}, "It has theme, mcp"),
        ({"mcp": {"a": {"type": "local", "command": ["x"]}}}, "the file has no servers"),
        ({}, "It has nothing"),
        ({"mcpServers": None}, "mcpServers: an object is needed"),
        ({"name": "io.example/x", "packages": [{"identifier": "x"}]}, "this describes a server for a registry"),
        ([], "an object with mcpServers is needed"),
        ("{", "line 1"),
        ('{"mcpServers":' + "[" * 100_000 + "]" * 100_000 + "}", "it is nested too deeply"),
        ({"mcpServers": {"a": {**SERVER, "args": ["${T:-" * 5000 + "}" * 5000]}}}, "it is nested too deeply"),
        *(
            ({"mcp": {key: value}, "mcpServers": {"a": SERVER}}, f"mcp.{key}: a list of the names of servers is needed")
            for key in ("allowed", "excluded")
            for value in (None, "servers", [1], {"a": True})
        ),
        ({"mcpServers": {"a": SERVER}, "inputs": {"id": "a"}}, "inputs: a list is needed"),
        ({"mcpServers": {"a": SERVER}, "mcpenv": {"redact": {"KEY": "$KEY"}}}, "$KEY is not filled in; write ${KEY}"),
        ({"mcpServers": {"a": SERVER}, "inputs": [{"id": "x"}, {"id": "x"}]}, "inputs: 'x' is there twice; keep one"),
        ({"mcpServers": {"a": SERVER}, "mcp": {"servers": {"b": SERVER}}}, "mcpServers and mcp.servers: put all"),
        ({"servers": {"a": SERVER}, "mcp": {"servers": {"b": SERVER}}}, "servers and mcp.servers: put all servers"),
        ({"servers": {"a": SERVER}, "mcpServers": {"b": SERVER}}, "mcpServers and servers: put all servers into one"),
        ({"mcpServers": [{"name": "a", **SERVER}, {"name": "a", "command": "y"}]}, "mcpServers: 'a' is there twice"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "'a' is there twice; keep one of them"),
    ],
)
def test_a_file_without_servers_or_with_unclear_ones_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, content)
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"servers": {"a": {"uri": "x"}}}, "servers.a.uri: unknown key"),
        ({"servers": {"a": {**SERVER, "env": {"A": True}}}}, "servers.a.env.A: Input should be a valid string"),
        ({"servers": {"a": {"comand": "x"}}}, "servers.a.comand: unknown key 'comand'"),
        ({"servers": 1}, "servers: an object is needed"),
        ({"servers": {}}, "servers: "),
        ({"mcp": {"servers": {"a": {"uri": "x"}}}}, "mcp.servers.a.uri: unknown key"),
    ],
)
def test_a_refusal_names_the_key_that_the_file_has(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, content)
    assert f": {said}" in str(raised.value) and "mcpServers" not in str(raised.value)


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "inputs.md"

TAKEN: dict[str, Any] = {
    "command": "x",
    "args": ["a", 1],
    "env": {"A": 1, "B": None},
    "cwd": "/tmp",
    "url": URL["url"],
    "headers": {"A": 1},
    "timeout": 5,
    "disabled": False,
    "enabled": True,
    "isActive": True,
    "httpUrl": URL["url"],
    "serverUrl": URL["url"],
    "type": "stdio",
    "transport": "stdio",
    "transportType": "stdio",
}
"""The keys that are translated, each with a value that is taken."""

_OF_ADDRESSES = ("url", "headers", "httpUrl", "serverUrl")


def keys_of_the_page() -> dict[str, str]:
    """Return what the page says of each key of a server; a key in several rows has all texts."""
    section = PAGE.read_text(encoding="utf-8").partition("| key of a server |")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in section.splitlines()[2:]:
        names, what = line.strip("|").split(" | ", 1)
        for name in re.findall(r"`(\w[^`]*)`", names):
            key = name.partition(":")[0].split(".")[-1]
            found[key] = found.get(key, "") + what.strip()
    return found


@pytest.mark.parametrize("key", keys_of_the_page())
def test_each_key_of_the_page_is_what_the_page_says(tmp_path: Path, key: str) -> None:
    what = keys_of_the_page()[key]
    base: dict[str, Any] = {} if key in ("url", "httpUrl", "serverUrl") else URL if key in _OF_ADDRESSES else SERVER
    if key in ("allowed", "excluded"):  # of the file, not of a server
        config = read(tmp_path, {"mcpServers": {"a": SERVER, "b": SERVER}, "mcp": {key: ["a"]}})
        assert list(config.servers) == (["a"] if key == "allowed" else ["b"])
    elif key in TAKEN:
        assert entry(tmp_path, {**base, key: TAKEN[key]}) is not None
    elif what.startswith("no effect"):
        assert entry(tmp_path, {**SERVER, key: ["anything"]}) == entry(tmp_path, SERVER)
    else:
        assert what.startswith("refused"), what
        with pytest.raises(ConfigurationError, match=rf"mcpServers\.a\.{key}: ") as raised:
            entry(tmp_path, {**SERVER, key: ["t"]})
        advised = re.search(r"write `(\w+)`|into `(\w+)`|\"hidden\"|by name|network|no roots", what)
        assert "did you mean" not in str(raised.value) and (advised or key in ("roots", "sandbox"))
        for name in advised.groups() if advised else ():
            assert name is None or name in str(raised.value)


def test_each_key_that_has_no_effect_or_an_advice_is_on_the_page() -> None:
    page = keys_of_the_page()
    assert {key for key in WITHOUT_EFFECT if key not in page} == {"_comment", "notes"}
    assert {key for key in WITHOUT_EFFECT & page.keys() if not page[key].startswith("no effect")} == set()


def test_a_key_that_no_host_has_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown key 'comand'.*Did you mean 'command'"):
        entry(tmp_path, {"comand": "x"})


@pytest.mark.parametrize(("path", "status"), [("/sse", 404), ("/events", 405)])
def test_an_address_of_sse_is_named_as_such(path: str, status: int) -> None:
    """A server of the transport before streamable HTTP: it sends events to GET, and refuses POST."""

    class Sse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"event: endpoint\ndata: /messages?session=1\n\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(status)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sse)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        with pytest.raises(TargetError) as raised:
            load_target(f"mcp:{url}")
        assert url in str(raised.value)
        assert "SSE, which this may be an address for, is not supported" in str(raised.value)
        assert "give the address for streamable HTTP" in str(raised.value)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


def test_variables_are_filled_in_wherever_hosts_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T_SET", "value")
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.delenv("T_UNSET", raising=False)
    servers = {
        "a": {
            "command": "${T_SET}",
            "args": ["${T_SET}/${env:T_SET}", "${T_UNSET:-}", "${T_UNSET:-a b}", "${T_SET:-d}", "$${T_SET}", "$T_SET"],
            "env": {"KEY": "${input:api-key}", "REGION": "${input:region}", "HOME": "${userHome}", "SEP": "${/}"},
        },
        "b": {"url": "http://${T_UNSET:-localhost}:80/mcp", "headers": {"A": "Bearer ${T_SET}"}},
    }
    inputs = [{"id": "region", "type": "pickString", "options": ["eu", "us"], "default": "eu"}]
    config = read(tmp_path, {"servers": servers, "inputs": inputs})
    a, b = config.servers.values()
    assert (a.command, a.args) == ("value", ["value/value", "", "a b", "value", "${T_SET}", "$T_SET"])
    assert a.env == {"KEY": "secret", "REGION": "eu", "HOME": str(Path.home()), "SEP": os.sep}
    assert (b.url, b.headers) == ("http://localhost:80/mcp", {"A": "Bearer value"})


SET = {"T_HOST": "host", "T_KEY": "secret"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${T_UNSET:-${T_HOST}}", "host"),
        ("${T_UNSET:-a ${T_UNSET:-${T_KEY} b} c}d", "a secret b cd"),
        ('${T_UNSET:-{"a":{"b":1}}}', '{"a":{"b":1}}'),
        ('{"a":"${T_HOST}"}', '{"a":"host"}'),
        ("${T_UNSET:-$${T_HOST}}", "${T_HOST}"),
        ("$${T_UNSET:-${T_HOST}}", "${T_UNSET:-host}"),
        ("$$${T_HOST}", "$${T_HOST}"),
        ("$${", "${"),
        *((text, text) for text in ("pa$$word", "$5", "a$", "$", "$$T_HOST", "$ {T_HOST}", "{$}", "US$")),
    ],
)
def test_variables_are_nested_and_other_dollars_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: str
) -> None:
    for name, each in SET.items():
        monkeypatch.setenv(name, each)
    monkeypatch.delenv("T_UNSET", raising=False)
    for folder in (tmp_path, tmp_path / ".gemini"):
        folder.mkdir(exist_ok=True)
        found = entry(folder, {**SERVER, "args": [text], "env": {"A": text}})
        assert (found.args, found.env) == ([value], {"A": value})


@pytest.mark.parametrize("where", [".gemini/settings.json", "gemini-extension.json", "mcp.json"])
def test_dollar_names_are_filled_in_for_gemini_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    for name, each in SET.items():
        monkeypatch.setenv(name, each)
    monkeypatch.delenv("T_UNSET", raising=False)
    file = tmp_path / where
    file.parent.mkdir(exist_ok=True)
    header = {"Authorization": "Bearer $T_KEY"}
    local = {"command": "x", "args": ["$T_HOST/$T_UNSET"], "env": {"A": "https://$T_HOST/${T_UNSET:-$T_KEY}"}}
    servers: dict[str, Any] = {"a": {"httpUrl": "http://$T_HOST/mcp", "headers": header}}
    if where != "mcp.json":
        servers["b"] = local
    file.write_text(json.dumps({"mcpServers": servers}))
    a, *others = read_config(file).servers.values()
    assert (a.url, a.headers) == ("http://host/mcp", {"Authorization": "Bearer secret"})
    assert all((b.args, b.env) == (["host/$T_UNSET"], {"A": "https://host/secret"}) for b in others)
    file.write_text(json.dumps({"mcpServers": {"a": {"httpUrl": "http://$T_UNSET/mcp"}}}))
    with pytest.raises(ConfigurationError, match=r"a\.httpUrl: the environment variable T_UNSET is not set"):
        read_config(file)


def test_an_input_without_a_value_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DB_URL", raising=False)
    servers = {"a": {"command": "x", "env": {"DB": "${input:db-url}"}}}
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, {"servers": servers, "inputs": [{"id": "db-url", "description": "The database"}]})
    assert "the input 'db-url' (The database) has no value; set the environment variable DB_URL" in str(raised.value)


@pytest.mark.parametrize(
    ("where", "root"), [("mcp.json", "."), (".claude-plugin/plugin.json", "."), ("a/mcp.json", "a")]
)
def test_folders_of_plugins_and_projects_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, root: str
) -> None:
    monkeypatch.delenv("CLAUDE_PLUGIN_ROOT", raising=False)
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", "/project")
    file = tmp_path / where
    file.parent.mkdir(exist_ok=True)
    args = ["${CLAUDE_PLUGIN_ROOT}/x.js", "${extensionPath:-d}${/}y", "${CLAUDE_PROJECT_DIR:-.}"]
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "x", "args": args}}}))
    folder = (tmp_path / root).resolve()
    assert read_config(file).servers["a"].args == [f"{folder}/x.js", f"{folder}/y", "/project"]
    with pytest.raises(ConfigurationError, match="CLAUDE_PLUGIN_ROOT is not set"):
        read_config(json.loads(file.read_text()))


@pytest.mark.parametrize("host", [".vscode", ".cursor", ".roo", ".gemini"])
def test_relative_paths_of_a_hosts_file_follow_the_project(tmp_path: Path, host: str) -> None:
    (tmp_path / "servers").mkdir()
    (tmp_path / host).mkdir()
    (tmp_path / "servers" / "a.py").write_text("")
    (tmp_path / host / "beside.json").write_text("")
    given = {"command": "x", "args": ["servers/a.py", "beside.json", "word"]}
    a = read(tmp_path / host, {"servers": {"a": given, "b": {"command": "x", "cwd": "servers"}}}).servers
    assert a["a"].args == [str(tmp_path / "servers" / "a.py"), str(tmp_path / host / "beside.json"), "word"]
    assert a["b"].cwd == str(tmp_path / "servers")


def test_a_working_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    read(tmp_path, {"mcpServers": {"a": {"command": sys.executable, "cwd": "gone"}}})
    with pytest.raises(TargetError, match=r"there is no folder '[^']*/gone', which is its cwd"):
        load_target(str(tmp_path / "mcp.json"))


SAYS_WHERE = """
import os, sys
from fastmcp import FastMCP

server = FastMCP("where")


@server.tool
def where() -> list[str]:
    \"\"\"Tell the working directory and the arguments.\"\"\"
    return [os.getcwd(), *sys.argv[1:]]


server.run(show_banner=False)
"""


@pytest.mark.parametrize("word", ["~nobody-has-this/x", "x" * 5000, "a\0b", "a/" * 5000])
def test_a_word_that_is_no_path_stays(tmp_path: Path, word: str) -> None:
    (tmp_path / "files").mkdir()
    config = read(tmp_path, {"mcpServers": {"a": {**SERVER, "args": [word]}}, "mcpenv": {"workspace": "files"}})
    assert config.servers["a"].args == [word]
    assert shlex.split(with_absolute_paths(shlex.join(["x", word]))) == ["x", word]


def test_relative_paths_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    (tmp_path / "sub").mkdir()
    other.mkdir()
    (tmp_path / "server.py").write_text(SAYS_WHERE)
    (tmp_path / "data.json").write_text("{}")
    monkeypatch.chdir(other)
    read(tmp_path, {"mcpServers": {"a": {"command": sys.executable, "args": ["server.py", "data.json", "word"]}}})
    with load_target("../mcp.json").make() as env:
        env.reset()
        assert env.call_tool("where").result.data[1:] == [str(tmp_path / "data.json"), "word"]
    read(tmp_path, {"mcpServers": {"a": {"command": sys.executable, "args": ["../server.py"], "cwd": "sub"}}})
    with load_target("../mcp.json").make() as env:
        env.reset()
        assert env.call_tool("where").result.data == [str(tmp_path / "sub")]


def test_a_word_that_names_a_file_of_the_workspace_stays(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for folder in (tmp_path, tmp_path / "files"):
        (folder / "notes.txt").write_text("")
    servers = {"a": {**SERVER, "args": ["notes.txt"], "state": "workspace"}}
    config = read(tmp_path, {"mcpServers": servers, "mcpenv": {"workspace": "files"}})
    assert config.servers["a"].args == ["notes.txt"]
    assert config.environment.workspace == tmp_path / "files"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"command": "cmd", "args": ["/c", "npx", "-y", "x"]}, "make 'npx' the command"),
        ({"command": "python3 -m x"}, "make 'python3' the command, and put the other words into args"),
    ],
)
def test_a_command_of_a_shell_says_how_to_write_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match="there is no program") as raised:
        ProxyEnvironment.from_config({"mcpServers": {"a": given}})
    assert said in str(raised.value)


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(TargetError, match="write http://localhost:3000/mcp"):
        load_target("mcp:localhost:3000/mcp")
