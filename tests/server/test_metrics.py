"""Metrics and the access log: what is counted, who may read it, and that the sums are those of all workers."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster_bench import workers_of
from command_line import TIMEOUT_S, started, write
from fastmcp import Client

from mcpenv import MCPEnvironment, Mode
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.logs import ServerHandler
from mcpenv.server.metrics.counters import MAX_TOOLS, ORIGINS, Counters, SessionObserver, samples_in
from mcpenv.server.metrics.exposition import added, exposition, sample
from mcpenv.server.serve import serving
from mcpenv.server.sessions.session import Origin
from mcpenv_client import EnvClient
from mcpenv_client.types.records import Plane, Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tools import ToolErrorType, ToolFailure

CONTROL, METRICS = "control-secret", "metrics-secret"
_SAMPLE = re.compile(r'([a-z_]+(?:\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})?) (\S+)')


class World(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def add(by: int = 1) -> int:
            return by

        @self.tool
        def fail() -> int:
            raise RuntimeError("broken")

        @self.tool(terminal=True)
        def finish() -> str:
            return "the end"

    def reset(self, seed: int | None = None, episode_id: str | None = None, broken: bool = False) -> None:
        if broken:
            raise RuntimeError("no world")

    def score(self, call: Any, outcome: Any) -> float | None:
        return 0.5 if call.name == "add" else None


def source_of_world() -> str:
    return f"from typing import Any\nfrom mcpenv import MCPEnvironment\n\n\n{inspect.getsource(World)}"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def scraped(url: str, token: str = METRICS) -> dict[str, float]:
    """The samples at ``/metrics``, each of which has the form that Prometheus reads."""
    reply = httpx.get(f"{url}/metrics", headers=bearer(token), timeout=TIMEOUT_S)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in reply.text.splitlines() if not line.startswith("#")]
    found = [_SAMPLE.fullmatch(line) for line in lines]
    assert all(found), lines
    return {each[1]: float(each[2]) for each in found if each is not None}


def play(url: str, episodes: int) -> None:
    with EnvClient(url, headers=bearer(CONTROL)).sync() as env:
        for _ in range(episodes):
            env.reset()
            for name, arguments in (("add", {"by": 2}), ("add", {"by": "x"}), ("fail", {}), ("none\n", {})):
                env.call_tool(name, arguments)
            env.call_tool("finish", {})


async def act(url: str, calls: int) -> None:
    async with asyncio.timeout(TIMEOUT_S), Client(url) as client:
        for _ in range(calls):
            await client.call_tool("add", {"by": 3})


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extension("workers"))])
def test_the_counters_are_those_of_the_clients_over_all_workers(workers: int, tmp_path: Path) -> None:
    config = ServerConfig(control_token=CONTROL, metrics_token=METRICS, record=tmp_path)
    with serving(World, config, workers=workers) as url:
        play(url, 2)
        play(url, 3)
        asyncio.run(act(f"{url}/mcp", 4))
        with EnvClient(url, headers=bearer(CONTROL)).sync() as env, pytest.raises(Exception, match="reset raised"):
            env.reset(broken=True)
        with EnvClient(url, headers=bearer(CONTROL)).sync() as env:
            env.reset()
            found = scraped(url)
        steps = {name: value for name, value in found.items() if name.startswith("mcpenv_steps_total")}
    assert steps == {
        'mcpenv_steps_total{tool="add",status="completed"}': 9,
        'mcpenv_steps_total{tool="add",status="agent_error"}': 5,
        'mcpenv_steps_total{tool="fail",status="env_error"}': 5,
        'mcpenv_steps_total{tool="(unknown)",status="agent_error"}': 5,
        'mcpenv_steps_total{tool="finish",status="completed"}': 5,
    }
    assert found['mcpenv_step_reward_sum{tool="add"}'] == 0.5 * 10
    assert found['mcpenv_step_reward_count{tool="add"}'] == 10
    assert found['mcpenv_step_duration_seconds_count{tool="add"}'] == 14
    assert found['mcpenv_step_duration_seconds_bucket{tool="add",le="+Inf"}'] == 14
    assert found['mcpenv_tool_errors_total{tool="add",type="invalid_args"}'] == 5
    assert found['mcpenv_tool_errors_total{tool="fail",type="execution_error"}'] == 5
    assert found['mcpenv_episodes_total{status="completed"}'] == 5
    assert found["mcpenv_episode_return_sum"] == 0.5 * 10
    # Not that of the agent at /mcp, whose world was reset when it was made, and has no episode.
    assert found['mcpenv_resets_total{result="ok"}'] == 6
    assert found['mcpenv_resets_total{result="failed"}'] == 1
    assert found["mcpenv_episodes_running"] == 1
    assert found['mcpenv_sessions_opened_total{origin="socket"}'] == 4
    assert found["mcpenv_workers"] == workers
    assert found["mcpenv_ready"] == 1
    assert found["mcpenv_sessions_max"] == 1024
    assert found["mcpenv_records_dropped_total"] == 0
    assert found["process_resident_memory_bytes"] > 2**20


def test_refused_sessions_and_the_queue_are_counted() -> None:
    config = ServerConfig(max_concurrent_envs=1, queue_timeout_s=0.0)
    with serving(World, config) as url, EnvClient(url).sync() as env:
        env.reset()
        assert httpx.post(f"{url}/sessions", json={}).status_code == 503
        found = scraped(url)
    assert found["mcpenv_sessions_refused_total"] == 1
    assert found["mcpenv_sessions_taken"] == found["mcpenv_sessions_max"] == 1
    assert found['mcpenv_sessions{origin="socket"}'] == 1


def test_the_metrics_token_opens_nothing_else() -> None:
    config = ServerConfig(control_token=CONTROL, metrics_token=METRICS)
    with serving(World, config) as url:
        for path in ("/sessions", "/capacity", "/state"):
            assert httpx.get(url + path, headers=bearer(METRICS)).status_code == 401
        assert httpx.post(f"{url}/reset", json={}, headers=bearer(METRICS)).status_code == 401
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/metrics", headers=bearer("another-token")).status_code == 401
        assert scraped(url, CONTROL).keys() == scraped(url).keys()
        # A scraper asks by the address of a pod.
        assert httpx.get(f"{url}/metrics", headers={**bearer(METRICS), "Host": "10.1.2.3:8000"}).status_code == 200


def test_without_tokens_the_host_is_checked_and_production_has_no_metrics() -> None:
    with serving(World) as url:
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert httpx.get(f"{url}/metrics", headers={"Host": "evil.example.com"}).status_code in (400, 403, 421)
    with serving(World, ServerConfig(mode=Mode.PRODUCTION)) as url:
        assert httpx.get(f"{url}/metrics").status_code == 404
    with serving(World, ServerConfig(mode=Mode.PRODUCTION, metrics_token=METRICS)) as url:
        asyncio.run(act(f"{url}/mcp", 2))
        assert scraped(url)['mcpenv_steps_total{tool="add",status="completed"}'] == 2
        assert httpx.get(f"{url}/sessions", headers=bearer(METRICS)).status_code == 404


def test_one_token_for_both_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="metrics token is the control token"):
        ServerConfig(control_token=CONTROL, metrics_token=CONTROL)


# -- samples


def record(name: str, error: ToolErrorType | None = None) -> StepRecord:
    failure = None if error is None else ToolFailure(error_type=error, message="no")
    return StepRecord(ToolCall(name, {}, 1, Plane.CONTROL, None), ToolOutcome(error=failure, duration_s=0.005))


def test_names_that_agents_invent_do_not_fill_the_memory() -> None:
    counters = Counters()
    observer = SessionObserver(counters, "s")
    for number in range(MAX_TOOLS + 10):
        observer.step_over(record(f"unknown{number}", ToolErrorType.TOOL_NOT_FOUND))
        observer.step_over(record(f"made{number}"))
    assert len(counters.tools) <= MAX_TOOLS + 2
    unknown = counters.samples()[sample("mcpenv_steps_total", tool="(unknown)", status="agent_error")]
    assert unknown == MAX_TOOLS + 10


def test_the_counts_in_a_file_are_those_of_its_process(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    assert samples_in(path) == {}
    counters = Counters(path)
    observer = SessionObserver(counters, "s")
    for name in ("add", "a\nb \u2028\ud800", "add"):
        observer.step_over(record(name))
    observer.step_over(record("none", ToolErrorType.TOOL_NOT_FOUND))
    observer.reset_over(failed=True)
    for origin in Origin:
        counters.opened(origin.value)
    counters.recorded(5, 1)
    assert samples_in(path) == counters.samples()
    assert counters.samples()[sample("mcpenv_steps_total", tool="add", status="completed")] == 2
    assert [origin.value for origin in Origin] == list(ORIGINS)


def test_sums_of_rewards_are_compensated() -> None:
    counters = Counters()
    observer = SessionObserver(counters, "s")
    for _ in range(10):
        step = record("add")
        step.reward = Reward(0.1)
        observer.step_over(step)
        observer.episode_over(Trajectory("e", total_reward=0.1, terminated=True, status=step.status))
    found = counters.samples()
    assert found[sample("mcpenv_step_reward_sum", tool="add")] == found["mcpenv_episode_return_sum"] == 1.0


def test_samples_are_added_up() -> None:
    steps = sample("mcpenv_steps_total", tool='a"\\\n', status="completed")
    one = {steps: 2.0, "mcpenv_workers": 1.0, "mcpenv_episode_return_sum": -1.5}
    both = added([one, one])
    assert both == {steps: 4.0, "mcpenv_workers": 2.0, "mcpenv_episode_return_sum": -3.0}
    assert 'mcpenv_steps_total{tool="a\\"\\\\\\n",status="completed"} 4.0\n' in exposition(both)


@pytest.mark.slow
def test_counters_do_not_fall_when_a_worker_is_killed(tmp_path: Path) -> None:
    write(tmp_path, "world", source_of_world())
    tokens = {"MCPENV_CONTROL_TOKEN": CONTROL, "MCPENV_METRICS_TOKEN": METRICS}
    completed = 'mcpenv_steps_total{tool="add",status="completed"}'
    with started(tmp_path, "run", "world", "--port", "0", "--workers", "2", **tokens) as process:
        url = process.url()
        for _ in range(4):
            play(url, 5)
        os.kill(min(workers_of(process.popen.pid)), signal.SIGKILL)
        process.wait_for("ended unexpectedly")
        assert scraped(url)[completed] == 20
        play(url, 1)
        assert scraped(url)[completed] == 21


# -- the access log


def test_tool_calls_are_logged_without_arguments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mcpenv.access")
    with serving(World) as url:
        with EnvClient(url).sync() as env:
            env.reset()
            env.call_tool("add", {"by": 123456})
            env.call_tool("no\nsuch", {"by": 123456})
        asyncio.run(act(f"{url}/mcp", 1))
    lines = [each.getMessage() for each in caplog.records if each.name == "mcpenv.access"]
    assert len(lines) == 3
    assert re.fullmatch(r"session=\S{13} tool=add status=completed ms=[0-9.]+", lines[0])
    assert re.fullmatch(r"session=\S{13} tool=no\\nsuch status=agent_error ms=[0-9.]+", lines[1])
    assert "123456" not in caplog.text


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("--no-access-log",)])
def test_the_access_log_has_fields_in_json(tmp_path: Path, options: tuple[str, ...]) -> None:
    write(tmp_path, "world", source_of_world())
    with started(tmp_path, "run", "world", "--port", "0", "--log-format", "json", *options) as process:
        play(process.url(), 1)
        assert process.end(signal.SIGTERM) == 0
    logged = [json.loads(line) for line in process.err]
    calls = [line for line in logged if line["logger"] == "mcpenv.access"]
    if options:
        assert not calls
    else:
        assert [line["tool"] for line in calls] == ["add", "add", "fail", "none\\n", "finish"]
        assert {"session", "tool", "status", "ms"} <= calls[0].keys()


class Written(io.StringIO):
    """A stream that notes what each write has."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def test_lines_of_one_turn_are_written_together_and_before_any_other_line() -> None:
    async def main() -> list[str]:
        handler = ServerHandler()
        handler.stream = stream = Written()

        def log(name: str, text: str) -> None:
            handler.handle(logging.LogRecord(name, logging.INFO, "", 0, text, (), None))

        log("mcpenv.access", "one")
        log("mcpenv.access", "two")
        assert stream.writes == []
        await asyncio.sleep(0)
        log("mcpenv.access", "three")
        log("mcpenv", "four")
        return stream.writes

    assert asyncio.run(main()) == ["one\ntwo\n", "three\n", "four\n"]


class Gone(io.StringIO):
    """A stream that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_log_that_cannot_be_written_fails_no_caller_and_no_callback_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = ServerHandler()
    handler.setStream(Gone())
    failed: list[dict[str, Any]] = []

    def log(name: str) -> None:
        handler.handle(logging.LogRecord(name, logging.INFO, __file__, 1, "a line", None, None))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        log("mcpenv.access")
        await asyncio.sleep(0)  # the end of the turn, which writes
        log("mcpenv.access")
        log("mcpenv")  # writes the line before, too

    asyncio.run(main())
    assert failed == []
