"""The page that compares evaluations, in Debian's Chromium, against the console of a folder of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import started
from console_world import ATTACK

from mcpenv.evaluation.results import EpisodeResult, ResultsFile
from mcpenv.evaluation.run_directory import SUMMARY
from mcpenv.evaluation.settings import SETTINGS

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


def stored(folder: Path, scores: dict[str, float], started_at: float) -> None:
    folder.mkdir(parents=True)
    settings = {"environment": {"name": ATTACK, "version": "1"}, "agent": {"model": ATTACK + folder.name}, "format": 1}
    (folder / SETTINGS).write_text(json.dumps(settings))
    file = ResultsFile(folder)
    for task, score in scores.items():
        file.append(EpisodeResult("test", task, 1, 0, score=score, full_reward=1.0, digest="d", started_at=started_at))
    file.close()
    (folder / SUMMARY).write_text(json.dumps({"planned": len(scores), "pass_threshold": None}))


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("runs")
    many = {f"t{number}": 0.0 for number in range(8)}
    stored(runs / "old", {**many, ATTACK: 1.0, "same": 1.0}, 1.0)
    stored(runs / "new", {**dict.fromkeys(many, 1.0), ATTACK: 0.0, "same": 1.0}, 2.0)
    stored(runs / "of-few", {"t0": 1.0}, 0.5)
    ready = runs / "ready.json"
    with started(runs, "console", str(runs), "--port", "0", "--ready-file", str(ready)) as server:
        server.wait_for(r"Ctrl-C ends it")
        yield json.loads(ready.read_text(encoding="utf-8"))["url"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_evaluations_are_compared_on_one_page(browser: Visitor, url: str, width: int, theme: str) -> None:
    browser.width(width)
    browser.theme(theme)
    browser.open(url, "evaluations")
    browser.read("3 evaluations")
    # The newest is the candidate, and the one before it the baseline.
    browser.press("Compare")
    browser.read("the candidate is better: pass@1")
    browser.read("10 tasks: 1 lost, 8 gained, 1 the same")
    assert browser.browser.execute_script("return location.hash") == "#/evaluations?baseline=old&candidate=new"
    assert not browser.attacked()
    assert browser.serious_findings() == []
    assert browser.browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_what_cannot_be_told_is_said(browser: Visitor, url: str) -> None:
    browser.width(1280)
    browser.open(url, "evaluations")
    browser.choose("baseline", "of-few")
    browser.press("Compare")
    browser.read("too few for an interval")
    browser.choose("candidate", "of-few")
    browser.press("Compare")
    browser.read("are the same folder")
