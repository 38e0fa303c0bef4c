"""The echo environment in OpenEnv's style, on OpenEnv's own server and on mcpenv; each is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openenv_servers import ECHO, openenv_python, openenvs_own_server

from mcpenv import Mode
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import Target, load_target


@pytest.fixture(scope="session")
def theirs() -> Iterator[str]:
    with openenvs_own_server(ECHO) as url:
        yield url


@pytest.fixture(scope="session")
def echo() -> Target:
    openenv_python()
    return load_target(str(ECHO), ["greeting=Welcome."])


@pytest.fixture(scope="session")
def ours(echo: Target) -> Iterator[str]:
    with serving(echo.factory) as url:
        yield url


# The process of the environment ends with the first of its servers. So they end together.


@pytest.fixture(scope="session")
def ours_in_production(echo: Target, ours: str) -> Iterator[str]:
    with serving(echo.factory, mode=Mode.PRODUCTION) as url:
        yield url


@pytest.fixture(scope="session")
def ours_with_a_token(echo: Target, ours: str) -> Iterator[str]:
    with serving(echo.factory, ServerConfig(control_token="the-control-token")) as url:
        yield url
