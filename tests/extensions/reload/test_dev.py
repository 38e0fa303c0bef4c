"""``mcpenv dev``: every kind of change is served at once, nothing is refused meanwhile, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, Cli, Process, command_lines, free_port, processes_with, started, write

from mcpenv_client import EnvClient
from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.mcp_client import MCPToolClient

CODE = '''
from mcpenv import MCPEnvironment


class {name}(MCPEnvironment):
    """A small world."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def tell() -> str:
            return "{name}"
'''


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def save(folder: Path, name: str) -> None:
    """Write the environment of a name."""
    write(folder, "game", CODE.format(name=name))


def served(process: Process, name: str) -> dict[str, Any]:
    """Wait until an environment of a name is served, and return the event."""
    found = process.wait_for(rf'^\{{"event": "serving".*"name": "{name}".*$')
    event: dict[str, Any] = json.loads(found[0])
    return event


def events(process: Process, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in process.out]
    return [event for event in found if event["event"] == kind]


def ended(argument: str) -> bool:
    """Return True once no process with an argument runs; False if one still does after a while."""
    until = time.monotonic() + TIMEOUT_S
    while processes_with(argument):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class Visitor(threading.Thread):
    """A client that connects anew for each request, without a pause."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._done = threading.Event()
        self.outcomes: Counter[str] = Counter()

    def run(self) -> None:
        while not self._done.is_set():
            try:
                answer = httpx.get(f"{self._url}/metadata", timeout=TIMEOUT_S)
                self.outcomes[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                self.outcomes[repr(error)] += 1

    def end(self) -> Counter[str]:
        self._done.set()
        self.join(TIMEOUT_S)
        return self.outcomes


@pytest.mark.slow
def test_twenty_changes_in_a_row_are_served_and_refuse_no_request(tmp_path: Path) -> None:
    save(tmp_path, "World0")
    with started(tmp_path, "dev", "game", "--port", "0", "--json", "--no-access-log") as process:
        url = served(process, "World0")["addresses"]["url"]
        visitor = Visitor(url)
        visitor.start()
        try:
            for number in range(1, 21):
                save(tmp_path, f"World{number}")
                served(process, f"World{number}")
                assert httpx.get(f"{url}/metadata").json()["name"] == f"World{number}"
        finally:
            outcomes = visitor.end()
        assert process.end(signal.SIGINT) == 0
    assert set(outcomes) == {"200"} and outcomes["200"] >= 20


@pytest.mark.slow
def test_code_that_does_not_load_is_reported_and_the_code_before_it_serves_on(tmp_path: Path) -> None:
    save(tmp_path, "First")
    with started(tmp_path, "dev", "game", "--port", "0") as process:
        url = process.url()
        write(tmp_path, "game", "import os\n\nprice = cost\n")
        process.wait_for(r"^environment\.py changed, loading\.$")
        process.wait_for(r"^error: game/environment\.py:3: NameError: name 'cost' is not defined$")
        process.wait_for(r"^    price = cost$")
        process.wait_for(r"^The code before this change goes on serving\.$")
        assert httpx.get(f"{url}/metadata").json()["name"] == "First"
        save(tmp_path, "Second")
        process.wait_for(rf"^Second reloaded in \d+\.\d\d s  {url}/console$")
        assert httpx.get(f"{url}/metadata").json()["name"] == "Second"
        assert process.end(signal.SIGINT) == 0
    text = "".join(process.err)
    assert "Traceback" not in text and "mcpenv/" not in text


@pytest.mark.slow
def test_a_constructor_that_raises_is_code_that_does_not_load(tmp_path: Path) -> None:
    failing = CODE.format(name="First").replace("        @self.tool", "        1 / 0\n\n        @self.tool")
    write(tmp_path, "game", failing)
    with started(tmp_path, "dev", "game", "--port", "0") as process:
        process.wait_for(r"^error: game/environment\.py:11: ZeroDivisionError: division by zero$")
        assert process.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_broken_start_waits_until_it_is_mended(tmp_path: Path) -> None:
    write(tmp_path, "game", "def f(:")
    port = free_port()
    with started(tmp_path, "dev", "game", "--port", str(port)) as process:
        process.wait_for(r"^error: game/environment\.py:1: SyntaxError: invalid syntax$")
        url = f"http://127.0.0.1:{port}"
        process.wait_for(rf"^{url} shows this until it is mended; waiting for a change\.$")
        for path in ("/metadata", "/console/dev/events"):
            answer = httpx.get(url + path, timeout=TIMEOUT_S)
            told = answer.json()
            assert (answer.status_code, told["code"]) == (503, "CODE_NOT_LOADED")
            assert (told["file"], told["line"], told["source"]) == ("game/environment.py", 1, "def f(:")
        page = httpx.get(f"{url}/console/", headers={"Accept": "text/html"}, timeout=TIMEOUT_S)
        assert page.status_code == 503 and page.headers["refresh"] == "2"
        assert "game/environment.py, line 1" in page.text and "SyntaxError" in page.text
        assert httpx.get(url, headers={"Host": "evil.example"}, timeout=TIMEOUT_S).status_code == 421
        probed = httpx.get(f"{url}/health", headers={"Host": "evil.example"}, timeout=TIMEOUT_S)
        assert (probed.status_code, probed.json()["code"], probed.json()["file"]) == (503, "CODE_NOT_LOADED", None)
        assert "def f" not in probed.text
        with pytest.raises(WireError, match=r"game/environment\.py:1"), EnvClient(url).sync() as env:
            env.reset()
        says = r"HTTP 503: The environment's code does not load: game/environment\.py:1: SyntaxError: invalid syntax"
        with pytest.raises(ConnectionFailed, match=says) as refused, MCPToolClient(url).sync() as tools:
            tools.list_tools()
        assert refused.value.http_status == 503
        for command in (("call", url, "tell"), ("call", f"{url}/mcp", "tell"), ("inspect", url)):
            with started(tmp_path, *command) as asking:
                asking.wait_for(f"^error: cannot connect to {url}(/mcp)?: {says}$")
                assert asking.end() == 2
        write(tmp_path, "game", "1 / 0  # </pre><script>")
        process.wait_for(r"^error: game/environment\.py:1: ZeroDivisionError: division by zero$")
        page = httpx.get(url, headers={"Accept": "text/html"}, timeout=TIMEOUT_S)
        assert "ZeroDivisionError" in page.text and "<script>" not in page.text
        save(tmp_path, "Mended")
        assert process.url() == url
        assert httpx.get(f"{url}/metadata", timeout=TIMEOUT_S).json()["name"] == "Mended"
        assert process.end(signal.SIGINT) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_serves_a_failure_ends_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, "game", "def f(:")
    with started(tmp_path, "dev", "game", "--port", "0", "--json") as process:
        (event,) = [json.loads(process.wait_for(r'^\{"event": "failed".*$')[0])]
        assert httpx.get(event["url"], timeout=TIMEOUT_S).status_code == 503 and not event["serving"]
        assert process.end(number) == 0


@pytest.mark.slow
def test_a_process_that_crashes_is_reported_and_replaced_at_the_next_change(tmp_path: Path) -> None:
    write(tmp_path, "game", "import os\n\nos._exit(7)\n")
    with started(tmp_path, "dev", "game", "--port", "0") as process:
        process.wait_for("^error: the server's process ended with status 7$")
        save(tmp_path, "Mended")
        process.url()
        assert process.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_crash_is_reported_while_a_process_that_the_code_forked_lives_on(tmp_path: Path) -> None:
    save(tmp_path, "First")
    forked = tmp_path / "forked"
    code = f"""
import os, pathlib, signal

if (pid := os.fork()) == 0:
    while True:
        signal.pause()
pathlib.Path({str(forked)!r}).write_text(str(pid))
os._exit(3)
"""
    with started(tmp_path, "dev", "game", "--port", "0") as process:
        process.url()
        write(tmp_path, "game", code)
        try:
            process.wait_for("^error: the server's process ended with status 3$")
        finally:
            os.kill(int(forked.read_text()), signal.SIGKILL)
        save(tmp_path, "Second")
        process.wait_for(r"^Second reloaded in ")
        assert process.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_manifest_tasks_readme_and_imported_siblings_count_as_code(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    sibling = tmp_path / "shared" / "prices.py"
    sibling.write_text("PRICE = 1\n", encoding="utf-8")
    path = f"import sys\n\nsys.path.insert(0, {str(sibling.parent)!r})\nimport prices\n"
    write(tmp_path, "game", path + CODE.format(name="World"))
    game = tmp_path / "game"
    manifest = "schema_version: 1\nname: {name}\nentry: environment.py:World\n"
    (game / "mcpenv.yaml").write_text(manifest.format(name="one"), encoding="utf-8")
    with started(tmp_path, "dev", "game", "--port", "0", "--json") as process:
        served(process, "one")
        for file, text in (
            (game / "README.md", "# One\n"),
            (game / "tasks.jsonl", '{"id": "a"}\n'),
            (sibling, "PRICE = 2\n"),
            (game / "mcpenv.yaml", manifest.format(name="two")),
        ):
            file.write_text(text, encoding="utf-8")
            process.wait_for(rf'^\{{"event": "serving", "generation": \d+, "changed": \["{file.name}"\]')
        served(process, "two")
        (game / "mcpenv.yaml").write_text("name: [\n", encoding="utf-8")
        process.wait_for(r'^\{"event": "failed".*mcpenv\.yaml:\d')
        assert process.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_file_that_is_replaced_or_deleted_and_written_anew_is_one_change(tmp_path: Path) -> None:
    save(tmp_path, "First")
    file = tmp_path / "game" / "environment.py"
    with started(tmp_path, "dev", "game", "--port", "0", "--json") as process:
        served(process, "First")
        beside = file.with_suffix(".py.part")
        for name in ("Second", "Third", "Fourth"):
            beside.write_text(CODE.format(name=name), encoding="utf-8")
            if name == "Third":
                file.unlink()
            os.replace(beside, file)
            served(process, name)
            os.utime(file)  # touched, and not changed
        assert process.end(signal.SIGINT) == 0
    assert [event["generation"] for event in events(process, "loading")] == [1, 2, 3, 4]
    assert events(process, "failed") == []


@pytest.mark.slow
def test_a_page_is_told_of_failures_and_of_the_reload(tmp_path: Path) -> None:
    save(tmp_path, "First")
    with started(tmp_path, "dev", "game", "--port", "0", "--json") as process:
        url = served(process, "First")["addresses"]["url"]
        with httpx.stream("GET", f"{url}/console/dev/events", timeout=TIMEOUT_S) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            first = next_event(lines)
            assert first[0] == "reloaded" and first[1]["generation"] == 1 and first[1]["changed"] == []
            write(tmp_path, "game", "price = cost\n")
            assert next_event(lines) == ("loading", {"changed": ["environment.py"]})
            kind, failed = next_event(lines)
            assert (kind, failed["file"], failed["line"]) == ("failed", "game/environment.py", 1)
            assert failed["message"] == "NameError: name 'cost' is not defined" and failed["source"] == "price = cost"
            with httpx.stream("GET", f"{url}/console/dev/events", timeout=TIMEOUT_S) as later:
                also = later.iter_lines()
                assert [next_event(also)[0], next_event(also)[0]] == ["reloaded", "failed"]
            save(tmp_path, "Second")
            assert next_event(lines)[0] == "loading"
            assert [line for line in lines if line] == []  # the stream ends with the code that it came from
        with httpx.stream("GET", f"{url}/console/dev/events", timeout=TIMEOUT_S) as stream:
            kind, data = next_event(stream.iter_lines())
            assert (kind, data["server"], data["changed"]) == ("reloaded", first[1]["server"], ["environment.py"])
            assert data["generation"] > first[1]["generation"]
        assert process.end(signal.SIGINT) == 0


def next_event(lines: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the data of the next event of a stream."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))
    pytest.fail("the stream ended")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_process_is_left_when_the_command_ends(tmp_path: Path, number: signal.Signals) -> None:
    save(tmp_path, "First")
    target = str(tmp_path / "game")
    with started(tmp_path, "dev", target, "--port", "0", "--json") as process:
        url = served(process, "First")["addresses"]["url"]
        assert len(processes_with(target)) == 3
        assert process.end(number) == (-number if number is signal.SIGKILL else 0)
        assert ended(target)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.mark.slow
def test_the_command_ends_when_its_fork_server_is_killed(tmp_path: Path) -> None:
    save(tmp_path, "First")
    target = str(tmp_path / "game")
    with started(tmp_path, "dev", target, "--port", "0", "--json") as process:
        served(process, "First")
        fork_server = min(set(processes_with(target)) - {process.popen.pid})
        os.kill(fork_server, signal.SIGKILL)
        assert process.end() == 2
        assert ended(target)
    assert "was ended by another one" in "".join(process.err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere: is not a folder with environment.py"),
        (("game", "--host", "0.0.0.0"), "host 0.0.0.0 is not loopback"),
        (("game", "--max-sessions", "0"), "--max-sessions is 0; it must be 1 or more"),
    ],
)
def test_what_no_change_of_code_mends_is_refused(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    save(tmp_path, "World")
    done = cli("dev", *arguments, "--port", "0")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
