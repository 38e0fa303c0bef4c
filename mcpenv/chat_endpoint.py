"""ChatEndpoint: whoever answers OpenAI's chat completions, asked until it answers well, or no more."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from mcpenv_client.addresses import is_loopback
from mcpenv_client.values import decode

from .errors import EndpointFailed

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

MAX_DELAY_S = 60.0
"""Seconds between two tries at most, whatever the endpoint asks for."""

MAX_SAID = 300
"""Characters of the endpoint's own words that an error quotes at most."""

_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class MalformedAnswer(Exception):
    """An answer of which nothing can be made; the text says why, and quotes nothing of it."""


@dataclass(frozen=True)
class ChatEndpoint:
    """Where a model is asked.

    Attributes:
        base_url: as "https://api.openai.com/v1"; "/chat/completions" is added.
        api_key_env: the environment variable that has the key; None for none. The key itself is nowhere kept.
        timeout_s: seconds for one try.
        tries: how often one request is made.
        backoff_s: seconds before the second try, doubled for each further one, times a random number from 0.5 to 1.
    """

    base_url: str
    api_key_env: str | None = None
    timeout_s: float = 60.0
    tries: int = 4
    backoff_s: float = 1.0

    def __post_init__(self) -> None:
        _tls()

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.base_url.rstrip("/") + "/chat/completions"

    def api_key(self) -> str | None:
        """The key; None where none is wanted.

        Raises:
            EndpointFailed: the variable has none.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise EndpointFailed(f"the environment variable {self.api_key_env} has no key")
        return key

    def http(self) -> httpx.AsyncClient:
        """What `ask` asks with. Bound to the event loop in which it is first used."""
        import httpx  # loaded on first use: every `import mcpenv` would pay for it

        return httpx.AsyncClient(timeout=self.timeout_s, verify=_tls(), trust_env=not is_loopback(self.url))

    async def ask(
        self,
        http: httpx.AsyncClient,
        body: bytes,
        read: Callable[[dict[str, Any]], T],
        on_try: Callable[[], None] = lambda: None,
    ) -> T:
        """What ``read`` makes of the answer. Cancelling is safe; a request that was made counts at the endpoint.

        Args:
            body: the request, as JSON text.
            read: raises `MalformedAnswer` for an answer of which nothing can be made; the same is asked again.
            on_try: called before each try; what it raises is raised.

        Raises:
            EndpointFailed: it refused, or did not answer well however often it was asked.
        """
        import httpx  # as in `http`

        key, problem = self.api_key(), ""
        headers = {"Content-Type": "application/json", **({} if key is None else {"Authorization": f"Bearer {key}"})}
        for attempt in range(self.tries):
            on_try()
            asked_for_s: float | None = None
            try:
                response = await http.post(self.url, content=body, headers=headers)
            except httpx.TransportError as error:
                problem = f"no answer: {type(error).__name__}"
            else:
                if response.is_success:
                    try:
                        return read(json_object(response.content, "the answer"))
                    except MalformedAnswer as error:
                        problem = str(error)
                elif response.status_code in _AGAIN:
                    problem = f"status {response.status_code}"
                    asked_for_s = _seconds(response.headers.get("Retry-After"))
                else:
                    status = response.status_code
                    said = _said(response.content, key)
                    raise EndpointFailed(f"the endpoint refused with status {status}", said, status)
            logger.info("a model is asked again: %s", problem)
            if attempt + 1 < self.tries:
                await asyncio.sleep(delay_s(attempt, self.backoff_s, asked_for_s))
        raise EndpointFailed(f"{self.tries} tries, the last one: {problem}")

    def check(self, option: str) -> None:
        """Refuse a base URL that cannot be asked.

        Raises:
            ValueError: naming ``option``.
        """
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"{option} {self.base_url!r} is no http(s):// URL, such as https://api.openai.com/v1")


def message_in(answer: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The one message of an answer, and why the model stopped there.

    Raises:
        MalformedAnswer: there is not exactly one.
    """
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise MalformedAnswer("the answer has not one message")
    return message, choice.get("finish_reason")


def tokens_in(answer: dict[str, Any], name: str) -> int:
    """How many tokens the endpoint says were used (``total_tokens``, ``prompt_tokens``, ...); 0 if it says nothing."""
    usage = answer.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def json_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text``.

    Raises:
        MalformedAnswer: there is none.
    """
    try:
        data = decode(text)
    except ValueError as error:
        raise MalformedAnswer(f"{what} is no JSON") from error
    if not isinstance(data, dict):
        raise MalformedAnswer(f"{what} is no JSON object")
    return data


def delay_s(attempt: int, backoff_s: float, asked_for_s: float | None) -> float:
    """Seconds before the next try: random, so that many who failed together do not come back together."""
    wait: float = min(backoff_s * 2.0**attempt, MAX_DELAY_S) * random.uniform(0.5, 1.0)
    return wait if asked_for_s is None else max(wait, min(asked_for_s, MAX_DELAY_S))


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made with the first endpoint, not with a request: it takes tens of milliseconds, which an event loop has not."""
    return ssl.create_default_context()


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` in seconds (RFC 9110, section 10.2.3); its other form, a date, is left to the backoff."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None


def _said(content: bytes, key: str | None) -> str | None:
    """The endpoint's own words for its refusal, as one line; endpoints quote the key that they refuse."""
    try:
        error = json_object(content, "the refusal").get("error")
    except MalformedAnswer:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return None
    line = " ".join(message.split())
    return (line if key is None else line.replace(key, "(the key)"))[:MAX_SAID] or None


__all__ = ["MAX_DELAY_S", "ChatEndpoint", "MalformedAnswer", "delay_s", "json_object", "message_in", "tokens_in"]
