"""Slots: given in order, never more than there are, and none while too many instances are stuck."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mcpenv import ConfigurationError
from mcpenv.server import ConcurrencyConfig, ServerConfig
from mcpenv.server.sessions.capacity import CapacityLimiter
from mcpenv_client import CapacityReached, ServerCapacityStatus


async def no_room(orchestrated: bool) -> None:
    pass


def slots(limit: int = 1, *, queue_timeout_s: float = 30.0, max_quarantined: int = 0) -> CapacityLimiter:
    return CapacityLimiter(lambda: limit, queue_timeout_s=queue_timeout_s, max_quarantined=max_quarantined)


def run(main: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


async def in_line(several: CapacityLimiter, count: int, order: list[int]) -> list[asyncio.Task[None]]:
    """So many tasks that wait for a slot, one after the other."""

    async def take(number: int) -> None:
        await several.take(no_room, True)
        order.append(number)

    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(take(number)))
        while several.waiting <= number:
            await asyncio.sleep(0)
    return tasks


def test_slots_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    async def main() -> None:
        several, order = slots(2), list[int]()
        await several.take(no_room, True)
        await several.take(no_room, True)
        tasks = await in_line(several, 3, order)
        for _ in range(3):
            assert several.taken == 2
            several.free()
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2]
        assert (several.taken, several.waiting) == (2, 0)

    run(main)


def test_room_is_made_only_when_all_are_taken_and_nobody_waits() -> None:
    asked: list[str] = []

    async def main() -> None:
        one = slots()

        async def room(orchestrated: bool) -> None:
            asked.append("room")
            one.free()

        await one.take(room, True)
        assert asked == []
        await one.take(room, True)
        assert (asked, one.taken) == (["room"], 1)
        tasks = await in_line(one, 1, [])
        late = asyncio.create_task(one.take(room, True))
        while one.waiting < 2:
            await asyncio.sleep(0)
        assert asked == ["room"]
        for task in (*tasks, late):
            one.free()
            await task

    run(main)


def test_who_leaves_the_line_or_comes_too_late_takes_nothing() -> None:
    async def main() -> None:
        one, order = slots(), list[int]()
        await one.take(no_room, True)
        first, second = await in_line(one, 2, order)
        first.cancel()
        one.free()
        await second
        assert (order, one.taken, one.waiting) == ([1], 1, 0)
        # Cancelled in the moment in which the slot is there, but not yet told.
        (third,) = await in_line(one, 1, order)
        one.free()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        assert one.taken == 0

    run(main)


def test_while_too_many_are_stuck_nobody_gets_a_slot_and_then_who_waited_does() -> None:
    async def main() -> None:
        one, order = slots(max_quarantined=0), list[int]()
        await one.take(no_room, True)
        (waiting,) = await in_line(one, 1, order)
        returned = one.quarantine()
        one.free()
        assert (one.taken, one.waiting) == (0, 1)
        with pytest.raises(CapacityReached, match="too many environments are stuck"):
            await one.take(no_room, True)
        await asyncio.to_thread(returned)
        await waiting
        assert (one.taken, one.quarantined, one.shut) == (1, 0, None)

    run(main)


def test_a_server_that_ends_refuses_who_waits_and_who_comes() -> None:
    async def main() -> None:
        one = slots()
        await one.take(no_room, True)
        (waiting,) = await in_line(one, 1, [])
        one.close()
        with pytest.raises(CapacityReached, match="about to end"):
            await waiting
        with pytest.raises(CapacityReached):
            await one.take(no_room, True)
        one.free()
        assert one.taken == 0

    run(main)


def test_a_slot_that_becomes_free_while_others_are_asked_to_give_way_is_not_lost() -> None:
    async def main() -> None:
        one = slots()
        await one.take(no_room, True)

        async def somebody_leaves(orchestrated: bool) -> None:
            one.free()

        async with asyncio.timeout(10):
            await one.take(somebody_leaves, True)
        assert (one.taken, one.waiting) == (1, 0)

    run(main)


def test_a_slot_that_was_freed_for_one_and_given_to_another_is_not_given_twice() -> None:
    async def main() -> None:
        one = slots()
        await one.take(no_room, True)
        others: list[asyncio.Task[None]] = []

        async def gives_way(orchestrated: bool) -> None:
            others.append(asyncio.ensure_future(one.take(no_room, True)))
            while not one.waiting:
                await asyncio.sleep(0)
            one.free()  # the other one has waited for longer

        asking = asyncio.ensure_future(one.take(gives_way, True))
        async with asyncio.timeout(10):
            while not (others and others[0].done()):
                await asyncio.sleep(0)
            assert (one.taken, one.waiting) == (1, 1)
            one.free()
            await asking
        assert (one.taken, one.waiting) == (1, 0)

    run(main)


def test_who_asks_while_the_server_begins_to_end_is_refused() -> None:
    async def main() -> None:
        one = slots()
        await one.take(no_room, True)

        async def ends(orchestrated: bool) -> None:
            one.close()

        async with asyncio.timeout(10):
            with pytest.raises(CapacityReached, match="about to end"):
                await one.take(ends, True)

    run(main)


def test_the_status_has_the_counts_and_limits() -> None:
    async def main() -> None:
        several, order = slots(2), list[int]()
        await several.take(no_room, True)
        assert await several.status() == ServerCapacityStatus(active_sessions=1, max_sessions=2)
        await several.take(no_room, True)
        (waiting,) = await in_line(several, 1, order)
        status = await several.status()
        assert (status.waiting, status.available_slots, status.ready) == (1, 0, True)
        several.free()
        await waiting
        several.count_quarantined(1)
        status = await several.status()
        assert (status.quarantined, status.ready) == (1, False)

    run(main)


def test_agents_cannot_take_the_reserved_share_and_orchestrators_are_served_before_them() -> None:
    async def main() -> None:
        shared = CapacityLimiter(lambda: 8, queue_timeout_s=30.0, max_quarantined=0, reserves=True)
        for _ in range(6):
            await shared.take(no_room, False)
        agent = asyncio.create_task(shared.take(no_room, False))
        while not shared.waiting:
            await asyncio.sleep(0)
        for _ in range(2):
            async with asyncio.timeout(5):
                await shared.take(no_room, True)  # although an agent has waited for longer
        orchestrator = asyncio.create_task(shared.take(no_room, True))
        while shared.waiting < 2:
            await asyncio.sleep(0)
        shared.free(orchestrated=False)
        await orchestrator
        assert not agent.done()
        assert (shared.taken, shared.agents) == (8, 5)
        shared.free(orchestrated=True)
        await agent
        assert (shared.taken, shared.agents, shared.waiting) == (8, 6, 0)

    run(main)


@pytest.mark.parametrize(("limit", "agents"), [(1, 1), (2, 1), (3, 2), (4, 3), (7, 6), (8, 6), (1024, 768)])
def test_the_reserved_share_is_a_quarter_and_at_least_one_of_several(limit: int, agents: int) -> None:
    shared = CapacityLimiter(lambda: limit, queue_timeout_s=0.0, max_quarantined=0, reserves=True)
    assert (shared.agents_limit, slots(limit).agents_limit) == (agents, limit)


def test_the_limits_have_the_defaults_of_a_server() -> None:
    assert ServerConfig().concurrency == ConcurrencyConfig()
    limits = ConcurrencyConfig(
        max_concurrent_envs=4, session_timeout_s=5, queue_timeout_s=0, resume_grace_s=2, max_quarantined=0
    )
    config = ServerConfig().with_limits(limits, None)
    assert config.concurrency == limits
    assert (config.max_concurrent_envs, config.session_timeout_s, config.queue_timeout_s) == (4, 5.0, 0.0)
    assert (config.resume_grace_s, config.max_quarantined) == (2.0, 0)


def test_openenv_spells_the_session_timeout_without_its_unit() -> None:
    assert ConcurrencyConfig(session_timeout=60) == ConcurrencyConfig(session_timeout_s=60)
    assert ConcurrencyConfig(session_timeout=60).session_timeout == 60
    never = ConcurrencyConfig.model_validate({"max_concurrent_envs": 2, "session_timeout": None})
    assert (never.session_timeout_s, never.session_timeout) == (math.inf, None)
    assert ConcurrencyConfig(session_timeout=60, session_timeout_s=60).session_timeout_s == 60
    with pytest.raises(ConfigurationError, match="session_timeout_s and session_timeout differ"):
        ConcurrencyConfig(session_timeout=60, session_timeout_s=61)


@pytest.mark.parametrize("name", ["max_concurrent_envs", "session_timeout_s", "session_timeout"])
@pytest.mark.parametrize("value", [0, -1, math.nan, "many"])
def test_limits_that_allow_nothing_are_refused_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name) as refused:
        ConcurrencyConfig(**{name: value})
    assert "\n" not in str(refused.value)
    if name != "session_timeout":
        with pytest.raises(ConfigurationError, match=name):
            ServerConfig(**{name: value})


@pytest.mark.parametrize("name", ["queue_timeout_s", "resume_grace_s", "max_quarantined"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_limits_below_zero_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ConcurrencyConfig(**{name: value})
    with pytest.raises(ConfigurationError, match=name):
        ServerConfig(**{name: value})


def test_a_limit_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_sessions"):
        ConcurrencyConfig(max_sessions=4)  # type: ignore[call-arg]


def test_a_limit_may_be_given_twice_only_with_one_value() -> None:
    given = ServerConfig(max_concurrent_envs=4, session_timeout_s=600)
    assert given.with_limits(ConcurrencyConfig(max_concurrent_envs=4), 4) == given
    assert given.with_limits(ConcurrencyConfig(queue_timeout_s=1), None).session_timeout_s == 600
    with pytest.raises(ConfigurationError, match="session_timeout_s is given twice, as 600 and as 5"):
        given.with_limits(ConcurrencyConfig(session_timeout=5), None)
    with pytest.raises(ConfigurationError, match="session_timeout_s is given twice, as 600 and as 1800"):
        given.with_limits(ConcurrencyConfig(session_timeout_s=1800), None)
    with pytest.raises(ConfigurationError, match="max_concurrent_envs is given twice, as 4 and as 2"):
        given.with_limits(None, 2)
    with pytest.raises(ConfigurationError, match="max_concurrent_envs is given twice, as 3 and as 2"):
        ServerConfig().with_limits(ConcurrencyConfig(max_concurrent_envs=2), 3)
    with pytest.raises(ConfigurationError, match="max_concurrent_envs"):
        given.with_limits(None, 0)


@pytest.mark.parametrize(
    ("limit", "advice"), [(1, "SUPPORTS_CONCURRENT_SESSIONS = True"), (2, "all 2 sessions are in use.*--max-sessions")]
)
def test_a_refused_client_is_told_what_would_help(limit: int, advice: str) -> None:
    async def main() -> None:
        full = slots(limit, queue_timeout_s=0.0)
        for _ in range(limit):
            await full.take(no_room, True)
        with pytest.raises(CapacityReached, match=advice):
            await full.take(no_room, True)

    run(main)
