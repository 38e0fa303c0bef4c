"""Keep secrets out of logs: known secrets by their text, all others by their place.

Named rules keep secrets out of records. A record contains the name of the rule in place of the secret.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
"""The text in place of a secret."""

MIN_SECRET = 4
"""Minimum characters of a secret. A shorter one would be found in ordinary words."""

MAX_NAME = 100
"""Maximum characters of a name in a log. An agent may ask for a tool of any name."""

MAX_TEXT = 32_768
"""Maximum characters of a message or a traceback in a log. An agent's arguments may be in it."""

_PLACES = [
    # Header lines, and the pairs of names and values in which ASGI and HTTP clients keep headers.
    (
        re.compile(
            r"""(?ix) \b ((?:proxy-)?authorization | (?:set-)?cookie | mcpenv-session-(?:id|token) | mcp-session-id
            | x-api-key | sec-websocket-protocol) (["']? \s* [:=,] \s* b?["']?) [^\r\n"']+"""
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9\-._~+/]{6,}=*"), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{1,1000}\.[\w-]+\.[\w-]*"), HIDDEN),  # a JSON Web Token
    (re.compile(r"\bmcpenv\.token\.[\w=-]+"), f"mcpenv.token.{HIDDEN}"),
    (re.compile(r"/episodes/[^/\s\"'?#\\]+"), f"/episodes/{HIDDEN}"),
    (re.compile(r"://[^/\s@\"']+@"), f"://{HIDDEN}@"),
    (
        re.compile(
            r"""(?ix) (\b (?:(?:access|refresh|id|session|control|metrics)_token | client_secret | api[_-]?key
            | passw(?:or)?d | secret | token | session_id | handle) ["']? \s* [:=] \s* b?\\?["']?) [^\s"'&,;)}\]\\]+"""
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)(session(?: id)?:? )[\w-]{16,}"), rf"\1{HIDDEN}"),
    # A message of a WebSocket, which its library may cut in a secret. Searched for elsewhere, it takes quadratic time.
    (re.compile(r"(?s)\A([<>] (?:TEXT|BINARY|CONT)) .*(?= \[)"), r"\1"),
]
"""The places of secrets that are not known beforehand: tokens of requests, handles, ids that let a client join."""


class Secrets:
    """The secrets of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: set[str] = set()
        self._known: re.Pattern[str] | None = None

    def add(self, secret: str) -> None:
        """Remember a secret, in the forms that headers, URLs and JSON give to it."""
        if len(secret) < MIN_SECRET:
            return
        data = secret.encode(errors="surrogatepass")
        forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
        forms.update(encode(data).decode().rstrip("=") for encode in (urlsafe_b64encode, b64encode))
        with self._lock:
            if forms <= self._forms:
                return
            self._forms |= forms
            # The longest first, because one secret may begin with another.
            ordered = sorted(self._forms, key=len, reverse=True)
            self._known = re.compile("|".join(map(re.escape, ordered)))
        _redacted_name.cache_clear()

    def without_known(self, text: str) -> str:
        """Return the text without the secrets that were added."""
        return text if self._known is None else self._known.sub(HIDDEN, text)

    def redact(self, text: str) -> str:
        """Return the text without secrets; of more than `MAX_TEXT` characters, the beginning and the end."""
        text = self.without_known(text)
        if (left_out := len(text) - MAX_TEXT) > 0:
            half = MAX_TEXT // 2  # the end begins with a whole line, because a part of a secret is not recognised
            text = f"{text[:half]} ... ({left_out} characters or more) ... " + text[-half:].partition("\n")[2]
        for place, instead in _PLACES:
            if place.search(text) is not None:  # `sub` takes twice as long to find nothing
                text = place.sub(instead, text)
        return text


class NamedSecrets:
    """The named rules of this process."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[re.Pattern[str], ...]] = {}
        self._values: dict[str, str] = {}

    def add(self, name: str, rule: str | re.Pattern[str]) -> None:
        """Add a rule: the text of a secret, or a pattern that finds secrets. A name may have several.

        Raises:
            ValueError: the name or the text cannot be used.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name {name!r} of a secret must have only letters, digits and . _ -")
        if isinstance(rule, str):
            if len(rule) < MIN_SECRET:
                raise ValueError(f"the secret {name!r} has fewer than {MIN_SECRET} characters")
            self._values[name] = rule
            _secrets.add(rule)
            rule = re.compile(re.escape(rule))
        known = self._rules.get(name, ())
        if rule not in known:
            self._rules = {**self._rules, name: (*known, rule)}

    @property
    def any(self) -> bool:
        """True if there are rules."""
        return bool(self._rules)

    def redact(self, value: Any) -> Any:
        """Return plain JSON data with the names of rules in place of secrets."""
        return _mapped(value, self._redacted) if self._rules else value

    def place_back(self, value: Any) -> Any:
        """Return plain JSON data with the secrets in place of names, as far as their texts are known."""
        return _mapped(value, self._placed) if self._values else value

    def _redacted(self, text: str) -> str:
        for name, rules in self._rules.items():
            for rule in rules:
                text = rule.sub(f"[redacted: {name}]", text)
        return text

    def _placed(self, text: str) -> str:
        return _MARK.sub(lambda mark: self._values.get(mark[1], mark[0]), text)


_NAME = re.compile(r"[\w.-]+")
_MARK = re.compile(r"\[redacted: ([\w.-]+)\]")


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name) if isinstance(name, str) else name: _mapped(item, change) for name, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else value


_secrets = Secrets()
_named = NamedSecrets()


def hide(secret: str) -> None:
    """Keep a secret out of the log of this process from now on."""
    _secrets.add(secret)


def redact(text: str) -> str:
    """Return the text without the secrets of this process, and without other secrets in known places."""
    return _secrets.redact(text)


def redacted_name(name: str) -> str:
    """Return a name as the lines of a log show it: of at most `MAX_NAME` printable characters, and without secrets."""
    return _redacted_name(name[:MAX_NAME])  # cut before: an agent may send names of megabytes, which a cache would keep


@lru_cache(maxsize=1024)
def _redacted_name(name: str) -> str:
    return redact(name if name.isprintable() else ascii(name)[1:-1])


def without_known(text: str) -> str:
    """Return the text without the secrets of this process, and otherwise unchanged, as a client may read it."""
    return _secrets.without_known(text)


def without_known_in(value: Any) -> Any:
    """Return plain JSON data without the secrets of this process in its texts."""
    return _mapped(value, _secrets.without_known)


def name_secret(name: str, rule: str | re.Pattern[str]) -> None:
    """Keep a secret out of the records of this process from now on, and out of its logs if the rule is its text.

    Raises:
        ValueError: the name or the text cannot be used.
    """
    _named.add(name, rule)


def has_named() -> bool:
    """Return True if there are named rules."""
    return _named.any


def redact_named(value: Any) -> Any:
    """Return plain JSON data with the names of rules in place of secrets."""
    return _named.redact(value)


def place_back(value: Any) -> Any:
    """Return plain JSON data with secrets in place of the names of their rules, as far as their texts are known."""
    return _named.place_back(value)


def named_in(values: Iterable[Any]) -> set[str]:
    """Return the names of rules that stand in plain JSON data in place of secrets."""
    return set(_MARK.findall(json.dumps(list(values))))


class RedactedRecord(logging.LogRecord):
    """A record that has no secrets: `redact` has seen each of its parts. `Redacting` lets it pass."""


class Redacting(logging.Filter):
    """The filter that removes secrets from messages and tracebacks. It belongs on handlers, which see all loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record, and let it pass."""
        if isinstance(record, RedactedRecord):
            return True
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a message that does not fit its arguments must not fail its caller
            message = f"{record.msg} {record.args!r}"
        record.msg, record.args = redact(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_text = record.exc_text and redact(record.exc_text)
        record.stack_info = record.stack_info and redact(record.stack_info)
        return True
