"""A day of a service, compressed to minutes, after which Prometheus has counted exactly what the clients counted.

Orchestrators, impatient clients on every plane, agents that are killed, workers that are killed, and more clients than
the server has sessions. Some sessions that have nothing to do with all that find their worlds unchanged throughout.

A worker is killed between two requests, never during one whose step might be counted: what became of such a step is
unknown to its client, so no count of the client's could be exact. Requests whose step cannot have ended do run then.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, Process, started, write
from mcp.client.client import Client
from mcp_types import CallToolResult
from scraper import CONTROL, HEADERS, METRICS, Prometheus, needs_prometheus, prometheus

from mcpenv.trajectories import read_episodes
from mcpenv_client import CapacityReached, ConnectionFailed, EnvClient, OperationCancelled, SessionLost
from mcpenv_client.types.records import StepResult

LIMIT_S = 600
pytestmark = [pytest.mark.world, needs_prometheus, pytest.mark.timeout(LIMIT_S + 60)]

ERAS = ("legacy", "2026-07-28")
MAX_SESSIONS = 12
ORCHESTRATORS, OVER_HTTP, IMPATIENT, SHARING = 10, 4, 4, 2
"""The number of clients of each kind. They are more than there are sessions."""
EPISODES, WORLDS, CALLS = 40, 25, 30
"""What each orchestrator, each client with a world of its own and each client of the shared world does."""
KILLS = 5
NUMBER = 7
"""What stands in the worlds of the bystanders."""
REWARDS = {"add": 0.25, "hold": 0.5, "finish": 1.0}

WORLD = """
import asyncio
import os
import time
from pathlib import Path

from mcpenv import MCPEnvironment


class World(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.number = 0

        @self.tool
        def put(number: int) -> int:
            self.number = number
            return self.number

        @self.tool
        async def read() -> int:
            return self.number

        @self.tool
        def add(by: int) -> int:
            self.number += by
            return self.number

        @self.tool
        def fail() -> int:
            raise RuntimeError("broken")

        @self.tool
        def process() -> int:
            return os.getpid()

        @self.tool
        def hold(inside: str, gate: str) -> int:
            Path(inside).touch()
            while not Path(gate).exists():
                time.sleep(0.005)
            return self.number

        @self.tool
        async def endless(inside: str) -> None:
            Path(inside).touch()
            await asyncio.Event().wait()

        @self.tool(terminal=True)
        def finish() -> str:
            return "the end"

    def score(self, call, outcome):
        rewards = {"add": 0.25, "hold": 0.5, "finish": 1.0}
        return None if outcome.error is not None or outcome.result.is_error else rewards.get(call.name)
"""


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


class Turnstile:
    """Clients pass it with everything that may be counted. While it is stopped, nobody is inside."""

    def __init__(self) -> None:
        self._inside = 0
        self._stopped = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._stopped)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        async with self._changed:
            self._stopped = True
            await self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            async with self._changed:
                self._stopped = False
                self._changed.notify_all()


class Day:
    """What all clients share: the server's address, the turnstile, and what they counted.

    Attributes:
        tally: the counts by metric and labels.
        lost: the sessions that a killed worker took with it.
        over: the episodes that are over.
    """

    QUERIES = {
        "steps": "sum by (status, tool) (mcpenv_steps_total)",
        "durations": "sum(mcpenv_step_duration_seconds_count)",
        "rewards": "sum by (tool) (mcpenv_step_reward_count) > 0",
        "sums of rewards": "sum by (tool) (mcpenv_step_reward_sum) > 0",
        "errors": "sum by (tool, type) (mcpenv_tool_errors_total)",
        "resets": "mcpenv_resets_total > 0",
        "episodes": "sum by (status) (mcpenv_episodes_total)",
        "returns": "mcpenv_episode_return_count",
        "opened": "mcpenv_sessions_opened_total",
        "refused": "mcpenv_sessions_refused_total",
        "quarantined": "mcpenv_quarantined_total",
        "records": "mcpenv_records_written_total",
        "dropped": "mcpenv_records_dropped_total",
    }

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.tally: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.turnstile = Turnstile()
        self.lost = 0
        self.over = 0
        self._went_on = asyncio.Condition()
        self._folder = folder
        self._numbers = itertools.count()
        self.http = httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=TIMEOUT_S)

    def passing(self) -> Any:
        return self.turnstile.passing()

    def count(self, metric: str, labels: str = "", by: float = 1) -> None:
        self.tally[metric][labels] += by  # type: ignore[assignment]

    def stepped(self, name: str, status: str = "completed", *, scored: bool, error: str | None = None) -> None:
        """Count a step that was answered, or whose end the client knows otherwise."""
        self.count("steps", f"{status},{name}")
        self.count("durations")
        if error is not None:
            self.count("errors", f"{name},{error}")
        if scored and status == "completed" and name in REWARDS:
            self.count("rewards", name)
            self.count("sums of rewards", name, REWARDS[name])

    def saw(self, name: str, result: StepResult[Any]) -> None:
        """Count a step from its answer."""
        assert result.status is not None
        scored = result.reward is not None
        assert not scored or result.reward == REWARDS[name]
        error = None if result.error is None else result.error.error_type.value
        name = "(unknown)" if name == "none" else name
        self.stepped(name, result.status.code.value, scored=scored, error=error)

    async def ended(self, status: str) -> None:
        """Count an episode that is over."""
        self.count("episodes", status)
        self.count("records")
        if status in ("completed", "truncated"):
            self.count("returns")
        self.over += 1
        await self.go_on()

    async def go_on(self) -> None:
        """Wake those who wait in `until`."""
        async with self._went_on:
            self._went_on.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._went_on:
            await self._went_on.wait_for(condition)

    def call(self) -> Held:
        return Held(self._folder / str(next(self._numbers)))

    async def refused(self) -> None:
        self.count("refused")
        await asyncio.sleep(0)

    def figures(self, text: str) -> dict[str, dict[str, float]]:
        """The metrics of `QUERIES` in the text of ``/metrics``."""
        found: dict[str, dict[str, float]] = {metric: {} for metric in self.QUERIES}
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            family, _, labels = name.partition("{")
            pairs = dict(each.split("=") for each in labels.rstrip("}").split(",")) if labels else {}
            wanted = {each: given.strip('"') for each, given in sorted(pairs.items())}
            for metric, query in self.QUERIES.items():
                if family in query.replace("(", " ").replace(")", " ").split():
                    key = "" if metric == "durations" else ",".join(wanted.values())
                    found[metric][key] = found[metric].get(key, 0.0) + float(value)
        return found

    async def agree(self) -> None:
        """Wait until ``/metrics`` has what the clients counted: closing a session may take a moment."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = self.figures((await self.http.get("/metrics")).text)
            wrong = {
                metric: (found[metric], counts)
                for metric, counts in self.expected().items()
                if {k: v for k, v in found[metric].items() if v} != {k: v for k, v in counts.items() if v}
            }
            if not wrong:
                return
            assert time.monotonic() < deadline, wrong
            await asyncio.sleep(0.05)

    async def all_serve(self) -> None:
        """Wait until the killed worker has been restarted."""
        deadline = time.monotonic() + TIMEOUT_S
        while "mcpenv_workers 2" not in (await self.http.get("/metrics")).text:
            assert time.monotonic() < deadline, "the worker does not come back"
            await asyncio.sleep(0.05)

    def expected(self) -> dict[str, dict[str, float]]:
        expected: dict[str, dict[str, float]] = {metric: dict(self.tally[metric]) for metric in self.QUERIES}
        for metric in ("durations", "returns", "refused", "quarantined", "records", "dropped"):
            expected[metric].setdefault("", 0.0)
        return expected


class Held:
    """A call of the tool ``hold``, which is inside from one file on, and ends when another exists."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._inside, self._gate = path.with_suffix(".inside"), path.with_suffix(".gate")
        self.arguments = {"inside": str(self._inside), "gate": str(self._gate)}

    async def begun(self, calling: asyncio.Future[Any] | None = None) -> None:
        """Wait until the tool runs. Raise what ended the call before that."""
        await until(
            lambda: self._inside.exists() or (calling is not None and calling.done()), "the tool does not begin"
        )
        if calling is not None and not self._inside.exists():
            await calling

    def open(self) -> None:
        self._gate.touch()

    async def given_up(self, calling: Coroutine[Any, Any, Any]) -> None:
        """Make the call, and leave while its tool runs."""
        task = asyncio.ensure_future(calling)
        await self.begun(task)
        task.cancel()
        await asyncio.wait({task})


# -- orchestrators over /ws


class Orchestrator:
    """One session after the other, with episodes that end, are given up, or have impatient or killed agents."""

    def __init__(self, day: Day, number: int) -> None:
        self._day = day
        self._chance = random.Random(number)
        self._client = self._new_client()
        self._opened = self._running = False

    def _new_client(self) -> EnvClient[Any, Any, Any]:
        return EnvClient(self._day.url, headers=HEADERS)

    async def run(self) -> None:
        left = EPISODES
        while left > 0:
            try:
                for _ in range(self._chance.randint(1, 4)):
                    left -= 1
                    await self._play()
                await self._close()
            except CapacityReached:
                await self._day.refused()
            except (SessionLost, ConnectionFailed):
                self._day.lost += self._opened
            finally:
                await self._client.close()
                self._client, self._opened, self._running = self._new_client(), False, False

    async def _play(self) -> None:
        day, chance = self._day, self._chance
        async with day.passing():
            await self._client.reset(seed=chance.randrange(100))
            if not self._opened:
                day.count("opened", "socket")
                self._opened = True
            day.count("resets", "ok")
            if self._running:
                await day.ended("cancelled")
            self._running = True
        for _ in range(chance.randint(1, 5)):
            await self._call(chance.choice(("add", "add", "read", "fail", "bad", "none")))
        end = chance.choice((self._finish, self._finish, self._cancel, self._vanish, self._leave, self._visited))
        await end()

    async def _call(self, name: str) -> None:
        arguments: dict[str, Any] = {"by": 1} if name == "add" else {}
        if name == "bad":
            name, arguments = "add", {"by": "x"}
        async with self._day.passing():
            self._day.saw(name, await self._client.call_tool(name, arguments))

    async def _leave(self) -> None:
        """Leave the episode unfinished."""

    async def _finish(self) -> None:
        async with self._day.passing():
            result = await self._client.call_tool("finish")
            self._day.saw("finish", result)
            assert result.done
            self._running = False
            await self._day.ended("completed")

    async def _cancel(self) -> None:
        """Cancel a sync call, which the server cannot stop."""
        async with self._day.passing():
            held = self._day.call()
            calling = asyncio.ensure_future(self._client.call_tool("hold", held.arguments, request_id=held.name))
            await held.begun(calling)
            assert await self._client.cancel(held.name)
            with pytest.raises(OperationCancelled):
                await calling
            await self._cut_short()
            held.open()

    async def _vanish(self) -> None:
        """Close the socket while a sync call runs."""
        async with self._day.passing():
            episode_id = (await self._client.trajectory()).episode_id
            held = self._day.call()
            await held.given_up(self._client.call_tool("hold", held.arguments))
            deadline = time.monotonic() + TIMEOUT_S
            while episode_id in {each.episode_id for each in await self._client.sessions()}:
                assert time.monotonic() < deadline, "the server did not notice that the client has left"
            await self._cut_short()
            held.open()
            self._opened = False

    async def _cut_short(self) -> None:
        self._day.stepped("hold", "cancelled", scored=False, error="transport_error")
        self._day.count("quarantined")
        self._running = False
        await self._day.ended("truncated")

    async def _visited(self) -> None:
        """Have an agent in the episode, which leaves while its call runs."""
        day, era = self._day, self._chance.choice(ERAS)
        async with day.passing():
            await self._client.trajectory()  # raises if the session has gone with its worker
            held, url = day.call(), self._client.mcp_url
            assert url is not None
            if self._chance.random() < 0.15:
                await self._killed(url, era, held)
            else:
                async with Client(url, mode=era) as agent:
                    for _ in range(self._chance.randint(1, 3)):
                        await agent.call_tool("add", {"by": 1})
                        day.stepped("add", scored=True)
                    await held.given_up(agent.call_tool("hold", held.arguments))
                    held.open()
                    await agent.call_tool("read", {})
                    day.stepped("read", scored=False)
            day.stepped("hold", scored=True)
            day.saw("read", await self._client.call_tool("read"))  # after the call of the agent that has left
        await self._finish()

    async def _killed(self, url: str, era: str, held: Held) -> None:
        program = str(Path(__file__).with_name("killed_agent.py"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, program, url, era, *held.arguments.values(), stdout=asyncio.subprocess.PIPE
        )
        try:
            await held.begun()
        finally:
            process.kill()
            said, _ = await process.communicate()
            held.open()
        assert process.returncode == -signal.SIGKILL
        for _ in range(said.count(b"answered")):
            self._day.stepped("add", scored=True)
        self._day.count("agents killed")

    async def _close(self) -> None:
        async with self._day.passing():
            await self._client.trajectory()  # likewise
            await self._client.close()
            if self._running:
                await self._day.ended("cancelled")


# -- orchestrators over HTTP


class OverHTTP:
    """Sessions over HTTP, some of whose calls are given up."""

    def __init__(self, day: Day, number: int) -> None:
        self._day = day
        self._chance = random.Random(f"http {number}")
        self._session_id: str | None = None

    async def run(self) -> None:
        for _ in range(WORLDS):
            self._session_id = None
            try:
                # With connections of its own, because one that is given up breaks the pool's accounting.
                async with self._connected() as http:
                    await self._session(http)
            except _Lost:
                self._day.lost += 1
            except httpx.TransportError:
                self._day.lost += 1
                await self._close_what_is_left()

    def _connected(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._day.url, headers=HEADERS, timeout=TIMEOUT_S)

    async def _close_what_is_left(self) -> None:
        """Close the session, if the killed worker had the connection and the other one has the session."""
        if self._session_id is None:
            return
        async with self._day.passing(), self._connected() as http:
            reply = await http.delete(f"/sessions/{self._session_id}")
            if reply.status_code == 200:
                self._day.count("kept without its connection")
                await self._day.ended("cancelled")

    async def _session(self, http: httpx.AsyncClient) -> None:
        day, chance = self._day, self._chance
        async with day.passing():
            reply = await http.post("/reset", json={"seed": 1})
            if reply.status_code == 503:
                await day.refused()
                return
            session = self._session_id = _data(reply)["session_id"]
            day.count("opened", "http")
            day.count("resets", "ok")
            try:
                await self._step(http, session, "add", by=1)
            except _Lost:  # evicted, because its client had never come back
                day.count("evicted")
                await day.ended("cancelled")
                return
        for _ in range(chance.randint(0, 3)):
            async with day.passing():
                await self._step(http, session, *chance.choice((("read",), ("fail",), ("none",))))
        async with day.passing():
            await self._step(http, session, "add", by=1)
            held = day.call()
            body = _step_of(session, "hold", held.arguments)
            await held.given_up(http.post("/step", json=body))
            held.open()
            await self._step(http, session, "read")  # after the call that was given up
            day.stepped("hold", scored=True)
            if chance.random() < 0.5:
                _data(await http.post("/end", json={"session_id": session}))
                await day.ended("completed")
                _data(await http.delete(f"/sessions/{session}"))
            else:
                _data(await http.delete(f"/sessions/{session}"))
                await day.ended("cancelled")

    async def _step(self, http: httpx.AsyncClient, session: str, name: str, **arguments: Any) -> None:
        data = _data(await http.post("/step", json=_step_of(session, name, arguments)))
        error = data["observation"].get("error")
        self._day.stepped(
            "(unknown)" if name == "none" else name,
            data["info"]["status"]["code"],
            scored=data["reward"] is not None,
            error=None if error is None else error["error_type"],
        )


class _Lost(Exception):
    """The server has no such session any more."""


def _step_of(session: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"session_id": session, "action": {"type": "call_tool", "tool_name": name, "arguments": arguments}}


def _data(reply: httpx.Response) -> dict[str, Any]:
    data: dict[str, Any] = reply.json()
    if data.get("code") == "SESSION_LOST":
        raise _Lost
    assert reply.status_code == 200, (reply.status_code, reply.text)
    return data


# -- clients at /mcp


def _value(result: CallToolResult) -> Any:
    assert not result.is_error, result
    return (result.structured_content or {})["result"]


async def impatient(day: Day, number: int) -> None:
    """Clients of the handshake era, each with a world of its own, who cancel or time out."""
    chance = random.Random(f"impatient {number}")
    for _ in range(WORLDS):
        async with day.passing(), Client(f"{day.url}/mcp", mode="legacy") as client:
            ours = chance.randrange(1000)
            answer = await client.call_tool("put", {"number": ours})
            if answer.is_error:
                # All sessions are in use, or all that agents may use.
                assert "raise --max-sessions" in str(answer.content), answer
                await day.refused()
                continue
            day.count("opened", "connection")
            day.stepped("put", scored=False)
            for _ in range(chance.randint(1, 2)):
                held = day.call()
                if chance.random() < 0.3:
                    calling = asyncio.ensure_future(client.call_tool("hold", held.arguments, read_timeout_seconds=1.0))
                    await held.begun(calling)
                    with pytest.raises(Exception, match=r"(?i)timed out"):
                        await calling
                else:
                    await held.given_up(client.call_tool("hold", held.arguments))
                held.open()
                assert _value(await client.call_tool("read", {})) == ours
                day.stepped("hold", scored=False)
                day.stepped("read", scored=False)


async def sharing(day: Day, number: int) -> None:
    """Clients of 2026-07-28, who share the world of a bystander and leave it alone."""
    chance = random.Random(f"sharing {number}")
    for _ in range(CALLS):
        async with day.passing(), Client(f"{day.url}/mcp", mode="2026-07-28") as client:
            if chance.random() < 0.3:
                assert (await client.call_tool("fail", {})).is_error
                day.stepped("fail", "env_error", scored=False, error="execution_error")
            held = day.call()
            await held.given_up(client.call_tool("hold", held.arguments))
            held.open()
            day.stepped("hold", scored=False)
            assert _value(await client.call_tool("read", {})) == NUMBER
            day.stepped("read", scored=False)


# -- bystanders, and the one who kills


class Bystanders:
    """The shared world at ``/mcp``, and an episode with an agent, both in the worker that nobody kills.

    Attributes:
        worker: the process of that worker.
        looks: how often they looked at their worlds.
    """

    def __init__(self, day: Day) -> None:
        self._day = day
        self._over = False
        self.worker = 0
        self.looks = 0

    async def run(self, ready: asyncio.Event) -> None:
        day = self._day
        async with Client(f"{day.url}/mcp", mode="2026-07-28") as shared:
            self.worker = _value(await shared.call_tool("process", {}))
            day.count("opened", "service")
            day.stepped("process", scored=False)
            async with await self._beside() as client:
                assert client.mcp_url is not None
                async with Client(client.mcp_url, mode="legacy") as agent:
                    await shared.call_tool("put", {"number": NUMBER})
                    await agent.call_tool("put", {"number": NUMBER})
                    day.stepped("put", scored=False)
                    day.stepped("put", scored=False)
                    ready.set()
                    await self._look(shared, client, agent)
                async with day.passing():
                    day.saw("finish", await client.call_tool("finish"))
                    await day.ended("completed")

    async def end(self) -> None:
        """Stop looking."""
        self._over = True
        await self._day.go_on()

    async def _beside(self) -> EnvClient[Any, Any, Any]:
        """A session in the worker of the shared world."""
        client, _ = await opened_in(self._day, lambda worker: worker == self.worker)
        return client

    async def _look(self, shared: Client, client: EnvClient[Any, Any, Any], agent: Client) -> None:
        day = self._day
        while not self._over:
            async with day.passing():
                assert _value(await shared.call_tool("read", {})) == NUMBER
                assert _value(await agent.call_tool("read", {})) == NUMBER
                result = await client.call_tool("read")
                assert result.text == str(NUMBER)
                day.saw("read", result)
                day.stepped("read", scored=False)
                day.stepped("read", scored=False)
                self.looks += 1
                over = day.over
            await day.until(lambda over=over: self._over or day.over > over)  # type: ignore[misc]


async def opened_in(day: Day, wanted: Callable[[int], bool]) -> tuple[EnvClient[Any, Any, Any], int]:
    """A session with an episode in a worker that is wanted, and its process."""
    others: list[EnvClient[Any, Any, Any]] = []
    try:
        for _ in range(100):
            client: EnvClient[Any, Any, Any] = EnvClient(day.url, headers=HEADERS)
            async with day.passing():
                try:
                    await client.reset()
                except CapacityReached:
                    await day.refused()
                    continue
                day.count("opened", "socket")
                day.count("resets", "ok")
                result = await client.call_tool("process")
                day.saw("process", result)
                if wanted(int(result.text)):
                    return client, int(result.text)
                others.append(client)
    finally:
        for client in others:  # later, because the next session is opened in the worker that has fewer
            async with day.passing():
                await client.close()
                await day.ended("cancelled")
    raise AssertionError("no session was opened in that worker")


async def kill_workers(day: Day, bystanders: Bystanders) -> None:
    """Kill the other worker now and then, between two requests of all clients but one, whose call cannot end."""
    every = ORCHESTRATORS * EPISODES // (2 * KILLS)
    for number in range(KILLS):
        await day.until(lambda episodes=(number + 1) * every: day.over >= episodes)  # type: ignore[misc]
        client, worker = await opened_in(day, lambda worker: worker != bystanders.worker)
        held = day.call()
        calling = asyncio.ensure_future(client.call_tool("endless", {"inside": held.arguments["inside"]}))
        await held.begun(calling)
        async with day.turnstile.stopped():
            await day.agree()
            os.kill(worker, signal.SIGKILL)
            await until(lambda worker=worker: not Path(f"/proc/{worker}/exe").exists(), "it lives")  # type: ignore[misc]
        with pytest.raises(SessionLost):
            await calling
        await client.close()
        day.count("workers killed")
        await day.all_serve()


async def live(day: Day) -> Bystanders:
    bystanders, ready = Bystanders(day), asyncio.Event()
    async with asyncio.timeout(LIMIT_S), day.http, asyncio.TaskGroup() as tasks:
        tasks.create_task(bystanders.run(ready))
        await ready.wait()
        await asyncio.gather(
            kill_workers(day, bystanders),
            *(Orchestrator(day, number).run() for number in range(ORCHESTRATORS)),
            *(OverHTTP(day, number).run() for number in range(OVER_HTTP)),
            *(impatient(day, number) for number in range(IMPATIENT)),
            *(sharing(day, number) for number in range(SHARING)),
        )
        await bystanders.end()
    return bystanders


def check(day: Day, bystanders: Bystanders, process: Process, seen: Prometheus, records: Path) -> None:
    for metric, counts in day.expected().items():
        seen.until(day.QUERIES[metric], counts)
    for metric in ("steps_total", "step_reward_sum", "resets_total", "episodes_total", "sessions_opened_total"):
        seen.until(f"sum(resets(mcpenv_{metric}[1h]))", {"": 0})  # none has ever fallen
    seen.until("mcpenv_quarantined", {"": 0})
    seen.until("mcpenv_episodes_running", {"": 0})
    seen.until("mcpenv_workers", {"": 2})
    assert sum(1 for _ in read_episodes(records)) == day.tally["records"][""]
    assert sum("ended unexpectedly" in line for line in process.err) == KILLS
    assert day.tally["refused"][""] > 0 and day.tally["agents killed"][""] > 0 and day.lost > 0
    assert bystanders.looks > 2 * KILLS  # how many more depends on the machine


def test_a_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "world", WORLD)
    calls = tmp_path / "calls"
    calls.mkdir()
    tokens = {"MCPENV_CONTROL_TOKEN": CONTROL, "MCPENV_METRICS_TOKEN": METRICS}
    options = ("--workers", "2", "--max-sessions", str(MAX_SESSIONS), "--queue-timeout-s", "0.3")
    with (
        started(
            tmp_path, "run", "world", "--port", "0", *options, "--record", "records", "--no-access-log", **tokens
        ) as process,
        prometheus(tmp_path, process.url().removeprefix("http://")) as seen,
    ):
        began = time.monotonic()

        async def main() -> tuple[Day, Bystanders]:
            day = Day(process.url(), calls)
            return day, await live(day)

        day, bystanders = asyncio.run(main())
        check(day, bystanders, process, seen, tmp_path / "records")
    with capsys.disabled():
        print(f"\n---- a day in {time.monotonic() - began:.0f} s")
        for metric, counts in day.tally.items():
            print(f"{metric}: {', '.join(f'{label} {count:g}'.strip() for label, count in sorted(counts.items()))}")
        print(f"sessions lost with their worker: {day.lost}; looks of bystanders: {bystanders.looks}")
