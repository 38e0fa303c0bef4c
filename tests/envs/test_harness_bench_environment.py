"""The tasks of harness-bench-fast: their solutions, no work, and what an agent may leave. They need the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from imported_environments import module_of

from mcpenv.extensions.validation.tasks.play import at_random, oracle, play


@pytest.fixture(scope="module")
def bench() -> Any:
    return module_of("harness_bench")


def accepted(bench: Any, task: Any, content: dict[str, bytes], folder: Path) -> bool:
    """Return what the package's own check says about these files, in this process."""
    for path, data in content.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return bool(task.verify(folder).passed)


@pytest.mark.world
@pytest.mark.timeout(300)
def test_the_package_accepts_each_solution_and_no_start(bench: Any, tmp_path: Path) -> None:
    assert len(bench.BY_ID) == 261
    for name, task in bench.BY_ID.items():
        assert not accepted(bench, task, bench.made(task), tmp_path / name / "start"), name
        assert accepted(bench, task, bench.made(task, solved=True), tmp_path / name / "end"), name


@pytest.mark.world
@pytest.mark.timeout(300)
def test_the_calls_of_each_solution_make_its_files(bench: Any) -> None:
    with bench.HarnessBenchEnvironment() as env:
        for task in env.tasks:
            env.reset(task=task)
            assert not any(env.call_tool(call.tool_name, call.arguments).error for call in task.oracle), task.id
            left = {entry.path: entry.content for entry in env.sandbox.entries() if isinstance(entry.content, bytes)}
            assert left == bench.made(bench.BY_ID[task.id], solved=True), task.id


@pytest.mark.world
@pytest.mark.timeout(300)
def test_a_solution_scores_1_and_no_work_or_random_calls_0(bench: Any) -> None:
    with bench.HarnessBenchEnvironment() as env:
        for task in list(env.tasks)[::20]:
            assert [play(env, task, oracle(task)).score, play(env, task).score] == [1.0, 0.0], task.id
            assert play(env, task, at_random(task, 3, 1)).score == 0.0, task.id


@pytest.mark.world
@pytest.mark.timeout(300)
def test_no_check_that_is_used_runs_what_an_agent_wrote(bench: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()\n".encode()
    for name, task in bench.BY_ID.items():
        left = dict.fromkeys([*bench.made(task, solved=True), "conftest.py", "sitecustomize.py"], code)
        accepted(bench, task, left, tmp_path / name)
        assert not marker.exists(), name


@pytest.mark.world
@pytest.mark.timeout(300)
def test_a_check_of_rows_without_an_end_fails(bench: Any) -> None:
    rows = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, 'a' AS kind, 1 AS value FROM n"
    )
    with bench.HarnessBenchEnvironment() as env:
        env.reset(task=env.tasks.find("task_154_jsonl_into_sqlite"))
        made: Any = env.call_tool("run", {"command": f'sqlite3 events.db "CREATE VIEW events AS {rows}"'})
        assert made.result.data["exit_code"] == 0
        assert env.end().reward == 0.0


@pytest.mark.world
def test_cells_of_a_workbook_are_read_and_written(bench: Any) -> None:
    with bench.HarnessBenchEnvironment() as env:
        env.reset(task=env.tasks.find("task_113_xlsx_update_cell"))
        read: Any = env.call_tool("read_sheet", {"path": "inventory.xlsx"})
        assert read.result.data == [["sku", "qty", "price"], ["A1", 10, 5], ["B2", 4, 7], ["C3", 8, 9]]
        for wrong in ({"sheet": "Prices"}, {"path": "no.xlsx"}):
            assert env.call_tool("read_sheet", {"path": "inventory.xlsx", **wrong}).error
        assert env.call_tool("write_cells", {"path": "inventory.xlsx", "cells": {"nowhere": 1}}).error
        env.call_tool("write_cells", {"path": "inventory.xlsx", "cells": {"C3": 999}})
        assert env.end().reward == 1.0
