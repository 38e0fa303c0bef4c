"""What a newcomer meets on the page that plays: a task, leaving, JSON by hand, code to copy, a server that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

from mcpenv_client import EnvClient

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
TOKEN = "a-token-for-the-first-visit"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started(HERE, "run", "guess_world.py", "--port", "0", "--drain-s", "0", MCPENV_CONTROL_TOKEN=TOKEN) as server:
        yield server.url()


@pytest.fixture(scope="module")
def browser(url: str) -> Iterator[Visitor]:
    with visiting() as visitor:
        visitor.open(url, "play")
        visitor.type("Control token", TOKEN)
        visitor.press("Sign in")
        visitor.read("Guess a number.")
        yield visitor


@pytest.fixture
def visitor(browser: Visitor, url: str) -> Visitor:
    browser.play(url)
    return browser


def test_all_of_the_first_observation_is_shown(visitor: Visitor) -> None:
    visitor.see("Guess a number from 1 to 100.")


def test_json_is_edited_before_any_field_has_a_value(visitor: Visitor) -> None:
    visitor.press("guess")
    visitor.press("Edit as JSON")
    box = visitor.find("//textarea[@aria-label='Arguments as JSON']")
    assert json.loads(str(box.get_property("value"))) == {}
    box.clear()
    box.send_keys('{"number": 7}')
    visitor.press("Back to the form")
    assert visitor.field("number").get_property("value") == "7"
    visitor.type("number", "")
    visitor.press("Edit as JSON")
    assert json.loads(str(box.get_property("value"))) == {}


def test_json_is_indented_and_no_number_of_it_changes(visitor: Visitor) -> None:
    visitor.press("guess")
    visitor.type("number", "7")
    visitor.call()
    visitor.see('"share": 0.1234567890123456,\n')
    visitor.press("huge")
    visitor.call()
    visitor.see('"huge": 12345678901234567890,\n')


def test_the_copied_code_of_a_server_with_a_token_runs(visitor: Visitor, url: str) -> None:
    visitor.press("guess")
    visitor.type("number", "7")
    visitor.call()
    visitor.see("1. guess")
    visitor.find("//summary[.='The same as code']").click()
    programs = {name: visitor.find(f"//pre[@aria-label='{name}']").text for name in ("Python", "curl")}
    visitor.press("End")
    visitor.see("The episode is over")
    visitor.find("//a[.='Live']").click()  # another page lets go of the only session, as its episode is over
    visitor.read("Opened by")
    environment = os.environ | {"MCPENV_CONTROL_TOKEN": TOKEN}
    assert TOKEN not in "".join(programs.values())
    for command in ([sys.executable, "-c", programs["Python"]], ["sh", "-c", programs["curl"]]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert "0.1234567890123456" in done.stdout, done


def test_a_visitor_of_a_full_server_reads_that_it_is_full(browser: Visitor) -> None:
    with started(HERE, "run", "guess_world.py", "--port", "0", "--drain-s", "0") as server:
        url = server.url()
        with EnvClient(url).sync() as other:
            other.reset()
            browser.begin_anew(url)
            browser.open(url, "play")
            browser.press("Start an episode")
            browser.see("All 1 sessions of this server are taken. Waiting for one to end.", "//div[@id='notice']")
        browser.see("Start")
        browser.until(lambda _: not browser.find("//div[@id='notice']").text)
        assert httpx.get(f"{url}/capacity").json()["active_sessions"] == 1
