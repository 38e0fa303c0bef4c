"""A worker whose process is stopped, or whose event loop is blocked, stops nobody else. Servers of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import fastmcp
import httpx
import pytest
from cluster_bench import PATIENCE_S, Server, children_of, is_over, process_of, served, sessions, until
from cluster_world import World

from mcpenv.extensions.workers import hub as hub_module
from mcpenv.extensions.workers import supervisor
from mcpenv.extensions.workers.acceptor import Acceptor
from mcpenv.extensions.workers.hub import Hub, Seat
from mcpenv.extensions.workers.worker import Job
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import Served
from mcpenv_client.pool import EnvPool, Episode, Limits
from mcpenv_client.pool.env_pool import BackendName
from mcpenv_client.types.status import StatusCode

NOBODY_WAITS_S = 15.0
"""The longest that a client who has nothing to do with the stopped worker waits, on a loaded machine.

Who waited for that worker would wait for `hub.KILLED_S`, 30 s."""

ENDS_S = 25.0
"""The longest that a server takes to end after limits of 1 or 2 s: less than `KILLED_S` and `STARTED_S`."""

VICTIMS: dict[str, Callable[[Server], set[int]]] = {
    "fork server": lambda server: {
        each for each in children_of(server.process.pid) if children_of(each) == server.workers()
    },
    "one worker": lambda server: {min(server.workers())},
    "all workers": Server.workers,
    "all helpers": lambda server: children_of(server.process.pid),
}
ENDINGS = {
    "SIGTERM": [signal.SIGTERM],
    "SIGINT": [signal.SIGINT],
    "SIGHUP": [signal.SIGHUP],
    "20 SIGTERMs": [signal.SIGTERM] * 20,
}
FAULTS = [(victims, fault, "SIGTERM") for victims in VICTIMS for fault in (signal.SIGSTOP, signal.SIGKILL)]
FAULTS += [
    (victims, fault, ending)
    for victims, fault in (("all workers", signal.SIGSTOP), ("fork server", signal.SIGKILL))
    for ending in ENDINGS.keys() - {"SIGTERM"}
]
"""Each fault, and each way to end a server beside two of them: a fault does not ask which signal ends the server."""


def run(main: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(120):
            return await main

    return asyncio.run(bounded())


def said(server: Server, text: str) -> bool:
    return any(text in line for line in server.said)


@contextlib.contextmanager
def stopped(worker: int) -> Iterator[None]:
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def metrics(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE)}


@pytest.mark.slow
def test_new_clients_and_figures_do_without_a_stopped_worker_until_it_goes_on() -> None:
    async def main(server: Server) -> None:
        async with sessions(server.url, 4) as clients, httpx.AsyncClient(base_url=server.url, timeout=5) as http:
            for client in clients:
                await client.call_tool("add")
            await asyncio.sleep(1.5)  # a worker writes its counts once a second
            where = [await process_of(client) for client in clients]
            # Anonymous clients share a session of the first worker.
            async with fastmcp.Client(server.url + "/mcp", mode="2026-07-28") as agent:
                victim = (await agent.call_tool("process")).data
            with stopped(victim):
                until(lambda: said(server, f"(process {victim}) does not answer"), "a word about it")
                noticed = time.monotonic()
                for _ in range(4):
                    if time.monotonic() - noticed > hub_module.KILLED_S / 2:
                        break  # on a loaded machine, before it is killed
                    async with asyncio.timeout(NOBODY_WAITS_S), sessions(server.url, 1) as (new,):
                        assert await process_of(new) != victim
                    async with asyncio.timeout(NOBODY_WAITS_S):
                        async with fastmcp.Client(server.url + "/mcp", mode="2026-07-28") as agent:
                            assert (await agent.call_tool("process")).data != victim
                    async with httpx.AsyncClient(base_url=server.url, timeout=NOBODY_WAITS_S) as fresh:
                        assert (await fresh.get("/health")).is_success and (await fresh.get("/ready")).is_success
                        listed = (await fresh.get("/sessions")).json()
                        figures = metrics((await fresh.get("/metrics")).text)
                        capacity = (await fresh.get("/capacity")).json()
                    assert listed["partial"] is True
                    assert capacity["active_sessions"] >= 4 > len(listed["sessions"])
                    assert (figures["mcpenv_workers"], figures["mcpenv_workers_silent"]) == (1, 1)
                    adds = sum(value for name, value in figures.items() if re.match(r'mcpenv_steps_total.*"add"', name))
                    assert adds == 4
                for client, home in zip(clients, where, strict=True):
                    if home != victim:
                        assert (await client.call_tool("add")).text == "2"
            until(lambda: said(server, "answers again, after"), "its return")
            for client, home in zip(clients, where, strict=True):
                if home == victim:  # nothing of its sessions is lost
                    assert (await client.call_tool("add")).text == "2"
            listed = (await http.get("/sessions")).json()
            assert "partial" not in listed and len(listed["sessions"]) >= 4

    with served() as server:
        run(main(server))


@pytest.mark.slow
def test_clients_that_came_before_it_was_noticed_are_served_by_the_others() -> None:
    async def connect(server: Server) -> int:
        async with sessions(server.url, 1) as (client,):
            return await process_of(client)

    async def main(server: Server) -> None:
        (victim, other) = sorted(server.workers())
        with stopped(victim):
            homes = await asyncio.gather(*(connect(server) for _ in range(16)))
        # Not by one that replaced it: that would have been after `KILLED_S`.
        assert set(homes) == {other} and not said(server, "and is killed")

    with served() as server:
        run(main(server))


@pytest.mark.slow
def test_a_worker_that_stays_stopped_is_killed_and_replaced() -> None:
    async def main(server: Server) -> None:
        victim = min(server.workers())
        os.kill(victim, signal.SIGSTOP)
        began = time.monotonic()
        while not is_over(victim):
            assert time.monotonic() - began < hub_module.KILLED_S + PATIENCE_S
            async with asyncio.timeout(NOBODY_WAITS_S), sessions(server.url, 1) as (client,):
                assert await process_of(client) != victim  # the other's, or already that of the one in its place
        until(lambda: len(server.workers()) == 2, "another one")
        until(lambda: said(server, "and is killed") and said(server, "ended unexpectedly"), "words about both")
        async with asyncio.timeout(PATIENCE_S):
            while True:  # both serve
                async with sessions(server.url, 2) as clients:
                    if len({await process_of(client) for client in clients}) == 2:
                        break

    with served() as server:
        run(main(server))


@pytest.mark.slow
@pytest.mark.parametrize(("victims", "fault", "ending"), sorted(FAULTS))
def test_the_server_ends_with_all_its_processes_whatever_is_stopped_or_killed(
    victims: str, fault: signal.Signals, ending: str
) -> None:
    with served("--shutdown-timeout-s", "2") as server:
        processes = {server.process.pid} | children_of(server.process.pid) | server.workers()
        for victim in VICTIMS[victims](server):
            os.kill(victim, fault)
        for number in ENDINGS[ending]:
            server.process.send_signal(number)
        assert server.process.wait(ENDS_S) == 0
        for process in processes:
            until(functools.partial(is_over, process), f"the end of {process}")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGINT"])
def test_the_server_ends_though_the_event_loop_of_a_worker_is_in_c_for_ever(ending: str, tmp_path: Path) -> None:
    async def stick(url: str) -> None:
        async with fastmcp.Client(url + "/mcp", mode="2026-07-28") as agent:
            await agent.call_tool("stick", {"gate": str(tmp_path / "gate")})

    def call(url: str) -> None:
        with contextlib.suppress(Exception):  # the server ends meanwhile
            asyncio.run(stick(url))

    with served("--shutdown-timeout-s", "2") as server:
        processes = children_of(server.process.pid) | server.workers()
        threading.Thread(target=call, args=(server.url,), daemon=True).start()
        until((tmp_path / "gate.waiting").exists, "the call")
        for number in ENDINGS[ending]:
            server.process.send_signal(number)
        assert server.process.wait(ENDS_S) == 0
        for process in processes:
            until(functools.partial(is_over, process), f"the end of {process}")


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_stopped_fork_server_is_replaced_when_a_worker_is_to_be(ends: bool) -> None:
    with served("--shutdown-timeout-s", "2") as server:
        (forking,) = (each for each in children_of(server.process.pid) if children_of(each) == server.workers())
        os.kill(forking, signal.SIGSTOP)
        victim, survivor = sorted(server.workers())
        os.kill(victim, signal.SIGKILL)
        until(lambda: said(server, "ended unexpectedly"), "a word about it")
        if ends:
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(ENDS_S) == 0
            assert is_over(forking)
            return
        began = time.monotonic()
        while not is_over(forking):
            assert time.monotonic() - began < supervisor.STARTED_S + PATIENCE_S
            time.sleep(0.1)
        until(lambda: len(server.workers()) == 1, "another one")  # the survivor's parent is gone
        assert not is_over(survivor)


@pytest.mark.slow
def test_sigterm_does_not_wait_for_a_stopped_worker_without_sessions() -> None:
    with served("--shutdown-timeout-s", "60") as server:
        victim = min(server.workers())
        os.kill(victim, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0  # not after `--shutdown-timeout-s`
        assert is_over(victim)


class Exits:
    """Ends the process that unpickles it."""

    def __call__(self) -> Served:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (3,)


@pytest.mark.slow
def test_a_worker_that_ends_soon_each_time_is_started_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    async def main() -> None:
        loop, began = asyncio.get_running_loop(), []
        fifth = asyncio.Event()

        class Counting(Hub):
            async def add(self, number: int) -> Seat:
                began.append(loop.time())
                if len(began) == 5:
                    fifth.set()
                return await super().add(number)

        hub = Counting(tmp_path, [], ServerConfig(), 1, anonymous=True)
        async with hub.running():
            processes = supervisor.Processes(hub, Job(tmp_path, 1, ServerConfig(), split=False, load=Exits()))
            running = asyncio.ensure_future(processes.run())
            await fifth.wait()
            pauses = [after - before for before, after in itertools.pairwise(began)]
            assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True))
            processes.end(hurry=False)
            await running  # also out of a pause

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_the_server_ends_at_its_limit_though_a_worker_is_stopped(number: signal.Signals, noticed: bool) -> None:
    with served("--shutdown-timeout-s", "1") as server:
        victim = min(server.workers())
        os.kill(victim, signal.SIGSTOP)
        if noticed:
            until(lambda: said(server, "does not answer"), "a word about it")
        server.process.send_signal(number)
        assert server.process.wait(ENDS_S) == 0
        assert is_over(victim)


@pytest.mark.slow
def test_in_the_moment_without_a_worker_clients_wait_for_one() -> None:
    async def main(server: Server) -> None:
        for worker in server.workers():
            os.kill(worker, signal.SIGKILL)
        # A connection waits for a worker for 4 s before it is refused.
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as http:
            answers = await asyncio.gather(*(http.get("/health") for _ in range(8)))
        assert {each.status_code for each in answers} <= {200, 503}
        assert all(int(each.headers["retry-after"]) > 0 for each in answers if each.status_code == 503)
        until(lambda: httpx.get(server.url + "/ready", timeout=PATIENCE_S).is_success, "another worker")

    with served() as server:
        run(main(server))


@pytest.mark.slow
def test_workers_end_when_the_supervisor_is_killed_also_a_stopped_one() -> None:
    with served() as server:
        workers = server.workers()
        started = children_of(server.process.pid)
        os.kill(min(workers), signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(PATIENCE_S)
        for process in workers | started:
            until(functools.partial(is_over, process), f"the end of {process}")


@pytest.mark.slow
def test_nobody_is_lost_when_the_fork_server_is_killed() -> None:
    async def main(server: Server) -> None:
        async with sessions(server.url, 2) as clients:
            workers = server.workers()
            (forking,) = (each for each in children_of(server.process.pid) if children_of(each) == workers)
            os.kill(forking, signal.SIGKILL)
            until(lambda: is_over(forking), "its end")
            for client in clients:
                assert (await client.call_tool("add")).text == "1"
            victim, survivor = [await process_of(client) for client in clients]
            os.kill(victim, signal.SIGKILL)
            until(lambda: said(server, "ended unexpectedly"), "a word about it")
            assert await process_of(clients[1]) == survivor
            async with asyncio.timeout(PATIENCE_S):
                while True:  # another fork server starts another worker
                    async with sessions(server.url, 2) as fresh:
                        if {await process_of(each) for each in fresh} - {survivor}:
                            break

    with served() as server:
        run(main(server))


class Sticks:
    """A policy whose first episode calls a tool that never returns; the second one's is slow, and the third one's not.

    Args:
        directory: where the tool's files are.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __call__(self, episode: Episode) -> None:
        seconds = (None, 4.0, 0.0)[episode.assignment.number]
        await episode.call_tool("stick", {"gate": str(self.directory / "gate"), "seconds": seconds})


@pytest.mark.slow
def test_a_tool_that_never_returns_costs_its_episode_alike_in_a_server_and_in_a_process(tmp_path: Path) -> None:
    async def play(target: Any, backend: BackendName) -> tuple[StatusCode, float | None]:
        async with EnvPool(target, size=1, backend=backend) as pool:
            limits = Limits(episode_timeout_s=8.0) if backend == "process" else None
            stuck, *others = await pool.rollout(Sticks(tmp_path), n=3, limits=limits, retries=0)
        assert [each.status.code for each in others] == [StatusCode.COMPLETED] * 2
        return stuck.status.code, stuck.reward

    async def main(server: Server) -> None:
        victim = min(server.workers())
        ended = await play(server.url, "remote")
        assert is_over(victim) and said(server, "and is killed")
        assert ended == await play(World, "process") == (StatusCode.TRANSPORT_LOST, None)

    with served(workers=1) as server:
        run(main(server))


def test_a_connection_for_which_no_worker_comes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "STRANDED_S", 0.05)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.setblocking(False)
            hub = Hub(tmp_path, [door], ServerConfig(), 1, anonymous=True)
            async with hub.running():
                acceptor = Acceptor(0, door, hub._pass_on)
                acceptor.open()
                async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
                    answer = await http.get(f"http://127.0.0.1:{door.getsockname()[1]}/health")
                acceptor.close()
        assert (answer.status_code, answer.json()["code"]) == (503, "CAPACITY_REACHED")
        assert answer.headers["retry-after"] == "5"

    run(main())
