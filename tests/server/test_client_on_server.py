"""`EnvClient` on a real server: waiting, the trajectory, cancelling, coming back after a lost socket."""

from __future__ import annotations

import asyncio
from typing import Any

import fastmcp
import pytest
from slow_world import Slow, until, with_own_log
from worlds import World

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import ConnectionFailed, EnvClient, FactoryError, OperationCancelled, SessionLost
from mcpenv_client.types.records import Plane

Client = EnvClient[Any, Any, Any]


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


class Proxy:
    """Passes bytes on, until it is told to cut every connection.

    Args:
        url: where to.
        cut_first: the number of connections that are cut once the first bytes have come.
    """

    def __init__(self, url: str, *, cut_first: int = 0) -> None:
        self._cut_first = cut_first
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *exc: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections <= self._cut_first:
            await reader.read(1)
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, back]
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


@pytest.mark.parametrize("resume", [True, False])
def test_a_connection_that_is_cut_before_the_answer_is_made_once_more(resume: bool) -> None:
    async def main(url: str) -> None:
        async with Proxy(url, cut_first=1) as cut, Client(cut, resume=resume) as orchestrator:
            await orchestrator.reset()
            assert (await orchestrator.call_tool("add")).reward == 0.5
        async with Proxy(url, cut_first=2) as cut:
            with pytest.raises(ConnectionFailed):
                await Client(cut, resume=resume).connect()

    with serving(World) as url:
        run(main(url))


def test_wait_gives_what_an_agent_ended() -> None:
    async def main(url: str) -> None:
        async with Client(url) as orchestrator:
            reset = await orchestrator.reset(start=99)
            waiting = asyncio.create_task(orchestrator.wait())
            assert (await orchestrator.wait(0.01)).done is False
            assert (await orchestrator.state()).step_count == 0
            async with fastmcp.Client(reset.info["mcp_url"]) as agent:
                await agent.call_tool("add")
            done = await waiting
            assert (done.done, done.reward, done.info["return"]) == (True, 10.5, 10.5)
            trajectory = await orchestrator.trajectory()
            assert [step.call.plane for step in trajectory.steps] == [Plane.AGENT]
            assert trajectory.terminated

    with serving(World) as url:
        run(main(url))


def test_wait_ends_with_an_error_when_a_reset_comes() -> None:
    async def main(url: str) -> None:
        async with Client(url) as orchestrator:
            await orchestrator.reset()
            waiting = asyncio.create_task(orchestrator.wait())
            await orchestrator.state()
            await orchestrator.reset()
            with pytest.raises(SessionLost, match="another episode"):
                await waiting
            assert (await orchestrator.call_tool("add")).reward == 0.5

    with serving(World) as url:
        run(main(url))


@pytest.fixture
def slow() -> type[Slow]:
    return with_own_log()


def test_cancel_stops_a_named_step(slow: type[Slow]) -> None:
    async def main(url: str) -> None:
        async with Client(url) as orchestrator:
            await orchestrator.reset()
            step = asyncio.create_task(orchestrator.call_tool("wait", request_id="mine"))
            await until(slow.log, "began")
            assert await orchestrator.cancel("mine") is True
            with pytest.raises(OperationCancelled):
                await step
            assert await orchestrator.cancel("mine") is False

    with serving(slow) as url:
        run(main(url))


def test_invariant_7_a_resumed_step_ran_once(slow: type[Slow]) -> None:
    async def main(url: str) -> None:
        proxy = Proxy(url)
        async with proxy as through, Client(through, resume=True) as client:
            episode = (await client.reset()).info["episode_id"]
            step = asyncio.create_task(client.call_tool("wait", {"seconds": 0.3}))
            await until(slow.log, "began")
            proxy.cut()
            assert (await step).observation.result.data == 1
            assert (await client.state()).episode_id == episode
            assert proxy.connections == 2
            proxy.cut()
            assert (await client.call_tool("wait", {"seconds": 0})).observation.result.data == 2
        assert slow.log.count("began") == 2

    with serving(slow, ServerConfig(resume_grace_s=30)) as url:
        run(main(url))


def test_a_step_whose_fate_is_unknown_is_neither_done_nor_not_done(slow: type[Slow]) -> None:
    async def main(url: str) -> None:
        proxy = Proxy(url)
        async with proxy as through:
            client = Client(through, resume=True)
            await client.reset()
            step = asyncio.create_task(client.call_tool("wait"))
            await until(slow.log, "began")
            proxy.cut()
            with pytest.raises(SessionLost):
                await step
            with pytest.raises(SessionLost):
                await client.call_tool("wait")
            await client.close()

    with serving(slow, ServerConfig(resume_grace_s=0)) as url:
        run(main(url))


class Fails(MCPEnvironment):
    """Its constructor raises, but for the prototype's."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if type(self).made > 1:
            raise RuntimeError("not today")


@pytest.mark.one_worker("it counts instances, and each worker makes a prototype")
@pytest.mark.parametrize("resume", [False, True])
def test_why_the_server_closed_is_told_to_a_client_that_sends_only_then(resume: bool) -> None:
    class Own(Fails):
        """Counts for itself."""

    async def main(url: str) -> None:
        client = Client(url, resume=resume)
        await client.connect()
        connection: Any = client._session.connection
        await connection._socket.wait_closed()
        with pytest.raises(FactoryError, match=r"could not be made: RuntimeError \(incident "):
            await client.call_tool("add")
        await client.close()

    with serving(Own) as url:
        run(main(url))
