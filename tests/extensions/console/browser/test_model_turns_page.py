"""The model's side of an episode in the console, in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens, TurnUsage
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tasks import Task

pytest.importorskip("selenium", reason="a browser is driven by it")

from console_world import ConsoleWorld
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


def recorded(folder: Path) -> None:
    call = TurnCall("a", "mcp__env__add", {"by": 1}, 1)
    answer = {"content": [{"type": "text", "text": "<img src=x onerror=attack()> I add"}]}
    turn = ModelTurn("messages", "/v1/messages", {"model": "m"}, status=200, answer=answer, calls=[call], model="m-1")
    turn.started_at, turn.duration_s = 1.25, 0.5
    turn.usage, turn.tokens = TurnUsage(1234, 5), [TurnTokens([17, 18], [-0.5, -1.5], ["I", " add"])]
    step = StepRecord(ToolCall("add", {"by": 1}, 1), ToolOutcome.returned("1", 0.1), started_at=1.8)
    with Recorder(folder) as recorder:
        trajectory = Trajectory("e1", steps=[step], started_at=1.0, ended_at=2.0, terminated=True)
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=[turn]))


def test_the_page_of_a_record_shows_turns_with_their_tokens_and_steps(browser: Visitor, tmp_path: Path) -> None:
    recorded(tmp_path)
    with serving(ConsoleWorld, ServerConfig(record=tmp_path)) as url:
        browser.width(1280)
        browser.open(url, "records/e1")
        browser.read("1 model turn")
        browser.read("1234 tokens in, 5 out")
        browser.read("Tools 100 ms, the model 500 ms, else 400 ms")
        browser.find("//section[@aria-label='Model']//summary").click()
        browser.read("onerror=attack()")
        browser.find("//summary[.='Tokens (2)']").click()
        cells = browser.find("//table[.//th='Log-probability']").text.split()
        assert cells[-9:] == ["0", '"I"', "17", "-0.5", "1", '"', 'add"', "18", "-1.5"]
        assert browser.serious_findings() == []
        browser.find("//a[.='Show step 1']").click()
        assert "step=1" in browser.browser.current_url
    assert not browser.attacked()


def test_the_words_of_the_model_stand_before_the_steps_that_they_led_to(browser: Visitor, tmp_path: Path) -> None:
    attack = "<img src=x onerror=attack()>"
    request = {"system": "s" * 2000, "messages": [{"role": "user", "content": f"Count **now**.\n\n- one\n- {attack}"}]}
    said = [{"type": "thinking", "thinking": "First one."}, {"type": "text", "text": "I add"}]
    answer = {"content": [*said, {"type": "tool_use", "id": "a", "name": "mcp__env__add", "input": {"by": 1}}]}
    call = TurnCall("a", "mcp__env__add", {"by": 1}, 1)
    turn = ModelTurn("messages", "/v1/messages", request, status=200, answer=answer, calls=[call], model="m-1")
    turn.started_at, turn.tokens = 1.25, [TurnTokens(None, [-0.5, -3.5], ["I", " add"])]
    last = ModelTurn(
        "messages", "/v1/messages", {}, status=200, answer={"content": [{"type": "text", "text": "Done."}]}
    )
    last.started_at = 3.0
    result = ToolOutcome.returned("\x1b[31mred\x1b[0m and plain", 0.1)
    with Recorder(tmp_path) as recorder:
        step = StepRecord(ToolCall("add", {"by": 1}, 1), result, started_at=1.8)
        trajectory = Trajectory(
            "e1", task=Task(id="t", prompt="Count to one."), steps=[step], started_at=1.0, ended_at=4.0
        )
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=[turn, last]))
    with serving(ConsoleWorld, ServerConfig(record=tmp_path)) as url:
        for width in (1440, 390):
            browser.width(width)
            browser.open(url, "records/e1")
            browser.read("Count to one.")
            text = browser.find("//div[@class='outlined']/div[last()]").text
            places = [
                text.index(each)
                for each in ("Count to one.", "Count now.", attack, "First one.", "1. add", "red and", "Done.")
            ]
            assert places == sorted(places)
            assert browser.serious_findings() == []
        assert browser.find("//strong[.='now']") and browser.find("//li[.='- one']")
        likely, unlikely = browser.all(".said [class^=token-]")
        assert (likely.text, likely.get_attribute("class")) == ("I", "token-0")
        assert unlikely.get_attribute("class") == "token-3" and "-3.5" in (unlikely.get_attribute("title") or "")
        assert browser.find("//pre/span[@class='ansi-1']").text == "red"
        browser.type("Find in the steps", "first one")
        browser.press("Next")
        browser.read("1 of 1")
    assert not browser.attacked()
