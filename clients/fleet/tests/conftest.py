"""The stand-in of the platform for each test, and the variables that lead the client to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_platform import KEY, Platform, serving

from mcpenv_fleet import FleetEnv, FleetTools, Retries

QUICK = {"of_calls": Retries(3, 0.01), "of_creates": Retries(3, 0.01)}
"""As many tries as by default, without the pauses."""


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with serving() as running:
        monkeypatch.setenv("FLEET_API_KEY", KEY)
        monkeypatch.setenv("FLEET_BASE_URL", running.url)
        yield running


@pytest.fixture
def made(platform: Platform) -> Iterator[tuple[FleetEnv, FleetTools]]:
    env, tools = FleetEnv.from_fleet("fira", **QUICK)
    with env:
        yield env, tools
