"""Judge a running server at a URL, by checks that work from outside and change nothing there."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import httpx
from fastmcp import Client
from mcp import MCPError

from mcpenv.cli.remote import Bearer, base_url, connected, list_tools, mcp_url
from mcpenv.extensions.contract.arguments import arguments_for
from mcpenv.extensions.contract.contract import schema_fault
from mcpenv_client.connection.addresses import is_loopback
from mcpenv_client.types.tools import Tool

from .cheats import is_like_scoring
from .contract import NO_TOOLS, judge_parameters
from .judged import Judged, some_of
from .part import PARTS, Part

ERAS = ("legacy", "2026-07-28")
"""The two protocol eras of MCP, as clients choose them."""
AGENTS = 4
REQUESTS = 25
"""Requests of each agent."""
SLOW_S = 2.0
HTTP_S = 10.0
"""Timeout of one request, in seconds."""

NEEDS_CODE = "needs the target's code; validate its folder"
_STRANGER = "stranger.example"
_CONTROL = ("/sessions", "/records", "/capacity")
"""Routes of the control plane that only read."""


def server_parts(url: str, token: str | None) -> list[Part]:
    """Return the parts for the server at a URL.

    Args:
        url: the server, with or without /mcp.
        token: an agent's token; None for an anonymous agent.

    Raises:
        ConnectionFailed: no server listens there, or it does not speak MCP.
        ConfigurationError: the server requires a token, or another one.
    """
    server = ServerUnderTest(url, token)
    asyncio.run(server.tools())
    judges = {
        "contract": judge_contract,
        "schemas": judge_schemas,
        "cheats": judge_cheats,
        "load": judge_load,
        "security": judge_security,
    }
    return [Part(name, [partial(judges[name], server) if name in judges else _needs_code]) for name in PARTS]


def _needs_code(into: Judged) -> None:
    into.not_applicable(into.part, NEEDS_CODE)


class ServerUnderTest:
    """A running server.

    Args:
        url: the server, with or without /mcp.
        token: an agent's token; None for an anonymous agent.

    Attributes:
        base_url: its root.
        mcp_url: its MCP endpoint.
        authorization: the headers with the token; empty for an anonymous agent.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self.base_url, self.mcp_url = base_url(url), mcp_url(url)
        self._url = url
        self._bearer = Bearer(token)
        self.authorization = {} if token is None else {"Authorization": f"Bearer {token}"}

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it."""
        return is_loopback(self.base_url)

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client without credentials."""
        return httpx.AsyncClient(base_url=self.base_url, timeout=HTTP_S, trust_env=not self.is_local)

    def connect(self, era: str) -> AbstractAsyncContextManager[Client[Any]]:
        """Connect an MCP client in an era."""
        return connected(self._url, self._bearer, era)

    async def tools(self, era: str = "auto") -> list[Tool]:
        """Return its tools, as an agent of an era sees them."""
        async with self.connect(era) as client:
            return await list_tools(client, self._url, self._bearer)


def judge_contract(server: ServerUnderTest, into: Judged) -> None:
    """Judge probes, description, and whether agents of both eras see the same tools."""
    asyncio.run(_judge_probes(server, into))
    listed: dict[str, list[dict[str, Any]]] = {}
    for era in ERAS:
        try:
            listed[era] = [tool.model_dump(mode="json") for tool in asyncio.run(server.tools(era))]
        except (MCPError, RuntimeError) as error:
            into.failed(
                "eras", f"agents of the era {era} cannot list tools: {error}", "Serve both eras of MCP", server.mcp_url
            )
    if len(listed) == len(ERAS) and listed[ERAS[0]] != listed[ERAS[1]]:
        into.failed(
            "eras", "agents of the two eras see different tools", "List the same tools to every client", server.mcp_url
        )
    into.ok_unless_found("eras")
    into.summary = f"{len(listed)} of {len(ERAS)} eras answer"


async def _judge_probes(server: ServerUnderTest, into: Judged) -> None:
    async with server.http() as http:
        for path in ("/health", "/ready"):
            status = (await http.get(path)).status_code
            if status == httpx.codes.NOT_FOUND:
                into.warning(path, "there is no such route", "Serve it, so that probes know the server's state")
            elif status != httpx.codes.OK:
                into.failed(path, f"answers {status}", "See the server's log; probes would take it out of service")
            into.ok_unless_found(path)
        reply = await http.get("/metadata")
    if reply.status_code == httpx.codes.NOT_FOUND:
        into.not_applicable("/metadata", "it is no server of mcpenv")
        return
    known = reply.json() if reply.status_code == httpx.codes.OK else {}
    missing = [name for name in ("name", "version", "mode", "protocol") if not known.get(name)]
    if missing:
        into.failed("/metadata", f"does not say {some_of(missing)}", "Serve it by mcpenv run")
    into.ok_unless_found("/metadata")


def judge_schemas(server: ServerUnderTest, into: Judged) -> None:
    """Judge schemas and descriptions of the listed tools."""
    tools = asyncio.run(server.tools())
    if not tools:
        into.not_applicable("schemas", NO_TOOLS)
        return
    for tool in tools:
        fault = schema_fault(tool)
        if fault is not None:
            into.failed("schemas", fault[0], "Correct it in the environment", tool.name)
        if not tool.description.strip():
            into.failed("descriptions", "no description", "Add a docstring: it is all that agents know", tool.name)
    into.ok_unless_found("schemas")
    into.ok_unless_found("descriptions")
    judge_parameters(tools, into)
    into.summary = f"{len(tools)} tool{'' if len(tools) == 1 else 's'}"


def judge_cheats(server: ServerUnderTest, into: Judged) -> None:
    """Judge if an agent can reach the control plane, and so rewards and other episodes, or a tool that scores."""
    asyncio.run(_judge_control(server, into))
    tools = asyncio.run(server.tools())
    if not tools:
        into.not_applicable("scoring tools", NO_TOOLS)
    for tool in tools:
        if is_like_scoring(tool.name):
            into.warning(
                "scoring tools",
                "the tool is named like one that scores, and agents may call it",
                "Leave it out of what agents are served",
                tool.name,
            )
    into.ok_unless_found("scoring tools")
    into.summary = "control plane and tool names tried"
    into.not_applicable("answers", NEEDS_CODE)


async def _judge_control(server: ServerUnderTest, into: Judged) -> None:
    async with server.http() as http:
        answers = {path: (await http.get(path)).status_code for path in _CONTROL}
    reached = [path for path, status in answers.items() if status == httpx.codes.OK]
    refused = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)
    unclear = [f"{path} answers {status}" for path, status in answers.items() if status not in (200, *refused)]
    if unclear:
        problem = f"it is not known if it needs a token: {some_of(unclear)}"
        into.warning("control plane", problem, "See the server's log, and validate it again", server.base_url)
    if reached:
        problem = f"{some_of(reached)} answer without a token: an agent can read rewards and reset episodes"
        remedy = "Start it with --control-token-file, or put the control plane elsewhere with --control-port"
        (into.warning if server.is_local else into.failed)("control plane", problem, remedy, server.base_url)
    elif set(answers.values()) == {httpx.codes.NOT_FOUND}:
        into.not_applicable("control plane", "it has none at this address")
    into.ok_unless_found("control plane")


def judge_load(server: ServerUnderTest, into: Judged) -> None:
    """Measure concurrent agents that list tools and call one tool annotated as read-only."""
    seconds, called, wrong, failures = asyncio.run(_at_once(server))
    seconds.sort()
    p50, p95 = statistics.median(seconds), seconds[math.ceil(0.95 * len(seconds)) - 1]
    into.facts.update(
        agents=AGENTS,
        requests=len(seconds),
        request_p50_ms=round(p50 * 1e3, 3),
        request_p95_ms=round(p95 * 1e3, 3),
        called=called,
    )
    if failures:
        into.failed(
            "requests",
            f"{len(failures)} of {AGENTS} agents failed while others were there: {failures[0]}",
            "See the server's log; raise max_sessions if it has too few",
        )
    into.ok_unless_found("requests")
    if called is None:
        into.not_applicable("calls", "no tool says that it is read-only (readOnlyHint), so that none was called")
    elif wrong:
        into.not_tried("calls", [called], f"{wrong} of its calls answered an error")
    else:
        into.ok("calls")
    if p95 > SLOW_S:
        into.warning("time", f"one request in twenty takes more than {SLOW_S:g} s", "Serve it with more --workers")
    into.ok_unless_found("time")
    what = "listings" if called is None else f"listings and calls of {called}"
    into.summary = f"{AGENTS} agents at once, {len(seconds)} {what}: {p50 * 1e3:.1f} ms (p95 {p95 * 1e3:.1f} ms)"


async def _at_once(server: ServerUnderTest) -> tuple[list[float], str | None, int, list[str]]:
    """Return the seconds of each request, the called tool, the number of its errors, and the errors of agents."""
    harmless: tuple[str, dict[str, Any]] | None = None
    for tool in await server.tools():
        arguments = arguments_for(tool.input_schema) if (tool.annotations or {}).get("readOnlyHint") else None
        if arguments is not None:
            harmless = tool.name, arguments
            break
    seconds: list[float] = []
    wrong = 0

    async def agent() -> None:
        nonlocal wrong
        async with server.connect("auto") as client:
            for number in range(REQUESTS):
                began = time.perf_counter()
                if harmless is not None and number % 2:
                    wrong += (await client.call_tool(*harmless, raise_on_error=False)).is_error
                else:
                    await client.list_tools()
                seconds.append(time.perf_counter() - began)

    ended = await asyncio.gather(*(agent() for _ in range(AGENTS)), return_exceptions=True)
    failures = [each for each in ended if isinstance(each, BaseException)]
    for each in failures:
        if not isinstance(each, Exception) or not seconds:
            raise each
    return seconds, None if harmless is None else harmless[0], wrong, [str(each) for each in failures]


def judge_security(server: ServerUnderTest, into: Judged) -> None:
    """Judge access from web pages of other origins, and the ports open to other machines."""
    asyncio.run(_judge_headers(server, into))
    if server.is_local:
        into.not_applicable("transport", "only this machine reaches it at this address")
    elif server.base_url.startswith("http://"):
        into.warning(
            "transport",
            "other machines reach it without TLS, so that tokens cross the network in clear text",
            "Put it behind a proxy that terminates TLS, and start it with --public-url https://...",
            server.base_url,
        )
    into.ok_unless_found("transport")
    into.not_applicable("reach", NEEDS_CODE)


async def _judge_headers(server: ServerUnderTest, into: Judged) -> None:
    opening = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "mcpenv validate", "version": "1"},
        },
    }
    accepts = {"Accept": "application/json, text/event-stream", **server.authorization}
    async with server.http() as http:
        own = await http.post(server.mcp_url, json=opening, headers=accepts)
    if not own.is_success:
        into.skipped("Host", f"not tried: a request with the server's own Host answers {own.status_code}")
        into.skipped("Origin", f"not tried: a request without an Origin answers {own.status_code}")
        return
    into.summary = "Host and Origin tried"
    for name, value, remedy in (
        ("Host", _STRANGER, "Refuse hosts that are not the server's own (421), as mcpenv run does"),
        ("Origin", f"https://{_STRANGER}", "Refuse origins that are not the server's own (403), as mcpenv run does"),
    ):
        async with server.http() as http:
            reply = await http.post(server.mcp_url, json=opening, headers={**accepts, name: value})
        if reply.is_success:
            into.failed(
                name, f"a request with {name}: {value} is answered, so that web pages elsewhere reach it", remedy,
                server.mcp_url,
            )  # fmt: skip
        into.ok_unless_found(name)
