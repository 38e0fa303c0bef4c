"""Reviews of an episode by two people, and its neighbours in the list, in Debian's Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpenv.extensions.exports.files import ExportOptions, export
from mcpenv.extensions.records.reviews import Reviews, agreements
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tasks import Task

pytest.importorskip("selenium", reason="a browser is driven by it")

from console_world import ConsoleWorld
from selenium.webdriver.common.action_chains import ActionChains
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

ATTACK = "<img src=x onerror=attack()>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


def record(folder: Path) -> None:
    with Recorder(folder) as recorder:
        for number, each in enumerate("abc"):
            step = StepRecord(ToolCall("add", {"by": number}, 1), ToolOutcome.returned(each, 0.1), reward=Reward(0.5))
            task = Task(id="t", prompt="Count.")
            trajectory = Trajectory(each, task=task, steps=[step], started_at=1.0 + number, ended_at=2.0 + number)
            recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("count")))


def press(browser: Visitor, keys: str) -> None:
    browser.browser.execute_script("document.activeElement?.blur()")
    ActionChains(browser.browser).send_keys(keys).perform()


def test_two_raters_review_by_keys_and_their_preferences_are_exported(browser: Visitor, tmp_path: Path) -> None:
    record(tmp_path)
    with serving(ConsoleWorld, ServerConfig(record=tmp_path)) as url:
        browser.width(1280)
        browser.open(url, "records/c")
        browser.read("Nobody has reviewed this episode.")
        press(browser, "5")
        browser.read("a review has a rater")
        assert "#/records/c" in browser.browser.current_url, "a digit rates here, and leads nowhere"
        for rater, ratings in (("Ann", "531"), ("Bob", "411")):
            browser.open(url, "records/c")
            browser.find("//summary[.='Your review']").click()
            browser.type("Your name", rater)
            for name, digit in zip("cba", ratings, strict=True):
                browser.until(lambda _, name=name: browser.find("//h1/code").text == name)
                browser.read("of 3")
                press(browser, digit)
                browser.until(lambda _, said=f"Saved: {digit}.": said in browser.find("//*[@id='notice']").text)
                press(browser, "]")
        browser.open(url, "records/c")
        browser.read("Bob")
        rows = [row.text for row in browser.all("[aria-label=Reviews] tbody tr")]
        assert [row.split()[:2] for row in rows] == [["Ann", "5"], ["Bob", "4"]]
        browser.find("//summary[.='Your review']").click()
        browser.type("Tags", f"loop, {ATTACK}")
        browser.type("Note", ATTACK)
        browser.press("Save")
        browser.until(lambda _: ATTACK in browser.find("//*[@aria-label='Reviews']").text)
        for width in (1280, 390):
            browser.width(width)
            assert browser.serious_findings() == []
            assert browser.browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert not browser.attacked()
    said = Reviews(tmp_path).said()
    assert {each: [one.rating for one in reviews] for each, reviews in said.items()} == {
        "c": [5, 4],
        "b": [3, 1],
        "a": [1, 1],
    }
    (agreed,) = agreements(said)
    assert agreed.episodes == 3 and agreed.close == pytest.approx(2 / 3) and agreed.kappa is not None
    out = tmp_path / "pairs.jsonl"
    assert export([(each, []) for each in read_episodes(tmp_path)], "dpo", out, ExportOptions(reviews=said)) == 2
    assert [json.loads(line)["rejected_rating"] for line in out.read_text().splitlines()] == [1.0, 2.0]


def test_what_is_typed_before_the_name_stays_and_is_saved_when_the_page_is_left(
    browser: Visitor, tmp_path: Path
) -> None:
    record(tmp_path)
    with serving(ConsoleWorld, ServerConfig(record=tmp_path)) as url:
        browser.width(1280)
        browser.open(url, "records/c")
        browser.read("of 3")
        browser.find("//summary[.='Your review']").click()
        browser.type("Note", "It repeats itself.")
        press(browser, "4")
        browser.read("a review has a rater")
        browser.type("Your name", "Ann")
        press(browser, "]")
        browser.until(lambda _: "Saved: 4." in browser.find("//*[@id='notice']").text)
        browser.read("of 3")
        press(browser, "3")
        press(browser, "2")
        press(browser, "]")
        browser.until(lambda _: "Saved: 2." in browser.find("//*[@id='notice']").text)
    said = Reviews(tmp_path).said()
    assert [(one.rater, one.rating, one.note) for one in said["c"]] == [("Ann", 4, "It repeats itself.")]
    assert [(one.rater, one.rating) for one in said["b"]] == [("Ann", 2)]


def test_brackets_lead_to_the_neighbours_in_the_order_of_the_list(browser: Visitor, tmp_path: Path) -> None:
    record(tmp_path)
    with serving(ConsoleWorld, ServerConfig(record=tmp_path)) as url:
        browser.open(url, "records/c?sort=started&where=id+!%3D+%22b%22")
        browser.read("Episode 2 of 2")
        press(browser, "[")
        browser.read("Episode 1 of 2")
        assert browser.find("//h1/code").text == "a" and "where=" in browser.browser.current_url
        press(browser, "[")
        assert browser.find("//h1/code").text == "a", "there is none before the first"
