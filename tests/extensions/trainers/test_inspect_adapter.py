"""The adapter for Inspect AI by real evaluations, in a virtual environment that has no server."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from door_player import DoorPlayer, Stalls
from interrupted import errors_in, interrupted
from served import served
from trainer_worlds import COLOURS, Booth, Diary, Doors, FullDisk, Odd, Shop, Stuck

from mcpenv.server.app import create_app
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv_client import EnvClient

TOKEN = "a-token-of-an-agent-0123456789abcdef"

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def doors() -> Iterator[str]:
    with served(create_app(Doors)) as address:
        yield address.removesuffix("/mcp")


def python() -> Path:
    found = os.environ.get("MCPENV_INSPECT")
    assert found, "MCPENV_INSPECT names no Python that has inspect-ai, mcp, openai and mcpenv-client; .ci/run makes one"
    return Path(found)


def ran(model: str, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "SCRIPTED_API_KEY": "secret", "SCRIPTED_BASE_URL": f"{model.removesuffix('/mcp')}/v1"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def found(doors: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    player = DoorPlayer()
    program, folder = Path(__file__).with_name("inspect_program.py"), tmp_path_factory.mktemp("logs")
    with (
        served(create_app(Shop)) as shop,
        served(create_app(Diary)) as diary,
        served(create_app(Odd)) as odd,
        served(create_app(Booth)) as booth,
        served(create_app(FullDisk)) as disk,
        served(player.app) as model,
    ):
        FullDisk.full = 2
        urls = [address.removesuffix("/mcp") for address in (doors, shop, diary, odd, booth, disk)]
        done = ran(model, str(python()), str(program), *urls, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    shop_tools = [body["tools"] for body in player.asked if body["tools"][0]["function"]["name"] == "buy"]
    names = [[tool["function"]["name"] for tool in body["tools"]] for body in player.asked]
    return {**answers, "tools": shop_tools[-1], "offered": [each for each in names if "sell" in each]}


def test_samples_have_the_return_and_failed_ones_an_error(found: dict[str, Any]) -> None:
    plain = found["plain"]
    assert plain["status"] == "success" and plain["metrics"]["mean"] == 1.25
    assert sorted(sample["id"] for sample in plain["samples"]) == ["blue", "blue", "green", "green", "red", "red"]
    for sample in plain["samples"]:
        index = COLOURS.index(sample["id"])
        named = {"split": "train", "index": index}
        labels = {name: value for name, value in sample["metadata"].items() if name not in named}
        assert sample["metadata"].items() >= named.items()
        assert labels == {"level": 1 + index, "tags": ["door"]}
        if sample["id"] == "blue":
            assert sample["score"] is None and "its status is judge_error" in sample["error"]
        else:
            assert sample["score"] == 1.25 and sample["status"]["code"] == "completed" and sample["error"] is None


def test_a_sample_that_nothing_scored_is_unscored_and_in_no_mean(found: dict[str, Any]) -> None:
    diary = found["diary"]
    (sample,) = diary["samples"]
    assert math.isnan(sample["score"]) and sample["error"] is None
    assert (sample["status"]["code"], diary["unscored"]) == ("completed", 1)


@pytest.mark.parametrize("by", ["booth", "booth by tools"])
def test_the_model_speaks_to_the_user_by_messages_and_an_agent_by_a_tool(found: dict[str, Any], by: str) -> None:
    (sample,) = found[by]["samples"]
    assert (sample["score"], sample["error"]) == (1.0, None)
    offered = {frozenset(names) for names in found["offered"]}
    assert offered == {frozenset({"sell"}), frozenset({"sell", "respond"})}


def test_a_sample_with_a_failed_step_has_an_error_and_no_score(found: dict[str, Any]) -> None:
    (sample,) = found["disk"]["samples"]
    assert sample["score"] is None and "its status is env_error: failed_step" in sample["error"]
    (sample,) = found["disk, not masked"]["samples"]
    assert (sample["score"], sample["status"]["code"], sample["error"]) == (0.0, "completed", None)


def test_an_agent_of_inspect_plays_with_the_tool_source(found: dict[str, Any]) -> None:
    assert [sample["score"] for sample in found["react"]["samples"]] == [1.25, 1.25]


def test_the_verifier_is_asked_after_a_limit(found: dict[str, Any]) -> None:
    (sample,) = found["limited"]["samples"]
    assert (sample["limit"], sample["score"], sample["status"]["code"]) == ("message", 0.25, "truncated")


def test_a_schema_reaches_the_model_whole_and_nested_arguments_the_tool(found: dict[str, Any]) -> None:
    with Shop() as world:
        (tool,) = world.list_tools()
    (listed,) = found["tools"]
    whole = copy.deepcopy(tool.input_schema)
    # The one keyword that Inspect's provider leaves out, which the adapter says at the start.
    del whole["properties"]["amounts"]["items"]["minimum"]
    assert listed["function"]["parameters"] == whole
    assert "leave out: buy.amounts.[].minimum\n" in found["said"]
    assert listed["function"]["description"] == tool.description
    assert found["shop"]["samples"][0]["score"] == 1.0


def test_a_tool_whose_name_apis_refuse_is_refused_at_the_start(found: dict[str, Any]) -> None:
    assert "tool 'look.around': models' APIs refuse this name" in found["refused"]


SECURED = """
import sys
from inspect_ai import eval
from mcpenv_client.trainers.inspect_ai import mcpenv
(log,) = eval(mcpenv(sys.argv[1], split="train", num_tasks=1), model="openai-api/scripted/player",
              log_dir=sys.argv[2], display="none")
(sample,) = log.samples
print("error" if sample.error else next(iter(sample.scores.values())).value)
"""


def test_a_server_that_demands_a_token_of_agents_gets_that_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (str(python()), "-c", SECURED)
    with (
        served(create_app(Doors, auth=agent_auth_from(tokens={"ada": TOKEN}))) as secured,
        served(DoorPlayer().app) as model,
    ):
        command = (*program, secured.removesuffix("/mcp"), str(tmp_path))
        without = ran(model, *command)
        monkeypatch.setenv("MCPENV_AGENT_TOKEN", TOKEN)
        done = ran(model, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (without.stdout.strip(), done.stdout.strip()) == ("error", "1.25")


def test_the_command_of_the_page_runs_and_frees_its_sessions(doors: str, tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "train-inspect.md"
    (lines,) = re.findall(
        r"^(inspect eval .*?)^inspect view", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    words = lines.replace("\\\n", " ").replace("http://127.0.0.1:8000", doors).split()
    words = [str(python().with_name("inspect")), *words[1:], "--model", "openai-api/scripted/player"]
    with served(DoorPlayer().app) as model:
        done = ran(model, *words, "--log-dir", str(tmp_path), "--display", "plain")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "mean" in done.stdout
    with EnvClient(doors).sync() as client:
        assert client.capacity().active_sessions == 1


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_an_evaluation_and_its_sessions(doors: str, stuck: str, by: str, tmp_path: Path) -> None:
    player = Stalls(answers=3)
    url, ready = (doors, player.stalled.wait) if by == "model" else (stuck, Stuck.called.wait)
    options = ["-T", f"url={url}", "-T", "split=train", "--model", "openai-api/scripted/player"]
    options += ["--log-dir", str(tmp_path), "--display", "plain"]
    with served(player.app) as model:
        environ = {"SCRIPTED_API_KEY": "secret", "SCRIPTED_BASE_URL": f"{model.removesuffix('/mcp')}/v1"}
        command = [str(python().with_name("inspect")), "eval", "mcpenv_client/mcpenv", *options]
        err = interrupted(command, url, ready, environ, modules="inspect_ai._cli.main")
    assert errors_in(err) in ([], ["KeyboardInterrupt"]), err
