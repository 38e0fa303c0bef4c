"""Snapshots over the wire: real servers, `EnvClient`, and frames as they stand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import fastmcp
import httpx
import pytest
from fastmcp import FastMCP
from snapshot_worlds import Hiding, Ledger, Locked, Part, Picky, Plain
from websockets.sync.client import ClientConnection, connect

from mcpenv import MCPEnvironment, Mode
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import (
    CapacityReached,
    EnvClient,
    ExecutionError,
    InvalidMessage,
    NotSupported,
    OperationTimeout,
    SessionLost,
    StepResult,
)
from mcpenv_client.types.records import Fork, Plane

Client = EnvClient[Any, Any, Any]
TIMEOUT_S = 30


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


def data(step: StepResult[Any]) -> Any:
    assert step.result is not None, step.error
    return step.result.data


def address_of(env: Client) -> str:
    """Return the address at which agents act on the episode."""
    assert env.mcp_url is not None
    return env.mcp_url


# -- must show: branches of a database


def test_both_branches_of_a_database_go_on_independently() -> None:
    async def main(url: str) -> None:
        async with Client(url) as trunk:
            await trunk.reset(seed=5)
            for _ in range(3):
                step = await trunk.call_tool("transfer", {"source": 0, "target": 1, "cents": 5})
            assert step.info["return"] == pytest.approx(0.15)
            start = data(await trunk.call_tool("balance", {"account": 0}))
            async with await trunk.fork() as branch:
                assert (await branch.state()).episode_id != (await trunk.state()).episode_id
                on = [("transfer", {"source": 0, "target": 1, "cents": 20}), ("balance", {"account": 0})]
                off = [("transfer", {"source": 1, "target": 0, "cents": 50}), ("balance", {"account": 0})]
                # In turns, so that each would see what the other did.
                told = [
                    (await trunk.call_tool(*one), await branch.call_tool(*other))
                    for one, other in zip(on, off, strict=True)
                ]
                assert [data(step) for step in told[1]] == [start - 20, start + 50]
                assert [step.reward for step in told[0]] == [0.2, 0.5]
                assert [step.info["return"] for step in told[0]] == pytest.approx([0.35, 0.65])
                end = await branch.call_tool("submit")
                assert end.done and end.info["return"] == pytest.approx(0.65)
                assert not (await trunk.call_tool("balance", {"account": 1})).done
                trajectory, other = await trunk.trajectory(), await branch.trajectory()
                assert other.forked_from == Fork(trajectory.episode_id, 4) and trajectory.forked_from is None
                assert other.steps[:4] == trajectory.steps[:4]
                assert [record.call.name for record in other.steps[4:]] == ["transfer", "balance", "submit"]
                assert other.seed == 5 and other.total_reward == pytest.approx(0.65)
            assert data(await trunk.call_tool("transfer", {"source": 0, "target": 1, "cents": 1})) == 36

    with serving(Ledger) as url:
        run(main(url))


def test_one_snapshot_serves_many_branches_and_a_fork_can_fork_and_go_back() -> None:
    with serving(Plain) as url, ExitStack() as stack:
        trunk = stack.enter_context(Client(url).sync())
        trunk.reset(seed=1)
        trunk.call_tool("add", {"by": 2})
        held = trunk.snapshot()
        branches = [stack.enter_context(trunk.fork(held)) for _ in range(4)]
        assert [data(env.call_tool("add", {"by": by})) for by, env in enumerate(branches)] == [2, 3, 4, 5]
        twig = stack.enter_context(branches[3].fork())
        assert data(twig.call_tool("add")) == 6
        back = twig.restore(held)  # what the trunk made, its forks can name
        assert data(back) == 2 and twig.state().step_count == 1
        draws = [data(env.call_tool("draw")) for env in (twig, trunk, branches[0])]
        assert draws[0] == draws[1] == draws[2]


# -- the episode and its agents


def test_a_restore_gives_agents_a_new_address_and_the_one_before_is_over() -> None:
    async def main(url: str) -> None:
        async with Client(url) as env:
            first = await env.reset()
            held = await env.snapshot()
            waiting = asyncio.create_task(env.wait())
            assert (await env.wait(0.01)).done is False
            async with fastmcp.Client(first.info["mcp_url"]) as agent:
                await agent.call_tool("add", {"by": 3})
                again = await env.restore(held)
                with pytest.raises(fastmcp.exceptions.ToolError, match=r"The episode is over\."):
                    await agent.call_tool("add")
            with pytest.raises(SessionLost):
                await waiting
            assert again.info["mcp_url"] == env.mcp_url != first.info["mcp_url"]
            assert again.info["episode_id"] != first.info["episode_id"]
            async with fastmcp.Client(address_of(env)) as agent, await env.fork() as branch:
                assert (await agent.call_tool("add")).data == 1
                async with fastmcp.Client(address_of(branch)) as other:
                    assert (await other.call_tool("add", {"by": 10})).data == 10
                assert [record.call.plane for record in (await branch.trajectory()).steps] == [Plane.AGENT]
                assert len((await env.trajectory()).steps) == 1

    with serving(Plain) as url:
        run(main(url))


def test_a_refused_restore_leaves_the_address_as_it_was() -> None:
    async def main(url: str) -> None:
        async with Client(url) as env:
            first = await env.reset()
            held = await env.snapshot()
            with pytest.raises(InvalidMessage, match="no such snapshot"):
                await env.restore("nothing")
            Part.fits = False
            try:
                with pytest.raises(NotSupported, match="does not fit this instance"):
                    await env.restore(held)
            finally:
                Part.fits = True
            async with fastmcp.Client(first.info["mcp_url"]) as agent:
                assert (await agent.call_tool("add")).data == 1
            assert (await env.restore(held)).done is False

    with serving(Picky) as url:
        run(main(url))


def test_the_address_before_a_restore_still_lists_when_the_session_is_over() -> None:
    async def main(url: str) -> None:
        async with Client(url) as env:
            first = await env.reset()
            await env.restore(await env.snapshot())
        async with fastmcp.Client(first.info["mcp_url"]) as agent:
            assert {tool.name for tool in await agent.list_tools()} == {"add", "draw", "keep", "look", "learn"}
            with pytest.raises(fastmcp.exceptions.ToolError, match=r"The episode is over\."):
                await agent.call_tool("add")

    with serving(Plain) as url:
        run(main(url))


# -- exactly once


@contextmanager
def a_socket(url: str, **query: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Sends a frame, and gives its answer."""
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    with connect(f"{url.replace('http', 'ws')}/ws?{asked}") as socket:
        yield lambda kind, **fields: ask(socket, {"type": kind, **fields})


def ask(socket: ClientConnection, frame: dict[str, Any]) -> dict[str, Any]:
    socket.send(json.dumps(frame))
    answer: dict[str, Any] = json.loads(socket.recv(TIMEOUT_S))
    return answer


ADD = {"type": "call_tool", "tool_name": "add", "arguments": {}}


def until_there_are(count: int, url: str) -> set[str]:
    """The ids of the sessions, as soon as there are no more of them: a session ends a little after its socket."""
    with httpx.Client() as http:
        while True:
            found = {session["session_id"] for session in http.get(f"{url}/sessions").json()["sessions"]}
            if len(found) <= count:
                return found


def sessions(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/sessions").json()["sessions"]
    return found


def test_each_frame_of_snapshots_runs_once() -> None:
    with serving(Plain) as url, a_socket(url) as say:
        say("reset")
        held = say("snapshot", request_id="s")
        assert held.keys() == {"type", "data", "request_id"}
        assert held["data"].keys() == {"snapshot_id", "episode_id", "step", "bytes"}
        assert say("snapshot", request_id="s") == held
        which = {"snapshot_id": held["data"]["snapshot_id"]}
        restored = say("restore", data=which, request_id="r")
        assert restored["type"] == "observation"
        assert say("restore", data=which, request_id="r") == restored
        forked = say("fork", data=which, request_id="f")
        assert forked["data"].keys() == {"session_id", "episode_id", "mcp_url"}
        assert say("fork", data=which, request_id="f") == forked
        assert len(sessions(url)) == 2
        assert say("fork", request_id="f")["data"]["code"] == "VALIDATION_ERROR"
        assert say("drop_snapshot", data=which, request_id="d")["data"] == {"dropped": True}
        assert say("drop_snapshot", data=which, request_id="d")["data"] == {"dropped": True}
        assert say("drop_snapshot", data=which)["data"] == {"dropped": False}
        assert say("restore", data=which)["data"]["code"] == "VALIDATION_ERROR"


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("snapshot", {"name": "x"}),
        ("restore", None),
        ("restore", {}),
        ("restore", {"snapshot_id": 7}),
        ("fork", {"snapshot": "x"}),
        ("fork", {"session_id": "short", "session_token": "short"}),
        ("fork", {"session_token": "x" * 20}),
        ("drop_snapshot", {"snapshot_id": None}),
    ],
)
def test_a_frame_that_makes_no_sense_is_refused_and_the_episode_goes_on(kind: str, sent: Any) -> None:
    with serving(Plain) as url, a_socket(url) as say:
        say("reset")
        assert say(kind, data=sent)["data"]["code"] == "VALIDATION_ERROR"
        step = say("step", data=ADD)
        assert step["data"]["observation"]["result"]["data"] == 1


# -- room


def test_a_fork_takes_a_slot_and_a_session_is_not_lost_by_asking_for_one_too_many() -> None:
    with serving(Plain, ServerConfig(max_concurrent_envs=2, queue_timeout_s=0)) as url, ExitStack() as stack:
        env = stack.enter_context(Client(url).sync())
        env.reset()
        branch = stack.enter_context(env.fork())
        with pytest.raises(CapacityReached):
            env.fork()
        assert data(env.call_tool("add")) == data(branch.call_tool("add")) == 1
        branch.close()  # answers when the server has closed the socket
        with retried(lambda: env.fork()) as again:
            assert data(again.call_tool("add")) == 2


def retried(ask_for: Callable[[], Any]) -> Any:
    """The answer as soon as there is room: a session ends a little after its socket."""
    for _ in range(1000):
        try:
            return ask_for()
        except CapacityReached:
            continue
    raise AssertionError("there was no room")


def test_where_there_is_one_session_at_a_time_a_fork_is_refused_at_once() -> None:
    class Alone(MCPEnvironment):
        """One at a time."""

    with serving(Alone) as url, Client(url).sync() as env:
        env.reset()
        held = env.snapshot()
        with pytest.raises(NotSupported, match="SUPPORTS_CONCURRENT_SESSIONS"):
            env.fork(held)
        assert env.restore(held).done is False


def test_snapshots_are_bounded_by_count_and_by_bytes() -> None:
    with serving(Plain, ServerConfig(max_snapshots=2, max_snapshot_bytes=20_000)) as url, Client(url).sync() as env:
        env.reset()
        held = [env.snapshot(), env.snapshot()]
        with pytest.raises(CapacityReached, match="max_snapshots"):
            env.snapshot()
        assert env.drop_snapshot(held[0]) and not env.drop_snapshot(held[0])
        env.call_tool("keep", {"value": 10**9})
        assert env.snapshot().step == 1
        env.drop_snapshot(held[1])
        for _ in range(200):
            env.call_tool("draw")
        with pytest.raises(CapacityReached, match="max_snapshot_bytes"):
            env.snapshot()
        assert env.state().step_count == 201
        env.reset()
        for _ in range(10):  # what was dropped is not counted
            assert env.drop_snapshot(env.snapshot())


def test_nobody_else_can_name_a_snapshot_and_it_goes_with_the_session_that_made_it() -> None:
    with serving(Plain) as url, ExitStack() as stack:
        maker = Client(url).sync()
        maker.connect()
        stranger = stack.enter_context(Client(url).sync())
        maker.reset()
        stranger.reset()
        held = maker.snapshot()
        for use in (stranger.restore, stranger.fork):
            with pytest.raises(InvalidMessage, match="no such snapshot"):
                use(held)
        assert not stranger.drop_snapshot(held)
        branch = stack.enter_context(maker.fork())
        own = branch.snapshot()
        branch.restore(held)
        maker.close()
        until_there_are(2, url)
        with pytest.raises(InvalidMessage, match="no such snapshot"):
            branch.restore(held)
        assert branch.restore(own).done is False


def test_a_fork_that_nobody_joins_ends_when_it_is_idle_and_one_that_is_joined_with_its_socket() -> None:
    with serving(Plain, ServerConfig(session_timeout_s=1.0)) as url, a_socket(url) as say:
        say("reset")
        (mine,) = sessions(url)
        forked = say("fork")["data"]
        joined = say("fork")["data"]
        with a_socket(url, session_id=joined["session_id"]) as other:
            assert other("state")["data"]["episode_id"] == joined["episode_id"]
            left = until_there_are(2, url)
            assert left == {mine["session_id"], joined["session_id"]}
            assert other("state")["data"]["step_count"] == 0
        assert until_there_are(1, url) == {mine["session_id"]}
        assert forked["session_id"] != joined["session_id"]


def test_a_fork_that_nobody_has_joined_ends_with_the_session_that_asked_for_it() -> None:
    with serving(Plain) as url, ExitStack() as stack:
        with a_socket(url) as say:
            say("reset")
            joined = say("fork")["data"]["session_id"]
            say("fork")
            branch = stack.enter_context(a_socket(url, session_id=joined))
            assert branch("state")["data"]["step_count"] == 0
        assert until_there_are(1, url) == {joined}
        assert branch("step", data=ADD)["data"]["observation"]["result"]["data"] == 1


# -- coming back


def test_the_fork_of_a_client_that_comes_back_comes_back_too() -> None:
    async def main(url: str) -> None:
        async with Client(url, resume=True) as env:
            await env.reset()
            async with await env.fork() as branch:
                await branch.call_tool("add")
                for client in (env, branch):
                    connection: Any = client._session.connection
                    connection._socket.transport.abort()
                assert data(await branch.call_tool("add")) == 2
                assert data(await env.call_tool("add")) == 1

    with serving(Plain, ServerConfig(resume_grace_s=60)) as url:
        run(main(url))


# -- what cannot be saved, and what fails


def test_what_cannot_be_saved_is_named_over_the_wire() -> None:
    class Handed(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(FastMCP("handed in"))

    for cls, said in ((Locked, r"self\.inner\['lock'\]"), (Hiding, "'items'"), (Handed, "FastMCP server")):
        with serving(cls) as url, Client(url).sync() as env:
            with pytest.raises(InvalidMessage, match="reset first"):
                env.snapshot()
            env.reset()
            for ask_for in (env.snapshot, env.fork):
                with pytest.raises(NotSupported, match=said):
                    ask_for()
            assert env.state().step_count == 0


def test_there_are_no_snapshots_in_production() -> None:
    config = ServerConfig(mode=Mode.PRODUCTION, control_token="control-token")
    headers = {"Authorization": "Bearer control-token"}
    with serving(Plain, config) as url, Client(url, headers=headers).sync() as env:
        env.reset()
        with pytest.raises(NotSupported, match="in production mode"):
            env.snapshot()


class Gated(Plain):
    """Hooks that wait for the test, and fail when it says so."""

    THREAD_AFFINE = True
    begun: threading.Event
    go_on: threading.Event
    wait_in = ""
    fail_in = ""
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.thread_name = threading.current_thread().name
        self.thread_id = threading.get_ident()

        @self.tool
        def block() -> str:
            """Do not return."""
            self._pass("block")
            return "returned"

    def save_state(self) -> Any:
        self._pass("save")
        state = super().save_state()
        assert threading.get_ident() == self.thread_id
        del state["thread_id"]
        return state

    def load_state(self, state: Any) -> None:
        self._pass("load")
        assert threading.get_ident() == self.thread_id
        super().load_state(state)

    def _pass(self, name: str) -> None:
        if self.fail_in == name:
            raise RuntimeError(f"{name} fails")
        if self.wait_in == name:
            type(self).wait_in = ""
            self.begun.set()
            self.go_on.wait(TIMEOUT_S)


@pytest.fixture
def gated() -> Iterator[type[Gated]]:
    class Own(Gated):
        begun = threading.Event()
        go_on = threading.Event()

    yield Own
    Own.go_on.set()


def test_invariant_6_a_slow_hook_delays_no_other_session_and_no_step_runs_beside_it(gated: type[Gated]) -> None:
    async def main(url: str) -> None:
        async with Client(url) as env, Client(url) as other, httpx.AsyncClient() as http:
            reset = await env.reset()
            await other.reset()
            both: list[tuple[str, Callable[[], Any]]] = [("save", env.snapshot), ("load", env.fork)]
            for name, slow in both:
                gated.wait_in = name
                holding = asyncio.create_task(slow())
                await asyncio.to_thread(gated.begun.wait, TIMEOUT_S)
                assert (await http.get(f"{url}/health")).status_code == 200
                assert data(await other.call_tool("add")) >= 1
                async with fastmcp.Client(reset.info["mcp_url"]) as agent:
                    step = asyncio.create_task(agent.call_tool("add"))
                    if name == "save":
                        await asyncio.wait({step}, timeout=0.2)
                        assert not step.done()  # it waits its turn
                        gated.go_on.set()
                    await step
                gated.go_on.set()
                held = await holding
                gated.begun.clear()
                gated.go_on.clear()
            assert (await held.trajectory()).forked_from.step == 1
            await held.close()

    with serving(gated) as url:
        run(main(url))


def test_a_hook_past_its_deadline_ends_the_episode_and_the_snapshots_before_go_on_in_a_new_instance(
    gated: type[Gated],
) -> None:
    with serving(gated, ServerConfig()) as url, Client(url).sync() as env:
        env.reset(seed=1)
        env.call_tool("draw")
        held = env.snapshot()
        gated.wait_in = "save"
        with pytest.raises(OperationTimeout):
            env.snapshot(timeout_s=0.2)
        assert env.wait(1).truncated
        before = gated.made
        assert env.restore(held).done is False
        assert gated.made == before + 1
        after = data(env.call_tool("draw"))
        with env.fork(held) as branch:
            assert data(branch.call_tool("draw")) == after


def test_a_restore_that_cannot_be_stopped_ends_the_episode_that_it_was_to_replace() -> None:
    with serving(Picky) as url, Client(url).sync() as env:
        env.reset()
        held = env.snapshot()
        Part.held_up = threading.Event()
        try:
            with pytest.raises(OperationTimeout):
                env.restore(held, timeout_s=0.2)
            assert env.wait(10).truncated
        finally:
            Part.held_up.set()
            Part.held_up = None
        assert env.restore(held).done is False


def test_a_restore_after_a_step_that_could_not_be_stopped_is_on_a_new_instance(gated: type[Gated]) -> None:
    with serving(gated) as url, Client(url).sync() as env:
        env.reset()
        env.call_tool("add")
        held = env.snapshot()
        gated.wait_in = "block"
        assert env.call_tool("block", timeout_s=0.2).truncated
        assert data(env.restore(held)) == 1
        assert data(env.call_tool("add")) == 2


def test_hooks_that_fail_are_errors_of_the_environment(gated: type[Gated]) -> None:
    with serving(gated) as url, Client(url).sync() as env:
        env.reset()
        env.call_tool("add")
        held = env.snapshot()
        gated.fail_in = "save"
        with pytest.raises(ExecutionError) as failed:
            env.snapshot()
        assert failed.value.incident and "save fails" not in failed.value.message
        assert data(env.call_tool("add")) == 2
        gated.fail_in = "load"
        with pytest.raises(ExecutionError):
            env.fork(held)
        assert len(sessions(url)) == 1
        assert data(env.call_tool("add")) == 3
        with pytest.raises(ExecutionError):
            env.restore(held)
        gated.fail_in = ""
        assert data(env.restore(held)) == 1
        assert data(env.call_tool("add")) == 2


def test_a_fork_under_way_is_cancelled_with_the_session_that_asked_for_it(gated: type[Gated]) -> None:
    with serving(gated) as url, connect(f"{url.replace('http', 'ws')}/ws") as socket:
        ask(socket, {"type": "reset"})
        gated.wait_in = "load"
        socket.send(json.dumps({"type": "fork", "request_id": "f"}))
        assert gated.begun.wait(TIMEOUT_S)
        socket.close()
        gated.go_on.set()
        until_there_are(0, url)
