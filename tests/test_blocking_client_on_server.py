"""What is shown of the async client on a real server is shown of the blocking one, too: by the same tests."""

from __future__ import annotations

import pytest
import test_client_on_server
from in_threads import InThreads
from test_client_on_server import *  # noqa: F403 - its tests

del globals()["test_the_sync_client_waits_too"]


@pytest.fixture(autouse=True)
def _blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_client_on_server, "EnvClient", InThreads)
    monkeypatch.setattr(test_client_on_server, "Client", InThreads)
