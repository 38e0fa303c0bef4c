"""Two servers behind nginx and behind HAProxy, as ``deploy/`` configures them: no episode and no session is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Process, started
from mcp.client.client import Client
from proxy import DEPLOY, found, free_address, in_front
from websockets.sync.client import connect

from mcpenv_client import ConnectionFailed, EnvClient, SessionLost

WORLD = Path(__file__).resolve().parents[1] / "cluster_world.py"
PROXIES = ("nginx", "haproxy")
NAMES = ("s0", "s1")
ERAS = ("legacy", "2026-07-28")
EPISODES = 100
AT_ONCE = 16
PATIENCE_S = 60.0

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Scene:
    """A proxy and the servers behind it.

    Attributes:
        url: the proxy.
        servers: the processes of the servers.
        start: starts a server once more, by its number.
    """

    url: str
    servers: list[Process]
    start: Callable[[int], Process]


@contextmanager
def scene(program: str, folder: Path, drain_s: int = 60) -> Iterator[Scene]:
    address, places = free_address(), [free_address() for _ in NAMES]
    with ExitStack() as stack:

        def start(number: int) -> Process:
            port = places[number].rpartition(":")[2]
            public = f"http://{address}/{NAMES[number]}"
            options = ("--port", port, "--public-url", public, "--resume-grace-s", "60", "--drain-s", str(drain_s))
            process = stack.enter_context(started(folder, "run", f"{WORLD}:World", *options, "--no-access-log"))
            process.url()
            return process

        servers = [start(number) for number, _ in enumerate(NAMES)]
        url = stack.enter_context(in_front(program, address, [f"http://{place}" for place in places], folder))
        yield Scene(url, servers, start)


@pytest.fixture(scope="module", params=PROXIES)
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield made


class Rollout:
    """Episodes that an orchestrator begins, an agent of either era acts on, and the orchestrator reads.

    Attributes:
        processes: the processes that episodes ran in, with their number.
        begun: how many began.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self.processes: Counter[int] = Counter()
        self.begun = 0

    async def play(self, number: int, go_on: asyncio.Event) -> int:
        """Return the count of an episode, which is 3 if nothing of it was lost."""
        async with self._at_once:
            env: EnvClient[Any, Any, Any] = EnvClient(self._url, capacity_timeout_s=PATIENCE_S)
            mcp_url = await self._begin(env)
            try:
                assert mcp_url.startswith((f"{self._url}/s0/episodes/", f"{self._url}/s1/episodes/"))
                await env.call_tool("add")
                self.begun += 1
                await go_on.wait()
                async with Client(mcp_url, mode=ERAS[number % 2]) as agent:
                    await agent.call_tool("add", {})
                    told = await agent.call_tool("process", {})
                self.processes[(told.structured_content or {})["result"]] += 1
                return int((await env.call_tool("add")).observation.result.data)
            finally:
                await env.close()

    async def _begin(self, env: EnvClient[Any, Any, Any]) -> str:
        """Begin an episode. A server that ends refuses new ones in several ways, none of which loses one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return str((await env.reset()).info["mcp_url"])
                except (ConnectionFailed, SessionLost):
                    await asyncio.sleep(0.05)

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.begun < count:
                await asyncio.sleep(0.01)


def test_100_episodes_with_agents_of_both_eras_and_none_is_lost(behind: Scene) -> None:
    async def main() -> None:
        rollout, go_on = Rollout(behind.url), asyncio.Event()
        go_on.set()
        counts = await asyncio.gather(*(rollout.play(number, go_on) for number in range(EPISODES)))
        assert Counter(counts) == {3: EPISODES}
        assert len(rollout.processes) == 2
        assert min(rollout.processes.values()) > EPISODES / 8, "both servers have a share"

    asyncio.run(main())


def test_30_handshake_clients_have_a_world_each(behind: Scene) -> None:
    async def one() -> list[int]:
        async with Client(f"{behind.url}/mcp", mode="legacy") as client:
            answers = [await client.call_tool("add", {}) for _ in range(3)]
            return [(answer.structured_content or {})["result"] for answer in answers]

    async def main() -> None:
        assert await asyncio.gather(*(one() for _ in range(30))) == [[1, 2, 3]] * 30

    asyncio.run(main())


def test_40_lost_sockets_come_back_to_their_sessions(behind: Scene) -> None:
    address = f"{behind.url.replace('http', 'ws')}/ws"
    step = json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {}}})
    for number in range(40):
        headers = {"Mcpenv-Session-Id": f"a-chosen-session-id-{number}", "Mcpenv-Session-Token": "secret-of-this-one"}
        with connect(address, additional_headers=headers) as socket:
            socket.send('{"type": "reset"}')
            socket.recv(PATIENCE_S)
            socket.send(step)
            socket.recv(PATIENCE_S)
            socket.socket.close()
        with connect(f"{address}?resume=1", additional_headers=headers) as socket:
            socket.send(step)
            reply = json.loads(socket.recv(PATIENCE_S))
            assert reply["data"]["observation"]["result"]["data"] == 2, f"socket {number}: {reply}"
            socket.send('{"type": "close"}')  # without it, the session would wait for its client once more


def test_20_http_sessions_stay_by_their_cookie(behind: Scene) -> None:
    call = {"type": "call_tool", "tool_name": "add", "arguments": {}}
    servers = set()
    for _ in range(20):
        with httpx.Client(base_url=behind.url, timeout=PATIENCE_S) as http:
            session_id = http.post("/reset", json={}).json()["session_id"]
            servers.add(http.cookies["mcpenv_server"])
            for count in (1, 2):
                stepped = http.post("/step", json={"session_id": session_id, "action": call}).json()
                assert stepped["observation"]["result"]["data"] == count
            assert http.delete(f"/sessions/{session_id}").json()["closed"]
    assert servers == {"s0", "s1"}


def test_a_fork_is_joined_at_the_path_of_one_server(behind: Scene) -> None:
    async def main() -> None:
        async with EnvClient(f"{behind.url}/s1") as env:
            await env.reset()
            await env.call_tool("add")
            forked = await env.fork()
            assert (await forked.call_tool("add")).text == "2"
            await forked.close()

    asyncio.run(main())


@pytest.mark.parametrize("program", PROXIES)
def test_a_rolling_restart_in_the_middle_of_100_episodes_loses_none(program: str, tmp_path: Path) -> None:
    async def round_of(made: Scene, rollout: Rollout, number: int) -> None:
        """Replace one server while half of the episodes are played."""
        go_on, old, begun = asyncio.Event(), made.servers[number], rollout.begun
        playing = [asyncio.ensure_future(rollout.play(each, go_on)) for each in range(EPISODES // 2)]
        await rollout.until_begun(begun + AT_ONCE)
        old.popen.send_signal(signal.SIGTERM)
        await asyncio.to_thread(old.wait_for, "draining: waiting")
        go_on.set()
        assert await asyncio.to_thread(old.end) == 0
        assert "draining: all episodes ended after" in "".join(old.err)
        await asyncio.to_thread(made.start, number)
        assert Counter(await asyncio.gather(*playing)) == {3: EPISODES // 2}
        assert rollout.processes[old.popen.pid] > 0, "episodes of the server that ended are among them"

    async def main(made: Scene) -> None:
        rollout = Rollout(made.url)
        for number, _ in enumerate(NAMES):
            await round_of(made, rollout, number)

    with scene(program, tmp_path) as made:
        asyncio.run(main(made))


@pytest.mark.parametrize("program", PROXIES)
def test_without_a_drain_episodes_of_the_server_that_ends_are_lost(program: str, tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        rollout, go_on = Rollout(made.url), asyncio.Event()
        playing = [asyncio.ensure_future(rollout.play(number, go_on)) for number in range(AT_ONCE)]
        await rollout.until_begun(AT_ONCE)
        assert await asyncio.to_thread(made.servers[0].end, signal.SIGTERM) == 0
        go_on.set()
        ended = await asyncio.gather(*playing, return_exceptions=True)
        assert Counter(ended)[3] == rollout.processes[made.servers[1].popen.pid] == rollout.processes.total() < AT_ONCE

    with scene(program, tmp_path, drain_s=0) as made:
        asyncio.run(main(made))


@pytest.mark.parametrize("program", PROXIES)
def test_an_http_client_begins_anew_elsewhere_when_the_server_of_its_cookie_has_ended(
    program: str, tmp_path: Path
) -> None:
    with scene(program, tmp_path) as made, httpx.Client(base_url=made.url, timeout=PATIENCE_S) as http:
        session_id = http.post("/reset", json={}).json()["session_id"]
        old = NAMES.index(http.cookies["mcpenv_server"])
        made.servers[old].popen.send_signal(signal.SIGTERM)
        made.servers[old].wait_for("draining: waiting")
        call = {"type": "call_tool", "tool_name": "add", "arguments": {}}
        assert http.post("/step", json={"session_id": session_id, "action": call}).status_code == 200
        refused = http.post("/reset", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "CAPACITY_REACHED")
        assert http.delete(f"/sessions/{session_id}").json()["closed"]
        assert made.servers[old].end() == 0
        limit = time.monotonic() + PATIENCE_S
        while (anew := http.post("/reset", json={})).status_code == 503 and time.monotonic() < limit:
            time.sleep(0.05)  # until a check of the proxy has failed
        assert anew.status_code == 200
        assert http.cookies["mcpenv_server"] == NAMES[1 - old]
        assert http.delete(f"/sessions/{anew.json()['session_id']}").json()["closed"]


def test_haproxy_sends_an_agent_to_its_server_before_it_has_seen_that_it_is_back(tmp_path: Path) -> None:
    """Each backend checks on its own: the one of new sessions can know of a restart before the one of agents."""
    tell = "frontend mcpenv\n    http-request return status 200 if { path /down } !{ srv_is_up(mcpenv_s0/s0) }"
    changes = {"frontend mcpenv": tell, "GET /health": "GET /of-no-server"}
    with started(tmp_path, "run", f"{WORLD}:World", "--no-access-log") as process, ExitStack() as stack:
        servers, address = [process.url()] * 2, free_address()
        url = stack.enter_context(in_front("haproxy", address, servers, tmp_path, changes))
        limit = time.monotonic() + PATIENCE_S
        while httpx.get(f"{url}/down", timeout=PATIENCE_S).status_code != 200 and time.monotonic() < limit:
            time.sleep(0.05)  # until the checks have failed
        assert httpx.get(f"{url}/down", timeout=PATIENCE_S).status_code == 200
        assert httpx.get(f"{url}/s0/health", timeout=PATIENCE_S).status_code == 200


def test_the_configuration_of_haproxy_has_no_warnings() -> None:
    command = [found("haproxy"), "-c", "-f", str(DEPLOY / "haproxy.cfg")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr + checked.stdout
