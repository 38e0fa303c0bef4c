"""A store whose snapshots are objects of another storage, such as S3. Needs fsspec: ``mcpenv[fsspec]``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mcpenv.errors import ConfigurationError

from .store import OBJECT, SNAPSHOT, Claimant, Entry, Fenced, KeptSession, Store, StoreError, Totals, shown
from .threads import answer_of

try:
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem
except ImportError as error:
    raise ConfigurationError("--durable: snapshots= needs fsspec: pip install 'mcpenv[fsspec]'") from error

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

ANSWER_S = 30.0
"""Seconds after which a storage that does not answer counts as gone."""

THREADS = 8


class ObjectSnapshots:
    """A store that has the names of snapshots, and the storage that has their bytes.

    The objects of a session are in a folder of its id. A name begins with the fencing number of the server that wrote
    it, so that a fenced server never overwrites an object of the next owner. It ends with a digest of the object, so
    that a second try has the same name.

    Args:
        store: has all but the bytes of snapshots.
        url: the folder of the objects, as fsspec reads it.

    Raises:
        ConfigurationError: fsspec cannot use the URL.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._shown = shown(url) if "@" in url else url
        try:
            self._files, self._root = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(f"--durable: snapshots={self._shown}: {error}") from error
        if isinstance(self._files, LocalFileSystem):
            self._files.auto_mkdir = True
            Path(self._root).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._threads = ThreadPoolExecutor(THREADS, "mcpenv-snapshots")
        self._names: dict[str, str] = {}
        self._deleting: set[asyncio.Task[None]] = set()

    async def begin(self, kept: KeptSession, entries: Sequence[Entry], *, new: bool) -> None:
        """Write an episode from its beginning."""
        named = await self._put(kept.id, kept.fence, entries)
        await self._named(kept.id, named, self._store.begin(kept, named, new=new))
        if not any(entry.number == SNAPSHOT for entry in named) and kept.id in self._names:
            self._delete(self._names.pop(kept.id))

    async def append(self, session_id: str, fence: int, entries: Sequence[Entry], header: bytes | None) -> None:
        """Write steps."""
        named = await self._put(session_id, fence, entries)
        await self._named(session_id, named, self._store.append(session_id, fence, named, header))

    async def entries(self, session_id: str) -> Sequence[Entry]:
        """Return the entries, without a snapshot whose object does not exist any more."""
        found = []
        for entry in await self._store.entries(session_id):
            if entry.number == SNAPSHOT and entry.body is not None and entry.body.startswith(OBJECT):
                name = self._names[session_id] = entry.body.removeprefix(OBJECT).decode()
                try:
                    body = await self._run(lambda name=name: self._files.cat_file(self._path(name)))  # type: ignore[misc]
                except FileNotFoundError:
                    logger.warning("there is no snapshot %s at %s any more", name, self._shown)
                    continue
                entry = replace(entry, body=body)
            found.append(entry)
        return found

    async def discard(self, session_id: str, fence: int | None) -> bool:
        """Delete a session and its objects."""
        found = await self._store.discard(session_id, fence)
        self._names.pop(session_id, None)
        if found:
            self._delete(session_id)
        return found

    async def sweep(self, before: float) -> Sequence[str]:
        """Delete what nobody continues."""
        deleted = await self._store.sweep(before)
        for session_id in deleted:
            self._delete(session_id)
        return deleted

    async def release(self, session_id: str, fence: int) -> None:
        """Put a session away."""
        await self._store.release(session_id, fence)
        self._names.pop(session_id, None)

    async def close(self) -> None:
        """Close the store, once what is deleted has been."""
        if self._deleting:
            await asyncio.wait(self._deleting)
        self._threads.shutdown(wait=False)
        await self._store.close()

    async def beat(self, owner: str, lease_s: float) -> Sequence[str]:
        """Renew a lease."""
        return await self._store.beat(owner, lease_s)

    async def claim(self, session_id: str, claimant: Claimant, digest: str | None) -> KeptSession | None:
        """Become the owner."""
        return await self._store.claim(session_id, claimant, digest)

    async def of_handle(self, handle: str) -> KeptSession | None:
        """Return a handle's session."""
        return await self._store.of_handle(handle)

    async def sessions(self) -> Sequence[KeptSession]:
        """Return all sessions."""
        return await self._store.sessions()

    async def totals(self) -> Totals:
        """Return the sums, without those of the objects."""
        return await self._store.totals()

    async def unrecorded(self, environment: str, before: float) -> Sequence[str]:
        """Return what no record has."""
        return await self._store.unrecorded(environment, before)

    # -- inside

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    async def _put(self, session_id: str, fence: int, entries: Sequence[Entry]) -> list[Entry]:
        """Write the objects of snapshots. Return the entries with their names instead."""
        named = []
        for entry in entries:
            if entry.number == SNAPSHOT and entry.body is not None:
                body = entry.body
                name = f"{session_id}/{fence:06d}-{hashlib.sha256(body).hexdigest()[:32]}"
                await self._run(lambda body=body, name=name: self._files.pipe_file(self._path(name), body))  # type: ignore[misc]
                entry = replace(entry, body=OBJECT + name.encode())
            named.append(entry)
        return named

    async def _named(self, session_id: str, entries: Sequence[Entry], write: Coroutine[Any, Any, None]) -> None:
        """Write the names, and delete the object that is no longer named."""
        bodies = (entry.body or b"" for entry in entries if entry.number == SNAPSHOT)
        name = next((body.removeprefix(OBJECT).decode() for body in bodies), None)
        try:
            await write
        except Fenced:
            self._names.pop(session_id, None)
            if name is not None:
                await self._delete_unnamed(session_id, name)
            raise
        if name is not None:
            last = self._names.get(session_id)
            self._names[session_id] = name
            if last not in (None, name):
                self._delete(str(last))

    async def _delete_unnamed(self, session_id: str, name: str) -> None:
        """Delete an object, unless it is named: a first try may have been made, and its answer lost."""
        try:
            entries = await self._store.entries(session_id)
        except StoreError as error:
            logger.warning("%s; a snapshot stays there until its session is deleted: %s", error, name)
            return
        if all(entry.body != OBJECT + name.encode() for entry in entries):
            self._delete(name)

    def _delete(self, name: str) -> None:
        """Begin to delete an object, or the folder of a session. No step waits for it."""
        task = asyncio.create_task(self._deleted(name))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _deleted(self, name: str) -> None:
        try:
            await self._run(lambda: self._files.rm(self._path(name), recursive=True))
        except FileNotFoundError:
            pass  # the session has no snapshot
        except StoreError as error:
            logger.warning("%s; it stays there until its session is deleted: %s", error, name)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run in a thread. Raise FileNotFoundError, or StoreError for each other failure of the storage."""
        try:
            return await answer_of(self._threads, work, ANSWER_S)
        except FileNotFoundError:
            raise
        except TimeoutError:
            raise StoreError(f"the snapshots at {self._shown} have not answered for {ANSWER_S:g} s") from None
        except Exception as error:  # each storage has errors of its own
            raise StoreError(f"the snapshots at {self._shown}: {type(error).__name__}: {error}") from error
