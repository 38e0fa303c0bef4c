"""The page of a run while it trains, in Debian's Chromium: two servers that share a folder, and alarms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from record_worlds import Dice

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client import StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Reward, Trajectory
from mcpenv_client.types.tools import ToolErrorType, ToolFailure

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

VERSIONS, EACH = 9, 20


def episode(version: int, at: int) -> RecordedEpisode:
    """Return an episode whose reward rises with the version, whose verified value does not, and whose tool is down."""
    down = ToolOutcome(error=ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message="down"))
    steps = [StepRecord(ToolCall("send", {"to": at}, 1), down), StepRecord(ToolCall("read", {"n": at}, 2), DONE)]
    worth = version / 10 + at % 2 / 50
    trajectory = Trajectory(
        f"v{version}-{at}", seed=at, steps=steps, end_reward=Reward(worth), total_reward=worth, terminated=True,
        started_at=1e9 + version * 60 + at, ended_at=1e9 + version * 60 + at + 5, verified=Reward(at % 2),
    )  # fmt: skip
    turns = [ModelTurn("chat_completions", "/v1", {}, status=200, answer={}, policy_version=version)]
    return RecordedEpisode(trajectory, RecordedEnvironment("Letters"), model_turns=turns)


DONE = ToolOutcome.returned("done", 0.1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with Recorder(folder) as one, Recorder(folder) as other:
        for version in range(VERSIONS):
            for at in range(EACH):
                (one if at % 4 else other).write(episode(version, at))
    return folder


@pytest.fixture(scope="module")
def url(record: Path) -> Iterator[str]:
    with serving(Dice, ServerConfig(record=record)) as url:
        yield url


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_run_is_shown_by_policy_version(browser: Visitor, url: str, width: int, theme: str) -> None:
    browser.width(width)
    browser.theme(theme)
    browser.open(url, "training")
    browser.read(f"{VERSIONS * EACH} episodes")
    assert [str(each.get_attribute("aria-label")).partition(" ")[2] for each in browser.all(".drawing svg")] == [
        "return, and mean of the verified value where episodes are verified.",
        "steps of an episode.",
        "failed calls of an episode.",
        "of an episode to the 2 tools that are called most.",
    ]
    points = [each.get_property("textContent") for each in browser.all(".drawing circle title")]
    assert points[8] == "policy version 8: return 0.81" and points[17] == "policy version 8: verified 0.5"
    servers = browser.all("[aria-label='Servers'] tbody tr")
    assert sorted(each.text.split()[1] for each in servers) == ["135", "45"]
    assert browser.serious_findings() == []
    assert browser.browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_alarms_lead_to_their_episodes_and_a_condition_narrows_the_run(browser: Visitor, url: str) -> None:
    browser.width(1280)
    browser.open(url, "training")
    browser.read("the mean return rises from 0.11 to 0.71, and the verified value does not (0.5 to 0.5)")
    browser.find("//a[.='the tool send only fails: all its 60 newest calls']").click()
    browser.read("60 episodes")
    hash_of = "return decodeURIComponent(location.hash)"
    assert browser.browser.execute_script(hash_of) == '#/records?where=policy_version+>=+6+and+tool("send")'
    browser.browser.back()
    browser.find("//a[starts-with(., 'the mean return rises')]").click()
    browser.read("30 episodes")
    assert browser.all(".window tbody th a")[0].text.startswith("v8-"), "the highest return comes first"
    browser.open(url, "training?where=policy_version+%3C+2")
    browser.read(f"{2 * EACH} episodes")
    assert [each.text for each in browser.all("[aria-label='By policy version'] tbody th")] == ["1", "0"]
    browser.open(url, "training?where=nothing")
    browser.read("column 1: expected")


def test_episodes_that_end_meanwhile_appear(browser: Visitor, url: str, record: Path) -> None:
    browser.open(url, "training")
    browser.read(f"{VERSIONS * EACH} episodes")
    with Recorder(record) as recorder:
        recorder.write(episode(VERSIONS, 0))
    browser.read(f"{VERSIONS * EACH + 1} episodes")
    assert browser.all("[aria-label='By policy version'] tbody th")[0].text == str(VERSIONS)


def test_a_failed_look_is_said_and_made_again(browser: Visitor, url: str, record: Path) -> None:
    browser.open(url, "training")
    browser.read("episodes")
    browser.offline(True)
    with Recorder(record) as recorder:
        recorder.write(episode(VERSIONS, 1))
    browser.read("Trying again.")
    browser.offline(False)
    browser.read(f"{VERSIONS * EACH + 2} episodes")
    browser.until(lambda _: not browser.find("//main").text.count("Trying again."))
