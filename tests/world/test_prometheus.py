"""Real Prometheus: it scrapes a busy server, counts what the clients count, and loads the rules of ``deploy/``."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest
from command_line import TIMEOUT_S, started, write
from fastmcp import Client
from scraper import CONTROL, DEPLOY, HEADERS, METRICS, Prometheus, needs_prometheus, prometheus

from mcpenv_client import EnvClient

pytestmark = [pytest.mark.world, needs_prometheus]


WORLD = """
import asyncio
import time

from mcpenv import MCPEnvironment


class World(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def add(by: int = 1) -> int:
            return by

        @self.tool
        async def wait() -> None:
            await asyncio.sleep(0.02)

        @self.tool
        def fail() -> int:
            raise RuntimeError("broken")

        @self.tool(timeout_s=0.05)
        def stuck() -> None:
            time.sleep(600)

        @self.tool(terminal=True)
        def finish() -> str:
            return "the end"

    def score(self, call, outcome):
        return {"add": 0.25, "finish": 1.0}.get(call.name)
"""


async def orchestrate(url: str, number: int, counts: Counter[str]) -> None:
    """Episodes of one orchestrator, whose every third is given up, and whose calls are counted here."""
    async with asyncio.timeout(TIMEOUT_S), EnvClient(url, headers=HEADERS) as env:
        for episode in range(6):
            await env.reset()
            counts["resets"] += 1
            for name, arguments in (
                ("add", {"by": number}),
                ("wait", {}),
                ("add", {"by": "x"}),
                ("fail", {}),
                ("none", {}),
            ):
                result = await env.call_tool(name, arguments)
                assert result.status is not None
                counts[f"{'(unknown)' if name == 'none' else name},{result.status.code.value}"] += 1
                counts["rewards"] += result.reward is not None
            if episode % 3 != 2:
                result = await env.call_tool("finish", {})
                counts["finish,completed"] += 1
                counts["ended"] += 1
                assert result.done


async def act(url: str, counts: Counter[str]) -> None:
    async with asyncio.timeout(TIMEOUT_S), Client(f"{url}/mcp") as client:
        for _ in range(20):
            await client.call_tool("add", {"by": 1})
            counts["add,completed"] += 1


@pytest.mark.parametrize("workers", [1, 2])
def test_its_counters_are_those_of_the_clients(tmp_path: Path, workers: int) -> None:
    write(tmp_path, "world", WORLD)
    tokens = {"MCPENV_CONTROL_TOKEN": CONTROL, "MCPENV_METRICS_TOKEN": METRICS}
    options = ("--port", "0", "--workers", str(workers), "--record", "records", "--no-access-log")
    counts: Counter[str] = Counter()

    async def busy(url: str) -> None:
        await asyncio.gather(
            *(orchestrate(url, number, counts) for number in range(12)), *(act(url, counts) for _ in range(4))
        )

    with (
        started(tmp_path, "run", "world", *options, **tokens) as process,
        prometheus(tmp_path, process.url().removeprefix("http://")) as seen,
    ):
        url = process.url()
        asyncio.run(busy(url))
        steps = {name: float(count) for name, count in counts.items() if "," in name}
        assert len(steps) == 6
        seen.until(
            "sum by (tool, status) (mcpenv_steps_total)",
            {",".join(reversed(name.split(","))): each for name, each in steps.items()},
        )
        seen.until("sum(mcpenv_step_duration_seconds_count)", {"": sum(steps.values())})
        seen.until('mcpenv_resets_total{result="ok"}', {"ok": counts["resets"]})
        seen.until('mcpenv_episodes_total{status="completed"}', {"completed": counts["ended"]})
        seen.until("sum(mcpenv_episodes_total)", {"": counts["resets"]})
        seen.until("sum(mcpenv_step_reward_count)", {"": counts["rewards"] + counts["ended"]})
        seen.until("mcpenv_records_written_total", {"": counts["resets"]})
        seen.until("mcpenv_records_dropped_total", {"": 0})
        seen.until('mcpenv_sessions_opened_total{origin="socket"}', {"socket": 12})
        seen.until("mcpenv_episodes_running", {"": 0})
        seen.until('sum(up{job="mcpenv"})', {"": 1})

        with EnvClient(url, headers=HEADERS).sync() as env:
            env.reset()
            env.call_tool("stuck", {})
            seen.until("mcpenv_quarantined_total", {"": 1})
            seen.until("mcpenv_quarantined", {"": 1})
            seen.until(
                'ALERTS{alertname="McpenvQuarantine",alertstate="firing"}', {"McpenvQuarantine,firing,warning": 1}
            )
            assert [group["name"] for group in seen.get("rules")["groups"]] == ["mcpenv"]
        every_panel_has_data(seen)
        process.popen.kill()
        seen.until('sum(up{job="mcpenv"})', {"": 0})


def every_panel_has_data(seen: Prometheus) -> None:
    """Each query of the dashboard is one that Prometheus answers, with something."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        plain = query.replace("$__rate_interval", "5m").replace("$instance", ".*")
        assert "$" not in plain
        assert seen.query(plain), query


def test_the_rules_and_their_tests_pass() -> None:
    for command in (("check", "rules", "mcpenv-alerts.yml"), ("test", "rules", "mcpenv-alerts-test.yml")):
        ended = subprocess.run(["promtool", *command], cwd=DEPLOY, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_text_of_metrics_has_no_fault(tmp_path: Path) -> None:
    write(tmp_path, "world", WORLD)
    with started(tmp_path, "run", "world", "--port", "0", "--no-access-log") as process:
        url = process.url()
        asyncio.run(act(url, Counter()))
        text = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text
    ended = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (ended.returncode, ended.stderr) == (0, "")
