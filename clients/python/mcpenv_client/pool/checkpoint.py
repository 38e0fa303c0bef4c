"""The checkpoint of a pool: a file with what its plays have read and done, which grows while they go on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic_core import to_json

from .assignment import Assignment, Played, Share
from .backend import JournalError, PoolError
from .episode import Outcome, PolicyFailed
from .kept import KeptPlay, KeptShare, pickled
from .playing import played_of
from .share_journal import ShareJournal

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"mcpenv pool checkpoint "
VERSION = 2
HEAD = MAGIC + b"%d\n" % VERSION


class Checkpoint:
    """A file that begins with the state of a pool's plays at the last `save`. What happens is added to it.

    Args:
        missing: "raise", or "again" to begin an episode again that no server has any more.
    """

    def __init__(self, missing: str = "raise") -> None:
        self.missing = missing
        self.state: Any = None
        self._kept: list[KeptPlay] = []
        self._open: dict[int, PlayLog] = {}
        self._next = 0
        self._file: BinaryIO | None = None
        self._path, self._full = Path(), cast("OSError | None", None)
        self._lock = threading.Lock()

    @classmethod
    def read(cls, path: Path, missing: str) -> Checkpoint:
        """Read a file, and go on with it.

        Raises:
            PoolError: it cannot be read, is none of this version, or is in use.
        """
        self = cls(missing)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(path.open("r+b"))
                _lock(file, path)
                line = file.readline(len(MAGIC) + 16)
                if line.startswith(MAGIC) and line != HEAD:
                    found = line[len(MAGIC) :].strip().decode(errors="replace")
                    raise ValueError(f"it is of version {found}, and this package reads {VERSION}")
                if line != HEAD:
                    raise ValueError("it is no checkpoint of a pool")
                self.state, self._kept = pickle.load(file), pickle.load(file)
                end = file.tell()
                with contextlib.suppress(EOFError, pickle.UnpicklingError):  # a kill may leave a part of a record
                    while True:
                        self._take(*pickle.load(file))
                        end = file.tell()
            except PoolError:
                raise
            except Exception as error:
                raise PoolError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error
            file.truncate(end)
            file.seek(end)
            stack.pop_all()
        self._file, self._path = file, path
        return self

    def save(self, path: Path, state: Any) -> None:
        """Write the present state to a file, in place of what it has.

        Raises:
            PoolError: something in it cannot be pickled, or another script uses the file.
            OSError: the file cannot be written.
        """
        for each in self._open.values():
            each.save()
        with self._lock:
            kept = [each for each in self._kept if not each.ended]
            new = path.with_name(path.name + ".new")
            body = HEAD + pickled(state, "the state") + pickled(kept, "a play")
            if path.exists() and not self._has(path):
                with path.open("rb") as other:
                    _lock(other, path)
            file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            _lock(file, path)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
            new.replace(path)
            self.close()
            self._next -= sum(each.ended for each in self._kept[: self._next])
            self.state, self._kept, self._file, self._path, self._full = state, kept, file, path, None

    def _has(self, path: Path) -> bool:
        """Return True if its own file is the one at a path."""
        return (
            self._file is not None
            and not self._file.closed
            and os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # of a record that could not be written
                self._file.close()

    def play(self, about: dict[str, Any], source: Any) -> PlayLog:
        """Return the log of a play that begins: that of the next one in the file, if there is one.

        Raises:
            PoolError: the play cannot be kept, or is another one than that in the file.
        """
        saves = hasattr(source, "state") and hasattr(source, "resume")
        if hasattr(source, "record") and not saves:
            raise PoolError(
                f"{type(source).__name__} has record(), but not state() and resume(): after a restart it would give "
                "other tasks than before. Add them, or play without a checkpoint"
            )
        if self._next < len(self._kept):
            kept = self._kept[self._next]
            names = [name for name in about if kept.about.get(name, about[name]) != about[name]]
            if names:
                raise PoolError(
                    "this play is another one than that in the checkpoint: "
                    + ", ".join(f"{name} is {about[name]!r}, and was {kept.about[name]!r}" for name in names)
                )
            if saves:
                source.resume(kept.source)
        else:
            self.add("play", about, source.state() if saves else None)
            kept = self._kept[-1]
        self._next += 1
        log = self._open[id(kept)] = PlayLog(self, kept, source if saves else None)
        return log

    def end(self, kept: KeptPlay) -> None:
        """Take that a play is over. Until the next `save` it stays in the file."""
        kept.ended, kept.shares = True, {}
        self._open.pop(id(kept), None)

    def add(self, what: str, *values: Any, play: KeptPlay | None = None) -> None:
        """Write what happened, and take it."""
        with self._lock:
            at = None if play is None else next(i for i, each in enumerate(self._kept) if each is play)
            record = pickled((what, at, *values), "an episode")
            if self._file is not None and not self._file.closed:
                try:
                    if self._full is not None:
                        raise self._full  # a part of a record may be the last there is
                    self._file.write(record)
                    self._file.flush()
                except OSError as error:
                    self._full = error
                    raise JournalError(f"the checkpoint {self._path} cannot be written: {error}") from error
            self._take(what, at, *values)

    def _take(self, what: str, play: int | None, *values: Any) -> None:
        if play is None:
            self._kept.append(KeptPlay(*values))
        else:
            self._kept[play].take(what, *values)


class PlayLog:
    """The log of a play, in a `Checkpoint`.

    Attributes:
        settle: takes the row that the plan has just read; returns the number of rows to read once more.
    """

    def __init__(self, checkpoint: Checkpoint, kept: KeptPlay, source: Any) -> None:
        self.checkpoint, self.kept = checkpoint, kept
        self._source = source
        self._journals: dict[int, ShareJournal] = {}
        self.settle: Callable[[], int] = lambda: 0

    def save(self) -> None:
        """Prepare the state to be written."""
        again = self.settle()
        if self._source is not None:
            self.kept.source, self.kept.rows = self._source.state(), again

    def add(self, what: str, *values: Any) -> None:
        """Write what happened."""
        if not self.kept.ended:
            self.checkpoint.add(what, *values, play=self.kept)

    def tell(self, told: Callable[[Played], None], played: Played) -> None:
        """Tell the source of an episode, once."""
        share = self._of(played.assignment)
        if share is None or played.assignment.number not in share.told:
            told(played)
            if share is not None:
                share.told.add(played.assignment.number)

    def handed(self, item: Played | Sequence[Played]) -> None:
        """Take that an episode, or a group, is handed out. Of a group, none of its episodes is needed any more."""
        for each in [item] if isinstance(item, Played) else item:
            share = self._of(each.assignment)
            if share is not None:
                share.out.add(each.assignment.number)
        groups = set() if isinstance(item, Played) else {each.assignment.group for each in item}
        for number, kept in [*self.kept.shares.items()]:
            if kept.share[0].group in groups or len(kept.out) == len(kept.share):
                del self.kept.shares[number]
                self._journals.pop(number, None)

    def end(self) -> None:
        """Take that the play is over."""
        self.checkpoint.end(self.kept)

    def journal(self, share: Share) -> ShareJournal:
        """Return the journal of a share."""
        number = share[0].number
        if number not in self._journals:
            self._journals[number] = ShareJournal(self, self.kept.shares.get(number) or KeptShare(share))
        return self._journals[number]

    def forget(self, share: Share) -> None:
        """Let the next attempt begin a share again."""
        self.journal(share).forget()

    def version(self, share: Share, now: int | None) -> int | None:
        """Return the version of the weights with which the session of a share began, or begins now."""
        kept = self.kept.shares.get(share[0].number)
        if kept is None or kept.credential is None:
            self.add("version", share[0].number, now)
            return now
        return kept.version

    async def played(self, share: Share, play: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        """Return the outcomes of a share, which is played unless they are known."""
        kept, number = self.kept.shares.get(share[0].number), share[0].number
        if kept is not None and kept.outcomes is not None:
            known: list[Outcome] = pickle.loads(kept.outcomes)
            return [each for each in known if played_of(each).assignment.number not in kept.out]
        outcomes = await play()
        if any(isinstance(each, PolicyFailed) for each in outcomes):
            self.forget(share)
        else:
            self.add("played", number, pickled(outcomes, "the value of a policy"))
        return outcomes

    def _of(self, assignment: Assignment) -> KeptShare | None:
        found = self.kept.shares.get(assignment.number)
        if found is None:  # one of several episodes of a share
            found = next((each for each in self.kept.shares.values() if assignment in each.share), None)
        return found


def described(rows: Any) -> str:
    """Return the number of rows in a list, and their digest; of another source its type."""
    if not isinstance(rows, list | tuple):
        return type(rows).__name__
    text = to_json(rows, bytes_mode="base64", fallback=lambda value: type(value).__name__)
    return f"{len(rows)} with the digest {hashlib.sha256(text).hexdigest()[:12]}"


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock a file until it is closed, where the system can.

    Raises:
        PoolError: another one has locked it.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PoolError(f"another script, or pool, uses the checkpoint {path}. Give each a file of its own") from error
