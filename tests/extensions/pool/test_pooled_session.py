"""Sessions of many servers, as trainers' adapters hold them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pool_worlds import Dice, calls

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import CapacityReached, ConnectionFailed, EnvClient, SessionLost
from mcpenv_client.pool import PoolError
from mcpenv_client.pool.pooled_session import PooledSession
from mcpenv_client.trainers.sessions import Sessions


def opened(sessions: Sessions, number: int) -> list[PooledSession]:
    """Return sessions, each with an episode."""
    made: list[Any] = [sessions.open() for _ in range(number)]
    for session in made:
        sessions.run(session.reset)
    return made


def active(url: str) -> int:
    return EnvClient(url).sync().capacity().active_sessions


def close(sessions: Sessions, made: list[PooledSession]) -> None:
    sessions.run_all(session.close() for session in made)


def test_episodes_are_spread_by_weight_and_play_as_on_one_server() -> None:
    with serving(Dice) as one, serving(Dice) as other:
        sessions = pickle.loads(pickle.dumps(Sessions({one: 3, other: 1})))
        made = opened(sessions, 8)
        assert [active(one), active(other)] == [6, 2]
        rolled = [sessions.run(lambda each=each: each.reset(seed=7)) and each for each in made]
        texts = {sessions.run(lambda each=each: each.step(calls("roll", times=5))).text for each in rolled}
        assert len(texts) == 1
        rows, tools = sessions.listed("train", 2)
        assert len(rows) == 2 and "roll" in {tool.name for tool in tools}
        close(sessions, made)
        assert [active(one), active(other)] == [0, 0]


def test_a_server_that_ends_loses_its_episodes_only_and_the_next_are_elsewhere() -> None:
    with serving(Dice) as one:
        ending = serving(Dice)
        other = ending.__enter__()
        sessions = Sessions([one, other])
        made = opened(sessions, 4)
        ending.__exit__(None, None, None)
        lost = [each for each in made if failure_of(sessions, each) is not None]
        assert len(lost) == 2
        for each in lost:
            assert isinstance(failure_of(sessions, each), SessionLost)
        for each in lost:
            assert not sessions.run(each.reset).done
            assert failure_of(sessions, each) is None
        assert active(one) == 4
        close(sessions, made)


def failure_of(sessions: Sessions, session: PooledSession) -> BaseException | None:
    try:
        sessions.run(lambda: session.call_tool("roll"))
    except (ConnectionFailed, SessionLost) as error:
        return error
    return None


def test_a_full_server_is_passed_over() -> None:
    with serving(Dice, ServerConfig(max_concurrent_envs=1)) as small, serving(Dice) as large:
        sessions = Sessions([small, large])
        made = opened(sessions, 5)
        assert [active(small), active(large)] == [1, 4]
        close(sessions, made)


def test_what_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="cannot be read"):
        Sessions(f"@{tmp_path / 'none'}").open()
    with pytest.raises(PoolError, match="is no server"):
        Sessions(["envs/maze_mcp"]).open()
    with pytest.raises(ValueError, match="settings are for an environment in this process"):
        Sessions(["http://127.0.0.1:1"], ["size=3"])


def test_servers_without_room_are_waited_for_and_then_named() -> None:
    with serving(Dice, ServerConfig(max_concurrent_envs=1)) as small:
        sessions = Sessions([small])
        (made,) = opened(sessions, 1)
        waiting: Any = sessions.open()
        assert sessions._servers is not None
        sessions._servers.wait_s = 0.5
        with pytest.raises((ConnectionFailed, CapacityReached), match=r"room|full"):
            sessions.run(waiting.reset)
        close(sessions, [made])
        assert not sessions.run(waiting.reset).done
        close(sessions, [waiting])
