"""The checkpoint of a pool: a file with what its plays have read and done, which grows while they go on."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mcpenv_client.connection.handshake import Credential
from mcpenv_client.errors import ExecutionError, SessionLost
from mcpenv_client.types.values import decode
from mcpenv_client.wire.protocol import FrameType, Reply, encode_frame

from .assignment import Assignment, Played, Share
from .backend import PoolError
from .episode import Outcome, PolicyFailed
from .playing import played_of

MAGIC = b"mcpenv pool checkpoint "
VERSION = 1
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

    def take(self, what: str, *values: Any) -> None:
        """Take what happened."""
        if what == "opened":
            self.url, self.credential = values
            self.texts, self.replies, self.said = {}, {}, []
        elif what == "said":
            self.said.append(values)
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
        self._lock = threading.Lock()

    @classmethod
    def read(cls, path: Path, missing: str) -> Checkpoint:
        """Read a file, and go on with it.

        Raises:
            PoolError: it cannot be read, or is none of this version.
        """
        self = cls(missing)
        try:
            with path.open("rb") as file:
                line = file.readline(len(MAGIC) + 16)
                if line.startswith(MAGIC) and line != HEAD:
                    found = line[len(MAGIC) :].strip().decode(errors="replace")
                    raise ValueError(f"it is of version {found}, and this package reads {VERSION}")
                if line != HEAD:
                    raise ValueError("it is no checkpoint of a pool")
                self.state, self._kept = pickle.load(file)
                end = file.tell()
                with contextlib.suppress(EOFError, pickle.UnpicklingError):  # a kill may leave a part of a record
                    while True:
                        self._take(*pickle.load(file))
                        end = file.tell()
        except Exception as error:
            raise PoolError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error
        self._file = path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        return self

    def save(self, path: Path, state: Any) -> None:
        """Write the present state to a file, in place of what it has.

        Raises:
            PoolError: something in it cannot be pickled.
            OSError: the file cannot be written.
        """
        for each in self._open.values():
            each.save()
        with self._lock:
            kept = [each for each in self._kept if not each.ended]
            new = path.with_name(path.name + ".new")
            body = HEAD + _pickled((state, kept), "the state of a play")
            file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
            new.replace(path)
            self.close()
            self._next -= sum(each.ended for each in self._kept[: self._next])
            self.state, self._kept, self._file = state, kept, file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
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
            if kept.about != about:
                names = [name for name in about if kept.about[name] != about[name]]
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
        kept.ended = True
        self._open.pop(id(kept), None)

    def add(self, what: str, *values: Any, play: KeptPlay | None = None) -> None:
        """Write what happened, and take it."""
        with self._lock:
            at = None if play is None else next(i for i, each in enumerate(self._kept) if each is play)
            record = _pickled((what, at, *values), "an episode")
            if self._file is not None and not self._file.closed:
                self._file.write(record)
                self._file.flush()
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
        self.restored = {number for number, each in kept.shares.items() if each.credential is not None}
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
            kept = self.kept.shares.get(number) or KeptShare(share)
            self._journals[number] = ShareJournal(self, kept, number in self.restored)
        return self._journals[number]

    async def played(self, share: Share, play: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        """Return the outcomes of a share, which is played unless they are known."""
        kept, number = self.kept.shares.get(share[0].number), share[0].number
        if kept is not None and kept.outcomes is not None:
            known: list[Outcome] = pickle.loads(kept.outcomes)
            return [each for each in known if played_of(each).assignment.number not in kept.out]
        outcomes = await play()
        if any(isinstance(each, PolicyFailed) for each in outcomes):
            self.add("opened", number, "", None)  # another try begins it again
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
        restored: True if its session was begun by another process.
    """

    def __init__(self, log: PlayLog, kept: KeptShare, restored: bool) -> None:
        self._log, self._kept = log, kept
        self._goes_on = self._restored = restored
        self._left = set(kept.replies)
        self._wrote: list[tuple[Any, ...]] = []
        self.url = kept.url

    def attempt(self) -> None:
        """Take that an attempt begins. Only the first one after a restart goes on with a session."""
        if not self._goes_on:
            self._restored = False
            self.refused()
        self._goes_on = False

    def refused(self) -> None:
        """Forget the session, unless it was begun by another process: its server had no room for it."""
        if not self._restored and self._kept.credential is not None:
            self._add("opened", "", None)
            self._left, self._wrote = set(), []

    def _add(self, what: str, *values: Any) -> None:
        self._log.add(what, self._kept.share[0].number, *values)

    @property
    def credential(self) -> Credential | None:
        """The credential of the session to go on with; None to begin a new one."""
        return self._kept.credential

    @property
    def repeating(self) -> bool:
        """True while messages are expected that the journal answers."""
        return bool(self._left)

    def opened(self, credential: Credential) -> None:
        """Keep the credential of a session that is about to begin."""
        self._left, self._restored = set(), False
        self._add("opened", self.url, credential)

    def find(
        self, request_id: str, kind: FrameType, data: dict[str, Any]
    ) -> tuple[str | None, Reply | ExecutionError | None]:
        """Return the text of a message and its reply, as far as they are known.

        Raises:
            PoolError: the policy had sent another message.
        """
        text, reply = self._kept.texts.get(request_id), self._kept.replies.get(request_id)
        if text is not None:
            was, now = decode(text), decode(encode_frame(kind, data))
            if (was["type"], was.get("data")) != (now["type"], now.get("data")):
                raise PoolError(
                    f"episode {self._kept.share[0].number} cannot go on: its policy made another call than before the "
                    f"restart ({_shown(now)}, before {_shown(was)}). A policy runs again from its beginning. Let it "
                    "make the same calls, or let a model play by episode.chat(), which goes on where it was"
                )
        self._left.discard(request_id)
        return text, None if reply is None else pickle.loads(reply)

    def sent(self, request_id: str, text: str) -> None:
        """Keep a message that is about to be sent."""
        self._add("texts", request_id, text)

    def answered(self, request_id: str, reply: Reply | ExecutionError) -> None:
        """Keep a reply."""
        self._add("replies", request_id, _pickled(reply, "a reply"))

    def lost(self, error: SessionLost) -> None:
        """Take that no server has the session.

        Raises:
            PoolError: its episode had begun.
        """
        if self._restored and self._kept.replies and self._log.checkpoint.missing == "raise":
            raise PoolError(
                f"episode {self._kept.share[0].number} cannot go on at these servers: {error.message}. It was "
                "discarded there, or they are others than those of the checkpoint, which is unchanged. "
                'restore(..., missing="again") begins such episodes again'
            ) from error
        self._add("opened", "", None)

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


def _pickled(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PoolError(f"{what} cannot be kept in a checkpoint, because it cannot be pickled: {error}") from error


def _shown(frame: Mapping[str, Any]) -> str:
    text = f"{frame['type']} {frame.get('data')}"
    return text if len(text) <= 120 else text[:120] + "..."
