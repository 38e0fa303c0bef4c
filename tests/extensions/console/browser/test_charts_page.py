"""The charts of a recorded episode, in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from record_worlds import Dice

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.action_chains import ActionChains
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        visitor.width(1280)
        yield visitor


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def url(record: Path) -> Iterator[str]:
    with serving(Dice, ServerConfig(record=record)) as url:
        yield url


def step(number: int, started_at: float, scoring_s: float) -> StepRecord:
    outcome = ToolOutcome.returned("1", 0.1)
    return StepRecord(ToolCall("roll", {}, number), outcome, started_at=started_at, scoring_s=scoring_s)


def write(record: Path, trajectory: Trajectory) -> None:
    with Recorder(record) as recorder:
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("dice")))


def test_the_time_of_scoring_is_drawn_after_the_tools_and_before_the_end(
    browser: Visitor, record: Path, url: str
) -> None:
    steps = [step(1, 1.0, 0.2), step(2, 1.5, 0.0)]
    write(record, Trajectory("e1", steps=steps, started_at=1.0, ended_at=2.0, terminated=True, end_scoring_s=0.25))
    browser.open(url, "records/e1")
    browser.read("Tools 200 ms, scoring 450 ms, else 350 ms: the model and the connection.")
    browser.read("in scoring")
    (spans,) = browser.all(".chart.low .part-2")
    # The chart is 600 wide for the second that the episode took.
    assert spans.get_attribute("d") == "M60.00 6h120.00v28h-120.00zM450.00 6h150.00v28h-150.00z"


def test_the_time_has_an_axis_with_values_that_lead_to_the_step(browser: Visitor, record: Path, url: str) -> None:
    steps = [step(1, 1.0, 0.2), step(2, 1.5, 0.0)]
    write(record, Trajectory("e1", steps=steps, started_at=1.0, ended_at=2.0, terminated=True, end_scoring_s=0.25))
    browser.open(url, "records/e1")
    axis = browser.find("//input[@aria-label='Steps of: Time']")
    assert browser.find("//div[@class='axis'][input[@aria-label='Steps of: Time']]").text == "0 ms\n1.0 s"
    for place, told in ((15, "50 ms: 1. roll"), (60, "200 ms: scoring"), (120, "400 ms: between them")):
        browser.browser.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", axis, place
        )
        browser.read(told)
        assert axis.get_attribute("aria-valuetext") == told
    plot = browser.find("//figure[.//strong[.='Time']]//div[contains(@class, 'plot')]")
    browser.browser.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", plot)
    at = int(plot.size["width"] * (0.55 - 0.5))
    ActionChains(browser.browser).move_to_element_with_offset(plot, at, 0).click().perform()
    browser.until(lambda _: "step=2" in browser.browser.execute_script("return location.hash"))


def test_a_record_without_times_of_scoring_has_them_in_the_rest(browser: Visitor, record: Path, url: str) -> None:
    write(record, Trajectory("e1", steps=[step(1, 1.0, 0.0)], started_at=1.0, ended_at=2.0, terminated=True))
    browser.open(url, "records/e1")
    browser.read("Tools 100 ms, else 900 ms: the model, scoring and the connection.")
    assert "in scoring" not in browser.find("//main").text


def test_the_only_reward_is_a_dot_that_can_be_seen(browser: Visitor, record: Path, url: str) -> None:
    write(record, Trajectory("e1", steps=[step(1, 1.0, 0.0)], started_at=1.0, ended_at=2.0, end_reward=Reward(0.5)))
    browser.open(url, "records/e1")
    browser.read("0.5 after 1 reward.")
    (line,) = browser.all(".curve")
    drawn = browser.browser.execute_script(
        "const line = arguments[0], at = line.getPointAtLength(0);"
        "return [3, -3].map((by) => [new DOMPoint(at.x + by, at.y), new DOMPoint(at.x, at.y + by)])"
        ".flat().every((point) => line.isPointInStroke(point))",
        line,
    )
    assert drawn is True


def test_a_part_is_not_stacked_on_its_own_parts(browser: Visitor, record: Path, url: str) -> None:
    reward = Reward(0.75, {"verified": 0.75, "verified/key": 0.5, "verified/escaped": 0.25})
    write(record, Trajectory("e1", steps=[step(1, 1.0, 0.0)], started_at=1.0, ended_at=2.0, end_reward=reward))
    browser.open(url, "records/e1")
    browser.read("Parts: verified/key, verified/escaped.")
    browser.read("0 to 0.75")
    browser.find("//summary[.='As a table']").click()
    browser.find("//div[@aria-label='Values']")  # the browser tells of the click later
    heads = [each.text for each in browser.all("div[aria-label='Values'] thead th")]
    assert heads == ["Step", "Reward", "Return", "verified", "verified/key", "verified/escaped"]
