"""The page of evaluations in Debian's Chromium: their list, their reports and episodes, and two of them compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacked_record import attacked
from command_line import started
from console_world import ATTACK

from mcpenv.extensions.evaluation.results import EpisodeResult, ResultsFile
from mcpenv.extensions.evaluation.run_directory import SUMMARY
from mcpenv.extensions.evaluation.settings import SETTINGS

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.keys import Keys
from visitor import Visitor, visiting

FEW = "deep/of few & #1?%2F"
"""The name of an evaluation whose folder has characters that an address escapes."""

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


def stored(folder: Path, scores: dict[str, float], started_at: float) -> None:
    folder.mkdir(parents=True)
    settings = {"environment": {"name": ATTACK, "version": "1"}, "agent": {"model": ATTACK + folder.name}, "format": 1}
    (folder / SETTINGS).write_text(json.dumps(settings))
    file = ResultsFile(folder)
    for task, score in scores.items():
        file.append(
            EpisodeResult(
                "test", task, 1, 0, task, score=score, full_reward=1.0, digest="d", started_at=started_at, steps=5
            )
        )
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
    # Its one recorded episode has the id that the results name, which is an attack.
    attacked(runs / "new" / "record")
    stored(runs / FEW, {"t0": 1.0}, 0.5)
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
    assert [each.text for each in browser.all("td span.error")] == ["lost"]
    assert [each.text for each in browser.all("td span.good")] == ["+0.700"] * 2 + ["gained"] * 8
    # Only the candidate has a record, so that only its episodes have links.
    links = [str(each.get_attribute("href")) for each in browser.all("td a")]
    assert len(links) == 10 and all("#/evaluations/new/records/" in link for link in links)
    assert not browser.attacked()
    assert browser.serious_findings() == []
    assert browser.browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_what_cannot_be_told_is_said(browser: Visitor, url: str) -> None:
    browser.width(1280)
    browser.open(url, "evaluations")
    browser.choose("baseline", FEW)
    browser.press("Compare")
    browser.read("too few for an interval")
    browser.choose("candidate", FEW)
    browser.press("Compare")
    browser.read("are the same folder")


def address_of(browser: Visitor) -> str:
    return str(browser.browser.execute_script("return location.hash"))


def test_each_evaluation_leads_to_its_report_and_on_to_its_episodes(browser: Visitor, url: str) -> None:
    browser.width(1280)
    browser.open(url, "evaluations")
    browser.read("3 evaluations")
    links = browser.all("tbody th a")
    assert [link.text for link in links] == ["new", "old", FEW]
    assert len(browser.all("tbody tr")) == len(links)
    links[0].click()
    browser.read("10 of 10")
    assert address_of(browser) == "#/evaluations/new"
    plots = [str(each.get_attribute("aria-label")) for each in browser.all(".drawing svg")]
    assert plots[1:] == ["Returns of 10 scored episodes.", "Steps of 10 episodes.", "Episodes by failure."], plots
    assert [each.get_property("textContent") for each in browser.all(".drawing rect title")][1:3] == [
        "return 0: 1",
        "return 1: 9",
    ]
    assert not browser.attacked() and browser.serious_findings() == []
    (episode,) = browser.all(f"td a[aria-label='0: test/{css(ATTACK)}, sample 0']")
    browser.browser.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", episode)
    episode.click()
    browser.read("5 steps")
    shown = address_of(browser)
    assert shown.startswith("#/evaluations/new/records/%3Cimg")
    assert not browser.attacked() and browser.serious_findings() == []
    # The address is that of the episode: a new visitor sees the same.
    browser.open(url, shown.removeprefix("#/"))
    browser.read("5 steps")
    browser.find("//main//a[.='Evaluation new']").click()
    browser.read("10 of 10")
    browser.find("//main//a[.='All its episodes']").click()
    browser.read("1 episode")
    assert address_of(browser) == "#/evaluations/new/records"
    browser.find("//main//tbody//th/a").click()
    browser.read("5 steps")
    assert re.fullmatch(r"#/evaluations/new/records/[0-9a-f]{16}", address_of(browser))


def test_the_keyboard_alone_leads_from_an_evaluation_to_its_episode(browser: Visitor, url: str) -> None:
    browser.width(390)
    browser.open(url, "evaluations")
    browser.read("3 evaluations")
    go_by_keyboard(browser, "new")
    browser.read("10 of 10")
    assert browser.browser.execute_script("return document.documentElement.scrollWidth") <= 390
    go_by_keyboard(browser, "All its episodes")
    browser.read("1 episode")
    browser.until(lambda _: browser.all("main tbody th a"))
    go_by_keyboard(browser, browser.all("main tbody th a")[0].text)
    browser.read("5 steps")


def test_an_evaluation_without_a_record_is_shown_and_a_missing_one_is_said_to_be(browser: Visitor, url: str) -> None:
    browser.width(1280)
    browser.open(url, "evaluations")
    browser.find(f"//main//tbody//a[.='{FEW}']").click()
    browser.read("has no record")
    assert address_of(browser) == "#/evaluations/deep%2Fof%20few%20%26%20%231%3F%252F"
    assert browser.all("main td a") == []
    browser.open(url, "evaluations/another")
    browser.read("there is no evaluation 'another' below the folder")
    browser.open(url, "evaluations/new/records/another")
    browser.read("No such episode")


def css(text: str) -> str:
    """Return a text for a quoted value of a selector."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def go_by_keyboard(browser: Visitor, text: str) -> None:
    """Press Tab until the link with a text has the focus, and then Enter."""
    for _ in range(60):
        focused = browser.browser.switch_to.active_element
        if focused.tag_name == "a" and focused.text == text:
            focused.send_keys(Keys.ENTER)
            return
        focused.send_keys(Keys.TAB)
    raise AssertionError(f"the keyboard does not reach {text!r}")
