"""Episodes on servers that are killed, by a client that is killed too: ``python tests/world/kills.py``.

Plays trips of 20 to 200 steps on servers that share a store. Each server in turn is killed with -9 at random times and
started again, or with ``--workers 2`` each worker. A sixth of the trips is played by a script with a pool and a
checkpoint, which is killed and started again too. Of these and of the others, each third is played by an agent with a
stock MCP client. The same trips are played undisturbed by orchestrators, and compared. Prints a table, with ``--json``
the figures; exit status 1 if a trip was lost, ran a call twice, or differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from database_servers import PostgresServer, RedisServer, running  # noqa: E402
from durable_fleet import Fleet  # noqa: E402
from trips import AT_ONCE, Trip, calls_of, of_client  # noqa: E402

from mcpenv.trajectories import read_episodes  # noqa: E402
from mcpenv_client import EnvClient, StepRecord  # noqa: E402
from mcpenv_client.fingerprint import digest_of, without_incidents  # noqa: E402

SCRIPT = HERE / "trips.py"
UNKNOWN = "It may have run, and is not repeated."
LEASE_S = 2
AT_END = 100
"""Episodes of a server that is told to end."""

RECORDED_S = 20
"""Seconds within which the other servers record the ends that a killed one did not."""


@dataclass
class Figures:
    """The figures of one run.

    Attributes:
        store, writes: the store, and how it is written.
        episodes, steps: how many were to be played.
        kills, client_kills: of servers or workers, and of the script.
        lost: trips that have no end.
        twice: calls of the tool that acts outside that ran twice, or were answered and did not run.
        differ: trips with another digest than undisturbed, or with another answer than in their record.
        recorded: trips that are not in the servers' record exactly once.
        unknown: calls of that tool that ended with an error, because nobody knows if they ran.
        again: how often an agent came again.
        minutes: how long it took.
        why: what was wrong, in words.
    """

    store: str
    writes: str
    episodes: int
    steps: int = 0
    kills: int = 0
    client_kills: int = 0
    lost: int = 0
    twice: int = 0
    differ: int = 0
    recorded: int = 0
    unknown: int = 0
    again: int = 0
    minutes: float = 0.0
    why: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return self.lost + self.twice + self.differ + self.recorded


@contextlib.contextmanager
def killed_script(folder: Path, seeds: range, urls: Sequence[str], chance: random.Random) -> Iterator[list[int]]:
    """Run the script during the block, and kill it now and then; yield the list of kills, and wait for its end."""
    command = [sys.executable, str(SCRIPT), str(folder), str(seeds.start), str(seeds.stop), *urls]
    kills: list[int] = []
    log = folder / "script.log"
    failed: list[str] = []

    def run() -> None:
        while True:
            with log.open("ab") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
                try:
                    status = process.wait(chance.uniform(8, 20))
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills.append(process.pid)
                    continue
            if status:
                failed.append(f"the script ended with {status}: {log.read_text()[-3000:]}")
            return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield kills
    finally:
        thread.join()
        print("".join(failed), file=sys.stderr)


@contextlib.contextmanager
def killed_workers(fleet: Fleet, seed: int) -> Iterator[None]:
    """Kill one worker after the other at random times while the block runs."""
    over, chance = threading.Event(), random.Random(seed)

    def kill() -> None:
        while not over.wait(chance.uniform(1.0, 3.0)):
            workers = sorted(fleet.workers())
            if len(workers) > 1:
                os.kill(chance.choice(workers), signal.SIGKILL)
                fleet.kills += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def play_own(urls: Sequence[str], seeds: range, failed: list[str], agents: bool = True) -> dict[int, Trip]:
    """Play trips by clients of this process, every third one by an agent."""
    room, trips = asyncio.Semaphore(AT_ONCE), {}

    async def one(seed: int) -> None:
        async with room:
            trips[seed] = await of_client(urls, seed, seed, agent=agents and seed % 3 == 0)

    ends = await asyncio.gather(*map(one, seeds), return_exceptions=True)
    failed += [f"trip {seed}: {end!r}" for seed, end in zip(seeds, ends, strict=True) if end is not None]
    return trips


def played(fleet: Fleet, seeds: range, figures: Figures, chance: random.Random) -> dict[int, Trip]:
    """Play a sixth of the trips by the script, and the others by clients of this process."""
    part = seeds[: len(seeds) // 6]
    with killed_script(fleet.folder, part, fleet.urls, chance) as kills:
        trips = asyncio.run(play_own(fleet.urls, seeds[len(part) :], figures.why))
    figures.client_kills = len(kills)
    for seed in part:
        file = fleet.folder / f"trip-{seed}"
        if file.exists():
            trips[seed] = Trip(*pickle.loads(file.read_bytes()))
    return trips


def compare(trips: dict[int, Trip], undisturbed: dict[int, Trip], fleet: Fleet, figures: Figures) -> None:
    """Compare trips with the undisturbed ones, and with what the tool counted outside."""
    counted = Counter((fleet.folder / "counted").read_text().split())
    figures.twice += (more := sum(1 for number in counted.values() if number > 1))
    if more:
        figures.why.append(f"ran twice: {[name for name, number in counted.items() if number > 1]}")
    # One whose server was killed in the moment after it was recorded is there twice, with the same id.
    episodes = {(each.id, digest_of(each.trajectory)) for each in read_episodes(fleet.record)}
    recorded = Counter(digest for _, digest in episodes)
    for seed, expected in undisturbed.items():
        trip = trips.get(seed)
        figures.steps += len(calls_of(seed))
        if trip is None or not trip.trajectory.done:
            figures.lost += 1
            figures.why.append(f"trip {seed} is lost")
            continue
        figures.again += trip.again
        if recorded[digest_of(trip.trajectory)] != 1:
            figures.recorded += 1
            figures.why.append(f"trip {seed} is {recorded[digest_of(trip.trajectory)]} times in the record")
        steps = [*trip.trajectory.steps]
        for at, step in enumerate(steps):
            if step.call.name == "send":
                unknown = text_of(step).endswith(UNKNOWN)
                figures.unknown += unknown
                if not unknown and not counted[step.call.arguments["name"]]:
                    figures.twice += 1
                    figures.why.append(f"trip {seed}: step {at + 1} was answered, and did not run")
                if unknown and at < len(expected.trajectory.steps):
                    known = expected.trajectory.steps[at]
                    steps[at] = replace(step, outcome=known.outcome, status=known.status)
        texts = dict(enumerate(map(text_of, trip.trajectory.steps), start=1))
        # A step that a killed server had not written runs again, and a failure then has another incident.
        differs = [at for at, text in trip.seen.items() if without_incidents(texts.get(at)) != without_incidents(text)]
        if differs:
            figures.why.append(f"trip {seed}: other answers than in the record: {differs}")
        if differs or digest_of(replace(trip.trajectory, steps=steps)) != digest_of(expected.trajectory):
            figures.differ += 1
            figures.why.append(f"trip {seed}: {difference(steps, expected.trajectory.steps)}")


def text_of(step: StepRecord) -> str:
    """Return the text of a step's result, or of its error."""
    error, result = step.outcome.error, step.outcome.result
    return error.message if error is not None else "" if result is None else str(result.content[0]["text"])


def difference(steps: Sequence[StepRecord], expected: Sequence[StepRecord]) -> str:
    """Return the first difference in words."""
    for played, undisturbed in zip(steps, expected, strict=False):
        one, other = ([each.call.name, each.call.arguments, text_of(each)] for each in (played, undisturbed))
        if one != other:
            return f"step {played.call.step}: {one}, undisturbed {other}"
    return f"{len(steps)} steps, undisturbed {len(expected)}"


def run(folder: Path, place: str, undisturbed: dict[int, Trip], figures: Figures, given: argparse.Namespace) -> None:
    """Play the trips on servers that are killed."""
    began = time.monotonic()
    durable = f"{place}{'&' if '?' in place else '?'}lease_s={LEASE_S}&writes={figures.writes}"
    workers = ("--workers", str(given.workers)) if given.workers else ()
    arguments = ("--log-level", "warning", *workers)
    with Fleet(folder, given.world, durable, servers=1 if workers else 3, arguments=arguments) as fleet:
        with killed_workers(fleet, given.seed) if workers else fleet.killed_in_turn(given.seed, least_s=2, most_s=6):
            trips = played(fleet, seeds_of(given), figures, random.Random(given.seed))
        until = time.monotonic() + RECORDED_S
        while len({each.id for each in read_episodes(fleet.record)}) < given.episodes and time.monotonic() < until:
            time.sleep(1)
    figures.kills = fleet.kills
    figures.minutes = (time.monotonic() - began) / 60
    compare(trips, undisturbed, fleet, figures)


def play_undisturbed(folder: Path, given: argparse.Namespace) -> dict[int, Trip]:
    """Play the trips on one server, by orchestrators."""
    whole, failed = folder / "undisturbed", list[str]()
    whole.mkdir()
    with Fleet(whole, given.world, f"{whole}/store", servers=1, arguments=("--log-level", "warning")) as fleet:
        trips = asyncio.run(play_own(fleet.urls, seeds_of(given), failed, agents=False))
    assert not failed, failed
    return trips


def seeds_of(given: argparse.Namespace) -> range:
    return range(given.seed * 1000, given.seed * 1000 + given.episodes)


@contextlib.contextmanager
def stored(store: str, folder: Path) -> Iterator[str]:
    """Yield the address of an empty store."""
    if store == "folder":
        yield str(folder / "store")
    else:
        with running(PostgresServer() if store == "postgres" else RedisServer()) as server:
            yield server.url


HEADING = {
    "store": "store", "writes": "writes", "episodes": "episodes", "steps": "steps", "kills": "kills",
    "client_kills": "kills of the client", "lost": "lost", "twice": "run twice", "differ": "differing digests",
    "recorded": "not once in the record", "unknown": "outcome unknown", "again": "agents came again",
    "minutes": "minutes",
}  # fmt: skip


async def end_one(fleet: Fleet) -> tuple[float, int]:
    """Play a hundred trips on a server that is told to end; return its seconds, and how many trips went on."""
    ended = asyncio.Event()
    clients = [EnvClient(fleet.urls, max_resumes=60) for _ in range(AT_END)]

    async def one(client: EnvClient[Any, Any, Any], number: int, all_play: asyncio.Barrier) -> bool:
        async with client:
            await client.reset(seed=number)
            await client.call_tool("walk")
            await all_play.wait()
            steps = 1
            while not ended.is_set() or client.base_url == fleet.urls[0]:
                assert (await client.call_tool("linger", {"seconds": 0.1})).error is None
                steps += 1
            return len((await client.trajectory()).steps) == steps

    all_play = asyncio.Barrier(AT_END + 1)
    async with asyncio.TaskGroup() as group:
        playing = [group.create_task(one(client, number, all_play)) for number, client in enumerate(clients)]
        await all_play.wait()
        await asyncio.sleep(1)  # so that calls run
        began = time.monotonic()
        await asyncio.to_thread(fleet.signal, 0, signal.SIGTERM)
        took_s = time.monotonic() - began
        ended.set()
    return took_s, sum(each.result() for each in playing)


def end_servers(folder: Path) -> None:
    """Print how long a server takes to end at SIGTERM while a hundred trips are played on it."""
    print("| server | running episodes | seconds from SIGTERM to its exit | went on, each step once |")
    print("| --- | ---: | ---: | ---: |")
    for workers in ((), ("--workers", "2")):
        own = folder / "-".join(["sigterm", *workers[1:]])
        own.mkdir()
        with Fleet(own, "Trip", f"{own}/store", servers=2, arguments=("--log-level", "warning", *workers)) as fleet:
            took_s, went_on = asyncio.run(end_one(fleet))
        print(f"| {' '.join(workers) or 'one process'} | {AT_END} | {took_s:.1f} | {went_on} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", default=["folder", "postgres", "redis"])
    parser.add_argument("--writes", nargs="+", default=["strict", "behind"])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--world", default="Trip", help="Trip, or SavedTrip, whose state is saved")
    parser.add_argument("--workers", type=int, default=0, help="workers of one server, which are killed; 0: servers")
    parser.add_argument("--sigterm", action="store_true", help="only end servers in order, and print how long it takes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="an empty folder, in which the files are kept")
    given = parser.parse_args()
    found: list[Figures] = []
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if given.sigterm:
            return end_servers(folder)
        folder.mkdir(exist_ok=True)
        undisturbed = play_undisturbed(folder, given)
        print("| " + " | ".join(HEADING.values()) + " |\n|" + " --- |" * 2 + " ---: |" * (len(HEADING) - 2), flush=True)
        for writes in given.writes:
            for store in given.stores:
                figures = Figures(store, writes, given.episodes)
                own = folder / f"{store}-{writes}"
                own.mkdir()
                with stored(store, own) as place:
                    run(own, place, undisturbed, figures, given)
                cells: dict[str, Any] = asdict(figures) | {"minutes": f"{figures.minutes:.1f}"}
                print("| " + " | ".join(str(cells[name]) for name in HEADING) + " |", flush=True)
                print("".join(f"{line}\n" for line in figures.why), file=sys.stderr, flush=True)
                found.append(figures)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    sys.exit(any(each.wrong for each in found))


if __name__ == "__main__":
    main()
