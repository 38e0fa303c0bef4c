"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_servers import Echo, server_in_thread


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def url(echo: Echo) -> Iterator[str]:
    with server_in_thread(echo) as address:
        yield address
