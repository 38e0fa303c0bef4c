"""An HTTP API that an OpenAPI document describes, as an environment: each operation is a tool.

FastMCP reads the document and sends the requests. The API keeps its state: all episodes share it, and a reset resets
nothing.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urljoin

import httpx2
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.providers import Provider
from fastmcp.server.providers.openapi import OpenAPIProvider, OpenAPITool
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.openapi import HTTPRoute
from fastmcp.utilities.openapi.director import RequestDirector
from fastmcp.utilities.versions import VersionSpec
from jsonschema_path import SchemaPath
from pydantic import ValidationError

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.wire.faults import describe_fault, plain_faults

from .document import chosen, is_url, read, without

logger = logging.getLogger("mcpenv.openapi")

TIMEOUT_S = 30.0
"""The default timeout of a request, in seconds."""

MAX_ANSWER = 10_000
"""Maximum characters of an API's refusal that an agent reads."""

MAX_REASON = 500
"""Maximum characters of the reason why a document is refused."""

_SHARED = "All episodes share the API, which a reset does not reset: use --live, or serve a copy of the API for tests"
_IN_DOCUMENT = "Correct the document, or leave the operation out by --set operations=[...]"

_REMEDIES = {
    **dict.fromkeys(("schemas", "descriptions", "parameters", "names", "annotations"), _IN_DOCUMENT),
    **dict.fromkeys(("determinism", "isolation"), _SHARED),
    "listing": "Choose the operations that agents need by --set operations=[...]",
    "calls": "Call tools that need particular arguments in the oracle of a task (--tasks FILE), and give credentials "
    "by --set headers=... If the API answers with what the document does not say, correct the document",
    "bad_calls": "The API accepts such calls. Let the document say so, or report it to the API's operators",
    "reach": "The API opens what it is told to. Leave the operation out by --set operations=[...]",
    "scoring tools": "Leave the operation out by --set operations=[...], if it shows how an episode is scored",
}
"""Remedies for who uses a document, and does not write the class."""

_NOT_OF_THE_CALL = (401, 403, 407, 408, 425, 429)
"""Refusals that concern the operator's credentials or the moment, not the call."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Operation(OpenAPITool):
    """An operation of the API as a tool.

    A part of ``multipart/form-data`` that is a file is sent with a file name, which servers need to take it for one. An
    array of files is a part for each.
    """

    @classmethod
    def of(
        cls, tool: OpenAPITool, route: HTTPRoute, director: RequestDirector, client: httpx2.AsyncClient
    ) -> Operation:
        """Return the operation that FastMCP read as ``tool``."""
        files = _files_of(tool, route)
        parameters = tool.parameters
        if files:
            parameters = {**parameters, "properties": {**parameters["properties"], **files}}
        made = cls(  # type: ignore[call-arg]  # pydantic's plugin does not see FastMCP's constructor
            client=client,
            route=route,
            director=director,
            name=tool.name,
            description=tool.description or "",
            parameters=parameters,
            output_schema=tool.output_schema,
            tags=tool.tags,
        )
        made._files = files
        return made

    _files: Mapping[str, Any] = {}

    def sent_by(self, client: httpx2.AsyncClient) -> Operation:
        """Return the same operation with another client."""
        copied = self.model_copy()
        copied._client = client
        return copied

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Send the request.

        Raises:
            ToolError: the content of a file is no base64, or HTTP has no form for a value.
            ValidationError: an argument is missing.
        """
        if missing := [name for name in self.parameters.get("required", ()) if name not in arguments]:
            raise ValidationError.from_exception_data(
                self.name, [{"type": "missing", "loc": (name,), "input": arguments} for name in missing]
            )
        parts = {name: _sent(name, value) if name in self._files else value for name, value in arguments.items()}
        try:
            return await super().run(parts)
        except ValueError as error:  # FastMCP's, for what the director raises
            if isinstance(error.__cause__, ToolError):
                raise error.__cause__ from None
            raise
        except httpx2.LocalProtocolError as error:
            raise ToolError(f"the arguments cannot be sent: {error}") from None


_UPLOAD = {
    "description": "The file: its text, or an object with its text or base64, and its file name.",
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "filename": {"type": "string"},
                "text": {"type": "string"},
                "base64": {"type": "string", "contentEncoding": "base64"},
            },
            "additionalProperties": False,
        },
    ],
}


def _files_of(tool: OpenAPITool, route: HTTPRoute) -> dict[str, Any]:
    """Return the arguments that are files of a form, or arrays of files, and their schemas for agents."""
    body = route.request_body
    kind = next(iter(body.content_schema), "") if body and body.content_schema else ""
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        return {}
    definitions = tool.parameters.get("$defs", {})
    found: dict[str, Any] = {}
    for name, schema in tool.parameters.get("properties", {}).items():
        if _is_file(schema, definitions):
            found[name] = _UPLOAD
        elif isinstance(array := _resolved(schema, definitions), dict) and _is_file(array.get("items"), definitions):
            found[name] = {**array, "items": _UPLOAD}
    return found


def _is_file(schema: Any, definitions: Mapping[str, Any]) -> bool:
    schema = _resolved(schema, definitions)
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "binary" or "contentMediaType" in schema:
        return True
    return any(_is_file(each, definitions) for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ()))


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    reference = schema.get("$ref", "") if isinstance(schema, dict) else ""
    return definitions.get(reference.removeprefix("#/$defs/")) if reference else schema


class _Files(list[Any]):
    """The parts of an array of files."""


class _Form(dict[str, Any]):
    """The parts of a form by name. An array of files is several parts of one name."""

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Return each part with its name."""
        parts = ((name, value if isinstance(value, _Files) else [value]) for name, value in super().items())
        return [(name, each) for name, values in parts for each in values]


class _Director(RequestDirector):
    """Makes requests, and sends an array of files as several parts, for which FastMCP has no form."""

    def build(self, *arguments: Any, **options: Any) -> httpx2.Request:
        """Return the request of a call.

        Raises:
            ToolError: a value has no form, such as ``..`` as a part of the path.
        """
        try:
            return super().build(*arguments, **options)
        except (ValueError, httpx2.InvalidURL) as error:
            raise ToolError(f"the arguments cannot be sent: {error}") from error

    def _unflatten_arguments(self, route: HTTPRoute, flat_args: dict[str, Any]) -> Any:
        *others, cookies, body = super()._unflatten_arguments(route, flat_args)
        for name, value in cookies.items():
            if ";" in str(value):
                raise ValueError(f"Cookie {name!r} cannot contain ';', which begins another cookie")
        has_files = isinstance(body, dict) and any(isinstance(value, _Files) for value in body.values())
        return *others, cookies, _Form(body) if has_files else body


def _sent(name: str, value: Any) -> Any:
    """Return what is sent for a file, or for an array of files."""
    return _Files(_part(name, each) for each in value) if isinstance(value, list) else _part(name, value)


def _part(name: str, value: Any) -> Any:
    """Return the file name, content and type of an uploaded file."""
    given = {"text": value} if isinstance(value, str) else value
    if not isinstance(given, dict):
        return given
    if "base64" in given:
        try:
            content = base64.b64decode(given["base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise ToolError(f"{name}.base64 is no base64: {error}") from error
    else:
        content = str(given.get("text", "")).encode("utf-8", "replace")
    return str(given.get("filename") or name), content, "application/octet-stream"


class _Client(httpx2.AsyncClient):
    """Sends requests with the headers that they were built with.

    FastMCP adds the headers of the agent's own HTTP request, with which an agent could name another user or method.
    """

    def build_request(self, *arguments: Any, **options: Any) -> httpx2.Request:
        """Build a request, and remember its headers."""
        request = super().build_request(*arguments, **options)
        request.extensions[_HEADERS] = request.headers.copy()
        return request

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        request.headers = request.extensions.pop(_HEADERS, request.headers)
        return await super().send(request, **options)


_HEADERS = "mcpenv.headers"


class _Operations(Provider):
    """The operations of an API for one instance. ``FastMCP.add_tool`` would compare each with all others."""

    def __init__(self, operations: Mapping[str, Operation], client: httpx2.AsyncClient) -> None:
        super().__init__()
        self._operations = operations
        self._client = client

    async def _list_tools(self) -> Sequence[Operation]:
        return [operation.sent_by(self._client) for operation in self._operations.values()]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Operation | None:
        operation = self._operations.get(name)
        return None if operation is None else operation.sent_by(self._client)


class OpenAPIEnvironment(MCPEnvironment):
    """The operations of an HTTP API. `load` makes the class. A subclass may add tools, tasks, `score` and `verify`.

    Attributes:
        document: the OpenAPI document, without what was left out.
        operations: its operations by name, which instances share.
        base_url: the address of the API.
        headers: HTTP headers of each request.
        timeout_s: timeout of a request, in seconds.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    document: ClassVar[dict[str, Any]]
    operations: ClassVar[Mapping[str, Operation]]
    base_url: ClassVar[str]
    headers: ClassVar[Mapping[str, str]]
    timeout_s: ClassVar[float]

    def __init__(self) -> None:
        self._client = _Client(
            base_url=self.base_url,
            headers=dict(self.headers),
            timeout=self.timeout_s,
            event_hooks={"response": [_raise_for_call]},
            verify=_tls(),
        )
        super().__init__(FastMCP(self.exposed_name(), providers=[_Operations(self.operations, self._client)]))

    async def close(self) -> None:
        """Close the connections to the API."""
        await self._client.aclose()


def load(
    place: str | Path,
    /,
    *,
    base_url: str | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    operations: list[str] | None = None,
) -> type[OpenAPIEnvironment]:
    """Return the class of an API.

    Args:
        place: the URL or the file of the document, in JSON or YAML.
        base_url: the address of the API. Default: the document's first server.
        headers: HTTP headers of each request; ``${NAME}`` stands for an environment variable.
        timeout_s: timeout of a request, in seconds.
        operations: the operations to serve, each by its operationId, by a tag, or as ``GET /path``. Default: all.

    Raises:
        ConfigurationError: the document cannot be read, or names no address.
    """
    sent = {name: _filled(name, value) for name, value in (headers or {}).items()}
    place = str(place)
    document = read(place, sent)
    if operations is not None:
        document = chosen(document, operations)
    servers = document.get("servers") or [{}]
    address = base_url or urljoin(place if is_url(place) else "", servers[0].get("url", ""))
    if not is_url(address):
        raise ConfigurationError("the document names no address of the API; add --set base_url=URL")
    if "{" in address:
        raise ConfigurationError(f"the API's address {address} has variables; add --set base_url=URL")
    info = document.get("info", {})
    cls: type[OpenAPIEnvironment] = type(
        "OpenAPIEnvironment",
        (OpenAPIEnvironment,),
        {
            "__doc__": info.get("description") or f"The HTTP API {info.get('title', address)}.",
            "__module__": __name__,
            "EXPOSED_NAME": info.get("title") or "openapi",
            "REMEDIES": _REMEDIES,
            "VERSION": str(info.get("version", "0")),
            "document": document,
            "base_url": address,
            "headers": sent,
            "timeout_s": timeout_s,
        },
    )
    cls.document, cls.operations = _usable(document)
    return cls


def _usable(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Operation]]:
    """Return the part of a document that FastMCP can read, and its operations. What is left out is logged.

    Raises:
        ConfigurationError: no operation is left.
    """
    try:
        return document, _operations(document)
    except ValueError as error:
        refusal, faults = _reason(error)
    if str(document["openapi"]).startswith("3.0"):
        # Documents of 3.0 often use schemas of 3.1, such as `type: "null"`.
        newer = {**document, "openapi": "3.1.0"}
        try:
            found = _operations(newer)
            logger.warning("the document does not follow OpenAPI 3.0 and is read as 3.1: %s", refusal)
            return newer, found
        except ValueError as error:
            document, (_, faults) = newer, _reason(error)
    left, out = without(document, faults)
    if not out or not left["paths"]:
        raise ConfigurationError(f"the document cannot be used: {refusal}")
    logger.warning("the document has faults (%s); left out: %s", refusal, ", ".join(out))
    return _usable(left)


def _operations(document: dict[str, Any]) -> dict[str, Operation]:
    found: list[tuple[HTTPRoute, Any]] = []

    def keep(route: HTTPRoute, tool: Any) -> None:
        found.append((route, tool))

    client = httpx2.AsyncClient()
    OpenAPIProvider(document, client, mcp_component_fn=keep)
    director = _Director(SchemaPath.from_dict(document))
    return {tool.name: Operation.of(tool, route, director, client) for route, tool in found}


@cache
def _tls() -> ssl.SSLContext:
    """Return the settings of TLS, which all instances share: the list of authorities takes 20 ms to read."""
    return httpx2.create_ssl_context()


def _reason(error: ValueError) -> tuple[str, list[tuple[Any, ...]]]:
    """Return why FastMCP cannot read a document, the first place with its reason, and the places of all faults."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return str(error)[:MAX_REASON], []
    first, *others = found = cause.errors(include_url=False, include_input=False)
    more = f" (and {len(others)} more)" if others else ""
    return f"{describe_fault(plain_faults([first])[0])}{more}"[:MAX_REASON], [each["loc"] for each in found]


async def _raise_for_call(response: httpx2.Response) -> None:
    """Raise if an API refuses a call: its answer is the agent's error, with the API's text.

    Raises:
        ToolError: the status says something about the call.
    """
    if response.is_client_error and response.status_code not in _NOT_OF_THE_CALL:
        await response.aread()
        text = response.text if len(response.text) <= MAX_ANSWER else f"{response.text[:MAX_ANSWER]} [...]"
        raise ToolError(f"HTTP {response.status_code} {response.reason_phrase}: {text}".rstrip(": "))


def _filled(name: str, value: str) -> str:
    def variable(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigurationError(f"header {name}: the environment variable {match[1]} is not set")
        hide(found)
        return found

    filled = _VARIABLE.sub(variable, value)
    if not filled.isprintable() or filled != filled.strip():
        raise ConfigurationError(f"header {name}: the value begins or ends with a blank, or has a line break")
    return filled
