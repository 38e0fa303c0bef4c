"""The cookie of the console: what it stands for, and from whom it counts."""

from __future__ import annotations

import pytest
from starlette.types import Scope

from mcpenv.extensions.console.console_cookie import LIFETIME_S, ConsoleCookie

TOKEN = "the-control-token"


def scope(cookie: str | None, *, kind: str = "http", method: str = "GET", **headers: str) -> Scope:
    given = {"host": "env.example:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if cookie is not None:
        given["cookie"] = cookie
    fields = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    return {"type": kind, "method": method, "path": "/capacity", "headers": fields}


def test_every_worker_accepts_the_cookie_of_another_until_it_expires() -> None:
    time = [1000.0]
    one, other = ConsoleCookie(TOKEN, now=lambda: time[0]), ConsoleCookie(TOKEN, now=lambda: time[0])
    asked = scope(f"{one.name}={one.issue()}")
    assert other.expiry_of(asked) == 1000.0 + LIFETIME_S
    time[0] += LIFETIME_S - 1
    assert other.expiry_of(asked) is not None
    time[0] += 1
    assert other.expiry_of(asked) is None


def test_a_cookie_of_another_token_or_a_changed_one_is_refused() -> None:
    cookie = ConsoleCookie(TOKEN)
    value = cookie.issue()
    expiry, nonce, mac = value.split(".")
    wrong = [
        ConsoleCookie("another-token").issue(),
        f"{int(expiry) + 1}.{nonce}.{mac}",
        f"{expiry}.{nonce}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        f"{expiry}.{nonce}.",
        mac,
        "",
        "\xff.\xff.\xff",
    ]
    assert cookie.expiry_of(scope(f"{cookie.name}={value}")) is not None
    for each in wrong:
        assert cookie.expiry_of(scope(f"{cookie.name}={each}")) is None, each
    assert cookie.expiry_of(scope(None)) is None
    assert TOKEN not in value


@pytest.mark.parametrize(
    ("kind", "method", "headers", "counts"),
    [
        ("http", "GET", {}, True),
        ("http", "GET", {"sec_fetch_site": "same-origin"}, True),
        ("http", "GET", {"sec_fetch_site": "none"}, True),
        ("http", "GET", {"sec_fetch_site": "same-site"}, False),
        ("http", "GET", {"sec_fetch_site": "cross-site"}, False),
        ("http", "GET", {"origin": "http://env.example:9000"}, False),
        ("http", "GET", {"origin": "null"}, False),
        ("http", "DELETE", {}, False),
        ("http", "POST", {"origin": "http://env.example:8000"}, True),
        ("http", "POST", {"origin": "https://public.example"}, True),
        ("http", "POST", {"sec_fetch_site": "same-origin"}, True),
        ("http", "POST", {"sec_fetch_site": "none"}, False),
        ("http", "POST", {"origin": "http://env.example:8000", "sec_fetch_site": "cross-site"}, False),
        ("websocket", "GET", {}, False),
        ("websocket", "GET", {"origin": "http://env.example:8000"}, True),
        ("websocket", "GET", {"origin": "http://evil.example"}, False),
    ],
)
def test_a_cookie_counts_only_for_pages_of_the_server(
    kind: str, method: str, headers: dict[str, str], counts: bool
) -> None:
    cookie = ConsoleCookie(TOKEN, "https://public.example/env")
    asked = scope(f"a=b; {cookie.name}={cookie.issue()}", kind=kind, method=method, **headers)
    assert (cookie.expiry_of(asked) is not None) is counts
