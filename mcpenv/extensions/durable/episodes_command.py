"""The commands ``mcpenv episodes``: the durable episodes of a store, without a server."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import TypeAdapter

from mcpenv.cli.output import Page, number_of, print_json, print_table, printable
from mcpenv.cli.remote import Bearer, base_url, connected, list_tools
from mcpenv.cli.tokens import AgentToken
from mcpenv.errors import ConfigurationError
from mcpenv.targets.place import is_url
from mcpenv_client import EnvClient
from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.types.records import Trajectory

from .rerun import steps_of
from .store import OBJECT, KeptSession, Settings, Store, StoreError, Totals, open_with_snapshots, shown

T = TypeVar("T")

AsJson = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]

_HEADER = TypeAdapter(Trajectory)


def list_episodes(place: str, /, *, as_json: AsJson = False) -> int:
    """List the durable episodes of a store, the oldest first.

    Args:
        place: Folder or URL that servers got as --durable.
        as_json: Print one JSON document.
    """

    async def read(store: Store) -> tuple[Sequence[KeptSession], Totals]:
        return await store.sessions(), await store.totals()

    found, totals = _with(place, read)
    rows = [_row(kept) for kept in found]
    if as_json:
        print_json({"episodes": rows, "sessions": totals.sessions, "bytes": totals.bytes})
        return 0
    page, names = Page(sys.stdout), ("episode_id", "environment", "steps", "state", "address", "updated")
    headings = ("episode", "environment", "steps", "state", "at", "last step")
    print_table(page, headings, [[printable(str(row[name] or "")) for name in names] for row in rows], right={"steps"})
    page.line(f"{number_of(totals.sessions, 'session')}, {totals.bytes:,} bytes")
    return 0


def show_episode(place: str, episode: str, /, *, as_json: AsJson = False) -> int:
    """Show a durable episode and its steps.

    Args:
        place: Folder or URL that servers got as --durable.
        episode: The episode's id, or the beginning of it.
        as_json: Print one JSON document.
    """

    async def read(store: Store) -> tuple[KeptSession, list[Any]]:
        kept = _found(await store.sessions(), episode)
        return kept, [step for step, _ in steps_of(await store.entries(kept.id))]

    kept, steps = _with(place, read)
    row = _row(kept)
    if as_json:
        print_json({**row, "trajectory": replace(_HEADER.validate_json(kept.header), steps=steps).to_plain()})
        return 0
    page = Page(sys.stdout)
    for name, value in row.items():
        page.line((f"{name:12}", "dim"), printable(str(value)))
    for step in steps:
        page.line(f"{step.call.step:6}  {printable(step.call.name)} {printable(json.dumps(step.call.arguments))[:200]}")
    return 0


def resume_episode(
    place: str,
    episode: str,
    /,
    *,
    at: str,
    agent: AgentToken = AgentToken(),  # noqa: B008 - frozen
    as_json: AsJson = False,
) -> int:
    """Let a server continue a durable episode now, before its client or agent comes back.

    A server that has it keeps it.

    Args:
        place: Folder or URL that servers got as --durable.
        episode: The episode's id, or the beginning of it.
        at: URL of a server with that store.
        as_json: Print one JSON document.
    """

    async def run(store: Store) -> tuple[KeptSession, bool]:
        kept = _found(await store.sessions(), episode)
        if is_put_away := not kept.alive:
            await _refuse_other(at, kept)
            bearer = Bearer(agent.read(at))
            url = f"{base_url(at)}/episodes/{kept.handle}/mcp"
            try:
                async with connected(url, bearer) as client:
                    await list_tools(client, url, bearer)
            except ConnectionFailed as error:
                raise ConfigurationError(f"{at} does not continue it, and its log says why: {error}") from error
            kept = _found(await store.sessions(), episode)
        return kept, is_put_away

    if not is_url(at):
        raise ConfigurationError(f"--at {at}: that is no URL of a server")
    kept, resumed = _with(place, run)
    row = _row(kept)
    if as_json:
        print_json({**row, "resumed": resumed})
    else:
        has = "has" if resumed else "had, and keeps,"
        Page(sys.stdout).line(
            f"{row['address']} {has} the episode {printable(row['episode_id'])}, after {row['steps']} steps"
        )
    return 0


async def _refuse_other(at: str, kept: KeptSession) -> None:
    """Raise an error if a server cannot be reached, or says that it keeps no episodes, or has another environment."""
    try:
        about = await EnvClient(base_url(at)).metadata()
    except (ConnectionFailed, WireError) as error:
        if isinstance(error, ConnectionFailed) and error.http_status in (401, 403):
            return  # it tells that to orchestrators only
        raise ConfigurationError(f"{at} does not continue it: {error}") from error
    if about.get("durable") is not True:
        raise ConfigurationError(f"{at} does not continue it: it has no --durable")
    name, version = json.loads(kept.environment)
    if (about.get("name"), about.get("version")) != (name, version):
        own = f"{about.get('name')} {about.get('version')}"
        raise ConfigurationError(f"{at} does not continue it: the episode is one of {name} {version}, and it has {own}")


def discard_episodes(
    place: str, episodes: tuple[str, ...] = (), /, *, older_than_s: float | None = None, force: bool = False,
    as_json: AsJson = False,
) -> int:  # fmt: skip
    """Delete durable episodes. Their clients then get SessionLost.

    Args:
        place: Folder or URL that servers got as --durable.
        episodes: Ids of episodes, or the beginnings of ids.
        older_than_s: Delete all that no server has and that had no step for so many seconds.
        force: Also delete those that a server has. It is refused at the next step.
        as_json: Print one JSON document.
    """
    if older_than_s is not None and not older_than_s >= 0:
        raise ConfigurationError(f"--older-than-s {older_than_s:g} is no number of seconds")
    if not episodes and older_than_s is None:
        raise ConfigurationError("name episodes, or give --older-than-s")

    async def run(store: Store) -> int:
        kept = await store.sessions()
        chosen = [_found(kept, episode) for episode in episodes]
        for session in chosen:
            if session.alive and not force:
                raise ConfigurationError(f"a server has {_row(session)['episode_id']}; --force deletes it")
        before = -math.inf if older_than_s is None else time.time() - older_than_s
        for session in [*chosen, *(each for each in kept if not each.alive and each.updated < before)]:
            if any((entry.body or b"").startswith(OBJECT) for entry in await store.entries(session.id)):
                raise ConfigurationError(
                    "their snapshots are elsewhere: give the whole address of the servers, with snapshots="
                )
        deleted = sum([await store.discard(session.id, None) for session in chosen])
        return deleted if older_than_s is None else deleted + len(await store.sweep(before))

    deleted = _with(place, run)
    if as_json:
        print_json({"deleted": deleted})
    else:
        Page(sys.stdout).line(f"deleted {number_of(deleted, 'episode')}")
    return 0


def _with(place: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_with_snapshots(Settings.parse(place), make=False)
        try:
            return await work(store)
        except StoreError as error:
            raise ConfigurationError(f"{shown(place)}: {error}") from error
        finally:
            await store.close()

    return asyncio.run(run())


def _found(kept: Any, episode: str) -> KeptSession:
    found = [session for session in kept if _row(session)["episode_id"].startswith(episode)]
    if len(found) != 1:
        raise ConfigurationError(f"{number_of(len(found), 'episode')} of the store begin with {printable(episode)!r}")
    session: KeptSession = found[0]
    return session


def _row(kept: KeptSession) -> dict[str, Any]:
    header = json.loads(kept.header)
    return {
        "episode_id": header["episode_id"],
        "environment": json.loads(kept.environment)[0],
        "task": (header.get("task") or {}).get("name") or (header.get("task") or {}).get("id"),
        "steps": kept.steps,
        "state": "over" if kept.over else "running" if kept.alive else "put away",
        "owner": kept.owner if kept.alive else None,
        "address": kept.address if kept.alive else None,
        "updated": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(kept.updated)),
    }
