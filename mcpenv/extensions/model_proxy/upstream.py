"""The upstream: the endpoint that receives the proxy's requests, with its own key."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.connection.addresses import http_base, without_password

PLACEHOLDER = "mcpenv-placeholder-key"
"""The key of agents that have no key of their own. It is not secret."""

_OPENAI = ("chat/completions", "responses", "completions", "embeddings")
"""The paths of OpenAI's APIs; their clients expect the version in the base URL."""

_VERSION = "v1"

_KEYS = {b"authorization": "Bearer {}", b"x-api-key": "{}", b"x-goog-api-key": "{}"}
"""The headers in which APIs expect keys."""

_OF_CONNECTION = frozenset(
    (
        *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
        *(b"content-length", b"accept-encoding", b"proxy-authorization", b"proxy-connection"),
        # Some servers take these in place of the method and the path.
        *(b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url"),
    )
)
"""The headers that are not forwarded: those of one connection, and those that would change the request."""

_LONG = 16
"""Minimum characters of an agent's own key to remove it from records. Shorter ones are words such as ``EMPTY``."""

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Upstream:
    """The endpoint behind the proxy.

    Attributes:
        base_url: the URL to which ``/chat/completions``, ``/responses``, ``/v1/messages`` or Gemini's ``/v1beta/...``
            is added, as clients of the API do. A ``/v1`` at its end is not repeated.
        api_key_env: the environment variable with the endpoint's key, which replaces the keys of agents. None: the
            agents' own keys are forwarded.
        request_fields: further fields of each recorded request, such as ``{"logprobs": true}``.

    Raises:
        ConfigurationError: the URL cannot be used, or the variable has no key.
    """

    base_url: str
    api_key_env: str | None = None
    request_fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"base_url {self.base_url!r} is not an http:// or https:// URL of a model endpoint"
            )
        try:
            http_base(self.base_url)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        self.key()

    @property
    def shown(self) -> str:
        """The URL without a password, for messages and records."""
        return without_password(self.base_url)

    def key(self) -> str | None:
        """Return the endpoint's key; None if agents have their own.

        Raises:
            ConfigurationError: the environment variable is not set or empty.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not (key.isascii() and key.isprintable()):
            raise ConfigurationError(f"the environment variable {self.api_key_env} has no key that a header can carry")
        hide(key)
        return key

    def url(self, path: str, query: str) -> str:
        """Return the URL of a request.

        Args:
            path: its path below the episode's base URL, such as ``v1/messages``.
            query: its query.
        """
        base = http_base(self.base_url, f"/{_VERSION}")
        rest = path.removeprefix(f"{_VERSION}/")
        # Lists of models have one path in all APIs; a base URL with a path includes the version.
        if rest.startswith(_OPENAI) or (rest.startswith("models") and urlsplit(base).path):
            base, path = http_base(self.base_url, ""), rest
        parts = query.split("&")
        keys = [part for part in parts if part.startswith("key=")]  # Gemini's API
        if self.api_key_env is not None:
            query = "&".join(part for part in parts if part not in keys)
        else:
            _hide_own(unquote(part.removeprefix("key=")) for part in keys)
        return f"{base}/{path}" + (f"?{query}" if query else "")

    def headers(self, given: Iterable[tuple[bytes, bytes]], path: str) -> Headers:
        """Return the headers of a request to the endpoint.

        Answers are requested without compression, so that they can be forwarded and read as they arrive.

        Args:
            given: the headers of the agent's request, with names in lower case.
            path: as in `url`.
        """
        given, key = list(given), self.key()
        passed = [(name, value) for name, value in given if name not in _OF_CONNECTION]
        if key is not None:
            used = {name for name, _ in passed if name in _KEYS} or {_usual(path)}
            passed = [(name, value) for name, value in passed if name not in _KEYS]
            passed += [(name, _KEYS[name].format(key).encode()) for name in sorted(used)]
        else:
            _hide_own(value.decode("latin-1").rpartition(" ")[2] for name, value in passed if name in _KEYS)
        return [*passed, (b"accept-encoding", b"identity")]

    def described(self) -> dict[str, Any]:
        """Return the settings as plain JSON data, without the key."""
        return {"base_url": self.shown, "request_fields": self.request_fields}


def _hide_own(keys: Iterable[str]) -> None:
    """Keep an agent's own keys out of logs and records."""
    for own in keys:
        if len(own) >= _LONG and own != PLACEHOLDER:
            hide(own)


def _usual(path: str) -> bytes:
    """Return the header in which the API of a path expects its key."""
    if "generateContent" in path or "streamGenerateContent" in path:
        return b"x-goog-api-key"
    return b"x-api-key" if "messages" in path.split("/") else b"authorization"
