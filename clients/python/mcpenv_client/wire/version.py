"""The version of the wire protocol, and the error of either end to a peer that is too old or too new."""

from __future__ import annotations

import re

from mcpenv_client.errors import UnsupportedVersion

PROTOCOL_VERSION = "1.0"
"""The protocol version, major.minor. Ends with the same major version understand each other."""

PROTOCOL_HEADER = "Mcpenv-Protocol"
"""The header with the protocol version: from clients in HTTP requests, from servers in answers to clients that ask."""

MAX_MESSAGE_HEADER = "Mcpenv-Max-Message-Bytes"
"""The header in which a client says how large a frame it takes. The server sends an error for a larger answer."""

_SHOWN = 20
"""Characters of a foreign version in a message."""


def check_client_version(asked: str) -> None:
    """Raise if a client speaks another major version than this server.

    Raises:
        UnsupportedVersion: the text names the end to upgrade; ``protocol`` is this server's version.
    """
    theirs = _major(asked)
    if theirs is None:
        refusal = f"the client's protocol {asked[:_SHOWN]!r} is no version such as {PROTOCOL_VERSION}"
    elif theirs < _OWN:
        refusal = (
            f"the client speaks protocol {asked[:_SHOWN]}, which is too old for this server's {PROTOCOL_VERSION}; "
            "upgrade the client, the package mcpenv-client"
        )
    elif theirs > _OWN:
        refusal = (
            f"the client speaks protocol {asked[:_SHOWN]}, which is too new for this server's {PROTOCOL_VERSION}; "
            f"upgrade the server, or use a client of protocol {_OWN}"
        )
    else:
        return
    raise UnsupportedVersion(refusal, protocol=PROTOCOL_VERSION)


def check_server_version(said: str) -> None:
    """Raise if a server speaks another major version than this client.

    Raises:
        UnsupportedVersion: the text names the end to upgrade; ``protocol`` is the server's version.
    """
    theirs = _major(said)
    if theirs is None:
        refusal = f"the server's protocol {said[:_SHOWN]!r} is no version such as {PROTOCOL_VERSION}"
    elif theirs < _OWN:
        refusal = (
            f"the server speaks protocol {said[:_SHOWN]}, which is too old for this client's {PROTOCOL_VERSION}; "
            f"upgrade the server, or use a client of protocol {theirs}"
        )
    elif theirs > _OWN:
        refusal = (
            f"the server speaks protocol {said[:_SHOWN]}, which is too new for this client's {PROTOCOL_VERSION}; "
            "upgrade the client, the package mcpenv-client"
        )
    else:
        return
    raise UnsupportedVersion(refusal, protocol=said[:_SHOWN])


def _major(version: str) -> int | None:
    """Return the major part of a version; None if it has none."""
    major = version.partition(".")[0]
    return int(major) if re.fullmatch(r"0|[1-9][0-9]{0,5}", major) else None


_OWN = int(PROTOCOL_VERSION.partition(".")[0])
