"""Pages to share, opened from the disk in Debian's Chromium: nothing runs, nothing is fetched, and all can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attacked_record import attacked
from exported import export, record

from mcpenv.extensions.exports.page import episode_page
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

pytest.importorskip("selenium", reason="a browser is driven by it")

from console_world import ConsoleWorld
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


def test_no_script_of_an_attacking_record_runs(browser: Visitor, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(episode_page(attacked(tmp_path / "record")), encoding="utf-8")
    browser.complaints()
    browser.browser.get(file.as_uri())
    browser.read("attack_by_keys")
    assert not browser.attacked()
    # An <img> shows an SVG and runs nothing of it; the one of a PNG's name is no image, and says so.
    assert browser.complaints() == []
    assert browser.browser.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_of_episodes_fits_its_screen_and_can_be_read(
    browser: Visitor, tmp_path: Path, width: int, theme: str
) -> None:
    record(tmp_path / "record")
    file = export(tmp_path / "record", "html", "page.html")
    browser.width(width)
    browser.theme(theme)
    browser.browser.get(file.as_uri())
    assert browser.serious_findings() == []
    assert browser.browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(244, 246, 249)", "dark": "rgb(18, 21, 27)"}[theme]
    browser.find("//a[@href='#episode-3']").click()
    assert browser.browser.execute_script("return scrollY") > 0


def test_the_console_links_to_the_file_of_an_episode(browser: Visitor, tmp_path: Path) -> None:
    attacked(tmp_path)
    browser.width(1280)
    with serving(ConsoleWorld, ServerConfig(record=tmp_path)) as url:
        browser.open(url, "records")
        browser.find("//a[starts-with(@id, 'episode-')]").click()
        link = browser.find("//a[.='Save as one HTML file']")
        answer = browser.browser.execute_async_script(
            "const done = arguments[1]; fetch(arguments[0]).then(async (found) => "
            "done([found.status, found.headers.get('Content-Disposition'), await found.text()]))",
            link.get_attribute("href"),
        )
    status, disposition, text = answer
    assert status == 200 and disposition.startswith("attachment") and text.startswith("<!doctype html>")
