"""Why an episode has its reward, on the page of its record, live and in its shared file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpenv import ANY, Evidence, MCPEnvironment, ObjectWorld, Verdict
from mcpenv.extensions.exports.page import episode_page
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

ATTACK = "<img src=x onerror=attack()>"


class Shop(MCPEnvironment):
    """A stock and its orders."""

    def __init__(self) -> None:
        self.stock: dict[str, Any] = {}
        self.world = ObjectWorld(lambda: self.stock, self.stock.update)

        @self.tool
        def put(name: str, value: Any) -> str:
            """Put something into the stock."""
            self.stock[name] = value
            return "done"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.stock = {"tea": 5, "notes": "old"}

    def verify(self, evidence: Evidence) -> Verdict:
        order = {"id": ANY, "of": {"name": "tea", "count": 3}}
        return evidence.changes.expect_exactly({"tea": 3, "order": order, "paid": True})


class Till(MCPEnvironment):
    """Take tea out of the stock."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.stock = {"tea": 5}
        self.world = ObjectWorld(lambda: self.stock, self.fill)

        @self.tool
        def take(count: int) -> int:
            """Take some tea."""
            self.stock["tea"] -= count
            return self.stock["tea"]

    def fill(self, stock: dict[str, int]) -> None:
        self.stock = stock

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.stock = {"tea": 5}

    def verify(self, evidence: Evidence) -> Verdict:
        return evidence.changes.expect_exactly({"tea": 3})


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


def test_the_evidence_of_an_end_stands_beside_what_was_expected(browser: Visitor, tmp_path: Path) -> None:
    with serving(Shop, ServerConfig(record=tmp_path)) as url:
        for count in (4, 3):
            with EnvClient(url).sync() as env:
                env.reset(episode_id=f"e{count}")
                env.call_tool("put", {"name": "tea", "value": 3})
                env.call_tool("put", {"name": "order", "value": {"id": 7, "of": {"name": "tea", "count": count}}})
                if count == 3:
                    env.call_tool("put", {"name": "paid", "value": True})
                else:
                    env.call_tool("put", {"name": "notes", "value": ATTACK})
                env.end()
        for width in (1440, 390):
            browser.width(width)
            browser.open(url, "records/e4")
            browser.read("Why this reward")
            rows = [
                [cell.text for cell in row.find_elements("css selector", "th, td")]
                for row in browser.all("[aria-label=Evidence] tbody tr")
            ]
            assert [(row[0], row[-1]) for row in rows] == [
                ("notes", "not expected"),
                ("order", "another value"),
                ("paid", "missing"),
                ("tea", "as expected"),
            ]
            assert rows[0][1:4] == ["old", "no change", ATTACK] and "any value" in rows[1][2]
            marked = browser.all("[aria-label=Evidence] .fields .error")
            assert [each.text for each in marked][:1] == ["of"]  # and not the id, for which any value is right
            assert browser.find("//meter[@aria-label='verified']").get_attribute("value") == "0"
            assert browser.serious_findings() == []
        browser.open(url, "records/e3")
        browser.read("as expected")
        assert "not expected" not in browser.find("//section[@aria-label='Why this reward']").text
        with EnvClient(url).sync() as env:
            env.reset(episode_id="idle")
            env.end()
        browser.open(url, "records/idle")
        browser.read("missing")
        (episode,) = [each for each in read_episodes(tmp_path) if each.id == "idle"]
        (tmp_path / "page.html").write_text(episode_page(episode), encoding="utf-8")
        browser.browser.get((tmp_path / "page.html").as_uri())
        browser.read("Why this reward")
        assert len(browser.all("[aria-label=Evidence] tbody tr")) == 3
        assert browser.serious_findings() == []
    assert not browser.attacked()


def test_an_episode_is_scored_while_it_is_played_and_goes_on(browser: Visitor) -> None:
    with serving(Till, ServerConfig(console=True)) as url:
        browser.width(1280)
        browser.play(url)
        browser.type("count", "1")
        for number, verdict in ((1, "another value"), (2, "as expected")):
            browser.call()
            browser.see(f"{number}. take")
            browser.press("Score now")
            browser.see(f"If it ended now: return {number - 1}")
            browser.see(verdict)
            assert browser.serious_findings() == []
        assert browser.find("//button[.='End']").is_enabled(), "the episode runs"
        browser.press("Undo")
        browser.see("Undone: take")
        browser.press("End")
        browser.see("The episode is over")
        browser.see("another value")
    assert not browser.attacked()
