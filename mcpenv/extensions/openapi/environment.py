"""An HTTP API that an OpenAPI document describes, as an environment: each operation is a tool.

FastMCP reads the document and sends the requests. The API keeps its state: all episodes share it, and a reset resets
nothing.
"""

from __future__ import annotations

import base64
import json
import logging
import mimetypes
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
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
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema_path import SchemaPath
from mcp_types import ContentBlock
from pydantic import ValidationError

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.wire.faults import describe_fault, plain_faults

from .document import bodies_without_form, chosen, has_form, is_json, is_url, json_parameters, media_type, read, without

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
        schemas, kinds = _files_of(tool, route)
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
            name: _sent(name, value, self._files[name]) if name in self._files else value
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


def _files_of(tool: OpenAPITool, route: HTTPRoute) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments that are files of a form, or arrays of files: their schemas for agents, and media types."""
    kind, _, encodings = _body_of(route)
    schemas: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    if kind != "multipart/form-data":
        return schemas, kinds
    definitions = tool.parameters.get("$defs", {})
    for name, schema in tool.parameters.get("properties", {}).items():
        place = route.parameter_map.get(name, {})
        if place.get("location") != "body":
            continue
        said = _said_kind(encodings.get(place["openapi_name"], {}))
        array = _resolved(schema, definitions)
        item = array.get("items", {}) if isinstance(array, dict) and array.get("type") == "array" else None
        if _is_file(schema if item is None else item, definitions, said):
            schemas[name] = _UPLOAD if item is None else {**array, "items": _UPLOAD}
            one = _resolved(schema if item is None else item, definitions)
            kinds[name] = said or one.get("contentMediaType", "")
    return schemas, kinds


def _body_of(route: HTTPRoute) -> tuple[str, Any, Mapping[str, Mapping[str, Any]]]:
    """Return the media type of a route's body, or nothing, with its schema and the encodings of its properties."""
    body = route.request_body
    if body is None or not body.content_schema:
        return "", {}, {}
    kind, schema = next(iter(body.content_schema.items()))
    return media_type(kind), schema, body.encoding.get(kind, {})


def _said_kind(encoding: Mapping[str, Any]) -> str:
    return str(encoding.get("contentType") or "")


_TEXTS = re.compile(r"text/.*|application/(json|xml|.+\+json|.+\+xml|x-www-form-urlencoded)")


def _is_file(schema: Any, definitions: Mapping[str, Any], said: str = "") -> bool:
    """Return True if a part is a file, by its schema or by the media types that are said of it."""
    schema = _resolved(schema, definitions)
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "binary" or "contentMediaType" in schema:
        return True
    alternatives = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ())]
    if said and not alternatives and "properties" not in schema and schema.get("type", "string") == "string":
        return not any(_TEXTS.fullmatch(media_type(each)) for each in said.split(","))
    return any(_is_file(each, definitions) for each in alternatives)


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    reference = schema.get("$ref", "") if isinstance(schema, dict) else ""
    return definitions.get(reference.removeprefix("#/$defs/")) if reference else schema


class _Files(list[Any]):
    """The parts of an array of files."""


class _Form(dict[str, Any]):
    """The parts of a form by name: a list for each, of file name, content and media type."""

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Return each part with its name."""
        return [(name, each) for name, parts in super().items() for each in parts]


class _Director(RequestDirector):
    """Makes requests, also of objects and arrays for which FastMCP would send Python's text."""

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
        path, query, headers, cookies, body = super()._unflatten_arguments(route, flat_args)
        for place, values in {"path": path, "query": query, "header": headers, "cookie": cookies}.items():
            styles = {each.name: each.style for each in route.parameters if each.location == place}
            values.update({name: _parameter(value, styles.get(name)) for name, value in values.items()})
        cookies = {name: _joined(value) for name, value in cookies.items()}
        for name, value in cookies.items():
            if ";" in value:
                raise ValueError(f"Cookie {name!r} cannot contain ';', which begins another cookie")
        kind, _, encodings = _body_of(route)
        if kind in _FORMS and body is not None:
            if not isinstance(body, dict):
                raise ValueError(f"the body is {type(body).__name__}, and must be an object of the fields of a form")
            body = _FORMS[kind]({**body, **_nulls(route, flat_args)}, encodings)
        elif isinstance(body, dict | list) and kind and not has_form(kind, {"type": "object"}):
            raise ValueError(f"the body can only be a text of {kind}")
        return path, query, headers, cookies, body


_OF_JSON = "json"
"""The style of a parameter with ``content`` of JSON, in place of one of OpenAPI."""


def _json_text(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a scalar, or the JSON text of what is none."""
    return _json_text(value) if value is None or isinstance(value, dict | list) else value


def _parameter(value: Any, style: str | None) -> Any:
    """Return a parameter of a path, a query, a header or a cookie, whose items are scalars."""
    if style == _OF_JSON:
        return _json_text(value)
    if isinstance(value, dict):
        return _leaves(value) if style == "deepObject" else {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _joined(value: Any) -> str:
    """Return the text of a cookie, with commas between the keys and values of an object, or the items of an array."""
    items = [each for pair in value.items() for each in pair] if isinstance(value, dict) else value
    return ",".join(map(_text, items if isinstance(items, list) else [items]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json_text(value)


def _leaves(value: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Return the scalars inside a value, by the keys that lead to each: ``a][b`` for ``{"a": {"b": 1}}``."""
    found: dict[str, Any] = {}
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if each and isinstance(each, dict | list):
            found |= {f"{key}][{inner}": leaf for inner, leaf in _leaves(each).items()}
        else:
            found[str(key)] = _plain(each)
    return found


def _is_complex(value: Any) -> bool:
    """Return True for an object, and for an array of objects or arrays."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict | list) for each in value))


def _field(name: str, value: Any, encoding: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the texts of a field of a form, each with its media type.

    Raises:
        ValueError: an object has a media type that is not JSON's.
    """
    said = next((each.strip() for each in _said_kind(encoding).split(",") if "*" not in each), "")
    if is_json(said) or _is_complex(value):
        if said and not is_json(said) and media_type(said) != "text/plain":
            raise ValueError(f"{name} can only be a text of {said}")
        return [(_json_text(value), said or "application/json")]
    each = value if isinstance(value, list) else [value]
    texts = [_text(item) for item in each]
    if isinstance(value, list) and encoding.get("explode") is False:
        texts = [_DELIMITERS.get(encoding.get("style", "form"), ",").join(texts)]
    return [(text, said or None) for text in texts]


_DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|"}


def _multipart(body: Mapping[str, Any], encodings: Mapping[str, Mapping[str, Any]]) -> _Form:
    """Return the parts of ``multipart/form-data``."""
    form = _Form()
    for name, value in body.items():
        if isinstance(value, _Files | tuple):
            form[name] = value if isinstance(value, _Files) else [value]
        else:
            form[name] = [(None, text, kind) for text, kind in _field(name, value, encodings.get(name, {}))]
    return form


def _urlencoded(body: Mapping[str, Any], encodings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of ``application/x-www-form-urlencoded``. FastMCP encodes those that are said to be JSON."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        encoding = encodings.get(name, {})
        if encoding.get("style") == "deepObject" and value and isinstance(value, dict | list):
            fields |= {f"{name}[{key}]": leaf for key, leaf in _leaves(value).items()}
        elif is_json(_said_kind(encoding)):
            fields[name] = value
        else:
            fields[name] = [text for text, _ in _field(name, value, encoding)]
    return fields


_FORMS = {"multipart/form-data": _multipart, "application/x-www-form-urlencoded": _urlencoded}


def _nulls(route: HTTPRoute, arguments: Mapping[str, Any]) -> dict[str, None]:
    """Return the fields of a form that are null, which FastMCP leaves out, and whose schema allows null."""
    properties = route.flat_param_schema.get("properties", {})
    schema = Draft202012Validator(route.flat_param_schema)
    return {
        place["openapi_name"]: None
        for name, place in route.parameter_map.items()
        if place["location"] == "body" and name in arguments and arguments[name] is None
        if properties.get(name) and schema.evolve(schema=properties[name]).is_valid(None)
    }


def _sent(name: str, value: Any, kinds: str) -> Any:
    """Return what is sent for a file, or for an array of files."""
    return _Files(_part(name, each, kinds) for each in value) if isinstance(value, list) else _part(name, value, kinds)


def _part(name: str, value: Any, kinds: str) -> Any:
    """Return the file name, content and type of an uploaded file, whose type is one of some, or a pattern."""
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
    filename = str(given.get("filename") or name)
    known = [kind.strip() for kind in kinds.split(",") if kind]
    guessed = mimetypes.guess_type(filename)[0]
    if guessed and any(fnmatchcase(guessed, kind) for kind in known):
        return filename, content, guessed
    return filename, content, next((kind for kind in known if "*" not in kind), "application/octet-stream")


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
                parameter.style = _OF_JSON
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
