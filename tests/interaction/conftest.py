"""One body, seven planes: each test names the planes that it leaves out, with the reason."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from planes import ALL, Plane, opened
from worlds import World

import mcpenv
from mcpenv import Mode

NEEDED = {
    "test_borders.py": ["console", "live"],
    "test_cheating.py": ["models"],
    "test_conversation.py": ["in_process"],
    "test_status.py": ["exports", "records"],
}
"""Extensions that the modules import beside the kernel. Without them, a module is not collected."""

EXTENSIONS = Path(mcpenv.__file__).parent / "extensions"
collect_ignore = [file for file, names in NEEDED.items() if not all((EXTENSIONS / name).is_dir() for name in names)]

_table: dict[str, dict[str, str]] = {}
_reasons: dict[str, str] = {}

MARK = {"passed": "x", "failed": "F", "error": "E", "skipped": "S"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "plane_name" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("planes")
    left_out: dict[str, str] = {} if marker is None else dict(marker.kwargs.get("without", {}))
    metafunc.parametrize("plane_name", [_param(name) for name in ALL if name not in left_out])
    row = _table.setdefault(metafunc.definition.originalname, dict.fromkeys(ALL, "?"))
    for name, reason in left_out.items():
        row[name] = f"({list(dict.fromkeys(_reasons) | {reason: ''}).index(reason) + 1})"
        _reasons.setdefault(reason, "")
        row[name] = f"({list(_reasons).index(reason) + 1})"


def _param(name: str) -> Any:
    # A process for each test of it.
    return pytest.param(name, marks=(pytest.mark.slow, pytest.mark.extension(name))) if name == "stdio" else name


@pytest.fixture
def mode() -> Mode:
    return Mode.SIMULATION


@pytest.fixture
def open_plane(plane_name: str, mode: Mode) -> Iterator[Callable[..., Plane]]:
    """Opens this test's plane on an environment; closed afterwards."""
    with ExitStack() as stack:

        def open_on(cls: Callable[..., Any] = World, in_mode: Mode = mode, **settings: Any) -> Plane:
            factory: Callable[..., Any] = functools.partial(cls, **settings) if settings else cls
            return stack.enter_context(opened(plane_name, factory, in_mode))

        yield open_on


@pytest.fixture
def plane(open_plane: Callable[..., Plane]) -> Plane:
    return open_plane()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    name = getattr(item, "originalname", "")
    if name in _table and hasattr(item, "callspec") and (report.when == "call" or report.failed):
        _table[name][item.callspec.params["plane_name"]] = MARK.get(report.outcome, "?")
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = {name: row for name, row in _table.items() if any(cell in MARK.values() for cell in row.values())}
    if not rows:
        return
    width = max(len(name) for name in rows)
    terminalreporter.write_sep("-", "one body, seven planes")
    terminalreporter.write_line(" " * width + "  " + "  ".join(ALL))
    for name, row in rows.items():
        cells = "  ".join(row[plane].center(len(plane)) for plane in ALL)
        terminalreporter.write_line(f"{name.ljust(width)}  {cells}")
    for index, reason in enumerate(_reasons, 1):
        terminalreporter.write_line(f"({index}) {reason}")
