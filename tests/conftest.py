"""The setup of every test.

``MCPENV_TEST_WORKERS=2``: the same tests against servers of two workers, in a thread of the test's own process.
``--hypothesis-profile full``: all examples of property tests; by default only some of them.

What runs by default starts no process, except tests that are marked ``smoke``. Another one that does is marked
``process``, and fails without it. Tests of extensions need no such mark, because they do not run by default.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import hypothesis
import pytest
import uvicorn.server
from forked import FORKING, Forks, forks

import mcpenv
import mcpenv.server.serve

# How long an example takes says nothing on a loaded machine.
_UNTIMED: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("some", max_examples=20, **_UNTIMED)
hypothesis.settings.register_profile("full", max_examples=60, **_UNTIMED)
hypothesis.settings.load_profile("some")  # --hypothesis-profile comes after this

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background ignores it, and would pass that on to the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

WORKERS = int(os.environ.get("MCPENV_TEST_WORKERS", "1"))

if WORKERS > 1:
    # Before any module of tests takes it by name.
    mcpenv.server.serve.serving = functools.partial(mcpenv.server.serve.serving, workers=WORKERS)


class _Asyncio:
    """The module `asyncio` with shorter pauses, for uvicorn's server.

    It looks every 0.1 s if it should stop, and then if its connections have ended. Hundreds of tests stop a server.
    """

    PAUSE_S = 0.005

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(min(delay, self.PAUSE_S))


uvicorn.server.asyncio = _Asyncio()  # type: ignore[attr-defined, assignment]

HERE = Path(__file__).resolve().parent
MAY_START_PROCESSES = ("process", "smoke", "slow", "world")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    installed = {path.name for path in Path(mcpenv.__file__).with_name("extensions").iterdir()}
    for item in items:
        for needed in item.iter_markers("extension"):
            if needed.args[0] not in installed:
                item.add_marker(pytest.mark.skip(reason=f"the extension {needed.args[0]} is not installed"))
    if WORKERS > 1:
        for item in items:
            marker = item.get_closest_marker("one_worker")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))


def pytest_collection_finish() -> None:
    _started.clear()
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


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Run Python programs without a new interpreter for each."""
    with forks(tmp_path_factory.mktemp("forks")) as running:
        yield running


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    """Restore the levels of loggers: a server that runs in the process of a test configures them."""
    loggers = [logging.getLogger(name) for name in (None, "mcpenv", "mcpenv.access", "fastmcp")]
    before = [(logger, logger.level, logger.disabled) for logger in loggers]
    yield
    for logger, level, disabled in before:
        logger.setLevel(level)
        logger.disabled = disabled


_started: list[str] = []
"""The processes that were started since the last test."""


def _note_processes() -> None:
    start, fork = subprocess.Popen.__init__, os.fork

    @functools.wraps(start)
    def noted_start(self: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
        if not (isinstance(args, list) and args == FORKING):
            _started.append(repr(args))
        start(self, args, *rest, **options)

    def noted_fork() -> int:
        _started.append("a fork")
        return fork()

    subprocess.Popen.__init__ = noted_start  # type: ignore[method-assign]
    os.fork = noted_fork


_note_processes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the kernel that started a process, unless its marks allow that."""
    yield
    started = _started.copy()
    _started.clear()
    runs_by_default = item.path.parent == HERE or item.path.relative_to(HERE).parts[0] in _default_folders(item.config)
    if started and runs_by_default and not any(map(item.get_closest_marker, MAY_START_PROCESSES)):
        pytest.fail(f"starts {', '.join(started)}, and is marked neither `process` nor `smoke`", pytrace=False)


def _default_folders(config: pytest.Config) -> set[str]:
    return {Path(path).name for path in config.getini("testpaths")}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what the default run leaves out, and how to run it."""
    options: list[str] = config.getini("addopts")
    of_testpaths = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not of_testpaths or config.option.markexpr != options[options.index("-m") + 1]:
        return
    folders = {path.parent.name for path in HERE.glob("*/test_*.py")}
    extensions = {path.relative_to(HERE / "extensions").parts[0] for path in HERE.glob("extensions/**/test_*.py")}
    rows = {
        "tests that start processes": "pytest -n auto -m process",
        "many processes, long runs": "pytest -n auto -m 'slow and not world' tests",
        f"extensions: {', '.join(sorted(extensions))}": "pytest -n auto tests/extensions/NAME -m 'not world'",
        f"folders: {', '.join(sorted(folders - _default_folders(config)))}": "pytest -n auto tests/NAME -m 'not world'",
        "tests that need other programs": ".ci/run; for one extension, see CONTRIBUTING.md",
    }
    terminalreporter.section("left out of this run")
    for what, command in rows.items():
        terminalreporter.line(f"{what}\n    {command}")
