"""What a checkpoint keeps of a pool's plays and of their shares. Each takes what happened, one record at a time."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.connection.handshake import Credential

from .assignment import Share
from .backend import JournalError


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


def pickled(value: Any, what: str) -> bytes:
    """Return a value of a checkpoint, pickled.

    Args:
        what: what it is, for the error.

    Raises:
        JournalError: it cannot be pickled.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:
        why = f"it cannot be pickled: {type(error).__name__}: {error}"
        raise JournalError(f"{what} cannot be kept in a checkpoint, because {why}") from error
