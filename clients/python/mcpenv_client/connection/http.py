"""The HTTP requests for a server's metadata and tasks."""

from __future__ import annotations

from typing import Any

from mcpenv_client.errors import ConnectionFailed, InvalidMessage
from mcpenv_client.types.values import decode, encode
from mcpenv_client.wire.version import PROTOCOL_HEADER, PROTOCOL_VERSION, check_server_version

from .addresses import Servers, is_loopback, without_password
from .handshake import ConnectionOptions, headers_for, refusal


async def fetch_from(servers: Servers, options: ConnectionOptions, path: str, data: Any = None) -> Any:
    """Return what `fetch` returns from the present server, or from the next one that answers.

    Raises:
        as `fetch`.
    """
    for _ in range(len(servers) - 1):
        address = servers.current
        try:
            return await fetch(address, options, path, data)
        except ConnectionFailed:
            servers.next(address)
    return await fetch(servers.current, options, path, data)


async def fetch(base_url: str, options: ConnectionOptions, path: str, data: Any = None) -> Any:
    """Return the JSON that a server answers to GET, or to POST with ``data``.

    Raises:
        ConnectionFailed: no server answers.
        WireError: the server refused the request, or speaks another protocol version.
        InvalidMessage: the answer is not JSON.
    """
    import httpx  # loaded on first use: a third of this package's import time

    url = base_url + path
    shown = without_password(url)
    headers = [*headers_for(base_url, options.headers), (PROTOCOL_HEADER, PROTOCOL_VERSION)]
    try:
        async with httpx.AsyncClient(
            timeout=options.connect_timeout_s, headers=headers, trust_env=not is_loopback(url)
        ) as http:
            response = await (http.get(url) if data is None else http.post(url, content=encode(data)))
    except httpx.HTTPError as error:
        raise ConnectionFailed(shown, str(error) or type(error).__name__) from error
    if (said := response.headers.get(PROTOCOL_HEADER)) is not None:
        check_server_version(said)
    if not response.is_success:
        raise refusal(shown, response.status_code, response.content)
    try:
        return decode(response.content)
    except ValueError as error:
        raise InvalidMessage(f"{shown} sent an answer that is not JSON: {error}") from error
