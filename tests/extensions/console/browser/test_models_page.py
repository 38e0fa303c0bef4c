"""Models in the page Play, in Debian's Chromium: an edited move, a whole episode, two models side by side."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluate_endpoint import called, refused, said
from evaluate_world import Counting
from scripted_model import scripted_model

from mcpenv.extensions.console import MODELS
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEpisode, read_episodes

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.by import By
from visitor import WAIT_S, Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


class Models:
    """An endpoint with three models: "careful" adds 1 until there are 2, "bold" adds 2, and "broke" is refused.

    Attributes:
        may_answer: "careful" waits for it from its second turn on.
    """

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[str | None, bytes]:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        there = max([int(result) for result in results], default=0)
        if results:
            self.may_answer.wait(WAIT_S)
        if body["model"] == "broke":
            return None, json.dumps(refused(404, "no such model")[1]).encode()
        step = 1 if body["model"] == "careful" else 2
        _, answer = called(("add", {"by": step})) if there < 2 else said("I am there.")
        return "application/json", json.dumps(answer).encode()


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@pytest.fixture
def visitor(browser: Visitor, models: Models, record: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitor]:
    with scripted_model(models.answer) as endpoint:
        monkeypatch.setenv(MODELS, " ".join(f"{name}={endpoint.url}/v1" for name in ("careful", "bold", "broke")))
        with serving(Counting, ServerConfig(record=record, console=True), max_concurrent_envs=4) as url:
            browser.width(1280)
            browser.play(url)
            browser.unfold("Let a model play")
            yield browser
            browser.begin_anew(url)
    models.may_answer.set()


def ended(visitor: Visitor, record: Path) -> RecordedEpisode:
    visitor.press("End")
    visitor.see("The episode is over")
    *_, episode = read_episodes(record)  # an episode with a step that was undone is another one
    return episode


def callers(episode: RecordedEpisode) -> list[tuple[str | None, Any]]:
    return [(step.call.principal, step.call.arguments.get("by")) for step in episode.trajectory.steps]


def test_a_move_of_a_model_is_called_as_it_is_or_edited_and_the_record_has_who_made_it(
    visitor: Visitor, record: Path
) -> None:
    visitor.choose("Model", "careful")
    visitor.press("Next move")
    visitor.read("careful proposes add")
    assert visitor.all("[aria-label=History] li")[0].text == "No calls so far."
    visitor.call()
    visitor.read("1. add by model careful")
    visitor.press("Next move")
    visitor.read("careful proposes add")
    visitor.type("by", "0")
    visitor.call()
    visitor.read("2. add by person")
    visitor.press("Next move")
    visitor.read("careful proposes add")
    visitor.press("Undo")
    visitor.read("Undone: add")
    visitor.call()
    visitor.read("2. add by model careful")
    assert callers(ended(visitor, record)) == [("model careful", 1), ("model careful", 1)]


def test_a_model_plays_to_the_end_and_is_scored(visitor: Visitor, record: Path) -> None:
    visitor.press("Run to the end")
    visitor.read("careful has stopped. I am there.")
    visitor.see("The episode is over")
    (episode,) = read_episodes(record)
    assert callers(episode) == [("model careful", 1)] * 2 and episode.trajectory.total_reward == 1.0


def test_a_model_is_stopped_at_its_limit_or_by_the_visitor_and_the_episode_goes_on(
    visitor: Visitor, models: Models, record: Path
) -> None:
    visitor.type("Most calls", "1")
    visitor.press("Run to the end")
    visitor.read("The limit of 1 call is reached.")
    models.may_answer.clear()
    visitor.type("Most calls", "9")
    visitor.press("Run to the end")
    visitor.press("Stop")
    visitor.read("Stopped.")
    models.may_answer.set()
    visitor.type("by", "1") if visitor.all("[aria-label='Give by']:checked") else visitor.give("by")
    visitor.call()
    visitor.read("2. add")
    assert callers(ended(visitor, record))[0] == ("model careful", 1)


def test_the_refusal_of_an_endpoint_is_shown(visitor: Visitor) -> None:
    visitor.choose("Model", "broke")
    visitor.press("Next move")
    visitor.read("broke: the endpoint refused with status 404: no such model")


def test_two_models_play_side_by_side_from_one_snapshot(visitor: Visitor, record: Path) -> None:
    visitor.give("by")
    visitor.type("by", "0")
    visitor.call()
    visitor.read("1. add")
    visitor.choose("Beside it", "bold")
    visitor.press("Play both from here")
    visitor.read("careful has stopped. I am there. 2 calls, return 1")
    visitor.read("bold has stopped. I am there. 1 call, return 1")
    sides = {episode.agent["name"]: episode for episode in read_episodes(record) if episode.agent}
    assert callers(sides["model-careful"]) == [(None, 0), ("model careful", 1), ("model careful", 1)]
    assert callers(sides["model-bold"]) == [(None, 0), ("model bold", 2)]
    visitor.find("//a[text()='Compare them step by step']").click()
    visitor.read("The first difference is at step 2.")
    visitor.browser.back()
    visitor.read("1. add")
    assert len(visitor.all("[aria-label=History] li")) == 1  # the episode from which they began has not moved


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_axe_has_no_serious_finding_with_models(visitor: Visitor, width: int, theme: str) -> None:
    visitor.width(width)
    visitor.theme(theme)
    visitor.choose("Beside it", "bold")
    visitor.press("Play both from here")
    visitor.read("Compare them step by step")
    visitor.press("Next move")
    visitor.read("careful proposes add")
    assert visitor.browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert visitor.serious_findings() == []
    visitor.theme("light")


def test_a_server_without_models_offers_none(browser: Visitor) -> None:
    with serving(Counting, ServerConfig(console=True)) as url:
        browser.play(url)
        assert browser.browser.find_elements(By.XPATH, "//summary[text()='Let a model play']") == []
        browser.begin_anew(url)
