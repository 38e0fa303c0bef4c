"""The protocol version of HTTP requests of the control plane."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv_client.errors import UnsupportedVersion
from mcpenv_client.wire.version import PROTOCOL_HEADER, PROTOCOL_VERSION, check_client_version

from .http import refusal

_NAME = PROTOCOL_HEADER.lower().encode()
_OWN = (_NAME, PROTOCOL_VERSION.encode())


class VersionCheck:
    """The ASGI application that refuses clients of another major version, and names its own to clients that ask.

    A client asks by the header ``Mcpenv-Protocol`` with its own version. Clients without it are served as they are:
    OpenEnv's, and people's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        asked = [value.decode("latin-1") for name, value in scope["headers"] if name == _NAME]
        if not asked:
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _OWN]}
            await send(message)

        try:
            for version in asked:
                check_client_version(version)
        except UnsupportedVersion as refused:
            await refusal(refused)(scope, receive, named)
            return
        await self._app(scope, receive, named)
