"""Durable sessions on servers of this process: an episode goes on at another server, with the same results."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from durable_worlds import Clock, Gated, Hidden, Noted, Restarted, Saved, Submitted, Trip, Walk
from fastmcp import Client
from record_worlds import Dice, Shout, play

from mcpenv import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.durable import bounds, sqlite_store
from mcpenv.extensions.durable.extension import Durable
from mcpenv.extensions.durable.sqlite_store import SqliteStore
from mcpenv.extensions.durable.store import Fenced, KeptSession, open_store
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.server.sessions.session import Session
from mcpenv.trajectories import Recorder, read_episodes
from mcpenv_client import (
    CapacityReached,
    EnvClient,
    ExecutionError,
    Observation,
    SessionLost,
    StatusCode,
    SyncEnvClient,
    Unauthorized,
)
from mcpenv_client.connection import connection
from mcpenv_client.connection.handshake import Handshake
from mcpenv_client.fingerprint import digest_of, without_incidents

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve at a store and a record that all servers of the test share."""

    def at(cls: type[MCPEnvironment] = Walk, durable: str = "store?lease_s=5", **settings: Any) -> Any:
        config = ServerConfig(**{"durable": str(tmp_path / durable), "record": tmp_path / "record", **settings})
        return serving(cls, config, max_concurrent_envs=8)

    return at


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def played(client: SyncEnvClient[Any, Any], steps: int) -> list[str]:
    return [client.call_tool("walk", {"by": 2}).text for _ in range(steps)]


def drawn(client: SyncEnvClient[Any, Any]) -> list[int]:
    return json.loads(client.call_tool("draw").text)  # type: ignore[no-any-return]


def undisturbed(tmp_path: Path) -> str:
    """The digest of the episode of seed 5 with six steps, on one server."""
    with serving(Walk, ServerConfig(record=tmp_path / "undisturbed")) as url, EnvClient(url).sync() as client:
        client.reset(seed=5)
        played(client, 6)
        client.call_tool("arrive")
    (episode,) = read_episodes(tmp_path / "undisturbed")
    return digest_of(episode.trajectory)


@pytest.mark.parametrize("writes", ["strict", "behind"])
def test_an_episode_outlives_its_server(serve: Serve, stack: ExitStack, tmp_path: Path, writes: str) -> None:
    durable = f"store?writes={writes}"
    first = serve(durable=durable)
    url = first.__enter__()
    second = stack.enter_context(serve(durable=durable))
    client = stack.enter_context(EnvClient([url, second]).sync())
    began = client.reset(seed=5)
    before = played(client, 3)
    first.__exit__(None, None, None)
    after = played(client, 3)
    assert client.base_url == second
    ended = client.call_tool("arrive")
    assert ended.done
    assert ended.info["return"] == ended.reward == float(after[-1])
    assert len(set(before + after)) == 6
    client.close()
    (episode,) = read_episodes(tmp_path / "record")
    assert episode.id == began.info["episode_id"]
    assert digest_of(episode.trajectory) == undisturbed(tmp_path)


def test_a_store_on_a_network_is_not_written_ahead(
    serve: Serve, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "file_system_of", lambda folder: "nfs4")
    first = serve()
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve())]).sync())
    client.reset(seed=5)
    played(client, 3)
    first.__exit__(None, None, None)
    assert len({*played(client, 3)}) == 3 and client.state().step_count == 6
    assert {each.name for each in (tmp_path / "store").iterdir()} == {sqlite_store.FILE}
    monkeypatch.setattr(sqlite_store, "file_system_of", lambda folder: "ext4")
    open_store(str(tmp_path / "local"))
    monkeypatch.setattr(sqlite_store, "file_system_of", lambda folder: "fuse.sshfs")
    with pytest.raises(ConfigurationError, match="begun on a disk of one machine"):
        open_store(str(tmp_path / "local"))


def test_the_same_server_continues_after_it_starts_again(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    servers = tmp_path / "servers.txt"
    first = serve()
    servers.write_text(first.__enter__() + "\n")
    client = stack.enter_context(EnvClient(servers).sync())
    client.reset(seed=1)
    played(client, 2)
    first.__exit__(None, None, None)
    servers.write_text("# the new address\n" + stack.enter_context(serve()) + "\n")
    assert client.state().step_count == 2


def test_a_client_moves_its_episode_from_a_server_that_lives(serve: Serve, stack: ExitStack) -> None:
    one, two = stack.enter_context(serve()), stack.enter_context(serve())
    client = EnvClient([one, two])
    blocking = stack.enter_context(client.sync())
    blocking.reset(seed=1)
    before = played(blocking, 2)
    # The client's network sends it to the other server, as a load balancer may.
    assert client._session.connection is not None
    client._session.servers.next()
    client._session.connection._abort()
    after = played(blocking, 1)
    assert client.base_url == two
    assert int(after[0]) > int(before[-1])
    assert blocking.state().step_count == 3


def test_an_orchestrator_waits_on_where_its_episode_continues(
    serve: Serve, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, append, fenced = stack.enter_context(serve()), SqliteStore.append, ["once"]

    async def refused(store: SqliteStore, *arguments: Any) -> None:
        if fenced:
            fenced.clear()
            raise Fenced
        await append(store, *arguments)

    async def play() -> None:
        async with EnvClient(url, resume=True) as env:
            first = await env.reset(seed=1)
            waiting = asyncio.ensure_future(env.wait())
            while not (env._session.connection and env._session.connection._waiting):
                await asyncio.sleep(0.01)
            monkeypatch.setattr(SqliteStore, "append", refused)
            async with Client(str(first.info["mcp_url"])) as agent:
                lost = await agent.call_tool("walk", {}, raise_on_error=False)
                assert lost.is_error
            async with Client(str(first.info["mcp_url"])) as agent:
                await agent.call_tool("arrive", {})
            assert (await waiting).done

    asyncio.run(asyncio.wait_for(play(), 20))


@pytest.mark.parametrize("writes", ["strict", "behind"])
def test_a_client_goes_on_if_one_server_is_busy_and_the_next_one_is_gone(
    serve: Serve, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    one, two = (stack.enter_context(serve(durable=f"store?writes={writes}")) for _ in range(2))
    client = EnvClient([one, two, "http://127.0.0.1:1"])
    blocking = stack.enter_context(client.sync())
    blocking.reset(seed=1)
    played(blocking, 2)
    busy = ["once"]
    revive = Durable.revive

    async def revived(durable: Durable, *arguments: Any) -> Session | None:
        if busy:
            busy.clear()
            raise CapacityReached("another server has this session, and is busy with it; try again")
        return await revive(durable, *arguments)

    monkeypatch.setattr(Durable, "revive", revived)
    assert client._session.connection is not None
    client._session.servers.next()
    client._session.connection._abort()
    played(blocking, 1)
    assert (blocking.state().step_count, busy, client.base_url) == (3, [], one)


def test_agents_reach_an_episode_at_any_server(serve: Serve, stack: ExitStack) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())
    client = stack.enter_context(EnvClient([url, second]).sync())
    path = str(client.reset(seed=1).info["mcp_url"]).removeprefix(url)
    played(client, 2)
    first.__exit__(None, None, None)

    async def call() -> int:
        async with Client(second + path) as agent:
            return (await agent.call_tool("walk", {"by": 1})).data  # type: ignore[no-any-return]

    at = asyncio.run(call())
    assert at > 0
    assert client.state().step_count == 3  # its client finds the session where the agent has continued it
    assert client.mcp_url is not None
    assert client.mcp_url.endswith(path)


def test_failures_and_ends_by_the_orchestrator_are_continued(serve: Serve, stack: ExitStack) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())
    client = stack.enter_context(EnvClient([url, second]).sync())
    client.reset(seed=2, at=7)
    assert "wall" in client.call_tool("fail").text
    client.call_tool("nothing")
    ended = client.end(truncated=True, reason="enough")
    first.__exit__(None, None, None)
    again = client.end()
    assert (again.truncated, again.info["reason"]) == (ended.truncated, ended.info["reason"]) == (True, "enough")
    trajectory = client.trajectory()
    assert [step.status.code for step in trajectory.steps] == [StatusCode.ENV_ERROR, StatusCode.AGENT_ERROR]
    assert trajectory.options == {"at": 7}
    assert client.reset(seed=3).info["episode_id"] != trajectory.episode_id


def test_an_episode_that_ended_is_recorded_once(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())
    client = stack.enter_context(EnvClient([url, second]).sync())
    client.reset(seed=2)
    client.call_tool("arrive")
    first.__exit__(None, None, None)
    assert client.trajectory().done
    client.reset(seed=3)
    client.close()
    assert sorted(episode.ending for episode in read_episodes(tmp_path / "record")) == ["closed", "terminated"]


def test_an_episode_whose_server_was_lost_before_it_was_recorded_is_recorded_by_the_next(
    serve: Serve, stack: ExitStack, tmp_path: Path
) -> None:
    first, second = serve(record=None), serve()  # the first one never records it
    urls = [first.__enter__(), second.__enter__(), stack.enter_context(serve())]
    client = stack.enter_context(EnvClient(urls).sync())
    client.reset(seed=2)
    played(client, 2)
    client.call_tool("arrive")
    ended = client.trajectory()
    for server in (first, second):
        server.__exit__(None, None, None)
        assert client.trajectory().done
    client.reset(seed=3)  # the record has the last episode then
    (episode,) = read_episodes(tmp_path / "record")
    assert [step.started_at for step in episode.trajectory.steps] == [step.started_at for step in ended.steps]
    assert (episode.trajectory.total_reward, episode.ending) == (ended.total_reward, "terminated")


def test_an_ended_episode_whose_server_and_client_were_lost_is_recorded(
    serve: Serve, stack: ExitStack, tmp_path: Path
) -> None:
    first = serve(Dice, durable="store?lease_s=0.4", record=None)
    client = stack.enter_context(EnvClient(first.__enter__(), resume=True).sync())
    client.reset(seed=2)
    client.step(Shout(text="hello"))
    client.end(reason="enough")
    first.__exit__(None, None, None)
    stack.enter_context(serve(Dice, durable="store?lease_s=0.4"))
    while not (found := list(read_episodes(tmp_path / "record"))):
        time.sleep(0.02)
    (episode,) = found
    assert (episode.trajectory.reason, episode.environment.name) == ("enough", "Dice")
    assert episode.extra["observations"]["1"]["echo"] == "hello (0)"


def test_an_episode_whose_client_was_lost_is_recorded_before_it_is_deleted(
    serve: Serve, stack: ExitStack, tmp_path: Path
) -> None:
    first = serve()
    client = stack.enter_context(EnvClient(first.__enter__(), resume=True).sync())
    client.reset(seed=2)
    played(client, 2)
    first.__exit__(None, None, None)
    assert list(read_episodes(tmp_path / "record")) == []
    stack.enter_context(serve(durable="store?lease_s=0.4&keep_s=0.1"))
    while asyncio.run(kept_sessions(tmp_path / "store")):
        time.sleep(0.02)
    (episode,) = read_episodes(tmp_path / "record")
    assert (episode.ending, len(episode.trajectory.steps)) == ("disconnected", 2)


def test_observations_of_own_actions_are_in_the_record_of_the_server_where_it_ends(
    serve: Serve, stack: ExitStack, tmp_path: Path
) -> None:
    first = serve(Dice)
    client = stack.enter_context(EnvClient([first.__enter__(), stack.enter_context(serve(Dice))]).sync())
    client.reset(seed=2)
    client.step(Shout(text="one"))
    first.__exit__(None, None, None)
    client.step(Shout(text="two"))
    client.end()
    client.reset()
    (episode,) = read_episodes(tmp_path / "record")
    assert [episode.extra["observations"][number]["echo"] for number in "12"] == ["one (0)", "two (0)"]


def test_an_environment_that_is_not_deterministic_is_named_with_the_first_difference(
    serve: Serve, stack: ExitStack
) -> None:
    first = serve(Clock)
    url = first.__enter__()
    second = stack.enter_context(serve(Clock))
    client = stack.enter_context(EnvClient([url, second]).sync())
    client.reset()
    client.call_tool("now")
    first.__exit__(None, None, None)
    with pytest.raises(SessionLost, match=r"step 1 differs in result\.content\[0\]\.text"):
        client.call_tool("now")
    assert client.reset().info["episode_id"]  # a new session goes on


def test_a_session_is_continued_with_its_secret_only(serve: Serve, stack: ExitStack) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())
    client = EnvClient([url, second])
    blocking = stack.enter_context(client.sync())
    blocking.reset(seed=1)
    first.__exit__(None, None, None)
    credential = client._session._credential
    assert credential is not None
    thief = EnvClient(second, resume=True)
    thief._session._credential = type(credential)(credential.session_id, "another-secret-entirely")

    async def steal() -> None:
        thief._session.connection = await thief._session._open(thief._session._credential, resume=True)
        await thief.state()

    with pytest.raises(Unauthorized):
        asyncio.run(steal())
    assert blocking.state().step_count == 0


def test_what_its_client_has_closed_is_forgotten(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    url = stack.enter_context(serve())
    with EnvClient(url, resume=True).sync() as client:
        client.reset(seed=1)
        played(client, 1)
    with EnvClient(url).sync() as client:  # it cannot resume, and is not kept
        client.reset(seed=1)

    async def left() -> int:
        store = open_store(str(tmp_path / "store"))
        try:
            return len(await store.sessions())
        finally:
            await store.close()

    assert asyncio.run(left()) == 0


@pytest.mark.parametrize("moved", [True, False], ids=["by its agent", "not yet"])
def test_a_client_closes_its_session_where_it_is_after_its_server(
    serve: Serve, stack: ExitStack, tmp_path: Path, moved: bool
) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())
    with EnvClient([url, second]).sync() as client:
        path = str(client.reset(seed=1).info["mcp_url"]).removeprefix(url)
        played(client, 2)
        first.__exit__(None, None, None)
        if moved:
            assert asyncio.run(agent_walks(second + path)) > 0
    assert httpx.get(f"{second}/sessions").json()["sessions"] == []
    assert asyncio.run(kept_sessions(tmp_path / "store")) == []
    stack.close()
    (episode,) = read_episodes(tmp_path / "record")
    assert (episode.trajectory.reason, len(episode.trajectory.steps)) == ("closed", 2 + moved)


def test_no_step_is_written_behind_once_its_session_is_closed(
    serve: Serve, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, writing, begun = SqliteStore.append, 0, 0

    async def slow(store: SqliteStore, *arguments: Any) -> None:
        nonlocal writing, begun
        writing, begun = writing + 1, begun + 1
        try:
            await asyncio.sleep(0.2)
            await append(store, *arguments)
        finally:
            writing -= 1

    monkeypatch.setattr(SqliteStore, "append", slow)
    url = stack.enter_context(serve(durable="store?writes=behind"))
    with EnvClient(url, resume=True).sync() as client:
        client.reset(seed=1)
        played(client, 4)
    assert (begun > 0, writing) == (True, 0)
    assert asyncio.run(kept_sessions(tmp_path / "store")) == []
    stack.close()
    (episode,) = read_episodes(tmp_path / "record")
    assert (episode.trajectory.reason, len(episode.trajectory.steps)) == ("closed", 4)


def test_a_client_waits_for_a_server_that_has_no_worker_at_the_moment(
    serve: Serve, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, refusals = connection._connected, 2

    async def refused(handshake: Handshake) -> Any:
        """Refuse the handshake as the server does while its workers start again."""
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise CapacityReached("this server has no worker at the moment", retry_after_s=0.05)
        return await connected(handshake)

    monkeypatch.setattr(connection, "_connected", refused)
    client = EnvClient(stack.enter_context(serve()), resume=True, capacity_timeout_s=30)
    blocking = client.sync()
    blocking.reset(seed=1)
    stack.callback(blocking.close)
    played(blocking, 1)
    assert client._session.connection is not None
    refusals = 2
    client._session.connection._abort()
    played(blocking, 1)
    assert (blocking.state().step_count, refusals) == (2, -1)


def test_a_reset_that_gets_no_answer_is_not_begun_again(serve: Serve, stack: ExitStack) -> None:
    begun: list[int] = []

    class Slow(Walk):
        async def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
            """Begin, late."""
            begun.append(1)
            await asyncio.sleep(2.0)

    client = stack.enter_context(EnvClient(stack.enter_context(serve(Slow)), resume=True, max_resumes=1).sync())
    with pytest.raises(SessionLost, match="no reply"):
        client.reset(timeout_s=0.3)
    assert begun == [1]


def test_what_has_acted_outside_is_never_written_behind(
    serve: Serve, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, opened = SqliteStore.append, threading.Event()

    async def slow(store: SqliteStore, *arguments: Any) -> None:
        while not opened.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await append(store, *arguments)

    url = stack.enter_context(serve(Trip, durable="store?writes=behind"))
    client = stack.enter_context(EnvClient(url, resume=True).sync())
    client.reset(seed=1)
    monkeypatch.setattr(SqliteStore, "append", slow)
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    client.call_tool("walk")
    assert asyncio.run(kept_in(tmp_path / "store")).steps == 0
    opened.set()
    assert client.call_tool("send", {"name": "a"}).error is None
    assert asyncio.run(kept_in(tmp_path / "store")).steps == 2


@pytest.mark.parametrize("branches", [False, True])
def test_an_episode_whose_session_is_lost_before_it_has_begun_is_begun_again(
    serve: Serve, stack: ExitStack, tmp_path: Path, branches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = stack.enter_context(serve(Dice))
    with Recorder(tmp_path / "other") as recorder, Dice() as env:
        recorder.attach(env)
        play(env, 7)
    (parent,) = read_episodes(tmp_path / "other")
    begun, wanted = Durable.begun, 2

    async def lost(durable: Durable, session: Session, observation: Observation) -> None:
        """Lose the first sessions as a killed worker does: nothing is in the store, and no answer is sent."""
        nonlocal wanted
        wanted -= 1
        if wanted < 0:
            await begun(durable, session, observation)
        else:
            session.evict("killed")
            durable._begin(durable._pool.close(session, "closed"))
            await asyncio.sleep(3600)

    monkeypatch.setattr(Durable, "begun", lost)
    client = stack.enter_context(EnvClient(url, resume=True).sync())
    first = client.branch(parent, 2) if branches else client.reset(seed=1)
    assert first.info["episode_id"] and wanted < 0
    assert client.state().step_count == (2 if branches else 0)
    assert client.call_tool("roll").error is None


def test_steps_that_were_lost_with_a_server_run_again_also_those_that_failed(
    serve: Serve, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, stores = SqliteStore.append, list[SqliteStore]()

    async def lost(store: SqliteStore, *arguments: Any) -> None:
        """Take a write of the first server as if that was killed before the store has it."""
        stores.append(store)
        if store is not stores[0]:
            await append(store, *arguments)

    one, two = (stack.enter_context(serve(durable="store?writes=behind")) for _ in range(2))
    client = EnvClient([one, two])
    blocking = stack.enter_context(client.sync())
    blocking.reset(seed=1)
    monkeypatch.setattr(SqliteStore, "append", lost)
    before = played(blocking, 1)
    failed = blocking.call_tool("fail").error
    assert failed is not None and client._session.connection is not None
    client._session.servers.next()
    client._session.connection._abort()
    assert (int(played(blocking, 1)[0]) > int(before[0]), client.base_url) == (True, two)
    first, again, _ = blocking.trajectory().steps
    assert first.outcome.result is not None and first.outcome.result.content[0]["text"] == before[0]
    assert again.outcome.error is not None
    assert without_incidents(again.outcome.error.message) == without_incidents(failed.message)


class Mailer(MCPEnvironment):
    """Count mails, in the environment itself, where a call that is not made again changes nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.sent = 0

        @self.tool(annotations={"openWorldHint": True})
        def mail() -> int:
            self.sent += 1
            return self.sent

        @self.tool
        def count() -> int:
            return self.sent

    def reset(self) -> None:  # type: ignore[override]
        """Begin."""
        self.sent = 0


def test_a_call_to_the_outside_that_also_changes_the_environment_is_named(serve: Serve, stack: ExitStack) -> None:
    first = serve(Mailer)
    url = first.__enter__()
    second = stack.enter_context(serve(Mailer))
    client = stack.enter_context(EnvClient([url, second]).sync())
    client.reset()
    assert [client.call_tool(name).text for name in ("mail", "count")] == ["1", "1"]
    first.__exit__(None, None, None)
    with pytest.raises(SessionLost, match=r"step 2 differs .* The call of mail in step 1 acts on the outside"):
        client.call_tool("count")


def test_another_version_of_an_environment_does_not_continue(serve: Serve, stack: ExitStack) -> None:
    first = serve()
    url = first.__enter__()
    newer = type("Walk", (Walk,), {"VERSION": "9"})
    second = stack.enter_context(serve(newer))
    client = stack.enter_context(EnvClient([url, second]).sync())
    client.reset(seed=1)
    first.__exit__(None, None, None)
    with pytest.raises(SessionLost, match="this server has"):
        client.state()


def test_a_server_of_another_version_leaves_an_episode_to_the_one_that_has_it(serve: Serve, stack: ExitStack) -> None:
    one, two = stack.enter_context(serve()), stack.enter_context(serve(type("Walk", (Walk,), {"VERSION": "9"})))
    client = EnvClient([one, two])
    blocking = stack.enter_context(client.sync())
    blocking.reset(seed=1)
    played(blocking, 2)
    assert client._session.connection is not None
    client._session.servers.next()
    client._session.connection._abort()
    assert blocking.state().step_count == 2
    assert client.base_url == one


@pytest.mark.parametrize(
    "settings", ["writes=strict", "writes=behind", "snapshot_s=0.000001", "snapshots=file:%2F%2F{}"]
)
def test_a_saved_state_is_loaded_and_no_call_runs_again(
    serve: Serve, stack: ExitStack, tmp_path: Path, settings: str
) -> None:
    objects = tmp_path / "objects"
    durable = f"store?{settings.format(objects)}"
    first = serve(Saved, durable=durable)
    url = first.__enter__()
    second = stack.enter_context(serve(Saved, durable=durable))
    client = stack.enter_context(EnvClient([url, second]).sync())
    began = client.reset(seed=1)
    for _ in range(3):
        before = drawn(client)
    first.__exit__(None, None, None)
    after = drawn(client)
    assert after[:3] == before
    assert len(after) == 4
    trajectory = client.trajectory()
    assert (trajectory.episode_id, trajectory.forked_from) == (began.info["episode_id"], None)
    assert len(trajectory.steps) == 4
    client.close()
    (episode,) = read_episodes(tmp_path / "record")
    assert [step.call.step for step in episode.trajectory.steps] == [1, 2, 3, 4]
    stack.close()
    assert [*objects.rglob("*")] == []  # with the session, its snapshots


@pytest.mark.parametrize("settings", ["snapshot_steps=2", "snapshot_steps=2&writes=behind"])
@pytest.mark.parametrize("durability", ["rerun", "export"])
def test_only_what_came_after_the_last_snapshot_is_played_again(
    serve: Serve, stack: ExitStack, tmp_path: Path, durability: str, settings: str
) -> None:
    world = type("Walk", (Noted,), {"DURABILITY": durability})
    first = serve(world, durable=f"store?{settings}")
    url = first.__enter__()
    client = stack.enter_context(
        EnvClient([url, stack.enter_context(serve(world, durable=f"store?{settings}"))]).sync()
    )
    client.reset(seed=5)
    Noted.noted.clear()
    before = played(client, 5)
    first.__exit__(None, None, None)
    after = played(client, 1)
    assert Noted.noted == [int(at) for at in [*before, before[-1], *after]]
    client.call_tool("arrive")
    client.close()
    (episode,) = read_episodes(tmp_path / "record")
    assert digest_of(episode.trajectory) == undisturbed(tmp_path)


def test_a_saved_reset_is_not_played_again(serve: Serve, stack: ExitStack) -> None:
    begun: list[int] = []

    class Begun(Saved):
        def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
            begun.append(time.time_ns())
            self.drawn.append(begun[-1])

    first = serve(Begun, durable="store?snapshot_steps=9")
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve(Begun))]).sync())
    client.reset(seed=1)
    first.__exit__(None, None, None)
    assert drawn(client)[0] == begun[0]


def test_an_environment_that_cannot_be_saved_says_so_once_and_is_played_again(
    serve: Serve, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    first = serve(Hidden, durable="store?snapshot_steps=1")
    url = first.__enter__()
    second = stack.enter_context(serve(Hidden))
    clients = [stack.enter_context(EnvClient([url, second]).sync()) for _ in range(2)]
    for client in clients:
        client.reset(seed=1)
        client.call_tool("count")
    (told,) = [each for each in caplog.records if "cannot be saved" in each.message]
    assert (told.levelname, "keeps state in" in told.message) == ("WARNING", True)
    first.__exit__(None, None, None)
    assert [client.call_tool("count").text for client in clients] == ["2", "2"]


def test_an_episode_is_kept_after_a_step_that_was_cut_off_if_its_state_is_saved(serve: Serve, stack: ExitStack) -> None:
    first = serve(durable="store?snapshot_steps=9")
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve())]).sync())
    client.reset(seed=1)
    client.call_tool("linger", {"seconds": 60}, timeout_s=0.05)
    first.__exit__(None, None, None)
    assert (client.trajectory().reason, len(client.trajectory().steps)) == ("timeout", 1)


@pytest.mark.parametrize("bound", ["max_sessions", "max_bytes"])
def test_a_full_store_refuses_new_sessions_before_they_begin_and_keeps_the_others(
    serve: Serve, stack: ExitStack, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "READ_S", 0.0)  # the sums are read each time
    resets: list[int] = []

    class World(Walk):
        def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
            resets.append(1)
            super().reset(seed)

    url = stack.enter_context(serve(World, durable=f"store?{bound}=1"))
    first = stack.enter_context(EnvClient(url, resume=True).sync())
    first.reset(seed=1)
    second = stack.enter_context(EnvClient(url, resume=True).sync())
    with pytest.raises(CapacityReached, match=rf"may have 1 \({bound}\)"):
        second.reset(seed=2)
    assert len(resets) == 1
    played(first, 2)
    first.reset(seed=3)
    stack.enter_context(EnvClient(url).sync()).reset()  # it cannot resume, and is not kept
    first.close()
    second.reset(seed=2)
    played(second, 1)


def test_a_world_that_restarts_is_not_kept(serve: Serve, stack: ExitStack) -> None:
    first = serve(Restarted)
    url = first.__enter__()
    second = stack.enter_context(serve(Restarted))
    client = stack.enter_context(EnvClient([url, second]).sync())
    client.reset()
    client.call_tool("now")
    first.__exit__(None, None, None)
    with pytest.raises(SessionLost, match="no session to resume"):
        client.call_tool("now")


def test_an_agent_at_another_server_is_forwarded_to_the_one_that_has_the_episode(
    serve: Serve, stack: ExitStack
) -> None:
    one, two = stack.enter_context(serve()), stack.enter_context(serve())
    client = stack.enter_context(EnvClient([one, two]).sync())
    path = str(client.reset(seed=1).info["mcp_url"]).removeprefix(one)
    for mode in ("auto", "legacy"):

        async def call(mode: str = mode) -> tuple[int, list[str]]:
            async with Client(two + path, mode=mode) as agent:
                tools = [tool.name for tool in await agent.list_tools()]
                return (await agent.call_tool("walk", {"by": 1})).data, tools

        at, tools = asyncio.run(call())
        assert at > 0
        assert "walk" in tools
    assert client.state().step_count == 2
    assert client.base_url == one  # it did not move


async def agent_walks(url: str) -> int:
    async with Client(url) as agent:
        return (await agent.call_tool("walk", {"by": 1})).data  # type: ignore[no-any-return]


def until_put_away(store: Path) -> None:
    async def look() -> None:
        opened = open_store(str(store))
        try:
            while (await opened.sessions())[0].owner is not None:
                await asyncio.sleep(0.02)
        finally:
            await opened.close()

    asyncio.run(look())


def test_idle_episodes_are_put_away_and_come_back(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    url = stack.enter_context(serve(durable="store?idle_s=0.1"))
    client = stack.enter_context(EnvClient(url, resume=True).sync())
    mcp_url = str(client.reset(seed=1).info["mcp_url"])
    played(client, 1)
    until_put_away(tmp_path / "store")
    asyncio.run(agent_walks(mcp_url))
    until_put_away(tmp_path / "store")
    assert client.state().step_count == 2
    assert client.call_tool("arrive").done


def test_who_waits_for_an_agent_waits_on_at_the_next_server(serve: Serve, stack: ExitStack) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())

    async def run() -> bool:
        async with EnvClient([url, second]) as client:
            path = str((await client.reset(seed=1)).info["mcp_url"]).removeprefix(url)
            waiting = asyncio.create_task(client.wait())
            await agent_walks(url + path)
            await asyncio.to_thread(first.__exit__, None, None, None)
            assert not waiting.done()
            async with Client(second + path) as agent:
                await agent.call_tool("arrive")
            return (await waiting).done

    assert asyncio.run(run())


def test_an_episode_without_a_seed_is_continued(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    def at() -> AbstractContextManager[str]:
        return serving(Walk, ServerConfig(durable=str(tmp_path / "store")), max_concurrent_envs=8)

    first = at()
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(at())]).sync())
    client.reset()
    played(client, 5)
    first.__exit__(None, None, None)
    assert client.state().step_count == 5


def test_a_saved_end_is_not_played_again(serve: Serve, stack: ExitStack) -> None:
    first = serve(Saved)
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve(Saved))]).sync())
    client.reset(seed=1)
    before = drawn(client)
    ended = client.end(reason="enough")
    first.__exit__(None, None, None)
    trajectory = client.trajectory()
    assert (trajectory.done, trajectory.reason) == (True, "enough")
    assert json.loads(trajectory.steps[0].outcome.result.content[0]["text"]) == before  # type: ignore[union-attr]
    assert client.end().info["return"] == ended.info["return"]


def test_an_episode_that_dropped_its_first_steps_is_continued_after_its_end(serve: Serve, stack: ExitStack) -> None:
    short = type("Walk", (Walk,), {"max_kept_steps": 3})
    first = serve(short)
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve(short))]).sync())
    client.reset(seed=1)
    played(client, 9)
    client.call_tool("arrive")
    first.__exit__(None, None, None)
    assert client.trajectory().done


def test_a_branch_is_continued_with_its_origin(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    first = serve()
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve())]).sync())
    origin = client.reset(seed=1).info["episode_id"]
    played(client, 3)
    client.call_tool("arrive")
    recorded = client.trajectory()
    client.branch(recorded, 2)
    played(client, 1)
    first.__exit__(None, None, None)
    trajectory = client.trajectory()
    assert trajectory.forked_from is not None
    assert (trajectory.forked_from.episode_id, trajectory.forked_from.step) == (origin, 2)
    assert len(trajectory.steps) == 3


def test_a_fork_whose_answer_was_lost_with_its_server_is_found(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    first = serve()
    client = EnvClient([first.__enter__(), stack.enter_context(serve())])
    blocking = stack.enter_context(client.sync())
    blocking.reset(seed=1)
    played(blocking, 2)
    credential = client._session.new_credential()
    client._session.new_credential = lambda: credential  # type: ignore[method-assign]
    lost = blocking.fork()
    episode_id = lost.trajectory().episode_id
    first.__exit__(None, None, None)
    again = stack.enter_context(blocking.fork())  # which asks for the same session
    assert again.trajectory().episode_id == episode_id
    assert played(again, 1) == played(blocking, 1)


def test_a_full_server_sends_its_clients_to_the_next(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    def at() -> str:
        return stack.enter_context(serving(Walk, ServerConfig(queue_timeout_s=0.1), max_concurrent_envs=1))

    one, two = at(), at()
    stack.enter_context(EnvClient(one).sync()).reset()
    client = stack.enter_context(EnvClient([one, two]).sync())
    client.reset()
    assert client.base_url == two


def test_the_token_of_the_environment_goes_only_to_the_hosts_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN", "a-secret-for-one")
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN_HOSTS", "one.example")
    client = EnvClient(["http://one.example", "http://two.example"])
    options = client._session.options
    sent = [dict(Handshake.to(url, options).headers) for url in ("http://one.example", "http://two.example")]
    assert ["Authorization" in headers for headers in sent] == [True, False]


def test_a_call_that_was_forwarded_and_lost_does_not_run_again(serve: Serve, stack: ExitStack, tmp_path: Path) -> None:
    """The server that has the episode ends the connection after it has read the request."""
    url = stack.enter_context(serve())
    asked: list[bytes] = []

    async def run() -> int:
        async def owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        async with await asyncio.start_server(owner, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            store = open_store(str(tmp_path / "store"))
            await store.beat("another-server", 60)
            base = f"http://127.0.0.1:{port}"
            kept = KeptSession("a-session-of-another", "d", "[]", "handle", base, b"{}", owner="another-server")
            await store.begin(kept, [], new=True)
            async with httpx.AsyncClient() as http:
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "walk"}}
                answer = await http.post(f"{url}/episodes/handle/mcp", json=body)
            (session,) = await store.sessions()
            assert session.owner == "another-server"
            await store.close()
            return answer.status_code

    assert asyncio.run(run()) == 502
    assert len(asked) == 1


def test_a_call_whose_agent_left_runs_to_its_end_so_that_its_episode_goes_on(
    serve: Serve, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcpenv")
    first = serve(Gated)
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve(Gated))]).sync())
    agents = str(client.reset().info["mcp_url"])
    Gated.gate.clear()
    Gated.waits.clear()

    async def enter() -> None:
        async with Client(agents) as agent:
            await agent.call_tool("enter_without_a_thread")

    async def leave() -> None:
        async with asyncio.timeout(20):
            entering = asyncio.create_task(enter())
            assert await asyncio.to_thread(Gated.waits.wait, 10)
            entering.cancel()
            while "the call runs to its end" not in caplog.text:
                await asyncio.sleep(0.01)

    asyncio.run(leave())
    Gated.gate.set()
    assert client.state().step_count == 1
    first.__exit__(None, None, None)
    (step,) = client.trajectory().steps
    assert step.outcome.result is not None


async def kept_sessions(store: Path) -> Sequence[KeptSession]:
    opened = open_store(str(store))
    try:
        return await opened.sessions()
    finally:
        await opened.close()


async def kept_in(store: Path) -> KeptSession:
    (session,) = await kept_sessions(store)
    return session


def test_an_agent_behind_a_load_balancer_is_forwarded_to_the_server_that_has_the_episode(
    serve: Serve, stack: ExitStack, tmp_path: Path
) -> None:
    """All servers have one address for clients, which leads to another server than the one with the episode."""
    two = stack.enter_context(serve())
    one = stack.enter_context(serve(public_url=two))
    client = stack.enter_context(EnvClient(one, resume=True).sync())
    mcp_url = str(client.reset(seed=1).info["mcp_url"])
    assert mcp_url.startswith(two)
    played(client, 1)
    assert asyncio.run(agent_walks(mcp_url)) > 0
    assert client.state().step_count == 2
    assert asyncio.run(kept_in(tmp_path / "store")).fence == 1  # it did not move


def test_a_client_that_stops_waiting_finds_its_episode_continued(serve: Serve, stack: ExitStack) -> None:
    Gated.gate.set()
    Gated.passed.clear()
    first = serve(Gated)
    url = first.__enter__()
    second = stack.enter_context(serve(Gated))

    async def run() -> int:
        async with EnvClient([url, second]) as client:
            await client.reset(seed=1)
            await client.call_tool("enter")
            await asyncio.to_thread(first.__exit__, None, None, None)
            Gated.gate.clear()
            Gated.waits.clear()
            asking = asyncio.create_task(client.state())
            await asyncio.to_thread(Gated.waits.wait)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert client._session.connection is not None
            client._session.connection._abort()
            async with EnvClient(second) as other:
                await other.reset()  # by now the server has seen that its client is gone
            Gated.gate.set()
            return (await client.state()).step_count

    assert asyncio.run(run()) == 1
    assert len(Gated.passed) == 2  # once by its client, and played again once


@pytest.mark.parametrize("durable", ["store", "store?snapshot_steps=1"])
def test_a_call_to_the_outside_whose_tool_the_reset_made_and_that_ended_the_episode_is_not_repeated(
    serve: Serve, stack: ExitStack, durable: str
) -> None:
    Submitted.submitted.clear()
    first = serve(Submitted, durable=durable)
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve(Submitted))]).sync())
    client.reset(seed=1)
    client.call_tool("look")
    assert client.call_tool("submit", {"answer": "42"}).done
    first.__exit__(None, None, None)
    trajectory = client.trajectory()
    assert (trajectory.reason, len(trajectory.steps)) == ("submitted", 2)
    assert Submitted.submitted == ["42"]


def test_an_episode_that_began_without_a_reset_after_one_failed_is_continued(serve: Serve, stack: ExitStack) -> None:
    first = serve(Submitted)
    url = first.__enter__()
    client = stack.enter_context(EnvClient([url, stack.enter_context(serve(Submitted))]).sync())
    client.reset(seed=1)
    for _ in range(3):
        client.call_tool("look")
    with pytest.raises(ExecutionError, match="reset raised"):
        client.reset(seed=2, broken=True)
    assert client.call_tool("look").text == "1"
    first.__exit__(None, None, None)
    assert client.call_tool("look").text == "2"
    assert client.state().step_count == 2


def test_a_session_that_had_no_episode_yet_begins_elsewhere(serve: Serve, stack: ExitStack) -> None:
    first = serve()
    url = first.__enter__()
    second = stack.enter_context(serve())
    client = stack.enter_context(EnvClient([url, second]).sync())  # connected
    first.__exit__(None, None, None)
    assert client.reset(seed=1).info["episode_id"]
    assert client.base_url == second
