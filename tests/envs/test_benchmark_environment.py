"""envs/benchmark_mcp: it keeps the contract, costs what one asks for, and waiting holds up nobody."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

FOLDER = Path(__file__).resolve().parents[2] / "envs" / "benchmark_mcp"


def _load() -> Any:
    """Its module; other environments have one of the same name."""
    spec = importlib.util.spec_from_file_location("benchmark_mcp_environment", FOLDER / "environment.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = _load()


class TestBenchmark(EnvironmentContract):
    factory = benchmark.BenchmarkEnvironment
    examples = {"wait": {"seconds": 0.0}, "compute": {"rounds": 3}, "fetch": {"size": 3}}


def test_each_tool_costs_what_is_asked_for_and_the_state_sums_it_up() -> None:
    with benchmark.BenchmarkEnvironment() as env:
        env.reset()
        assert env.call_tool("wait", {"seconds": 0.0}).reward == 1.0
        assert env.call_tool("compute", {"rounds": 1}).result.data == (
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        )
        assert env.call_tool("fetch", {"size": 1234}).result.data == "x" * 1234
        assert (env.state.waited_s, env.state.computed_rounds, env.state.fetched_bytes) == (0.0, 1, 1234)
        env.reset()
        assert env.state.fetched_bytes == 0


@pytest.mark.parametrize(
    "call", [("wait", {"seconds": 61}), ("compute", {"rounds": 1_000_001}), ("fetch", {"size": -1})]
)
def test_what_would_cost_too_much_is_refused_and_earns_nothing(call: tuple[str, dict[str, Any]]) -> None:
    with benchmark.BenchmarkEnvironment() as env:
        env.reset()
        refused = env.call_tool(*call)
        assert refused.error is not None and refused.error.error_type.value == "invalid_args"
        assert refused.reward == 0.0


def test_sessions_wait_beside_each_other() -> None:
    ended: list[str] = []

    async def play(url: str) -> None:
        async with EnvClient(url) as slow, EnvClient(url) as quick:
            await asyncio.gather(slow.reset(), quick.reset())
            waiting = asyncio.ensure_future(slow.call_tool("wait", {"seconds": 60.0}))
            waiting.add_done_callback(lambda _: ended.append("slow"))
            assert (await quick.call_tool("wait", {"seconds": 0.0})).reward == 1.0
            ended.append("quick")
            waiting.cancel()
            await asyncio.wait([waiting])

    with serving(benchmark.BenchmarkEnvironment) as url:
        asyncio.run(play(url))
    assert ended == ["quick", "slow"]


def test_the_python_of_its_readme_waits_a_hundred_times_at_once(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    with serving(benchmark.BenchmarkEnvironment) as url:
        program = tmp_path / "many.py"
        program.write_text(block.replace("http://127.0.0.1:8000", url))
        ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "100 of 100\n"
