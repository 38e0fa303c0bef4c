"""The store of durable sessions: what it keeps, what it refuses, and how an address names one."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from mcpenv.errors import ConfigurationError


class StoreError(Exception):
    """The store cannot be reached, is full, or cannot be written. Trying again may help."""


class Fenced(Exception):
    """Another server owns the session now, or it was discarded."""


class Owned(Exception):
    """Another server owns the session and is alive. It was asked to put the session away."""


class OtherEnvironment(Exception):
    """The session is one of another environment, or of another version.

    Attributes:
        kept: the session, which is as it was.
    """

    def __init__(self, kept: KeptSession) -> None:
        self.kept = kept


SNAPSHOT = 1 << 40
"""The number of the entry that has the last snapshot of an episode: its body is one, and it has no reply."""

OBJECT = b"object:"
"""The beginning of the body of a snapshot that is in another storage. The rest is its name there."""

GO_ON = "go_on"
"""The choice that steps do not wait for a store that cannot be reached."""

RECORDED = SNAPSHOT + 1
"""The number of the entry that says that the record has the episode, which is over. It has no reply."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of an episode, and the reply to the request that asked for it.

    Attributes:
        number: 1 for the first step; 0 for the reply to the reset; `SNAPSHOT` for the last snapshot.
        body: the step as JSON, a list of the step and an own action's observation. The step is null, and the second
            item the call, if the call is about to run and must not run twice. None: only a reply.
        request_id: the id of the request; None if it had none.
        digest: the digest of that request's body.
        reply: the text of its reply.
    """

    number: int
    body: bytes | None
    request_id: str | None = None
    digest: bytes | None = None
    reply: str | None = None

    @property
    def is_step(self) -> bool:
        """True if it is a step that was taken."""
        return self.number < SNAPSHOT and self.body is not None and not self.body.startswith(b"[null,")

    @property
    def size(self) -> int:
        """The bytes of the body, and the characters of the reply."""
        return len(self.body or b"") + len(self.reply or "")


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session as the store has it.

    Attributes:
        id: the session's id.
        digest: the SHA-256 of its client's secret, in hexadecimal.
        environment: name and version of the environment, as JSON.
        handle: the value of the episode's handle.
        address: the address of its last owner, for other servers.
        header: the episode without its steps, as JSON.
        over: the episode has ended.
        owner: the id of the server that owns it; None if it was put away.
        fence: the number of owners that it has had. A write with a smaller number is refused.
        steps: the number of steps.
        updated: the time of the last write, in seconds since the epoch.
        alive: the owner's lease has not run out.
    """

    id: str
    digest: str
    environment: str
    handle: str
    address: str
    header: bytes
    over: bool = False
    owner: str | None = None
    fence: int = 1
    steps: int = 0
    updated: float = 0.0
    alive: bool = False


class Claimant(NamedTuple):
    """A server that asks for a session.

    Attributes:
        owner: its id.
        address: its address, for other servers.
        environment: its environment, as `KeptSession` has it.
    """

    owner: str
    address: str
    environment: str


class Totals(NamedTuple):
    """The sums of a store.

    Attributes:
        sessions: how many it has.
        bytes: of the steps, replies and snapshots that it has of them.
    """

    sessions: int
    bytes: int


class Store(Protocol):
    """A store. All methods may raise `StoreError`; those with a fence raise `Fenced`."""

    async def beat(self, owner: str, lease_s: float) -> Sequence[str]:
        """Renew the lease of a server. Return the ids of its sessions that another server asks for."""
        ...

    async def begin(self, kept: KeptSession, entries: Sequence[Entry], *, new: bool) -> None:
        """Write an episode from its beginning, in place of the session's last one.

        Args:
            new: the session is not in the store yet. Its owner and fence are those of ``kept``.
        """
        ...

    async def append(self, session_id: str, fence: int, entries: Sequence[Entry], header: bytes | None) -> None:
        """Write steps, in place of entries of the same number.

        Args:
            header: the episode without its steps, if it is over; else None.
        """
        ...

    async def claim(self, session_id: str, claimant: Claimant, digest: str | None) -> KeptSession | None:
        """Become the owner of a session. Return it with its new fence; None if there is none of that id.

        Args:
            digest: of the client's secret; None for an agent.

        Raises:
            Owned: another server owns it.
            OtherEnvironment: it is not one of the claimant's.
            PermissionError: the secret is not the client's.
        """
        ...

    async def entries(self, session_id: str) -> Sequence[Entry]:
        """Return the entries of a session, by number."""
        ...

    async def release(self, session_id: str, fence: int) -> None:
        """Put a session away: nobody owns it."""
        ...

    async def discard(self, session_id: str, fence: int | None) -> bool:
        """Delete a session; return False if there is none.

        Args:
            fence: None: whoever owns it.
        """
        ...

    async def of_handle(self, handle: str) -> KeptSession | None:
        """Return the session whose episode has that handle."""
        ...

    async def sessions(self) -> Sequence[KeptSession]:
        """Return all sessions, the oldest write first."""
        ...

    async def totals(self) -> Totals:
        """Return the sums, without reading the entries."""
        ...

    async def unrecorded(self, environment: str, before: float) -> Sequence[str]:
        """Return the ids of the sessions without an owner that are over, but have no entry `RECORDED`.

        Args:
            environment: theirs, as `KeptSession` has it.
            before: also those that are not over, and were last written before then.
        """
        ...

    async def sweep(self, before: float) -> Sequence[str]:
        """Delete the sessions that nobody owns and that were last written before then; return their ids."""
        ...

    async def close(self) -> None:
        """Release the connection, after a last beat that ends the leases of this process."""
        ...


_CHOICES = {"writes": ("strict", "behind"), "unreachable": ("wait", GO_ON)}
_ADDRESSES = {"address": r"https?://[^/\s@?#]+", "snapshots": r"[a-z][\w+.:-]*://\S+"}
"""The settings that are addresses, and their syntax."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of durable sessions, as ``--durable PLACE?name=value&...`` gives them.

    Attributes:
        place: a folder, or the URL of a store.
        writes: ``strict``: a step is written before it is answered. ``behind``: it is written soon after, so that a
            killed server loses the last steps, which are then run again.
        unreachable: ``wait``: steps wait for a store that cannot be reached. ``go_on``: they do not, and are written
            once it answers.
        lease_s: seconds after which the sessions of a server that does not answer may be continued by another.
        patience_s: seconds that a step waits for a store that does not answer, before its session is given up here.
        idle_s: seconds without use after which a session is put away, also if its client is connected.
        keep_s: seconds for which a session is kept that nobody continues.
        snapshot_steps: steps between two snapshots of an episode. None: 1 if the class has its state saved and there
            is no ``snapshot_s``, else none are taken for their number.
        snapshot_s: seconds after which the next step has a snapshot.
        snapshots: the URL of a folder for snapshots, as fsspec reads it; None: they are in the store.
        max_sessions: the number of sessions from which on no new one begins; None: there is no bound.
        max_bytes: the same for the bytes of all sessions.
        address: the address of this server, for the others; None: the one at which it is reached.
    """

    place: str
    writes: str = "strict"
    lease_s: float = 10.0
    patience_s: float = 30.0
    idle_s: float = math.inf
    keep_s: float = 86_400.0
    snapshot_steps: int | None = None
    snapshot_s: float = math.inf
    snapshots: str | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None
    unreachable: str = "wait"
    address: str | None = None

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read them. Other parameters of a URL are the store's.

        Raises:
            ConfigurationError: an unknown setting, or a value that is none.
        """
        place, _, query = text.partition("?")
        given: dict[str, Any] = {}
        others: list[str] = []
        for part in filter(None, query.split("&")):
            ((name, value),) = parse_qsl(part, keep_blank_values=True)
            if value in _CHOICES.get(name, ()):
                given[name] = value
            elif name in ("lease_s", "patience_s", "idle_s", "keep_s", "snapshot_s"):
                given[name] = _seconds(name, value)
            elif name in ("snapshot_steps", "max_sessions", "max_bytes"):
                given[name] = _number(name, value)
            elif name in _ADDRESSES and re.fullmatch(_ADDRESSES[name], value):
                given[name] = value
            elif name in _CHOICES:
                raise ConfigurationError(f"--durable: {name}={value}: it is {' or '.join(_CHOICES[name])}")
            elif "://" in place and not difflib.get_close_matches(name, [each.name for each in fields(cls)], 1, 0.8):
                others.append(part)
            else:
                raise ConfigurationError(
                    f"--durable: {name}={value} is no setting; there are writes=strict or behind, lease_s, patience_s, "
                    "idle_s, keep_s, snapshot_steps, snapshot_s, snapshots=URL, max_sessions, "
                    "max_bytes, unreachable=wait or go_on, and address=http://HOST:PORT"
                )
        if not place:
            raise ConfigurationError("--durable needs a folder, or the URL of a store")
        return replace(cls("?".join([place, *filter(None, ["&".join(others)])])), **given)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise ConfigurationError(f"--durable: {name}={value} is no number of seconds above 0")
    return seconds


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,17}", value, re.ASCII):
        raise ConfigurationError(f"--durable: {name}={value} is no whole number above 0")
    return int(value)


def shown(place: str) -> str:
    """Return a folder or URL without the user, password and parameters that are in it."""
    scheme, found, rest = place.partition("://")
    if not found:
        return place
    address, _, query = rest.partition("?")
    address = address.rpartition("@")[2]
    # A password with characters that are not encoded may be in any part.
    safe = "@" not in query and re.fullmatch(r"[\w.,-]*(:\d+)?(/[\w-]*)?", address)
    return f"{scheme}://{address if safe else '...'}"


_STORES = {
    "": "sqlite_store:SqliteStore",
    "postgres": "postgres_store:PostgresStore",
    "postgresql": "postgres_store:PostgresStore",
    "redis": "redis_store:RedisStore",
    "rediss": "redis_store:RedisStore",
}
"""The stores by the scheme of their URLs."""


def open_with_snapshots(settings: Settings, *, make: bool = True) -> Store:
    """Open a store, and the storage of its snapshots. Args and errors are those of `open_store`."""
    store = open_store(settings.place, make=make)
    if settings.snapshots is None:
        return store
    objects: Store = import_module(".object_snapshots", __package__).ObjectSnapshots(store, settings.snapshots)
    return objects


def open_store(place: str, *, make: bool = True) -> Store:
    """Open a store.

    Args:
        make: False: it must exist.

    Raises:
        ConfigurationError: there is no such store, its package is not installed, or it cannot be used.
    """
    scheme, found, _ = place.partition("://")
    entry = _STORES.get(scheme if found else "")
    if entry is None:
        known = ", ".join(f"{name}://" for name in _STORES if name)
        raise ConfigurationError(f"--durable: there is no store for {scheme}:// URLs; there are a folder, {known}")
    if "@" in place.partition("://")[2].partition("/")[2]:
        raise ConfigurationError(f"--durable {scheme}://...: a password's / is written %2F, and its @ as %40")
    module, _, name = entry.partition(":")
    store: Store = getattr(import_module(f".{module}", __package__), name)(place, make=make)
    return store
