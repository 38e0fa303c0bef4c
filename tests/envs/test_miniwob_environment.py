"""Web pages of MiniWoB: solutions, idle agents, forks, the page's clock. They need Chromium."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from imported_environments import ENVS

from mcpenv.extensions.validation.tasks.play import oracle, play
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.errors import InvalidMessage

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def miniwob() -> Iterator[Any]:
    sys.path.insert(0, str(ENVS))
    try:
        yield importlib.import_module("miniwob_mcp.environment")
    finally:
        sys.path.remove(str(ENVS))


@pytest.fixture(scope="module")
def env(miniwob: Any) -> Iterator[Any]:
    with miniwob.MiniWoBEnvironment() as made:
        yield made


def test_solutions_score_1_and_idle_agents_0(miniwob: Any, env: Any) -> None:
    by_page = {task.family: task for task in miniwob.MiniWoBEnvironment.get_tasks("test")}
    assert len(by_page) > 100
    for number, (page, task) in enumerate(by_page.items()):
        assert play(env, task, oracle(task)).score == 1.0, page
        if number % 10 == 0:
            assert play(env, task, None).score == 0.0, page


def test_a_wrong_answer_scores_less_and_ends_the_episode(miniwob: Any, env: Any) -> None:
    task = next(each for each in miniwob.MiniWoBEnvironment.get_tasks("train") if each.family == "enter-text")
    field, button = (call.arguments["element"] for call in task.oracle)
    env.reset(task=task)
    env.call_tool("write", {"element": field, "text": "nothing of the kind"})
    over = env.call_tool("click", {"element": button})
    assert over.done and over.reward == 0.0


def test_a_page_looks_the_same_whenever_it_is_begun(env: Any) -> None:
    def seen() -> list[list[str]]:
        env.reset(seed=5, page="stock-market")
        texts = [env.seen]
        for _ in range(3):
            env.call_tool("press", {"key": "Shift"})
            texts.append(env.seen)
        return texts

    first = seen()
    assert len({tuple(each) for each in first}) == 4  # the price moves with each action
    assert seen() == first


def test_time_passes_with_actions_only(env: Any) -> None:
    env.reset(seed=5, page="stock-market")
    before = env.call_tool("look").result.text
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert env.call_tool("look").result.text == before


def test_a_fork_in_the_middle_is_played_on_by_itself(miniwob: Any, env: Any) -> None:
    task = next(each for each in miniwob.MiniWoBEnvironment.get_tasks("test") if each.family == "login-user")
    env.reset(task=task)
    first, *others = task.oracle
    env.call_tool(first.tool_name, first.arguments)
    with env.fork() as other:
        for call in others:
            last = other.call_tool(call.tool_name, call.arguments)
        assert last.done and last.reward == 1.0
    assert env.end().info["return"] == 0.0


def test_what_cannot_be_done_is_refused_in_words(env: Any) -> None:
    env.reset(seed=1, page="choose-list")
    refused = [
        ("click", {"element": 99}, "There is no element 99 any more: look again."),
        ("write", {"element": 2, "text": "a"}, "Element 2 is no field that takes a text."),
        ("choose", {"element": 2, "options": ["a"]}, "Element 2 is no list of options."),
        ("choose", {"element": 1, "options": ["Atlantis"]}, "There is no option 'Atlantis'. There are: "),
        ("press", {"key": "NoSuchKey"}, 'Keyboard.press: Unknown key: "NoSuchKey"'),
    ]
    for tool, arguments, said in refused:
        step = env.call_tool(tool, arguments)
        assert step.error.message.startswith(said) and not step.done
    assert env.call_tool("look").result.text.startswith("1. select")


def test_a_screenshot_is_an_image(env: Any) -> None:
    env.reset(seed=1, page="click-color")
    (block,) = env.call_tool("screenshot").result.content
    assert block["type"] == "image" and block["mimeType"] == "image/png"


def test_no_page_of_that_name_and_no_path_is_opened(miniwob: Any) -> None:
    with serving(miniwob.MiniWoBEnvironment) as url, EnvClient(url).sync() as client:
        for page in ("../core/core", "a/b"):
            with pytest.raises(InvalidMessage, match=f"there is no page '{page}' in miniwob"):
                client.reset(seed=1, page=page)
        with pytest.raises(InvalidMessage, match="did you mean 'click-button'"):
            client.reset(seed=1, page="clik-button")


def test_episodes_at_once_share_no_page(miniwob: Any) -> None:
    with miniwob.MiniWoBEnvironment() as one, miniwob.MiniWoBEnvironment() as two:
        for env in (one, two):
            env.reset(seed=1, page="enter-text")
        one.call_tool("write", {"element": 1, "text": "mine"})
        assert 'value "mine"' in one.seen[0] and 'value ""' in two.seen[0]
