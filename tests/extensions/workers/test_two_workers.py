"""A server of two workers behind connections that several clients share: a client's pool, and a reverse proxy's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from proxy import nginx

from mcpenv_client import EnvClient

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "stock")]
from programs import node_environment, printed, run  # noqa: E402
from serving import served  # noqa: E402
from tap import tapped  # noqa: E402

WORLD = ROOT / "tests" / "cluster_world.py:World"
CLIENTS = 12
ERAS = ("legacy", "2026-07-28")
PATIENCE_S = 60.0

pytestmark = [pytest.mark.world, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The base URL of a server of two workers."""
    with served(WORLD, "--workers", "2", "--trusted-proxies", "127.0.0.1") as url:
        yield url


@pytest.fixture
def node_modules() -> Path:
    named = os.environ.get("MCPENV_NODE_MODULES")
    assert named, "MCPENV_NODE_MODULES names no folder; .ci/run installs the npm packages and sets it"
    return Path(named).resolve()


def end_shared_session(url: str) -> None:
    """End the session that anonymous stateless clients share, so that the next ones count from 0."""
    assert httpx.delete(f"{url}/sessions/service", timeout=PATIENCE_S).status_code == 200


def check(results: list[list[int]], era: str) -> None:
    """Each client of the handshake era has a world of its own, and both workers have some; all others share one."""
    counts = sorted(count for each in results for count in each[:2])
    processes = Counter(each[2] for each in results)
    if era == "legacy":
        assert [each[:2] for each in results] == [[1, 2]] * len(results)
        assert len(processes) == 2
    else:
        assert counts == list(range(1, 2 * len(results) + 1))
        assert len(processes) == 1


@pytest.mark.parametrize(
    ("package", "era"),
    [
        ("@modelcontextprotocol/sdk", "legacy"),
        ("@modelcontextprotocol/client", "legacy"),
        ("@modelcontextprotocol/client", "2026-07-28"),
    ],
)
def test_twelve_typescript_clients_share_a_pool(
    package: str, era: str, server: str, node_modules: Path, tmp_path: Path
) -> None:
    told = {"package": package, "mode": era, "url": f"{server}/mcp", "count": CLIENTS}
    ended = run(
        "node",
        str(Path(__file__).with_name("twelve_clients.cjs")),
        json.dumps(told),
        env={**node_environment(node_modules, tmp_path), "NODE_PATH": str(node_modules)},
    )
    seen = printed(ended)
    assert ended.stderr == ""
    assert len(seen["results"]) == 2 * CLIENTS
    check(seen["results"], era)
    assert seen["statuses"].keys() <= {"200", "202"}, seen["statuses"]
    if era != "legacy":
        end_shared_session(server)


async def twelve(url: str, era: str) -> list[list[int]]:
    """Return what twelve clients of the Python SDK read, one by one and then at once, over one pool of connections."""
    statuses: Counter[int] = Counter()

    async def count(answer: httpx2.Response) -> None:
        statuses[answer.status_code] += 1

    async def one(http: httpx2.AsyncClient) -> list[int]:
        async with Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=era) as client:
            answers = [await client.call_tool(name, {}) for name in ("add", "add", "process")]
            return [(answer.structured_content or {})["result"] for answer in answers]

    async with httpx2.AsyncClient(timeout=PATIENCE_S, event_hooks={"response": [count]}) as http:
        results = [await one(http) for _ in range(CLIENTS)]
        results += await asyncio.gather(*(one(http) for _ in range(CLIENTS)))
    assert statuses.keys() <= {200, 202}, statuses
    return results


def test_clients_behind_a_proxy_that_keeps_its_connections(server: str, tmp_path: Path) -> None:
    with tapped(server) as tap:
        with nginx(tap.url, tmp_path) as url:
            for era in ERAS:
                check(asyncio.run(twelve(url, era)), era)
            end_shared_session(url)
            asyncio.run(episodes(url))
    # In this the server was sent requests of several MCP sessions on one connection.
    sessions = [set(re.findall(rb"(?i)\r\nmcp-session-id: *([^\r]+)\r", bytes(connection))) for connection in tap.sent]
    assert max(map(len, sessions)) >= 3


async def episodes(url: str) -> None:
    """Episodes over ``/ws``, each with agents of both eras at its address, which report progress."""
    async with AsyncExitStack() as stack:
        for _ in range(4):
            client: EnvClient[Any, Any, Any] = await stack.enter_async_context(EnvClient(url))
            mcp_url = (await client.reset()).observation.info["mcp_url"]
            assert mcp_url.startswith(f"{url}/episodes/")
            for era in ERAS:
                async with Client(mcp_url, mode=era) as agent:
                    heard: list[float] = []

                    async def hear(progress: float, total: float | None, message: str | None) -> None:
                        heard.append(progress)  # noqa: B023

                    process = (await client.call_tool("process")).text
                    told = await agent.call_tool("tell", {"times": 3}, progress_callback=hear)
                    assert str((told.structured_content or {})["result"]) == process
                    assert heard == [1, 2, 3]
