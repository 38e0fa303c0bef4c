"""Play as a workshop: an episode that leaving and reloading do not end, a hundred tools, calls that are cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
HISTORY = "//section[@aria-label='History']"
TOOLS = "//div[@aria-label='Tools']"
RUNNING = "//section[@aria-label='Running']"
NOTICE = "//div[@id='notice']"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started(HERE, "run", "workshop_world.py:WorkshopWorld", "--port", "0", "--drain-s", "0") as server:
        yield server.url()


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@pytest.fixture
def visitor(browser: Visitor, url: str) -> Visitor:
    browser.width(1440)
    browser.play(url)
    return browser


def add(visitor: Visitor, by: str) -> None:
    visitor.press("add")
    visitor.type("by", by)
    visitor.call()


def test_the_episode_goes_on_after_another_page_was_shown(visitor: Visitor, url: str) -> None:
    add(visitor, "3")
    visitor.see("1. add")
    visitor.type("by", "5")
    visitor.find("//a[.='Live']").click()
    visitor.read("Opened by")
    visitor.find("//a[.='Play']").click()
    visitor.see("1. add", HISTORY)
    assert visitor.field("by").get_property("value") == "5"
    visitor.call()
    visitor.see("8")
    visitor.press("Undo")
    visitor.see("Undone: add")


def test_the_episode_goes_on_after_the_page_was_loaded_anew(visitor: Visitor) -> None:
    add(visitor, "3")
    visitor.see("1. add")
    visitor.type("by", "5")
    visitor.give("word")
    visitor.type("word", "BAD")  # what is wrong is kept, too
    visitor.press("orders_look_3")
    visitor.press("Edit as JSON")
    visitor.find("//textarea[@aria-label='Arguments as JSON']").send_keys(Keys.END, "unfinished")
    visitor.until(
        lambda browser: "unfinished" in browser.execute_script("return JSON.stringify({ ...sessionStorage })")
    )
    visitor.browser.refresh()
    visitor.see("The episode goes on where this page was left.", NOTICE)
    visitor.see("1. add", HISTORY)
    visitor.see("The state is unchanged")  # but for the count of steps
    visitor.find("//summary[.='Let an MCP agent play this episode']")
    box = visitor.find("//textarea[@aria-label='Arguments as JSON']")
    assert "unfinished" in str(box.get_property("value"))
    visitor.press("add")
    assert [visitor.field(name).get_property("value") for name in ("by", "word")] == ["5", "BAD"]
    visitor.type("word", "good")
    visitor.call()
    visitor.see("8")
    visitor.press("Undo")  # by a snapshot from before the reload
    visitor.see("Undone: add")
    visitor.press("Undo")
    visitor.until(lambda _: "1. add" not in visitor.find(HISTORY).text)


def test_results_that_are_too_large_to_be_kept_are_said_not_to_be(visitor: Visitor) -> None:
    add(visitor, "3")
    visitor.see("1. add")
    visitor.press("print_much")
    visitor.call()
    visitor.see("2. print_much", HISTORY)
    visitor.browser.refresh()
    visitor.see("The episode goes on where this page was left.", NOTICE)
    visitor.see("2. print_much", HISTORY)
    visitor.see("Its result was too large to be kept when the page was loaded anew.")
    add(visitor, "4")
    visitor.see("7")


def test_a_session_that_has_ended_meanwhile_is_said_to_have_and_its_calls_can_be_made_again(
    visitor: Visitor, url: str
) -> None:
    add(visitor, "3")
    visitor.see("1. add")
    visitor.browser.get("about:blank")
    for session in httpx.get(f"{url}/sessions").json()["sessions"]:
        httpx.delete(f"{url}/sessions/{session['session_id']}")
    visitor.browser.get(f"{url}/console/#/play")
    visitor.read("Your calls are still here.")
    visitor.press("Play 1 call again")
    visitor.see("1. add")
    visitor.see("3")


def test_a_lost_connection_is_no_lost_episode(visitor: Visitor) -> None:
    add(visitor, "3")
    visitor.see("1. add")
    visitor.offline(True)
    visitor.offline(False)
    visitor.type("by", "4")
    visitor.call()
    visitor.see("7")


def test_a_hundred_tools_are_grouped_searched_and_listed_as_used(visitor: Visitor) -> None:
    assert len(visitor.all(".tools button")) == 102
    assert [each.text.split()[0] for each in visitor.all(".tools summary")][:2] == ["orders", "mails"]
    visitor.find("//h1").click()
    visitor.browser.switch_to.active_element.send_keys("/")
    visitor.browser.switch_to.active_element.send_keys("mails 7")
    visitor.until(lambda _: [each.text for each in visitor.all(".tools button")] == ["mails_look_7"])
    visitor.browser.switch_to.active_element.send_keys(Keys.ENTER)
    visitor.see("mails_look_7", "//div[@aria-label='Form of the tool']")
    visitor.call()
    visitor.see("mails 7")
    visitor.find("//input[@aria-label='Search tools']").clear()
    visitor.find("//input[@aria-label='Search tools']").send_keys(" ", Keys.BACKSPACE)
    visitor.until(lambda _: visitor.all(".tools summary")[0].text.startswith("Used last"))
    assert visitor.all(".tools button")[0].text == "mails_look_7"
    board = visitor.find(TOOLS)
    assert board.get_property("scrollHeight") > board.get_property("clientHeight") < 900
    assert visitor.serious_findings() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_hundred_tools_fit_a_phone(visitor: Visitor, theme: str) -> None:
    visitor.width(390)
    visitor.theme(theme)
    assert visitor.find(TOOLS).rect["height"] < 300
    visitor.press("orders_look_3")
    form = visitor.find("//div[@aria-label='Form of the tool']")
    visitor.until(
        lambda browser: 0 <= browser.execute_script("return arguments[0].getBoundingClientRect().top", form) < 500
    )
    assert visitor.browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert visitor.serious_findings() == []


def test_a_slow_call_is_shown_and_cancelled_and_nothing_is_dropped_in_silence(visitor: Visitor) -> None:
    visitor.press("wait")
    visitor.call()
    visitor.see("Running wait", RUNNING)
    visitor.see("3 of 7 halfway", RUNNING)
    visitor.see("info: waiting for a cancel", RUNNING)
    visitor.until(lambda _: re.fullmatch(r"[1-9][\d.]* s", visitor.find(f"{RUNNING}//strong").text))
    visitor.press("End")
    visitor.see("Not done: ending the episode. The page waits for: calling wait.", NOTICE)
    assert visitor.serious_findings() == []
    visitor.press("Cancel the call")
    visitor.see("wait was cancelled.")
    visitor.until(lambda _: not visitor.find(RUNNING).is_displayed())
    add(visitor, "3")
    visitor.see("3")


def test_every_fault_is_marked_at_once_and_what_is_allowed_is_always_said(visitor: Visitor) -> None:
    visitor.press("add")
    form = visitor.find("//div[@aria-label='Form of the tool']").text
    assert "integer, at least 1, at most 9. How much." in form
    assert "text, at most 5 characters, matches ^[a-z]+$." in form  # before it is given
    visitor.type("by", "10")
    visitor.give("word")
    visitor.type("word", "UPPER")
    visitor.field("word").send_keys(Keys.CONTROL, Keys.ENTER)
    visitor.until(lambda _: visitor.errors() == ["At most 9.", "It does not match ^[a-z]+$"])
    visitor.read("2 values are wrong.")
    assert visitor.browser.switch_to.active_element == visitor.field("by")
    visitor.type("by", "9")
    visitor.type("word", "lower")
    visitor.field("word").send_keys(Keys.CONTROL, Keys.ENTER)
    visitor.see("1. add")


def test_an_empty_text_of_json_is_an_empty_form(visitor: Visitor) -> None:
    visitor.press("orders_look_3")
    visitor.press("Edit as JSON")
    visitor.browser.find_element(By.CSS_SELECTOR, "textarea").clear()
    visitor.call()
    visitor.see("orders 3")
    visitor.press("Back to the form")
    visitor.read("It takes no arguments.")
