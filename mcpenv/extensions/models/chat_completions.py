"""The client of an endpoint with OpenAI's chat completions API, with retries."""

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

from mcpenv.errors import EndpointFailed
from mcpenv.redaction import hide
from mcpenv_client.connection.addresses import is_loopback
from mcpenv_client.types.values import decode

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

MAX_DELAY_S = 60.0
"""Maximum seconds between two tries, even if the endpoint asks for more."""

MAX_SAID = 300
"""Maximum characters of the endpoint's own error message that an error quotes."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an endpoint's answer, in bytes."""

_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class MalformedAnswer(Exception):
    """Raised if an answer cannot be used. The text gives the reason without quoting the answer."""


@dataclass(frozen=True)
class ChatEndpoint:
    """The endpoint of a model.

    Attributes:
        base_url: such as "https://api.openai.com/v1"; "/chat/completions" is added.
        api_key_env: the environment variable with the key; None if no key is needed. The key itself is not stored.
        timeout_s: timeout of one try, in seconds.
        tries: maximum number of tries of a request.
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
        """The URL of requests."""
        return self.base_url.rstrip("/") + "/chat/completions"

    def api_key(self) -> str | None:
        """Return the key; None if none is needed.

        Raises:
            EndpointFailed: the environment variable is not set or empty.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not (key.isascii() and key.isprintable()):
            raise EndpointFailed(f"the environment variable {self.api_key_env} has no key that a header can carry")
        hide(key)
        return key

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client for `ask`. The first use binds it to an event loop."""
        import httpx  # imported on first use, to keep `import mcpenv` fast

        return httpx.AsyncClient(timeout=self.timeout_s, verify=_tls(), trust_env=not is_loopback(self.url))

    async def ask(
        self,
        http: httpx.AsyncClient,
        body: bytes,
        read: Callable[[dict[str, Any]], T],
        on_try: Callable[[], None] = lambda: None,
    ) -> T:
        """Send a request, retry it if needed, and return ``read(answer)``.

        Cancelling is safe; the endpoint may still charge for a request that was sent.

        Args:
            body: the request, as JSON text.
            read: converts the answer. It raises `MalformedAnswer` for one that cannot be used, which is retried.
            on_try: called before each try. Its exceptions are not caught.

        Raises:
            EndpointFailed: the endpoint refused, or no try got an answer that can be used.
        """
        import httpx  # as in `http`

        key, problem = self.api_key(), ""
        headers = {"Content-Type": "application/json", **({} if key is None else {"Authorization": f"Bearer {key}"})}
        for attempt in range(self.tries):
            on_try()
            asked_for_s: float | None = None
            try:
                # The client's own timeout begins anew with each piece of an answer.
                async with (
                    asyncio.timeout(self.timeout_s),
                    http.stream("POST", self.url, content=body, headers=headers) as response,
                ):
                    content = await _content(response)
            except TimeoutError:
                problem = f"no whole answer in {self.timeout_s:g} s"
            except MalformedAnswer as error:
                problem = str(error)
            except httpx.RequestError as error:
                problem = f"no answer: {type(error).__name__}"
            else:
                if response.is_success:
                    try:
                        return read(json_object(content, "the answer"))
                    except MalformedAnswer as error:
                        problem = str(error)
                elif response.status_code in _AGAIN:
                    problem = f"status {response.status_code}"
                    asked_for_s = _seconds(response.headers.get("Retry-After"))
                else:
                    status = response.status_code
                    message = _error_message(content, key)
                    raise EndpointFailed(f"the endpoint refused with status {status}", message, status)
            logger.info("a try of a request to a model failed: %s", problem)
            if attempt + 1 < self.tries:
                await asyncio.sleep(delay_s(attempt, self.backoff_s, asked_for_s))
        raise EndpointFailed(f"{self.tries} tries, the last one: {problem}")

    def check(self, option: str) -> None:
        """Raise if the base URL cannot be used.

        Raises:
            ValueError: the base URL is not an http(s) URL. The text names ``option``.
        """
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"{option} {self.base_url!r} is not an http(s):// URL, such as https://api.openai.com/v1")


async def _content(response: httpx.Response) -> bytes:
    """Return the body of a response.

    Raises:
        MalformedAnswer: it is larger than `MAX_ANSWER_BYTES`.
    """
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            raise MalformedAnswer(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def message_in(answer: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the message of an answer and its finish reason.

    Raises:
        MalformedAnswer: the answer does not have exactly one message.
    """
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise MalformedAnswer("the answer does not have exactly one message")
    return message, choice.get("finish_reason")


def tokens_in(answer: dict[str, Any], name: str) -> int:
    """Return a count of the answer's usage (``total_tokens``, ``prompt_tokens``, ...); 0 if the answer has none."""
    usage = answer.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return max(count, 0) if isinstance(count, int) and not isinstance(count, bool) else 0


def json_object(text: str | bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises:
        MalformedAnswer: the text is not a JSON object.
    """
    try:
        data = decode(text)
    except ValueError as error:
        raise MalformedAnswer(f"{what} is not JSON") from error
    if not isinstance(data, dict):
        raise MalformedAnswer(f"{what} is not a JSON object")
    return data


def delay_s(attempt: int, backoff_s: float, asked_for_s: float | None) -> float:
    """Return the seconds before the next try, with jitter, to spread the retries of clients that failed together."""
    wait: float = min(backoff_s * 2.0**attempt, MAX_DELAY_S) * random.uniform(0.5, 1.0)
    return wait if asked_for_s is None else max(wait, min(asked_for_s, MAX_DELAY_S))


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the shared TLS context. Making it takes tens of milliseconds, too long for an event loop."""
    return ssl.create_default_context()


def _seconds(header: str | None) -> float | None:
    """Return ``Retry-After`` in seconds (RFC 9110, section 10.2.3); None for a date, for which the backoff applies."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None


def _error_message(content: bytes, key: str | None) -> str | None:
    """Return the endpoint's own error message as one line, with the key removed: endpoints quote a refused key."""
    try:
        error = json_object(content, "the refusal").get("error")
    except MalformedAnswer:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return None
    line = " ".join(message.split())
    return (line if key is None else line.replace(key, "(the key)"))[:MAX_SAID] or None
