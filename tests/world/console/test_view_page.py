"""The environment's own view in the page that plays an episode, in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


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
    with started(HERE, "run", "view_world.py:ViewWorld", "--port", "0") as server:
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


def test_the_maze_draws_the_rooms_that_were_seen(visitor: Visitor) -> None:
    with started(ROOT, "run", "envs/maze_mcp", "--port", "0") as server:
        visitor.play(server.url())
        visitor.press("look")
        visitor.call()
        visitor.see("1. look")
        with within_the_view(visitor):
            visitor.find("//*[name()='circle']")
            assert len(visitor.all("rect.room")) > 1
