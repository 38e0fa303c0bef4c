"""The page that plays an episode, in Debian's Chromium, against a served world."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import started
from fastmcp import Client

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
STATIC = HERE.parents[3] / "mcpenv" / "extensions" / "console" / "static"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started(HERE, "run", "console_world.py:ConsoleWorld", "--port", "0", "--drain-s", "0") as server:
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
    visitor.type("radius", "99")
    assert not visitor.all("[aria-invalid]") and not visitor.errors()


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


def test_texts_with_formats_are_taken(visitor: Visitor) -> None:
    visitor.press("take_formats")
    visitor.type("day", "01022024")
    visitor.type("id", "12345678-1234-4234-8234-123456789abc")
    visitor.type("page", "https://example.org/")
    visitor.browser.execute_script("arguments[0].value = '2024-01-02T03:04'", visitor.field("at"))
    visitor.call()
    visitor.see("2024-01-02 UTC 12345678-1234-4234-8234-123456789abc https://example.org/")


def test_choices_rows_any_json_nullables_and_defaults_are_taken(visitor: Visitor) -> None:
    visitor.press("take_rest")
    visitor.choose("colour", "green")
    visitor.press("Add a name")
    visitor.find("//input[@aria-label='Name']").send_keys("ann")
    visitor.type("value", "7")
    visitor.type("anything (JSON)", '{"any": [1, null]}')
    Select(visitor.find("//select[@aria-label='Kind of note']")).select_by_visible_text("null")
    visitor.call()
    visitor.see("green {'ann': 7} {'any': [1, None]} None ['a']")
    Select(visitor.find("//select[@aria-label='Kind of note']")).select_by_visible_text("string")
    visitor.type("string", "hello")
    visitor.give("tags")
    visitor.press("Add to tags")
    visitor.type("tags 2", "b")
    visitor.call()
    visitor.see("hello ['a', 'b']")


def test_objects_in_objects_and_tuples_are_taken(visitor: Visitor) -> None:
    visitor.press("take_nested")
    visitor.type("street", "Main St")
    visitor.choose("gift", "true")
    visitor.type("pair 1", "3")
    visitor.type("pair 2", "three")
    visitor.give("nights")
    visitor.type("integer", "2")
    visitor.call()
    visitor.see("""{"to":{"street":"Main St","city":"Bern"},"gift":true,"notes":[]} (3, 'three') 2""")


def test_arguments_can_be_edited_as_json_and_taken_back_to_the_form(visitor: Visitor) -> None:
    visitor.press("take_shape")
    visitor.type("radius", "1")
    visitor.press("Edit as JSON")
    box = visitor.find("//textarea[@aria-label='Arguments as JSON']")
    assert json.loads(str(box.get_property("value"))) == {"shape": {"kind": "circle", "radius": 1}}
    box.clear()
    box.send_keys('{"shape": {"kind": "box", "sides": [4, 5]}}')
    visitor.press("Back to the form")
    assert [visitor.field(f"sides {number}").get_property("value") for number in (1, 2)] == ["4", "5"]
    visitor.call()
    visitor.see("box")


def test_a_step_is_undone_by_a_snapshot(visitor: Visitor) -> None:
    for name in ("one", "two"):
        visitor.press("take_tree")
        visitor.type("name", name)
        visitor.call()
        visitor.see(f"{name} 0")
    visitor.press("Undo")
    visitor.see("Undone: take_tree")
    assert "2. take_tree" not in visitor.find("//section[@aria-label='History']").text
    visitor.see('"step_count": 1')


def test_ten_steps_are_undone_at_most(visitor: Visitor) -> None:
    visitor.press("take_tree")
    visitor.type("name", "leaf")
    for number in range(1, 13):
        visitor.call()
        visitor.see(f"{number}. take_tree")
    for left in range(11, 1, -1):
        visitor.press("Undo")
        visitor.see(f'"step_count": {left}')
    assert not visitor.find("//button[.='Undo']").is_enabled()
    visitor.find("//button[starts-with(@aria-label, 'Call again: step 1,')]").click()
    visitor.see("3. take_tree")
    visitor.press("Undo")
    visitor.see('"step_count": 2')


def test_an_agent_plays_the_episode_by_the_configuration_that_is_shown(visitor: Visitor) -> None:
    async def play(configuration: dict[str, Any]) -> str:
        async with Client(configuration) as agent:
            return str((await agent.call_tool("take_tree", {"tree": {"name": "agent"}})).data)

    visitor.find("//summary[.='Let an MCP agent play this episode']").click()
    shown = visitor.find("//details[summary[.='Let an MCP agent play this episode']]//pre").text
    assert asyncio.run(play(json.loads(shown))) == "agent 0"
    visitor.press("take_tree")
    visitor.type("name", "own")
    visitor.call()
    visitor.see("step_count 0 2")


def test_lists_keep_their_lengths_and_members_their_names(visitor: Visitor) -> None:
    visitor.press("take_named")
    assert [each.text for each in Select(visitor.find("//select[@aria-label='Kind of place']")).options] == [
        "Address",
        "Branch",
    ]
    add, remove = (
        visitor.find("//button[.='Add to few']"),
        visitor.find("//button[@aria-label='Remove an entry of few']"),
    )
    assert add.is_enabled() and not remove.is_enabled()
    add.click()
    assert not add.is_enabled() and remove.is_enabled()
    visitor.type("street", "Main St")
    visitor.type("few 1", "ab")
    visitor.type("few 2", "abc")
    visitor.call()
    assert visitor.errors() == ["At least 3 characters."]
    visitor.type("few 1", "abc")
    visitor.call()
    visitor.see("Main St ['abc', 'abc']")


def test_no_tool_is_called_after_the_end_until_another_episode_begins(visitor: Visitor) -> None:
    def callable_now() -> bool:
        button = visitor.find("//button[normalize-space()='Call']")
        note = visitor.browser.find_element(By.ID, str(button.get_attribute("aria-describedby")))
        assert note.get_attribute("role") == "status"
        assert note.text == ("" if button.is_enabled() else "The episode has ended. Begin another one to call tools.")
        return bool(button.is_enabled())

    visitor.press("leave")
    assert callable_now()
    visitor.call()
    visitor.see("1. leave")
    visitor.until(lambda _: not callable_now())
    assert visitor.serious_findings() == []
    visitor.press("take_tree")  # the form of another tool
    assert not callable_now()
    visitor.field("name").send_keys("late")
    visitor.find("//input[@aria-label='Give children']").send_keys(Keys.ENTER)
    assert "2. take_tree" not in visitor.find("//section[@aria-label='History']").text
    visitor.press("Undo")
    visitor.see("Undone: leave")
    assert callable_now()
    visitor.call()
    visitor.see("late 0")
    visitor.press("End")
    visitor.see("The episode is over")
    assert not callable_now()
    visitor.press("Start an episode")
    visitor.see("Start")
    visitor.until(lambda _: callable_now())


def test_an_end_that_the_environment_decided_is_no_warning(visitor: Visitor) -> None:
    visitor.press("leave")
    visitor.call()
    visitor.see("1. leave")
    ends = [
        visitor.find(path)
        for path in ("//span[.='terminated'][contains(@class, 'chip')]", "//h2//span[.='terminated']")
    ]
    plain = visitor.find("//h2").value_of_css_property("color")
    assert [each.value_of_css_property("color") for each in ends] == [plain, plain]


def test_the_first_task_of_the_split_is_chosen_until_another_one_is_typed(visitor: Visitor) -> None:
    def task() -> str:
        return str(visitor.field("Task").get_property("value"))

    with started(HERE.parents[3], "run", "envs/maze_mcp", "--port", "0", "--drain-s", "0") as server:
        url = server.url()
        listed = httpx.post(f"{url}/maze/task_range", json={"split": "train", "start": 0, "stop": 4}).json()["tasks"]
        first, *_, last = [each["prompt"] for each in listed]
        assert first != last
        visitor.open(url, "play")
        visitor.press("Start an episode")
        visitor.read(first)
        assert task() == "train-0"
        visitor.unfold("Begin another episode")
        visitor.choose("Split", "test (6)")
        visitor.until(lambda _: task() == "test-0")
        visitor.type("Task", "train-3")
        visitor.choose("Split", "train (15)")
        visitor.press("Start an episode")
        visitor.read(last)
        assert task() == "train-3"


def test_the_same_calls_as_python_do_the_same(visitor: Visitor, url: str) -> None:
    visitor.press("take_tree")
    visitor.type("name", 'a "b" \u20ac')
    visitor.call()
    visitor.see("1. take_tree")
    visitor.find("//summary[.='The same as code']").click()
    program = visitor.find("//pre[@aria-label='Python']").text
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith('a "b" \u20ac 0'), done.stderr


@pytest.mark.parametrize("tool", ["attack", "attack_by_error", "attack_by_media", "attack_by_keys"])
def test_nothing_that_a_tool_says_or_returns_is_run(visitor: Visitor, tool: str) -> None:
    visitor.press(tool)
    visitor.call()
    visitor.see(f"1. {tool}")
    visitor.see("onerror")
    for details in visitor.all("main details"):
        visitor.browser.execute_script("arguments[0].open = true", details)
    assert not visitor.attacked()
    images = [str(each.get_attribute("src")) for each in visitor.all("main img")]
    assert all(image.startswith("data:image/svg+xml;base64,") for image in images)
    assert len(images) == (tool == "attack_by_media")
    # A broken image is a complaint as well; a refused inline script would be one of the policy.
    assert not [each for each in visitor.complaints() if "Content Security Policy" in each]


def test_the_page_is_used_by_the_keyboard_alone(visitor: Visitor) -> None:
    def press(*keys: str) -> None:
        for key in keys:
            visitor.browser.switch_to.active_element.send_keys(key)

    visitor.find("//h1").click()
    press("2")
    visitor.read("Opened by")
    press("1")
    visitor.find("//summary[starts-with(., 'Begin another episode')]").send_keys(Keys.ENTER)
    visitor.browser.execute_script("document.getElementById('seed').focus()")
    press("7", Keys.ENTER)
    visitor.see("Start")
    press(Keys.ESCAPE, Keys.TAB)
    visitor.find("//h1").click()
    press("/", "take_tree", Keys.TAB, Keys.ENTER)
    visitor.read("Take a recursive value.")
    press(Keys.TAB, "by keys", Keys.TAB, Keys.TAB, Keys.ENTER)
    visitor.see("by keys 0")


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


def test_no_module_makes_elements_from_text() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser")
    assert [file.name for file in STATIC.rglob("*.js") if sinks.search(file.read_text(encoding="utf-8"))] == []


def test_an_optional_boolean_that_is_given_begins_with_what_is_not_its_default(visitor: Visitor) -> None:
    visitor.press("take_switches")
    for name in ("off", "on", "maybe"):
        visitor.give(name)
    visitor.call()
    visitor.see("off True, on False, maybe True")
    visitor.give("off")
    visitor.find("//button[starts-with(@aria-label, 'Edit')]").click()
    visitor.call()
    visitor.see("2. take_switches")
    visitor.see("off True, on False, maybe True")
