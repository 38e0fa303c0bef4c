"""The environment's own view in the page that plays an episode, in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command_line import started

from mcpenv_client import EnvClient

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]


@pytest.fixture(scope="module")
def visitor() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@contextmanager
def within_the_view(visitor: Visitor) -> Iterator[None]:
    frame = visitor.find("//section[@aria-label='View']/iframe")
    # The driver would scroll what is in the frame under the page's header.
    visitor.browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", frame)
    visitor.browser.switch_to.frame(frame)
    try:
        yield
    finally:
        visitor.browser.switch_to.default_content()


def test_a_view_is_told_of_calls_makes_some_and_cannot_break_out(visitor: Visitor) -> None:
    with started(HERE, "run", "view_world.py:ViewWorld", "--port", "0", "--drain-s", "0") as server:
        visitor.play(server.url())
        visitor.type("by", "5")
        visitor.call()
        visitor.see("1. add")
        with within_the_view(visitor):
            visitor.see("count 5", "//body")
            visitor.see("refused: parent, storage, cookie; no network", "//body")
            visitor.press("Add two")
            visitor.see("answer 7", "//body")
        visitor.see("2. add")
        visitor.press("Undo")
        visitor.see("Undone: add")
        with within_the_view(visitor):
            visitor.see("count 5", "//body")
        assert visitor.serious_findings() == []


def test_a_slider_shows_each_step_of_a_record_with_its_world_and_view(visitor: Visitor, tmp_path: Path) -> None:
    record = str(tmp_path / "record")
    arguments = ("view_world.py:ViewWorld", "--port", "0", "--drain-s", "0", "--record", record)
    with started(HERE, "run", *arguments) as server:
        url = server.url()
        with EnvClient(url).sync() as env:
            episode = env.reset(seed=1).info["episode_id"]
            for by in (5, 1, 3):
                env.call_tool("add", {"by": by})
            env.end()
        visitor.open(url, f"records/{episode}?step=2")
        time = "//section[@aria-label='Time']"
        visitor.see("2. add", time)
        visitor.find("//input[@id='looks']").click()
        visitor.see("Changed since step 1", time)
        for key, count in ((Keys.RIGHT, 9), (Keys.HOME, None), (Keys.RIGHT, 5)):
            visitor.find("//input[@id='time']").send_keys(key)
            if count is None:
                visitor.see("Reset", time)
                continue
            visitor.until(lambda _, count=count: shown_count(visitor) == f"count {count}")
        assert visitor.browser.execute_script("return location.hash").endswith("step=1")
        assert visitor.serious_findings() == []
        assert httpx.get(f"{url}/records").json()["total"] == 1, "a look is not recorded"
        visitor.browser.refresh()
        visitor.see("1. add", time)


def shown_count(visitor: Visitor) -> str:
    frame = visitor.browser.find_element(By.CSS_SELECTOR, "[aria-label=Time] iframe")
    visitor.browser.switch_to.frame(frame)
    try:
        return str(visitor.browser.find_element(By.ID, "count").text)
    finally:
        visitor.browser.switch_to.default_content()


def test_the_maze_draws_the_rooms_that_were_seen(visitor: Visitor) -> None:
    with started(ROOT, "run", "envs/maze_mcp", "--port", "0", "--drain-s", "0") as server:
        visitor.play(server.url())
        visitor.press("look")
        visitor.call()
        visitor.see("1. look")
        with within_the_view(visitor):
            visitor.find("//*[name()='circle']")
            assert len(visitor.all("rect.room")) > 1


@pytest.mark.parametrize(("width", "height"), [(1280, 700), (390, 844)])
def test_the_result_of_a_call_and_the_button_for_the_next_are_both_in_the_window(
    visitor: Visitor, width: int, height: int
) -> None:
    def inside(element: WebElement) -> bool:
        box = visitor.browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", element)
        return bool(box["top"] >= 0 and box["bottom"] <= height)

    def height_of_the_page_in(frame: WebElement) -> int:
        visitor.browser.switch_to.frame(frame)
        try:
            visitor.find("//*[name()='circle']")
            return int(visitor.browser.execute_script("return document.body.scrollHeight"))
        finally:
            visitor.browser.switch_to.default_content()

    with started(ROOT, "run", "envs/maze_mcp", "--port", "0", "--drain-s", "0") as server:
        visitor.width(width, height)
        visitor.open(server.url(), "play")
        visitor.type("Task", "train-3")
        visitor.press("Start an episode")
        visitor.see("Start")
        visitor.press("walk")
        for number, way in enumerate(("north", "south", "north"), 1):
            visitor.choose("direction", way)
            visitor.call()
            visitor.see(f"{number}. walk")
            view = visitor.find("//section[@aria-label='View']/iframe")
            visitor.until(lambda _, view=view: view.size["height"] == height_of_the_page_in(view) + 2)
            assert inside(visitor.find("//section[@aria-label='Result']//h2")), number
            assert inside(visitor.find("//button[normalize-space()='Call']")), number
