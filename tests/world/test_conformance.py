"""The official MCP conformance suite against ``mcpenv run``, and against `MCPToolClient`.

The servers have tools of the environment's own, or those of a FastMCP server that is handed in. Each has one worker or
two, and serves in simulation, in production, or at the address of an episode. What the suites print of themselves, and
a table of all servers, is shown whatever pytest captures, so that it stands in CI's log.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from proxy import nginx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "stock")]
from programs import node_environment, script  # noqa: E402
from serving import served  # noqa: E402

WORLDS = {
    "own tools": ROOT / "envs" / "conformance_mcp",
    "handed-in server": Path(__file__).with_name("conformance_mounted"),
}
SUITE_VERSION = "0.2.0-alpha.12"
SUITE_TIMEOUT_S = 600
PROGRAM_TIMEOUT_MS = 480_000
"""The suite starts all client programs at once."""

TASKS = {
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
    "tasks-status-notifications",
}
"""An extension that mcpenv does not have."""

SKIPPED = {"tasks-status-notifications"}
"""Stands as passed, because nothing could be tried."""

OTHER_GRANTS = {
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
}
"""Extensions of OAuth that the driver program does not choose."""

pytestmark = [pytest.mark.world, pytest.mark.timeout(SUITE_TIMEOUT_S + 60)]


@dataclass
class Report:
    """The output of a suite.

    Attributes:
        status: its exit status.
        summary: its own summary, as printed.
        passed: by scenario, whether it stands there as passed.
        unscored: the scenarios that do not count.
        checks: by scenario, the statuses of its checks by their ids.
    """

    status: int
    summary: str
    passed: dict[str, bool]
    unscored: set[str]
    checks: dict[str, dict[str, set[str]]]

    @property
    def scored(self) -> list[str]:
        return [name for name in self.passed if name not in self.unscored]

    @property
    def failing(self) -> set[str]:
        return {name for name, passed in self.passed.items() if not passed}


class Suite:
    """The suite as npm installed it."""

    def __init__(self, node_modules: Path, work: Path) -> None:
        self._work = work
        self._program = node_modules / ".bin" / "conformance"
        self._environment = {**os.environ, **node_environment(node_modules, work)}
        package = node_modules / "@modelcontextprotocol" / "conformance" / "package.json"
        assert json.loads(package.read_text())["version"] == SUITE_VERSION

    def run(self, *arguments: str) -> Report:
        results = self._work / "results"
        ended = subprocess.run(
            [str(self._program), *arguments, "-o", str(results)],
            cwd=self._work,
            env=self._environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=SUITE_TIMEOUT_S,
            check=False,
        )
        found = re.search(r"^=== (SUITE )?SUMMARY ===.*", ended.stdout, re.MULTILINE | re.DOTALL)
        assert found is not None, ended.stdout + ended.stderr
        summary = found.group()
        scenarios = re.findall(r"^(✓|✗) (\S+): \d+ passed, \d+ failed", summary, re.MULTILINE)
        return Report(
            status=ended.returncode,
            summary=summary,
            passed={name: mark == "✓" for mark, name in scenarios},
            unscored=set(re.findall(r"^  [✓✗] (\S+) \(", summary, re.MULTILINE)),
            checks={scenario: _statuses(results, scenario) for _, scenario in scenarios},
        )


def _statuses(results: Path, scenario: str) -> dict[str, set[str]]:
    files = [*results.glob(f"{scenario}-20*/checks.json"), *results.glob(f"server-{scenario}-20*/checks.json")]
    assert len(files) == 1, (scenario, files)
    statuses: dict[str, set[str]] = {}
    for check in json.loads(files[0].read_text()):
        statuses.setdefault(check["id"], set()).add(check["status"])
    return statuses


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    named = os.environ.get("MCPENV_NODE_MODULES")
    assert named, "MCPENV_NODE_MODULES names no folder; .ci/run installs the npm packages and sets it"
    return Suite(Path(named).resolve(), tmp_path)


@dataclass(frozen=True)
class Case:
    """A server, and the place in it where the suite acts.

    Attributes:
        world: a key of `WORLDS`.
        place: "simulation" or "production", at ``/mcp``; or "episode".
        proxied: True if nginx is in front.
    """

    world: str
    workers: int
    place: str
    proxied: bool = False

    def __str__(self) -> str:
        workers = "one worker" if self.workers == 1 else "two workers"
        return ", ".join((self.world, workers, self.place, *(["nginx"] if self.proxied else [])))


CASES = [
    Case("own tools", 1, "simulation"),
    Case("own tools", 1, "episode"),
    Case("own tools", 2, "production"),
    Case("own tools", 2, "simulation", proxied=True),
    Case("handed-in server", 1, "production"),
    Case("handed-in server", 2, "episode"),
]
"""Each place with one worker and with two; all twelve with both worlds would take twice the time."""


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def server(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The MCP address of a case."""
    mode = "production" if case.place == "production" else "simulation"
    with ExitStack() as stack:
        url = stack.enter_context(served(WORLDS[case.world], "--workers", str(case.workers), "--mode", mode))
        if case.proxied:
            url = stack.enter_context(nginx(url, tmp_path_factory.mktemp("nginx")))
        if case.place != "episode":
            yield f"{url}/mcp"
            return
        begun = httpx.post(f"{url}/reset", json={}, timeout=60).json()
        yield begun["info"]["mcp_url"]
        assert httpx.delete(f"{url}/sessions/{begun['session_id']}", timeout=60).status_code == 200


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[dict[Case, dict[str, str]]]:
    """The results by case and revision. They are printed at the end."""
    results: dict[Case, dict[str, str]] = {}
    yield results
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n---- conformance {SUITE_VERSION} server\n{'':44}{'2025-11-25':>12}{'2026-07-28':>12}")
        for case, scores in results.items():
            print(f"{case!s:44}{scores.get('2025-11-25', '-'):>12}{scores.get('2026-07-28', '-'):>12}")


def show(capsys: pytest.CaptureFixture[str], title: str, said: str) -> None:
    with capsys.disabled():
        print(f"\n---- {title}\n{said.strip()}\n")


@pytest.mark.parametrize(
    ("revision", "count", "not_passing"),
    [("2025-11-25", 30, set()), ("2026-07-28", 37, TASKS - SKIPPED)],
)
def test_a_server_has_everything_that_the_revision_requires(
    revision: str,
    count: int,
    not_passing: set[str],
    case: Case,
    server: str,
    suite: Suite,
    capsys: pytest.CaptureFixture[str],
    table: dict[Case, dict[str, str]],
) -> None:
    report = suite.run("server", "--url", server, "--requirements", revision)
    passed = sum(report.passed[name] for name in report.scored)
    table.setdefault(case, {})[revision] = f"{passed}/{len(report.scored)}"
    if case == CASES[0]:
        title = f"conformance {SUITE_VERSION} server --requirements {revision}, {case}"
        show(capsys, title, f"{report.summary}\n{passed}/{len(report.scored)} scored scenarios, exit {report.status}")
    assert report.status == 0, report.summary
    assert (passed, len(report.scored)) == (count, count), report.summary
    warned = {
        (scenario, check)
        for scenario in set(report.passed) - not_passing - TASKS
        for check, statuses in report.checks[scenario].items()
        if statuses - {"SUCCESS", "INFO"}
    }
    assert warned == set()
    assert report.failing == not_passing
    assert report.unscored >= not_passing
    if revision == "2025-11-25":
        check_polling(report.checks["server-sse-polling"])
    else:
        check_stateless(report.checks["server-stateless"])


def check_polling(checks: dict[str, set[str]]) -> None:
    """The scenario stands as passed also where it could try nothing."""
    for name in ("priming-event", "retry-field", "disconnect-resume"):
        assert checks[f"server-sse-{name}"] == {"SUCCESS"}


def check_stateless(checks: dict[str, set[str]]) -> None:
    """Subscriptions included: a server without them passes by skipping."""
    for name in (
        "sends-subscription-ack",
        "tags-subscription-id",
        "honors-notification-filter",
        "sends-prompts-list-changed-on-subscription",
        "sends-tools-list-changed-on-subscription",
    ):
        assert checks[f"sep-2575-server-{name}"] == {"SUCCESS"}


@pytest.mark.parametrize(("revision", "count"), [("2025-11-25", 18), ("2026-07-28", 32)])
def test_the_tool_client_does_everything_that_the_revision_requires(
    revision: str, count: int, suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{sys.executable} {Path(__file__).with_name('conformance_client.py')}"
    options = ("--requirements", revision, "--timeout", str(PROGRAM_TIMEOUT_MS))
    report = suite.run("client", "--command", command, *options)
    title = f"conformance {SUITE_VERSION} client --requirements {revision}"
    passed = sum(report.passed[name] for name in report.scored)
    show(capsys, title, f"{report.summary}\n{passed}/{len(report.scored)} scored scenarios, exit {report.status}")
    assert report.status == 0
    assert (passed, len(report.scored)) == (count, count)
    assert report.failing == OTHER_GRANTS
    assert report.unscored >= OTHER_GRANTS


@pytest.mark.parametrize("mode", ["simulation", "production"])
@pytest.mark.parametrize("world", WORLDS)
def test_mcp_conform_finds_nothing_over_stdio(
    world: str, mode: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Its HTTP transport reads no event streams, with which FastMCP answers clients of the handshake era.
    command = f"{sys.executable} -m mcpenv run {WORLDS[world]} --mode {mode} --transport stdio"
    ended = subprocess.run(
        [script("mcp-conform"), "server", "--transport", "stdio", "--command", command, "--timeout", "60"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=SUITE_TIMEOUT_S,
        check=False,
    )
    said = ended.stdout.splitlines()
    result = next((line.strip() for line in said if "Result:" in line), "")
    show(capsys, f"mcp-conform server --transport stdio, {world}, {mode}", f"{result}\nexit {ended.returncode}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed, of = map(int, re.findall(r"(\d+)/(\d+) checks passed", result)[0])
    assert passed == of > 80
