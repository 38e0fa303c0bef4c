"""The checkpoint of a pool: a file with what its plays have read and done, which grows while they go on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic_core import to_json

from mcpenv_client.connection.handshake import Credential
from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.types.values import decode
from mcpenv_client.wire.protocol import FrameType, Reply, encode_frame

from .assignment import Assignment, Played, Share
from .backend import JournalError, PoolError
from .episode import Outcome, PolicyFailed
from .playing import POLICY_ERROR, TIMEOUT, played_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"mcpenv pool checkpoint "
VERSION = 2
HEAD = MAGIC + b"%d\n" % VERSION


@dataclass
class KeptShare:
    """What is known of a share that was not handed out.

    Attributes:
        share: its episodes.
        url: the server of its session.
        credential: of its session; None before the first.
        texts: the messages of the session, by request id.
        replies: the pickled replies, by request id.
        said: the model's messages in its chats: the number of the episode, the message, and the tokens that the policy
            kept before it.
        outcomes: its pickled outcomes; None until it is over.
        told: the numbers of its episodes that the source of tasks was told.
        out: the numbers of its episodes that were handed out.
        version: of the pool's weights when its session began.
    """

    share: Share
    url: str = ""
    credential: Credential | None = None
    texts: dict[str, str] = field(default_factory=dict)
    replies: dict[str, bytes] = field(default_factory=dict)
    said: list[tuple[Any, ...]] = field(default_factory=list)
    outcomes: bytes | None = None
    told: set[int] = field(default_factory=set)
    out: set[int] = field(default_factory=set)
    version: int | None = None

    def take(self, what: str, *values: Any) -> None:
        """Take what happened."""
        if what == "opened":
            self.url, self.credential = values
            self.texts, self.replies, self.said = {}, {}, []
        elif what == "said":
            self.said.append(values)
        elif what == "version":
            (self.version,) = values
        elif what == "played":
            (self.outcomes,) = values
            self.texts, self.replies, self.said = {}, {}, []
        else:
            getattr(self, what)[values[0]] = values[1]


@dataclass(eq=False)
class KeptPlay:
    """What is known of a play.

    Attributes:
        about: the arguments that decide which episodes it has.
        source: the state of its source of tasks; None if that has none, and is read again from its beginning.
        rows: the number of rows that were read since that state.
        shares: those that were not handed out, by their first number, in the order in which they were read.
        number, groups: the numbers of the next episode and group.
        ended: True if it is over for the script.
    """

    about: dict[str, Any]
    source: Any = None
    rows: int = 0
    shares: dict[int, KeptShare] = field(default_factory=dict)
    number: int = 0
    groups: int = 0
    ended: bool = False

    def take(self, what: str, *values: Any) -> None:
        """Take what happened."""
        if what == "read":
            shares, rows = values
            self.rows += rows
            for share in shares:
                self.shares[share[0].number] = KeptShare(share)
                self.number = max(self.number, *(each.number + 1 for each in share))
                self.groups = max(self.groups, *(each.group + 1 for each in share))
        elif values[0] in self.shares:  # of another one nothing is needed any more: its group went on without it
            self.shares[values[0]].take(what, *values[1:])


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
            body = HEAD + _pickled(state, "the state") + _pickled(kept, "a play")
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
            record = _pickled((what, at, *values), "an episode")
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
            self.add("played", number, _pickled(outcomes, "the value of a policy"))
        return outcomes

    def _of(self, assignment: Assignment) -> KeptShare | None:
        found = self.kept.shares.get(assignment.number)
        if found is None:  # one of several episodes of a share
            found = next((each for each in self.kept.shares.values() if assignment in each.share), None)
        return found


class ShareJournal:
    """The journal of a share's session.

    Args:
        log: the log of the play.
        kept: what is known of the share.

    Attributes:
        restored: True if another process began its session.
        url: the server of its session.
    """

    def __init__(self, log: PlayLog, kept: KeptShare) -> None:
        self._log, self._kept = log, kept
        self.restored = kept.credential is not None
        self._found: set[str] = set()
        self._failed: JournalError | None = None
        self._wrote: list[tuple[Any, ...]] = []
        self.url = kept.url
        if any(_end_of(text) == POLICY_ERROR for text in kept.texts.values()):
            self.forget()

    def _add(self, what: str, *values: Any) -> None:
        self._log.add(what, self._kept.share[0].number, *values)

    @property
    def credential(self) -> Credential | None:
        """The credential of the session to go on with; None to begin a new one."""
        return self._kept.credential

    @property
    def out_of_time(self) -> bool:
        """True if the next message before the restart was the end at the time limit."""
        if not self.restored:
            return False
        text = next((text for key, text in self._kept.texts.items() if key not in self._found), None)
        return text is not None and _end_of(text) == TIMEOUT

    def forget(self) -> None:
        """Forget the session, so that the share begins again in a new one."""
        self.opened(None)

    def opened(self, credential: Credential | None) -> None:
        """Keep the credential of a session that is about to begin."""
        self._add("opened", self.url, credential)
        self.restored, self._failed, self._wrote = False, None, []
        self._found.clear()

    def find(
        self, request_id: str, kind: FrameType, data: dict[str, Any]
    ) -> tuple[str | None, Reply | WireError | None]:
        """Return the text of a message and its reply or refusal, as far as they are known.

        A refusal, which changed nothing, is final only if the policy went on after it.

        Raises:
            JournalError: the policy had sent another message.
        """
        if self._failed is not None:
            raise self._failed  # the policy may have caught it
        key = _key(request_id)
        self._found.add(key)
        text, reply = self._kept.texts.get(key), self._kept.replies.get(key)
        if text is not None:
            was, now = decode(text), decode(encode_frame(kind, data))
            if (was["type"], was.get("data")) != (now["type"], now.get("data")):
                raise self._failure(
                    f"episode {self._kept.share[0].number} cannot go on: its policy made another call than before the "
                    f"restart ({_shown(now)}, before {_shown(was)}). A policy runs again from its beginning. Let it "
                    "make the same calls, or let a model play by episode.chat(), which goes on where it was. "
                    'restore(..., missing="again") begins such episodes again'
                )
        known = None if reply is None else pickle.loads(reply)
        if isinstance(known, WireError) and known.status is None and key == next(reversed(self._kept.texts), key):
            known = None
        return text, known

    def sent(self, request_id: str, text: str) -> None:
        """Keep a message that is about to be sent."""
        self._add("texts", _key(request_id), text)

    def answered(self, request_id: str, reply: Reply | WireError) -> None:
        """Keep a reply, or a refusal."""
        self._add("replies", _key(request_id), _pickled(reply, "a reply"))

    def lost(self, error: WireError | ConnectionFailed) -> None:
        """Take that no server has the session, which another process began.

        Raises:
            JournalError: always. Nothing is lost if the episode had not begun: it begins again.
        """
        raise self._failure(
            f"episode {self._kept.share[0].number} cannot go on at these servers: {error}. The checkpoint is "
            'unchanged; restore(..., missing="again") begins such episodes again',
            again=not self._kept.replies,
        ) from error

    def _failure(self, message: str, again: bool = False) -> JournalError:
        self._failed = JournalError(message, again or self._log.checkpoint.missing == "again")
        return self._failed

    # -- the chat of its policy

    def wrote(self, *tokens: Any) -> None:
        """Keep the tokens of the model's next message."""
        self._wrote.append(tokens)

    def says(self, number: int, message: Mapping[str, Any] | str) -> None:
        """Keep a message of the model in an episode, before its calls are made."""
        wrote, self._wrote = self._wrote, []
        self._add("said", number, message, wrote)

    def said(self, number: int) -> list[tuple[Any, list[tuple[Any, ...]]]]:
        """Return the model's messages in an episode, each with its tokens."""
        return [(message, wrote) for episode, message, wrote in self._kept.said if episode == number]


def described(rows: Any) -> str:
    """Return the number of rows in a list, and their digest; of another source its type."""
    if not isinstance(rows, list | tuple):
        return type(rows).__name__
    text = to_json(rows, bytes_mode="base64", fallback=lambda value: type(value).__name__)
    return f"{len(rows)} with the digest {hashlib.sha256(text).hexdigest()[:12]}"


def _pickled(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        why = f"it cannot be pickled: {type(error).__name__}: {error}"
        raise JournalError(f"{what} cannot be kept in a checkpoint, because {why}") from error


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


def _key(request_id: str) -> str:
    """Return the number of a request: it counts the messages of all types, so that no call more or less is missed."""
    return request_id.rpartition("-")[2]


def _end_of(text: str) -> str | None:
    """Return the reason for which a message ends an episode; None if it ends none, or has no reason."""
    frame = decode(text)
    return (frame.get("data") or {}).get("reason") if frame["type"] == FrameType.END.value else None


def _shown(frame: Mapping[str, Any]) -> str:
    text = f"{frame['type']} {frame.get('data')}"
    return text if len(text) <= 120 else text[:120] + "..."
