"""The page that plays an episode, in Debian's Chromium, against a served world."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.support.ui import Select
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
STATIC = HERE.parents[2] / "mcpenv" / "server" / "console" / "static"
BUDGET = 150_000
"""The most bytes that the files of the console have together."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started(HERE, "run", "console_world.py:ConsoleWorld", "--port", "0") as server:
        yield server.url()


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@pytest.fixture
def visitor(browser: Visitor, url: str) -> Visitor:
    browser.width(1280)
    browser.play(url)
    return browser


def test_a_member_of_a_union_is_picked_by_its_discriminator(visitor: Visitor) -> None:
    visitor.press("take_shape")
    Select(visitor.find("//select[@aria-label='Kind of shape']")).select_by_visible_text("box")
    visitor.type("sides 1", "2")
    visitor.type("sides 2", "3")
    visitor.call()
    visitor.see("box")


def test_a_number_out_of_range_is_refused_at_its_field(visitor: Visitor) -> None:
    visitor.press("take_shape")
    visitor.type("radius", "101")
    visitor.call()
    assert visitor.find("//input[@aria-invalid='true']/following-sibling::p[@class='error']").text == "At most 100."


def test_a_recursive_value_is_built_as_far_as_it_is_wanted(visitor: Visitor) -> None:
    visitor.press("take_tree")
    visitor.type("name", "root")
    visitor.find("//input[@aria-label='Give children']").click()
    visitor.press("Add to children")
    visitor.find("(//label[normalize-space()='name']/following-sibling::textarea)[2]").send_keys("leaf")
    visitor.call()
    visitor.see("root 1")


def test_a_file_is_sent_as_base64(visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\x00\xff")
    visitor.press("take_file")
    visitor.type("file", str(tmp_path / "data.bin"))
    visitor.find("//span[contains(., 'data.bin, 2 bytes')]")
    visitor.call()
    visitor.see("AP8=")


def test_what_the_server_refuses_stands_at_its_field(visitor: Visitor) -> None:
    visitor.press("take_formats")
    visitor.type("day", "01022024")
    visitor.type("id", "no uuid")
    visitor.type("page", "https://example.org/")
    visitor.browser.execute_script("arguments[0].value = '2024-01-02T03:04'", visitor.field("at"))
    visitor.call()
    field = visitor.find("//input[@aria-invalid='true']")
    assert field == visitor.field("id")
    assert "valid UUID" in visitor.errors()[0]


def test_nothing_that_a_tool_returns_is_run(visitor: Visitor) -> None:
    visitor.press("attack")
    visitor.call()
    visitor.see("onerror")
    assert not visitor.attacked()


def test_twenty_visitors_at_once_have_worlds_of_their_own(visitor: Visitor, url: str) -> None:
    tabs = [visitor.browser.current_window_handle]
    while len(tabs) < 20:
        visitor.browser.switch_to.new_window("tab")
        visitor.play(url)
        tabs.append(visitor.browser.current_window_handle)
    for number, tab in enumerate(tabs):
        visitor.browser.switch_to.window(tab)
        visitor.press("take_tree")
        visitor.type("name", f"visitor-{number}")
        visitor.call()
        visitor.see("1. take_tree")  # the first call of its own episode
        visitor.see(f"visitor-{number} 0")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_no_serious_finding(visitor: Visitor, width: int, theme: str) -> None:
    visitor.width(width)
    visitor.theme(theme)
    visitor.press("take_rest")
    assert visitor.serious_findings() == []
    visitor.press("attack")
    visitor.call()
    visitor.see("onerror")
    assert visitor.serious_findings() == []


def test_the_modules_are_typed_strictly() -> None:
    compiler = Path(os.environ["MCPENV_NODE_MODULES"]) / ".bin" / "tsc"
    options = ["--noEmit", "--checkJs", "--allowJs", "--strict", "--target", "es2022", "--module", "esnext"]
    libraries = ["--lib", "es2022,dom,dom.iterable", "--moduleResolution", "bundler"]
    done = subprocess.run(
        [
            str(compiler),
            *options,
            *libraries,
            *map(str, [STATIC.parent / "types.d.ts", *sorted(STATIC.glob("*.js"))]),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


def test_the_files_stay_below_their_budget() -> None:
    assert sum(file.stat().st_size for file in STATIC.rglob("*") if file.is_file()) < BUDGET


def test_no_module_makes_elements_from_text() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser")
    assert [file.name for file in STATIC.rglob("*.js") if sinks.search(file.read_text(encoding="utf-8"))] == []
