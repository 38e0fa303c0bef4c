"""``mcpenv eval``: what it prints, its exit status, its report, and that nothing that ends it loses an episode."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import mcp
import pytest
from command_line import Done, processes_with
from evaluate_endpoint import Endpoint, scripted_endpoint
from evaluate_world import Counting

from mcpenv.cli import execute
from mcpenv.extensions.evaluation import read_results
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes

pytestmark = pytest.mark.slow
"""A process each, or several."""

WORLD = Path(__file__).with_name("evaluate_world.py")
COUNTING = f"{WORLD}:Counting"
PROGRAM = Path(__file__).with_name("evaluate_program.py")
BY_PROGRAM = ("--agent", f"{sys.executable} {PROGRAM} {{mcp_url}}", "--show", str(Path(mcp.__file__).parents[1]))
TIMEOUT_S = 60.0

Cli = Callable[..., Done]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_endpoint() as running:
        yield running


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Command lines in this process; the environment's server is a process of its own."""
    for variable in ("MCPENV_CONTROL_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        return Done(execute(["eval", *arguments]), *capfd.readouterr())

    return run


def options(endpoint: Endpoint, out: Path, *more: str) -> list[str]:
    agent = ["--model", "scripted", "--base-url", endpoint.url, "--max-turns", "5"]
    return [COUNTING, *agent, "--out", str(out), *more]


# -- what it prints


def test_the_document_the_report_and_the_exit_status(cli: Cli, endpoint: Endpoint, tmp_path: Path) -> None:
    given = options(endpoint, tmp_path, "--split", "many", "-k", "2", "--set", "bonus=0.25")
    done = cli(*given, "--json", "--fail-under", "0.7")
    assert (done.status, done.err.splitlines()) == (
        1,
        [f"Report: {tmp_path}/report.html", "error: pass@1 is 0.500, below --fail-under 0.7"],
    )
    document = json.loads(done.out)
    # A bonus for each of two steps, beside 1 for being there.
    assert document["pass_at"]["1"]["value"] == pytest.approx(0.5)
    assert document["mean_return"]["value"] == pytest.approx(0.5 * 1.5)
    assert (document["set"], document["directory"]) == (["bonus=0.25"], str(tmp_path))
    assert document == json.loads((tmp_path / "summary.json").read_text())
    _check_report(tmp_path, document)
    assert cli(*given, "--fail-under", "0.50000000000001").status == 0  # but for rounding, as everywhere
    assert cli(*given, "--fail-under", "0.500001").status == 1


def _check_report(directory: Path, document: dict[str, Any]) -> None:
    """The page has the figures, and needs nothing else."""
    page = (directory / "report.html").read_text()
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert float(shown["pass@1"]) == pytest.approx(document["pass_at"]["1"]["value"], abs=5e-4)
    assert float(shown["Mean return"]) == pytest.approx(document["mean_return"]["value"], abs=5e-4)
    table = page.partition("<h2>Tasks</h2>")[2].partition("<h2>")[0]
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="number">(?:<span class="error">)?(.*?)<', table)
    tasks = {f"many/{task['name']}": f"{task['passed']}/{task['samples']}" for task in document["tasks"]}
    assert dict(rows) == tasks
    assert page.count("<svg") == 4 and page.count("<figure ") == 4
    # What a browser would fetch; names of XML are no addresses.
    fetched = re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!#)|@import|<script|<link""", page)
    assert fetched == []


def test_what_tasks_and_agents_wrote_is_text_in_the_report(cli: Cli, tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'import sys; sys.exit(\"<script>alert(2)</script>\")' {{mcp_url}}"
    done = cli(COUNTING, "--agent", command, "--split", "odd", "--out", str(tmp_path))
    assert done.status == 1
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    for text in ("odd/id <script>alert(1)</script>", "agent crashed: exit status 1: <script>alert(2)</script>"):
        assert text in unescape(page)


def test_a_program_that_crashes_in_every_episode_fails_the_command(cli: Cli, tmp_path: Path) -> None:
    rows = [{"id": name, "prompt": f"{how}: {name}"} for name, how in (("a", "crash"), ("b", "solve"), ("c", "crash"))]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (COUNTING, "--tasks", str(tmp_path / "tasks.jsonl"))
    done = cli(*given, "--out", str(tmp_path / "all"), "--agent", "sh -c 'echo no key >&2; exit 7'")
    said = f"error: the agent crashed in every episode: exit status 7: no key. Its output is in {tmp_path}/all/agents"
    assert done.status == 1 and said in done.err
    some = cli(*given, "--out", str(tmp_path / "some"), *BY_PROGRAM)
    assert some.status == 0 and "error:" not in some.err
    assert Counter(result.failure for result in read_results(tmp_path / "some")) == {"agent_crashed": 2, None: 1}


def test_a_run_stops_if_the_program_crashes_alike_in_each_of_the_first_episodes(cli: Cli, tmp_path: Path) -> None:
    rows = [{"id": str(number), "prompt": "solve: it"} for number in range(20)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (COUNTING, "--tasks", str(tmp_path / "tasks.jsonl"))
    done = cli(*given, "--out", str(tmp_path / "all"), "--agent", "sh -c 'echo no key >&2; exit 7'")
    said = f"without a call: exit status 7: no key. Its output is in {tmp_path}/all/agents. --fresh begins anew"
    assert done.status == 2 and said in done.err
    assert 5 <= len(list(read_results(tmp_path / "all"))) < 10
    differing = cli(*given, "--out", str(tmp_path / "differing"), "--agent", "sh -c 'echo $MCPENV_MCP_URL >&2; exit 7'")
    assert differing.status == 1 and len(list(read_results(tmp_path / "differing"))) == 20


def test_a_script_in_another_folder_imports_its_neighbours(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/neighbour.py").write_text("said = 'imported'")
    (tmp_path / "agent/main.py").write_text("import neighbour; print(neighbour.said)")
    command = f"{sys.executable} {tmp_path}/agent/main.py"
    cli(COUNTING, "--agent", command, "--split", "odd", "-n", "1", "--out", str(tmp_path / "out"))
    (output,) = (path for path in (tmp_path / "out/agents").rglob("*.log"))
    assert output.read_text() == "imported\n"


def test_an_episode_without_a_score_is_said_and_fails_the_command(
    cli: Cli, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-mine")
    rows = [{"id": "a", "prompt": "solve: x"}, {"id": "b", "prompt": "solve: y", "options": {"how": "break_reset"}}]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli(*options(endpoint, tmp_path / "out", "--tasks", str(tmp_path / "tasks.jsonl")))
    assert done.status == 1
    assert "error: 1 episode without a score (the first: EXECUTION_ERROR: " in done.err
    assert "); --retry-errors repeats them" in done.err
    assert {result.task: result.score for result in read_results(tmp_path / "out")} == {"a": 1.0, "b": None}
    assert set(endpoint.keys) == {"Bearer key-of-mine"}
    assert "RuntimeError: this reset breaks" in (tmp_path / "out" / "server.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([COUNTING], "no single agent is chosen: give either --model NAME or --agent COMMAND"),
        ([COUNTING, "--model", "a", "--agent", "b"], "no single agent is chosen"),
        ([COUNTING, "--agent", "cat", "--temperature", "1"], "--temperature: only for --model"),
        ([COUNTING, "--agent", "cat", "--temperature", "0"], "--temperature: only for --model"),
        ([COUNTING, "--agent", "cat", "--images"], "--images: only for --model"),
        ([COUNTING, "--agent", "no-such-program"], "there is no program 'no-such-program'"),
        ([COUNTING, "--agent", "python3 no_such_agent.py"], "there is no file 'no_such_agent.py'"),
        ([COUNTING, "--model", "a", "--base-url", "nowhere"], "'nowhere' is not an http(s):// URL"),
        ([COUNTING, "--model", "a", "--system", "no-such-file"], "--system no-such-file: No such file"),
        ([COUNTING, "--model", "a", "--request-fields", "[]"], "--request-fields is not a JSON object"),
        ([COUNTING, "--model", "a", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY has no key"),
        ([COUNTING, "--agent", "cat", "--control-token", "12345678"], "are for a server at a URL"),
        ([COUNTING, "--agent", "cat", "--tasks", "nothing.jsonl"], "there is no such file"),
        (["http://127.0.0.1:9", "--agent", "cat"], "cannot connect to http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(cli: Cli, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = cli(*arguments, "--out", str(tmp_path / "out"))
    assert (done.status, done.out) == (2, "")
    assert said in done.err and done.err.count("\n") == 1


def test_the_figures_are_printed_one_a_line(cli: Cli, endpoint: Endpoint, tmp_path: Path) -> None:
    done = cli(*options(endpoint, tmp_path, "-n", "1"))
    assert done.status == 0
    assert done.out == (
        "episodes          1 (tasks: 1), 1 with a return\n"
        "pass@1            1.000  [0.207, 1.000]\n"
        "mean return       1.000\n"
        "  verified        1.000\n"
        "  verified/there  1.000\n"
        "steps             mean 2.0, median 2, most 2\n"
        "tokens            30 in, 9 out\n"
        "status            1 completed\n"
        f"results           {tmp_path}\n"
    )


# -- interrupted


class Running:
    """A real ``mcpenv eval``."""

    def __init__(self, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MCPENV", "OPENAI"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mcpenv", "eval", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def end(self, number: signal.Signals | None = None) -> Done:
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return Done(self.process.returncode, out, err)


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    started = Running(*arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.communicate()


def wait_for_held(endpoint: Endpoint, count: int) -> None:
    """Return when so many conversations wait, so that those before them are over."""
    for _ in range(count):
        assert endpoint.holding.acquire(timeout=TIMEOUT_S)


def wait_for_end(process: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    ended = select.select([descriptor], [], [], TIMEOUT_S)[0]
    os.close(descriptor)
    assert ended


def runs(process: int) -> bool:
    """Return True if the process runs, and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def check_whole(directory: Path, total: int) -> None:
    """Each episode is in the results once, and in the record once."""
    results = read_results(directory)
    assert len(results) == total and len((directory / "results.jsonl").read_text().splitlines()) == total
    assert len({result.key for result in results}) == total
    in_record = [episode.id for episode in read_episodes(directory / "record")]
    assert sorted(in_record) == sorted(str(result.episode_id) for result in results)


def servers_of(directory: Path) -> list[int]:
    """Processes whose stderr is the log of the evaluation's own server."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stderr = os.readlink(process / "fd" / "2")
            except OSError:
                continue
            if stderr == str(directory / "server.log"):
                found.append(int(process.name))
    return found


def test_ctrl_c_in_the_middle_loses_nothing_and_the_same_command_goes_on(endpoint: Endpoint, tmp_path: Path) -> None:
    with serving(Counting) as url:
        given = [url, *options(endpoint, tmp_path, "--split", "many", "-k", "2", "--concurrency", "3")[1:]]
        endpoint.hold_after = 10
        with running(*given) as first:
            wait_for_held(endpoint, 3)
            stopped = first.end(signal.SIGINT)
        assert (stopped.status, stopped.out) == (130, "")
        assert stopped.err == f"10 of 24 episodes are finished; the same command with --out {tmp_path} continues.\n"
        before = {result.episode_id for result in read_results(tmp_path)}
        check_whole(tmp_path, 10)

        endpoint.release()
        with running(*given) as second:
            done = second.end()
    assert done.status == 0, done.err
    assert "10 of 24 episodes are finished already." in done.err
    check_whole(tmp_path, 24)
    assert before < {result.episode_id for result in read_results(tmp_path)}
    # Those under way were begun again, and no others.
    assert endpoint.conversations.total() == 24 + 3


def test_kill_9_in_the_middle_loses_nothing_doubles_nothing_and_leaves_no_server(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    given = options(endpoint, tmp_path, "--split", "many", "-k", "2", "--concurrency", "3")
    endpoint.hold_after = 10
    with running(*given) as killed:
        wait_for_held(endpoint, 3)
        (server,) = servers_of(tmp_path)
        killed.end(signal.SIGKILL)
    wait_for_end(server)
    before = {result.episode_id for result in read_results(tmp_path)}
    check_whole(tmp_path, 10)

    endpoint.release()
    with running(*given) as second:
        done = second.end()
    assert done.status == 0, done.err
    check_whole(tmp_path, 24)
    assert before < {result.episode_id for result in read_results(tmp_path)}
    assert endpoint.conversations.total() == 24 + 3


@pytest.mark.world
@pytest.mark.timeout(600)
def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    rng, seen = random.Random(5), set[str | None]()
    given = options(endpoint, tmp_path, "--split", "many", "-k", "25", "--concurrency", "4")
    with serving(Counting) as url:
        for _ in range(5):
            with running(url, *given[1:]) as killed:
                # From its first new line on, any moment will do.
                wait_for_lines(tmp_path / "results.jsonl", len(seen) + rng.randint(1, 40), killed.process)
                killed.end(signal.SIGKILL)
            now = {result.episode_id for result in read_results(tmp_path)}
            assert seen < now
            seen = now
        with running(url, *given[1:]) as last:
            assert last.end().status == 0
    check_whole(tmp_path, 300)
    assert seen < {result.episode_id for result in read_results(tmp_path)}


@pytest.mark.world
def test_a_full_disk_ends_the_evaluation_and_keeps_what_is_there(endpoint: Endpoint, tmp_path: Path) -> None:
    with serving(Counting) as url:
        given = [url, *options(endpoint, tmp_path, "--split", "many", "-k", "4", "--concurrency", "2")[1:]]
        # No file may have more than 8 KiB.
        limited = subprocess.run(
            ["bash", "-c", 'ulimit -f 8 && exec "$@"', "limited", sys.executable, "-m", "mcpenv", "eval", *given],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert limited.returncode == 2
        assert f"error: {tmp_path} cannot be written: " in limited.stderr
        before = {result.episode_id for result in read_results(tmp_path)}
        assert 0 < len(before) < 48
        with running(*given) as again:
            assert again.end().status == 0
    assert before < {result.episode_id for result in read_results(tmp_path)}
    check_whole(tmp_path, 48)


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_a_signal_to_end_ends_the_programs_that_play(tmp_path: Path, isolation: str) -> None:
    given = (COUNTING, *BY_PROGRAM, "--isolation", isolation, "--split", "slow", "--out", str(tmp_path))
    with running(*given) as first:
        url = _line_of(tmp_path / "agents" / "slow-0.log", "child with: ", first.process)
        assert len(processes_with(url)) >= 2
        (server,) = servers_of(tmp_path)
        stopped = first.end(signal.SIGTERM)
    assert stopped.status == 130 and "0 of 1 episodes are finished" in stopped.err
    assert processes_with(url) == [] and not runs(server)


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[str]) -> None:
    _wait(lambda: file.exists() and file.read_bytes().count(b"\n") >= count, process)


def _line_of(file: Path, beginning: str, process: subprocess.Popen[str]) -> str:
    """Return the rest of that line, once a program has written it."""
    line = re.compile(rf"^{beginning}(.*)\n", re.MULTILINE)
    _wait(lambda: file.exists() and line.search(file.read_text()) is not None, process)
    found = line.search(file.read_text())
    assert found is not None
    return found.group(1)


def _wait(until: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Return when a file is as it should be; nothing but looking tells."""
    deadline = time.monotonic() + TIMEOUT_S
    while not until():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
