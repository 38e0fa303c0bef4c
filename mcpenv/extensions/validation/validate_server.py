"""The parts of ``mcpenv validate URL``: checks of a running server."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from fastmcp import Client

from mcpenv.cli.remote import Bearer, base_url, connected, list_tools, mcp_url

from .parts import Judged, Part
from .parts.server import (
    NEEDS_CODE,
    ServerUnderTest,
    judge_cheats,
    judge_contract,
    judge_load,
    judge_schemas,
    judge_security,
)


def server_parts(url: str, token: str | None) -> list[Part]:
    """Return the parts for the server at a URL.

    Args:
        url: the server, with or without /mcp.
        token: an agent's token; None for an anonymous agent.

    Raises:
        ConnectionFailed: no server listens there, or it does not speak MCP.
        ConfigurationError: the server requires a token, or another one.
    """
    bearer = Bearer(token)

    def connect(era: str) -> AbstractAsyncContextManager[Client[Any]]:
        return connected(url, bearer, era)

    server = ServerUnderTest(
        base_url=base_url(url),
        mcp_url=mcp_url(url),
        connect=connect,
        list_tools=lambda client: list_tools(client, url, bearer),
    )
    asyncio.run(server.tools())
    return [
        Part("contract", [partial(judge_contract, server)]),
        Part("schemas", [partial(judge_schemas, server)]),
        Part("tasks", [_needs_code]),
        Part("cheats", [partial(judge_cheats, server)]),
        Part("load", [partial(judge_load, server)]),
        Part("security", [partial(judge_security, server)]),
        Part("packaging", [_needs_code]),
    ]


def _needs_code(into: Judged) -> None:
    into.not_applicable(into.part, NEEDS_CODE)
