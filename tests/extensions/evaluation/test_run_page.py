"""An evaluation as one HTML file: its figures, and every episode of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluate_endpoint import scripted_endpoint
from evaluate_world import Counting

from mcpenv.cli import execute
from mcpenv.extensions.evaluation import ModelAgent, evaluate


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    with scripted_endpoint() as endpoint:
        agent = ModelAgent("scripted", base_url=endpoint.url, backoff_s=0.001, max_turns=5)
        return evaluate(Counting, agent, out=folder, split="many", k=1).directory


def page_of(run: Path, *options: str) -> str:
    out = run.parent / "run.html"
    assert execute(["trajectories", "export", str(run), "--format", "html", "-o", str(out), *options]) == 0
    return out.read_text(encoding="utf-8")


def test_the_page_of_a_run_has_its_figures_each_task_and_a_link_to_each_episode(run: Path) -> None:
    page = page_of(run)
    assert "<h1>Evaluation of Counting</h1>" in page and "12 of 12" in page
    assert "<dt>pass@1</dt>" in page and "95 % interval" in page and ", 12 tasks</dd>" in page
    assert '<th scope="row">many/sometimes-0</th>' in page
    assert page.count('href="#episode-') == 12 and page.count("<article>") == 12
    assert "each task's full reward" in page and "<h3>Model</h3>" in page
    assert "are in this page" not in page and "not come to its end" not in page


def test_a_part_of_a_run_is_said_to_be_one(run: Path) -> None:
    page = page_of(run, "--limit", "2")
    assert page.count("<article>") == 2 and page.count('href="#episode-') == 2
    assert "2 of 12 episodes are in this page; the figures are of all." in page


def test_an_unfinished_run_is_said_to_be_one(run: Path) -> None:
    (run / "summary.json").rename(run / "summary.kept")
    try:
        assert "not come to its end" in page_of(run)
    finally:
        (run / "summary.kept").rename(run / "summary.json")


def test_a_folder_that_is_no_evaluation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record").mkdir()
    assert execute(["trajectories", "export", str(tmp_path), "--format", "html"]) == 2
    assert "is no evaluation" in capsys.readouterr().err
