"""The official MCP conformance suite against ``mcpenv run envs/conformance_mcp``, and against `MCPToolClient`.

What they print of themselves is shown whatever pytest captures, so that it stands in CI's log.
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

import pytest
from proxy import nginx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "stock")]
from programs import node_environment, script  # noqa: E402
from serving import served  # noqa: E402

ENVIRONMENT = ROOT / "envs" / "conformance_mcp"
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


@pytest.fixture(scope="module", params=["one worker", "two workers", "two workers behind nginx"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The MCP address of a server of the conformance environment."""
    workers = "1" if request.param == "one worker" else "2"
    with ExitStack() as stack:
        url = stack.enter_context(served(ENVIRONMENT, "--workers", workers))
        if request.param.endswith("nginx"):
            url = stack.enter_context(nginx(url, tmp_path_factory.mktemp("nginx")))
        yield f"{url}/mcp"


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
    server: str,
    suite: Suite,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    report = suite.run("server", "--url", server, "--requirements", revision)
    kind = request.node.callspec.params["server"]
    title = f"conformance {SUITE_VERSION} server --requirements {revision}, {kind}"
    passed = sum(report.passed[name] for name in report.scored)
    show(capsys, title, f"{report.summary}\n{passed}/{len(report.scored)} scored scenarios, exit {report.status}")
    assert report.status == 0
    assert (passed, len(report.scored)) == (count, count)
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


def test_mcp_conform_finds_nothing_over_stdio(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = f"{sys.executable} -m mcpenv run {ENVIRONMENT} --transport stdio"
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
    show(capsys, "mcp-conform server --transport stdio", f"{result}\nexit {ended.returncode}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed, of = map(int, re.findall(r"(\d+)/(\d+) checks passed", result)[0])
    assert passed == of > 80
