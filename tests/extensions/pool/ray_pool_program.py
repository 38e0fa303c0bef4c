"""What a pool of Ray actors must show, for an interpreter that has Ray. Prints one JSON object.

It is run where only the loopback interface exists, because Ray's agents bind the host's address.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path
from typing import Any

import ray
from pool_worlds import (
    Beside,
    Calls,
    Counts,
    Dice,
    Locked,
    Marked,
    Once,
    OnceAsync,
    Wild,
    calls,
    five_rolls,
    five_rolls_async,
    grinds,
    held_by_a_pause,
    wrong,
    wrong_at_three,
)

from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import EnvPool, Limits, Played, PolicyFailed, PoolError, places

TASKS = [f"t{number}" for number in range(6)]


def digests(played: list[Played]) -> list[str]:
    return [digest_of(each.trajectory) for each in played if each.trajectory is not None]


def again(played: list[Played]) -> list[int]:
    return [each.assignment.number for each in played if each.attempts > 1]


def texts(results: Any) -> list[str | None]:
    return [each and each.text for each in results]


async def episodes(pool: EnvPool, expected: list[str], directory: Path) -> dict[str, Any]:
    """Play whole episodes: with both kinds of policies, a killed actor, a hang, and mistakes."""
    found: dict[str, Any] = {}
    played = await pool.rollout(five_rolls, TASKS, n=20, seed=5)
    found["equal"] = digests(played) == expected
    found["actors"] = len({each.where for each in played})
    found["equal_async"] = digests(await pool.rollout(five_rolls_async, TASKS, n=20, seed=5)) == expected

    killed = await pool.rollout(Once(directory / "killed", "die", {}, 70), TASKS, n=20, seed=5)
    found["killed"] = [digests(killed) == expected, 70 in again(killed), (directory / "killed").exists()]
    (lost,) = await pool.rollout(Calls("die"), ["t1"], retries=1)
    found["lost"] = [lost.status.code.value, lost.attempts, lost.reward]
    # An episode that always ends its actor is lost alone.
    poison = await pool.rollout(Always("die", 70), TASKS, n=20, seed=5, retries=0)
    found["poison"] = [each.assignment.number for each in poison if not each.status.usable]

    ground = await pool.rollout(grinds, TASKS[:3], seed=0)
    async with EnvPool(Dice, 4) as local:
        found["slow"] = [digests(ground) == digests(await local.rollout(grinds, TASKS[:3], seed=0)), len(ground)]
    found["paused"] = await paused(pool, directory)

    limits = Limits(episode_timeout_s=6.0)
    hung = await pool.rollout(
        Once(directory / "hung", "hang", {"seconds": 3600}, 70), TASKS, n=20, seed=5, limits=limits
    )
    found["hung"] = [digests(hung) == expected, 70 in again(hung)]
    hung = await pool.rollout(
        OnceAsync(directory / "hung_async", "hang", {"seconds": 3600}, 70), TASKS, n=20, seed=5, limits=limits
    )
    found["hung async"] = [digests(hung) == expected, 70 in again(hung)]

    try:
        await pool.rollout(wrong, TASKS)
    except PolicyFailed as error:
        found["policy"] = "a mistake of the policy" in str(error)
    recorded = await pool.rollout(wrong_at_three, TASKS, policy_errors="record")
    found["recorded"] = [each.status.code.value for each in recorded]
    try:
        await pool.rollout(lambda episode: iter_of_nothing(), ["t1"])
    except PoolError as error:
        found["not plain"] = "return plain data from the policy" in str(error)
    return found


async def paused(pool: EnvPool, directory: Path) -> list[object]:
    """Pause a running episode, whose policy counts its calls in a file, and continue it."""
    playing = asyncio.ensure_future(pool.rollout(Counts(directory), ["t1"]))
    held = await held_by_a_pause(pool, playing, directory)
    pool.resume()
    (played,) = await playing
    return [held, played.status.code.value, played.attempts]


async def steps(pool: EnvPool) -> dict[str, Any]:
    """Step environments, with an actor that dies in a step, and one that dies between steps."""
    found: dict[str, Any] = {}
    await pool.reset_all(seeds=[1, 2, 3, 4])
    first = texts(await pool.step_all([calls("roll", times=3)] * 4))
    async with EnvPool(Dice, 4) as local:
        await local.reset_all(seeds=[1, 2, 3, 4])
        found["equal steps"] = first == texts(await local.step_all([calls("roll", times=3)] * 4))
    died = await pool.step_all([calls("die"), None, calls("roll"), calls("roll")])
    found["died"] = [each and each.info.get("status", {}).get("code") for each in died]
    later = await pool.step_all([None, calls("roll"), calls("roll"), None])
    found["later"] = [each and each.done for each in later]
    await pool.reset_all(seeds=[1, 2, 3, 4])
    found["anew"] = first == texts(await pool.step_all([calls("roll", times=3)] * 4))
    return found


def groups(played: list[Played]) -> list[list[Played]]:
    return [[each for each in played if each.assignment.group == group] for group in range(len(TASKS))]


async def forks(directory: Path) -> dict[str, Any]:
    """Play groups of four that begin from one state, with both kinds of policies, a killed actor and mistakes."""
    found: dict[str, Any] = {}
    async with EnvPool(Dice, 2) as pool:
        expected = digests(await pool.rollout(five_rolls, TASKS, group=4, seed=1))
    async with EnvPool(Dice, 2, backend="ray", start_timeout_s=600, workers=2) as pool:
        found["equal forks"] = [
            digests(await pool.rollout(policy, TASKS, group=4, forks=True, seed=1)) == expected
            for policy in (five_rolls, five_rolls_async)
        ]
    async with EnvPool(Wild, 2, backend="ray", start_timeout_s=600, workers=2) as pool:
        once = Once(directory / "fork", "die", {}, 6)
        played = await pool.rollout(once, TASKS, group=4, forks=True)
        found["begun again"] = [len({each.attempts for each in group}) == 1 for group in groups(played)]
        found["the lost group"] = groups(played)[1][0].attempts > 1
        found["one state"] = [len({each.value for each in group}) for group in groups(played)]
        recorded = await pool.rollout(wrong_at_three, TASKS, group=4, forks=True, policy_errors="record")
        found["a mistake"] = [each.assignment.number for each in recorded if not each.status.usable]
        (lost, *rest) = await pool.rollout(Calls("die"), ["t1"], group=4, forks=True, retries=0)
        found["lost group"] = [len(rest), *{each.status.code.value for each in (lost, *rest)}]
    async with EnvPool(Locked, 1, backend="ray", start_timeout_s=600, workers=1) as pool:
        try:
            await pool.rollout(five_rolls, TASKS, group=4, forks=True)
        except PoolError as error:
            found["locked"] = "cannot be forks of one state" in str(error) and "lock" in str(error)
    return found


async def warm(directory: Path, expected: list[str]) -> dict[str, Any]:
    """Play in one environment of one actor, while the next episode is reset."""
    await asyncio.to_thread(directory.mkdir)
    environment = functools.partial(Marked, directory)
    async with EnvPool(environment, 1, backend="ray", start_timeout_s=600, workers=1, warm=1) as pool:
        limits = Limits(episode_timeout_s=60)
        played = await pool.rollout(Beside(directory, len(TASKS)), TASKS, seed=5, limits=limits)
        found: dict[str, Any] = {"warm": digests(played) == expected}
        found["in time"] = all(each.trajectory and not each.trajectory.reason for each in played)
        try:
            await pool.rollout(five_rolls, TASKS)
        except PoolError as error:
            found["plain and warm"] = "make the policy async" in str(error)
    return found


class Always:
    """A policy that makes a call in one episode, whenever it is begun."""

    def __init__(self, tool: str, number: int) -> None:
        self.tool, self.number = tool, number

    def __call__(self, episode: Any) -> int:
        if episode.assignment.number == self.number:
            episode.call_tool(self.tool)
        return five_rolls(episode)


def iter_of_nothing() -> Any:
    return (None for _ in ())


async def main(directory: Path) -> dict[str, Any]:
    places.GRACE_S = 1.0
    async with EnvPool(Dice, 4) as pool:
        expected = digests(await pool.rollout(five_rolls, TASKS, n=20, seed=5))
        once = digests(await pool.rollout(five_rolls, TASKS, seed=5))
    found: dict[str, Any] = {}
    try:
        async with EnvPool("nowhere_mcp", 1, backend="ray", start_timeout_s=600, workers=1):
            pass
    except PoolError as error:
        found["nowhere"] = "nowhere" in str(error)
    found["ended"] = not ray.is_initialized()

    ray.init(include_dashboard=False)
    async with EnvPool(Dice, 4, backend="ray", start_timeout_s=600, workers=2, actor_options={"num_cpus": 0.1}) as pool:
        found |= await episodes(pool, expected, directory)
        found |= await steps(pool)
    found |= await forks(directory)
    found |= await warm(directory / "warm", once)
    found["kept"] = ray.is_initialized()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(Path(sys.argv[1])), 900))))
