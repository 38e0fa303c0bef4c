"""JSON that folds, in Debian's Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from record_worlds import Dice

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.keys import Keys
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

SMALL = {"name": 'a "quoted" <b>name</b>', "big": 2**60, "nested": {"list": [True, None, -1.5e3], "empty": {}}}
BIG = {"rows": [{"number": number, "text": "x" * 80} for number in range(20_000)], "last": "end"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        visitor.width(1280)
        yield visitor


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    record = tmp_path_factory.mktemp("record")
    with Recorder(record) as recorder:
        for name, value in (("small", SMALL), ("big", BIG)):
            steps = [StepRecord(ToolCall("look", {}, 1), ToolOutcome.returned(json.dumps(value), 0.1))]
            recorder.write(RecordedEpisode(Trajectory(name, steps=steps), RecordedEnvironment("World")))
    with serving(Dice, ServerConfig(record=record)) as url:
        yield url


def test_a_small_object_is_open_and_coloured_and_its_text_is_its_json(browser: Visitor, url: str) -> None:
    browser.open(url, "records/small")
    shown = browser.find("//pre[@aria-label='JSON']")
    assert json.loads(shown.text) == SMALL
    colours = {each.text: each.get_attribute("class") for each in browser.all("pre[aria-label=JSON] span[class^=ansi]")}
    assert [colours[each] for each in ('"name": ', str(2**60), "true", "null", "-1500")] == [
        "ansi-4",
        *["ansi-5"] * 4,
    ]
    assert colours['"a \\"quoted\\" <b>name</b>"'] == "ansi-2"
    assert not browser.attacked() and browser.serious_findings() == []


def test_a_big_one_is_drawn_as_far_as_it_is_opened_by_keyboard(browser: Visitor, url: str) -> None:
    browser.open(url, "records/big")
    inside = "//pre[@aria-label='JSON']"
    rows = browser.find(f"{inside}//summary[contains(., '\"rows\"')]")
    assert rows.text == '"rows": [ 20000 ]' and browser.find(inside).text.endswith('"last": "end"\n}')
    assert len(browser.all("pre[aria-label=JSON] *")) < 20
    rows.send_keys(Keys.ENTER)
    more = browser.find(f"{inside}//summary[.='19800 more']")
    assert '{"number": 199' not in browser.find(inside).text.replace(" ", "")
    assert len(browser.all("pre[aria-label=JSON] details")) == 1 + 1 + 200 + 1
    more.send_keys(Keys.ENTER)
    browser.find(f"{inside}//summary[.='19600 more']")
    rows.send_keys(Keys.ENTER)
    browser.until(lambda _: rows.text == '"rows": [ 20000 ]')
    assert browser.serious_findings() == []
