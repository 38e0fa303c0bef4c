"""The journal of the session of one share, in the checkpoint of a pool: it answers the calls that were made before."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcpenv_client.connection.handshake import Credential
from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.types.values import decode
from mcpenv_client.wire.protocol import FrameType, Reply, encode_frame

from .backend import JournalError
from .episode import Outcome, PolicyFailed
from .kept import KeptShare, pickled
from .playing import POLICY_ERROR, TIMEOUT, changed

if TYPE_CHECKING:
    from .checkpoint import PlayLog


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
        self._add("replies", _key(request_id), pickled(reply, "a reply"))

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

    def played(self, outcomes: list[Outcome]) -> None:
        """Keep the outcomes of the share, unless its policy failed: it then begins again."""
        if not any(isinstance(each, PolicyFailed) for each in outcomes):
            known = [changed(each, pool_version=self._kept.version) for each in outcomes]
            self._add("played", pickled(known, "the value of a policy"))

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
