"""Test that connections without a request, which the hub keeps, are bounded in time and number."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest
from attack_bench import connection
from attack_worlds import Vault
from cluster_bench import PATIENCE_S

from mcpenv.extensions.workers import acceptor
from mcpenv.server.serve import serving


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "KEEP_ALIVE_S", 0.5)
    with serving(Vault, workers=2) as url, connection(url) as silent:
        assert silent.recv(1) == b""
        assert httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200


def test_the_oldest_silent_connections_are_closed_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "connections_allowed", lambda: 20)
    with serving(Vault, workers=2) as url, ExitStack() as stack:
        silent = [stack.enter_context(connection(url)) for _ in range(30)]
        assert [wire.recv(1) for wire in silent[:20]] == [b""] * 20
        silent[-1].sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert silent[-1].recv(65536).startswith(b"HTTP/1.1 200")
        assert httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200
        text = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
        figures = dict(line.split(" ") for line in text.splitlines() if line[0] != "#")
        assert float(figures["mcpenv_connections_closed_total"]) >= 20
