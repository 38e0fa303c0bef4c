"""Checkpoints that cannot be taken or restored: the error names the cause, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import pytest
from durable_worlds import Restarted, Walk

from mcpenv.extensions.durable.store import open_store
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.connection.handshake import Credential
from mcpenv_client.errors import InvalidMessage, RateLimited, SessionLost
from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import EnvPool, Episode, Limits, MixedPool, Played, PoolError
from mcpenv_client.pool.assignment import Assignment
from mcpenv_client.pool.backend import JournalError
from mcpenv_client.pool.checkpoint import Checkpoint, PlayLog
from mcpenv_client.pool.kept import KeptShare
from mcpenv_client.pool.servers import Servers
from mcpenv_client.pool.share_journal import ShareJournal
from mcpenv_client.pool.stream import Repeats
from mcpenv_client.wire.protocol import FrameType, Reply, encode_frame

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    def at(store: str | None = "store", most: int = 8) -> Any:
        durable = None if store is None else str(tmp_path / store)
        return serving(Walk, ServerConfig(durable=durable), max_concurrent_envs=most)

    return at


@pytest.fixture
def url(serve: Serve) -> Iterator[str]:
    with serve() as url:
        yield url


class Walking:
    """Walks six times. It stops before the fourth until it may go on, and tells when all episodes are there."""

    def __init__(self, episodes: int = 2, by: int = 2, steps: int = 6, refused: bool = False) -> None:
        self.left, self.by, self.steps, self.refused = episodes, by, steps, refused
        self.there, self.go = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def __call__(self, episode: Episode) -> str:
        if self.refused:
            with pytest.raises(InvalidMessage):
                await episode.step({"type": "fly"})  # type: ignore[arg-type]
        for step in range(self.steps):
            if step == 3:
                self.left -= 1
                if not self.left:
                    self.there.set()
                await self.go.wait()
            await episode.call_tool("walk", {"by": self.by})
        return episode.last.text


def pool_at(url: str, connect: Any = EnvClient) -> EnvPool:
    return EnvPool([url], 2, backend="remote", connect=connect)


async def left_halfway(
    url: str, path: Path, *, refused: bool = False, connect: Any = EnvClient, version: int | None = None
) -> None:
    """Play two episodes to their third step, and leave them."""
    policy = Walking(refused=refused)
    pool = pool_at(url, connect)
    assert pool.restore(path) is None
    pool.policy_version = version
    async with pool, pool.play(policy, n=2) as stream:
        first = asyncio.ensure_future(anext(stream))
        await policy.there.wait()
        pool.checkpoint(path, {"step": 3})
        first.cancel()
        await asyncio.wait([first])


async def gone_on(
    url: str,
    path: Path,
    *,
    missing: Any = "raise",
    n: int = 2,
    version: int | None = None,
    wait_s: float = 60.0,
    **options: Any,
) -> list[Played]:
    """Play on to the end."""
    policy = Walking(**options)
    policy.go.set()
    pool = pool_at(url)
    backend: Any = pool._backend
    backend._servers.wait_s, pool.policy_version = wait_s, version
    assert pool.restore(path, missing=missing) == {"step": 3}
    async with pool:
        return await pool.rollout(policy, n=n)


async def undisturbed(url: str) -> list[str]:
    policy = Walking()
    policy.go.set()
    async with pool_at(url) as pool:
        return [digest_of(each.trajectory) for each in await pool.rollout(policy, n=2) if each.trajectory]


def run(body: Any) -> Any:
    return asyncio.run(asyncio.wait_for(body, 120))


def is_whole(played: list[Played], url: str) -> bool:
    expected: list[str] = run(undisturbed(url))
    return [digest_of(each.trajectory) for each in played if each.trajectory] == expected


def test_episodes_go_on_from_a_file_whose_last_record_is_torn(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b"\x80\x05\x95\xff\x00\x00")
    played = run(gone_on(url, path))
    assert is_whole(played, url)
    assert [len(each.trajectory.steps) for each in played] == [6, 6]
    assert is_whole(run(gone_on(url, path)), url), "the results of the file are handed out until another checkpoint"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no checkpoint of a pool"),
        (b"\x80\x04K\x01.", "it is no checkpoint of a pool"),
        (b"mcpenv pool checkpoint 7\n", "it is of version 7, and this package reads 2"),
        (b"mcpenv pool checkpoint 2\n\x80\x05\x95", "cannot be read: UnpicklingError"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_kept(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(PoolError, match=why):
        pool_at("http://127.0.0.1:9").restore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("another", r"episode [01] cannot go on at these servers.*missing=\"again\""),
        (None, "needs servers with --durable"),
    ],
)
def test_other_servers_are_refused_and_nothing_is_lost(
    serve: Serve, url: str, tmp_path: Path, other: str | None, why: str
) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    with serve(other) as elsewhere, pytest.raises(PoolError, match=why):
        run(gone_on(elsewhere, path))
    assert is_whole(run(gone_on(url, path)), url)


def test_an_episode_that_was_discarded_is_named_and_begins_again_if_asked_for(url: str, tmp_path: Path) -> None:
    async def discard() -> None:
        store = open_store(str(tmp_path / "store"))
        await store.discard((await store.sessions())[0].id, None)
        await store.close()

    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    run(discard())
    with pytest.raises(PoolError, match=r"episode [01] cannot go on at these servers"):
        run(gone_on(url, path))
    assert is_whole(run(gone_on(url, path, missing="again")), url)


def test_another_script_is_refused_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    with pytest.raises(PoolError, match="another one than that in the checkpoint: n is 3, and was 2"):
        run(gone_on(url, path, n=3))
    with pytest.raises(PoolError, match="its policy made another call than before the restart"):
        run(gone_on(url, path, by=5))
    assert is_whole(run(gone_on(url, path)), url)


class Curriculum:
    def __iter__(self) -> Iterator[None]:
        yield None

    def record(self, played: Played) -> None: ...


def test_what_has_no_checkpoint_says_so(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"

    async def beside_a_play() -> None:
        policy = Walking()
        async with pool_at(url) as pool, pool.play(policy, n=2) as stream:
            playing = asyncio.ensure_future(anext(stream))
            await policy.there.wait()
            with pytest.raises(PoolError, match="began without a checkpoint"):
                pool.checkpoint(path)
            playing.cancel()
            await asyncio.wait([playing])

    for pool in (EnvPool(Walk), EnvPool(Walk, backend="process"), MixedPool({"walk": Walk})):
        with pytest.raises(PoolError, match="has no checkpoints"):
            pool.checkpoint(path)
        with pytest.raises(PoolError, match="has no checkpoints"):
            pool.restore(path)
    run(beside_a_play())
    with pytest.raises(ValueError, match="missing is"):
        pool_at(url).restore(path, missing="skip")  # type: ignore[arg-type]
    assert not path.exists()
    pool = pool_at(url)
    pool.restore(path)
    with pytest.raises(PoolError, match=r"Curriculum has record\(\), but not state\(\) and resume\(\)"):
        pool.play(Walking(), Curriculum())


def is_same(played: list[Played], others: list[Played]) -> bool:
    digests = [[digest_of(each.trajectory) for each in some if each.trajectory] for some in (played, others)]
    return len(digests[0]) == len(played) and digests[0] == digests[1]


def shares_in(path: Path) -> list[KeptShare]:
    checkpoint = Checkpoint.read(path, "raise")
    checkpoint.close()
    return [share for play in checkpoint._kept for share in play.shares.values()]


@pytest.mark.parametrize("steps", [2, 0])
def test_a_policy_that_makes_fewer_calls_is_refused_or_begins_again(url: str, tmp_path: Path, steps: int) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    with pytest.raises(PoolError, match=r"its policy made another call than before the restart \(end "):
        run(gone_on(url, path, steps=steps))
    played = run(gone_on(url, path, steps=steps, missing="again"))
    assert [len(each.trajectory.steps) for each in played] == [steps] * 2
    assert [each.attempts for each in played] == [1, 1]


def test_an_episode_that_its_limit_ended_makes_no_further_call(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"

    async def played(policy: Walking) -> list[Played]:
        pool = pool_at(url)
        pool.restore(path)
        async with pool:
            return await pool.rollout(policy, n=2, limits=Limits(2.0))

    def records() -> Iterator[tuple[Any, bytes]]:
        with path.open("rb") as file:
            begin = file.tell()
            file.readline(), pickle.load(file), pickle.load(file)
            yield None, path.read_bytes()[begin : file.tell()]
            while (begin := file.tell()) < path.stat().st_size:
                record = pickle.load(file)
                yield record, path.read_bytes()[begin : file.tell()]

    before = run(played(Walking()))  # each waits before its fourth step
    assert [each.trajectory.truncated for each in before if each.trajectory] == [True, True]
    path.write_bytes(b"".join(text for record, text in records() if record is None or "played" not in record))
    policy = Walking()
    policy.go.set()
    after = run(played(policy))
    assert [each.value for each in after] == [None, None]
    assert is_same(after, before)


def test_a_server_that_is_full_of_the_episodes_goes_on_with_them(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with serve(most=2) as url:
        run(left_halfway(url, path))
        played = run(gone_on(url, path, wait_s=10.0))  # less than the server keeps their slots
    assert [len(each.trajectory.steps) for each in played] == [6, 6]


@pytest.mark.parametrize("late", [1, 3])
def test_a_server_that_describes_itself_late_has_a_journal(url: str, tmp_path: Path, late: int) -> None:
    asked: list[str] = []

    class Late(EnvClient[Any, Any, Any]):
        async def metadata(self) -> dict[str, Any]:
            asked.append(self.base_url)
            if len(asked) <= late:
                raise TimeoutError
            return await super().metadata()

    path = tmp_path / "checkpoint"
    run(left_halfway(url, path, connect=Late))
    assert [share.credential is not None for share in shares_in(path)] == [True, True]
    assert is_whole(run(gone_on(url, path)), url)


def test_a_refused_action_is_refused_again_from_the_file(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path, refused=True))
    assert [type(pickle.loads(share.replies["2"])) for share in shares_in(path)] == [InvalidMessage] * 2
    assert is_whole(run(gone_on(url, path, refused=True)), url)


def test_the_file_has_an_episode_before_its_session_is_closed(url: str, tmp_path: Path) -> None:
    path, killed = tmp_path / "pool", tmp_path / "killed"

    class Copying(EnvClient):
        async def close(self) -> None:
            if not killed.exists():
                shutil.copy(path, killed)
            await super().close()

    async def play() -> Played:
        policy = Walking()
        policy.go.set()
        pool = pool_at(url, Copying)
        assert pool.restore(path) is None
        async with pool, pool.play(policy, n=1) as stream:
            pool.checkpoint(path, {"step": 3})
            return await anext(stream)

    played = run(play())
    (again,) = run(gone_on(url, killed, n=1, steps=0))  # its policy does not run
    assert (again.value, again.where) == (played.value, played.where)


def test_an_episode_keeps_the_version_with_which_it_began(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path, version=3))
    assert [each.pool_version for each in run(gone_on(url, path, version=5))] == [3, 3]


def begun(checkpoint: Checkpoint) -> tuple[PlayLog, ShareJournal]:
    """Return a play and the journal of its share, whose reset was answered."""
    share = (Assignment(0, 0, 0),)
    log = checkpoint.play({}, None)
    log.add("read", [share], 0)
    journal = log.journal(share)
    journal.url = "http://127.0.0.1:9"
    journal.opened(Credential())
    journal.sent("reset-1", encode_frame(FrameType.RESET, {}, request_id="reset-1"))
    journal.answered("reset-1", Reply("observation", {"observation": {}, "reward": None, "done": False}))
    return log, journal


def restarted(log: PlayLog) -> ShareJournal:
    return PlayLog(log.checkpoint, log.kept, None).journal(log.kept.shares[0].share)


def test_refusals_are_final_if_the_policy_went_on() -> None:
    log, journal = begun(Checkpoint())
    for number, error in ((2, RateLimited("wait")), (3, RateLimited("wait"))):
        journal.sent(f"step-{number}", encode_frame(FrameType.STEP, {"number": number}))
        journal.answered(f"step-{number}", error)
    again = restarted(log)
    assert isinstance(again.find("step-2", FrameType.STEP, {"number": 2})[1], RateLimited)
    text, known = again.find("step-3", FrameType.STEP, {"number": 3})
    assert text is not None and known is None, "the last one is sent again: there may be room now"


@pytest.mark.parametrize("missing", ["raise", "again"])
def test_a_session_that_no_server_answers_for_is_lost_only_if_asked_for(missing: str) -> None:
    async def body() -> None:
        log, _ = begun(Checkpoint(missing))
        journal = restarted(log)
        client = EnvClient(journal.url, max_resumes=1)
        client.go_on_at(lambda: [journal.url], journal)
        await client.reset()
        for _ in range(2):
            with pytest.raises(JournalError, match="episode 0 cannot go on at these servers: cannot connect") as raised:
                await client.call_tool("walk")
            assert raised.value.again is (missing == "again")
        assert journal.credential is not None

    run(body())


def test_another_attempt_forgets_the_session() -> None:
    async def body() -> None:
        log, journal = begun(Checkpoint())
        seen: list[bool] = []

        class Failing:
            async def play(self, share: Any) -> list[Any]:
                seen.append(journal.credential is None)
                return [Played(share[0], SessionLost.usual_status, error="lost")]

        repeats = Repeats(1, "raise", lambda: None, log)
        (played,) = await repeats.play(Failing(), log.kept.shares[0].share)  # type: ignore[arg-type]
        assert seen == [False, True]
        assert isinstance(played, Played)
        assert played.attempts == 2

    run(body())


def test_a_pool_error_of_a_policy_is_an_error_of_its_policy() -> None:
    async def policy(episode: Episode) -> None:
        raise PoolError("its own pool is closed")

    async def body() -> list[Played]:
        async with EnvPool(Walk, 2) as pool:
            return await pool.rollout(policy, n=2, policy_errors="record")

    assert [each.status.code.value for each in run(body())] == ["cancelled"] * 2


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"tasks": ["a", "c"]}, "tasks is '2 with the digest .*and was '2 with"),
        ({"unfinished": [Assignment(7, 7, 0)]}, "unfinished is '1 with"),
        ({"limits": Limits(5.0)}, r"limits is Limits\(episode_timeout_s=5.0"),
        ({"trajectories": False}, "trajectories is False"),
        ({"mask_failed_steps": True}, "mask_failed_steps is True"),
    ],
)
def test_a_play_with_other_arguments_is_refused(tmp_path: Path, other: dict[str, Any], why: str) -> None:
    def played(**options: Any) -> None:
        pool = pool_at("http://127.0.0.1:9")
        pool.restore(tmp_path / "checkpoint")
        pool.play(Walking(), **{"tasks": ["a", "b"], **options})
        run(pool.close())

    played()
    with pytest.raises(PoolError, match=why):
        played(**other)


def test_a_play_that_never_began_is_not_kept(tmp_path: Path) -> None:
    async def body() -> None:
        pool = pool_at("http://127.0.0.1:9")
        pool.restore(tmp_path / "checkpoint")
        for stream in (pool.play(Walking()), pool.groups(Walking(), group=2), pool.samples(Walking())):
            await stream.aclose()
        with pytest.raises(ValueError, match="policy_errors"):
            pool.play(Walking(), policy_errors="ignore")  # type: ignore[arg-type]
        pool.checkpoint(tmp_path / "checkpoint")
        await pool.close()

    run(body())
    assert Checkpoint.read(tmp_path / "checkpoint", "raise")._kept == []


def test_two_pools_cannot_use_one_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    first, second = pool_at("http://127.0.0.1:9"), pool_at("http://127.0.0.1:9")
    first.restore(path)
    first.checkpoint(path, 1)
    for use in (second.restore, second.checkpoint):
        with pytest.raises(PoolError, match="another script, or pool, uses the checkpoint"):
            use(path)
    run(first.close())
    assert second.restore(path) == 1
    run(second.close())


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("no")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint()
    with pytest.raises(PoolError, match=r"the state cannot be kept in a checkpoint.*ValueError: no"):
        checkpoint.save(path, Unpicklable())
    checkpoint.save(path, None)
    log, _ = begun(checkpoint)
    checkpoint.close()
    checkpoint._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    for _ in range(2):
        with pytest.raises(JournalError, match=f"the checkpoint {path} cannot be written: .*No space left"):
            log.add("read", [], 1)
    checkpoint.save(path, None)
    log.add("read", [], 1)
    checkpoint.close()
    assert Checkpoint.read(path, "raise")._kept[0].rows == 1


def test_a_world_that_only_restarts_is_not_durable(tmp_path: Path) -> None:
    with serving(Restarted, ServerConfig(durable=str(tmp_path / "store"))) as url:
        assert run(EnvClient(url).metadata())["durable"] is False


def test_a_server_that_has_not_answered_yet_is_not_taken_for_one_that_is_not_durable(tmp_path: Path) -> None:
    async def take(url: str) -> bool:
        servers, journal = Servers([url], 4), cast("Any", object())
        servers._read()
        asked = asyncio.ensure_future(servers.look(servers.all[0]))
        await asyncio.sleep(0)  # the look has begun
        server, client = await servers.take(lambda: 30.0, journal=journal)
        durable = server.durable
        await asked
        await client.close()
        return durable

    with serving(Walk, ServerConfig(durable=str(tmp_path / "store"))) as url:
        assert asyncio.run(take(url))
