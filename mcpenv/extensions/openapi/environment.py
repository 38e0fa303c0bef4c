"""An HTTP API that an OpenAPI document describes, as an environment: each operation is a tool.

FastMCP reads the document and sends the requests. The API keeps its state: all episodes share it, and a reset resets
nothing.
"""

from __future__ import annotations

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
from fastmcp.utilities.types import Audio, File, Image
from fastmcp.utilities.versions import VersionSpec
from jsonschema_path import SchemaPath
from mcp_types import ContentBlock
from pydantic import ValidationError

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.wire.faults import describe_fault, plain_faults

from .document import bodies_without_form, chosen, is_json, is_url, json_parameters, media_type, read, without
from .requests import OF_JSON, Director, files_of, sent_value

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

    A part of ``multipart/form-data`` that is a file is sent with a file name, which servers need to take it for one,
    and with the type that the document says. An array of files is a part for each.
    """

    @classmethod
    def of(
        cls, tool: OpenAPITool, route: HTTPRoute, director: RequestDirector, client: httpx2.AsyncClient
    ) -> Operation:
        """Return the operation that FastMCP read as ``tool``."""
        schemas, kinds = files_of(tool, route)
        parameters = tool.parameters
        if schemas:
            parameters = {**parameters, "properties": {**parameters["properties"], **schemas}}
        kinds_of_answers = [kind for answer in route.responses.values() for kind in answer.content_schema]
        made = cls(  # type: ignore[call-arg]  # pydantic's plugin does not see FastMCP's constructor
            client=client,
            route=route,
            director=director,
            name=tool.name,
            description=tool.description or "",
            parameters=parameters,
            # An answer that is no JSON has no structured content.
            output_schema=tool.output_schema
            if any(is_json(each) or "*" in each for each in kinds_of_answers)
            else None,
            tags=tool.tags,
        )
        made._files = kinds
        return made

    _files: Mapping[str, str] = {}
    """The media types of the arguments that are files."""

    def sent_by(self, client: httpx2.AsyncClient) -> Operation:
        """Return the same operation with another client."""
        copied = self.model_copy()
        copied._client = client
        return copied

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Send the request.

        Raises:
            ToolError: the content of a file is no base64, or HTTP has no form for a value.
            ValidationError: an argument is missing, or is none of the operation's.
        """
        missing = [name for name in self.parameters.get("required", ()) if name not in arguments]
        unknown = [name for name in arguments if name not in self.parameters.get("properties", {})]
        if missing or unknown:
            wrong = (("missing", missing), ("unexpected_keyword_argument", unknown))
            raise ValidationError.from_exception_data(
                self.name,
                [{"type": kind, "loc": (name,), "input": arguments} for kind, names in wrong for name in names],
            )
        parts = {
            name: sent_value(name, value, self._files[name]) if name in self._files else value
            for name, value in arguments.items()
            if value is not None or name not in self._files
        }
        try:
            return await super().run(parts)
        except ValueError as error:  # FastMCP's, for what the director raises
            if isinstance(error.__cause__, ToolError):
                raise error.__cause__ from None
            raise
        except _BytesAnswered as answer:
            return ToolResult(content=[answer.block()])
        except httpx2.LocalProtocolError as error:
            raise ToolError(f"the arguments cannot be sent: {error}") from None


class _BytesAnswered(Exception):
    """An API answered with what is no text."""

    def __init__(self, kind: str, content: bytes) -> None:
        super().__init__(kind)
        self._kind = kind
        self._content = content

    def block(self) -> ContentBlock:
        """Return the answer as an image, a sound, or a resource, in base64."""
        if self._kind.startswith("image/"):
            return Image(data=self._content).to_image_content(self._kind)
        if self._kind.startswith("audio/"):
            return Audio(data=self._content).to_audio_content(self._kind)
        # FastMCP would read a text as Latin-1.
        kind = "application/octet-stream" if self._kind.startswith("text/") else self._kind
        return File(data=self._content).to_resource_content(kind)


def _in_utf8(response: httpx2.Response) -> httpx2.Response:
    """Return an answer as FastMCP reads it, in UTF-8.

    Raises:
        _BytesAnswered: it is neither UTF-8 nor a text of the charset that it names.
    """
    kind = media_type(response.headers.get("content-type", ""))
    for charset in ("utf-8", response.charset_encoding or "utf-8"):
        try:
            text = response.content.decode(charset)
        except (LookupError, UnicodeDecodeError):
            continue
        if charset == "utf-8":
            return response
        headers = {"Content-Type": f"{kind}; charset=utf-8"}
        return httpx2.Response(response.status_code, headers=headers, text=text, request=response.request)
    raise _BytesAnswered(kind or "application/octet-stream", response.content)


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
        response = await super().send(request, **options)
        return _in_utf8(response) if response.is_success else response


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
        ConfigurationError: the document cannot be read, names no address, or has no operation.
    """
    sent = {name: _filled(name, value) for name, value in (headers or {}).items()}
    place = str(place)
    document = read(place, sent)
    if operations is not None:
        document = chosen(document, operations)
    document, out = without(document, bodies_without_form(document))
    if out:
        logger.warning("left out, as their bodies are neither JSON, a form nor text: %s", ", ".join(out))
    servers = [each["url"] for each in document["servers"]] or [""]
    address = base_url or urljoin(place if is_url(place) else "", servers[0])
    if not is_url(address):
        raise ConfigurationError("the document names no address of the API; add --set base_url=URL")
    if "{" in address:
        raise ConfigurationError(f"the API's address {address} has variables; add --set base_url=URL")
    document, found = _usable(document)
    if not found:
        raise ConfigurationError("the document has no operation")
    info = document["info"]
    cls: type[OpenAPIEnvironment] = type(
        "OpenAPIEnvironment",
        (OpenAPIEnvironment,),
        {
            "__doc__": info.get("description") or f"The HTTP API {info['title']}.",
            "__module__": __name__,
            "EXPOSED_NAME": info["title"],
            "REMEDIES": _REMEDIES,
            "VERSION": info["version"],
            "document": document,
            "operations": found,
            "base_url": address,
            "headers": sent,
            "timeout_s": timeout_s,
        },
    )
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
    if document["openapi"].startswith("3.0"):
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
    for route, _ in found:
        of_json = json_parameters(document, route.path, route.method.lower())
        for parameter in route.parameters:
            if (parameter.location, parameter.name) in of_json:
                parameter.style = OF_JSON
    director = Director(SchemaPath.from_dict(document))
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
