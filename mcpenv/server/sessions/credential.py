"""Credential: the id and the secret with which a client resumes its session."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from mcpenv_client.errors import InvalidMessage

SESSION_ID = re.compile(r"[A-Za-z0-9_-]{16,128}")
"""The session ids that a client may choose."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The id and the secret that a client chose for its session, so that it can resume after it loses its socket.

    Attributes:
        digest: the SHA-256 of the secret, in hexadecimal.
    """

    session_id: str
    digest: str

    @classmethod
    def of(cls, session_id: str | None, token: str | None) -> Credential:
        """Check what a client sent.

        Raises:
            InvalidMessage: not an id of 16 to 128 URL-safe characters and a token of 16 to 256.
        """
        if session_id is None or token is None or not SESSION_ID.fullmatch(session_id):
            raise InvalidMessage("to resume, send a session id of 16 to 128 URL-safe characters, and a token")
        if not 16 <= len(token) <= 256:
            raise InvalidMessage("a session token has 16 to 256 characters")
        return cls(session_id, hashlib.sha256(token.encode()).hexdigest())
