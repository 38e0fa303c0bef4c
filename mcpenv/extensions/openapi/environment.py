"""An HTTP API that an OpenAPI document describes, as an environment: each operation is a tool.

FastMCP reads the document and sends the requests. The API keeps its state: all episodes share it, and a reset resets
nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urljoin

import httpx2
import yaml  # type: ignore[import-untyped]
from fastmcp import FastMCP

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide

TIMEOUT_S = 30.0
"""The default timeout of a request, in seconds."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class OpenAPIEnvironment(MCPEnvironment):
    """The operations of an HTTP API. `load` makes the class. A subclass may add tools, tasks, `score` and `verify`.

    Attributes:
        document: the OpenAPI document.
        base_url: the address of the API.
        headers: HTTP headers of each request.
        timeout_s: timeout of a request, in seconds.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    document: ClassVar[dict[str, Any]]
    base_url: ClassVar[str]
    headers: ClassVar[Mapping[str, str]]
    timeout_s: ClassVar[float]

    def __init__(self) -> None:
        self._client = httpx2.AsyncClient(base_url=self.base_url, headers=dict(self.headers), timeout=self.timeout_s)
        super().__init__(FastMCP.from_openapi(self.document, self._client, name=self.exposed_name()))

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
) -> type[OpenAPIEnvironment]:
    """Return the class of an API.

    Args:
        place: the URL or the file of the document, in JSON or YAML.
        base_url: the address of the API. Default: the document's first server.
        headers: HTTP headers of each request; ``${NAME}`` stands for an environment variable.
        timeout_s: timeout of a request, in seconds.

    Raises:
        ConfigurationError: the document cannot be read, or names no address.
    """
    sent = {name: _filled(name, value) for name, value in (headers or {}).items()}
    place = str(place)
    document = _read(place, sent)
    servers = document.get("servers") or [{}]
    address = base_url or urljoin(place if _is_url(place) else "", servers[0].get("url", ""))
    if not _is_url(address):
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
            "VERSION": str(info.get("version", "0")),
            "document": document,
            "base_url": address,
            "headers": sent,
            "timeout_s": timeout_s,
        },
    )
    try:
        with cls():
            pass
    except ValueError as error:  # FastMCP's refusal of a document
        raise ConfigurationError(f"the document cannot be used: {error}") from error
    return cls


def _read(place: str, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        if _is_url(place):
            answer = httpx2.get(place, headers=dict(headers), timeout=TIMEOUT_S, follow_redirects=True)
            answer.raise_for_status()
            text = answer.text
        else:
            text = Path(place).expanduser().read_text(encoding="utf-8")
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (OSError, httpx2.HTTPError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the document cannot be read: {error}") from error
    if not isinstance(document, dict) or "paths" not in document:
        raise ConfigurationError("this is no OpenAPI document: it has no paths")
    if not str(document.get("openapi", "")).startswith("3."):
        raise ConfigurationError(
            f"OpenAPI {document.get('openapi') or document.get('swagger')} is not supported, only 3"
        )
    return document


def _filled(name: str, value: str) -> str:
    def variable(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigurationError(f"header {name}: the environment variable {match[1]} is not set")
        hide(found)
        return found

    return _VARIABLE.sub(variable, value)


def _is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))
