"""``MCPENV_TEST_WORKERS=2``: the same tests against servers of two workers, threads of the test's own process."""

from __future__ import annotations

import functools
import os

import pytest

import mcpenv.serve

WORKERS = int(os.environ.get("MCPENV_TEST_WORKERS", "1"))

if WORKERS > 1:
    # Before any module of tests takes it by name.
    mcpenv.serve.serving = functools.partial(mcpenv.serve.serving, workers=WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WORKERS > 1:
        for item in items:
            marker = item.get_closest_marker("one_worker")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))
