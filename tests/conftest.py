"""The setup of every test.

``MCPENV_TEST_WORKERS=2``: the same tests against servers of two workers, threads of the test's own process.
``--hypothesis-profile full``: all examples of property tests; by default only some of them.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import certifi
import hypothesis
import pytest

import mcpenv.server.serve

# How long an example takes says nothing on a loaded machine.
_UNTIMED: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("some", max_examples=20, **_UNTIMED)
hypothesis.settings.register_profile("full", max_examples=60, **_UNTIMED)
hypothesis.settings.load_profile("some")  # --hypothesis-profile comes after this

WORKERS = int(os.environ.get("MCPENV_TEST_WORKERS", "1"))

if WORKERS > 1:
    # Before any module of tests takes it by name.
    mcpenv.server.serve.serving = functools.partial(mcpenv.server.serve.serving, workers=WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WORKERS > 1:
        for item in items:
            marker = item.get_closest_marker("one_worker")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))


def pytest_collection_finish() -> None:
    # Tests that count what is left collect garbage again and again. None of that is in what was imported before.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_authority(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one certificate in place of all of certifi's, which each new HTTP client would read for 30 ms."""
    if any(item.get_closest_marker("world") for item in request.session.items):  # these may ask
        yield
        return
    end = "-----END CERTIFICATE-----\n"
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file, pytest.MonkeyPatch.context() as patch:
        file.write(certifi.contents().partition(end)[0] + end)
        file.flush()
        patch.setenv("SSL_CERT_FILE", file.name)
        yield


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    """Restore the levels of loggers: a server that runs in the process of a test configures them."""
    loggers = [logging.getLogger(name) for name in (None, "mcpenv", "mcpenv.access", "fastmcp")]
    before = [(logger, logger.level, logger.disabled) for logger in loggers]
    yield
    for logger, level, disabled in before:
        logger.setLevel(level)
        logger.disabled = disabled
