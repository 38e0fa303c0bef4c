"""What the tests of several trainers' adapters share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import served
from trainer_worlds import Stuck

from mcpenv.server.app import create_app


@pytest.fixture
def stuck() -> Iterator[str]:
    """The server of an environment whose tool returns when the test has ended."""
    Stuck.called.clear()
    Stuck.released.clear()
    with served(create_app(Stuck)) as address:
        yield address.removesuffix("/mcp")
        Stuck.released.set()
