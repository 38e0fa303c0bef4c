"""The adapter for verifiers by its own ``vf-eval``, in a virtual environment that has no server."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from door_player import DoorPlayer, Stalls
from interrupted import LIMIT_S, exit_of
from interrupted import interrupted as ends
from served import served
from trainer_worlds import Booth, Diary, Doors, FullDisk, Odd, Shop, Stuck

from mcpenv.server.app import create_app
from mcpenv_client import EnvClient

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "train-verifiers.md"


def python() -> Path:
    found = os.environ.get("MCPENV_VERIFIERS")
    assert found, "MCPENV_VERIFIERS names no Python that has verifiers, uv and mcpenv-client; .ci/run makes one"
    return Path(found)


def prepared(folder: Path) -> dict[str, str]:
    """Write the module of the page, and return the variables of a program of the virtual environment."""
    (module,) = re.findall(r"^```py title=\"ledger_world.py\"\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (folder / "ledger_world.py").write_text(module)
    path = f"{python().parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "OPENAI_API_KEY": "secret"}
    environ["VIRTUAL_ENV"] = str(python().parent.parent)  # where uv installs what an agent needs
    return environ


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the virtual environment, beside the module of the page."""
    environ = prepared(folder)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=500, check=False)


def evaluation(url: str, model: str, *options: str) -> list[str]:
    """Return the command of an evaluation, with the lines of the page and a local model."""
    (lines,) = re.findall(r"^```sh\n([^`]*vf-eval [^`]*)\n```$", PAGE.read_text(), re.MULTILINE)
    more = ["--client.base-url", f"{model}/v1", "--client.api-key-var", "OPENAI_API_KEY", "--no-rich", *options]
    return ["sh", "-c", f"{lines.replace('http://127.0.0.1:8000', url)} {shlex.join(more)}"]


def traces_in(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("outputs/*/traces.jsonl")
    return [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]


def evaluated(folder: Path, url: str, model: str, *options: str) -> list[dict[str, Any]]:
    """Return the traces of an evaluation."""
    done = ran(folder, *evaluation(url, model, *options))
    assert done.returncode == 0, done.stderr[-3000:]
    return traces_in(folder)


@pytest.fixture(scope="module")
def doors() -> Iterator[str]:
    with served(create_app(Doors)) as address:
        yield address.removesuffix("/mcp")


def test_an_evaluation_scores_what_the_verifier_gave_and_failed_episodes_have_errors(
    doors: str, tmp_path: Path
) -> None:
    with served(DoorPlayer().app) as model:
        traces = evaluated(tmp_path, doors, model.removesuffix("/mcp"))
    by_task: dict[str, list[dict[str, Any]]] = {}
    for trace in traces:
        by_task.setdefault(trace["task"]["key"], []).append(trace)
    # A group has one key, that of its task.
    assert {key.partition("#")[2]: len(group) for key, group in by_task.items()} == {"red": 2, "green": 2, "blue": 2}
    for trace in traces:
        if trace["task"]["data"]["prompt"] == "Number 2.":
            assert not trace["ok"] and trace["rewards"] == {}
            assert "judge_error" in trace["errors"][0]["message"] and trace["errors"][0]["type"] == "TaskError"
        else:
            assert trace["ok"] and trace["rewards"]["mcpenv"]["score"] == 1.25
            assert trace["metrics"]["verified"] == 1.0
        assert trace["info"]["status"]["code"] in ("completed", "judge_error")


def was_dropped(stderr: Path) -> bool:
    """Whether the interruption reached a finalizer of the program, whose exceptions Python prints and drops.

    verifiers raises `KeyboardInterrupt` in its signal handler, once, wherever the program is then.
    """
    _, _, after = stderr.read_text().partition("Exception ignored in")
    return "KeyboardInterrupt" in after


def interrupted(folder: Path) -> None:
    """Interrupt an evaluation in its third episode, as a terminal does, and see that its programs end."""
    player = Stalls(answers=7)  # two episodes, and the first request of the third
    stderr = folder / "stderr"
    with served(create_app(Doors)) as address, served(player.app) as model, stderr.open("w") as printed:
        doors = address.removesuffix("/mcp")
        command = evaluation(doors, model.removesuffix("/mcp"), "-c", "1")
        running = subprocess.Popen(command, cwd=folder, env=prepared(folder), start_new_session=True, stderr=printed)
        try:
            assert player.stalled.wait(300), stderr.read_text()
            began = time.monotonic()
            os.killpg(running.pid, signal.SIGINT)
            assert running.wait(60) != 0
            took_s = time.monotonic() - began
            with pytest.raises(ProcessLookupError):
                os.killpg(running.pid, 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        assert httpx.get(f"{doors}/sessions").json() == {"sessions": []}
    assert [trace["rewards"]["mcpenv"]["score"] for trace in traces_in(folder)] == [1.25, 1.25]
    own_s = exit_of(str(python()), "verifiers.v1")
    print(f"ended {took_s:.1f} s after Ctrl-C; verifiers alone ends in {own_s:.1f} s")
    assert took_s < LIMIT_S + 2 * own_s


def test_ctrl_c_ends_an_evaluation_and_its_sessions_and_keeps_what_was_done(tmp_path: Path) -> None:
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        try:
            interrupted(folder)
        except subprocess.TimeoutExpired:
            if attempt == 2 or not was_dropped(folder / "stderr"):
                raise
        else:
            return


def test_ctrl_c_ends_an_evaluation_whose_tool_does_not_return(stuck: str, tmp_path: Path) -> None:
    with served(DoorPlayer().app) as model:
        command = evaluation(stuck, model.removesuffix("/mcp"), "-c", "1", "-r", "1")
        program = ["sh", "-c", f"cd {tmp_path} && exec env {command[-1]}"]
        ends(program, stuck, Stuck.called.wait, prepared(tmp_path), modules="verifiers.v1", python=str(python()))


def test_a_rollout_that_nothing_scored_has_an_error_and_no_reward(tmp_path: Path) -> None:
    with served(create_app(Diary)) as diary, served(DoorPlayer().app) as model:
        (trace, *_) = evaluated(tmp_path, diary.removesuffix("/mcp"), model.removesuffix("/mcp"), "-r", "1")
    assert not trace["ok"] and trace["rewards"] == {}
    assert "nothing scored it" in trace["errors"][0]["message"] and trace["info"]["status"]["code"] == "completed"


@pytest.mark.parametrize("mask", [True, False])
def test_a_rollout_in_which_a_step_failed_has_an_error_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: bool
) -> None:
    monkeypatch.setattr(FullDisk, "full", 1)
    options = ["-r", "1", *([] if mask else ["--env.taskset.mask_failed_steps", "False"])]
    with served(create_app(FullDisk)) as disk, served(DoorPlayer().app) as model:
        (trace,) = evaluated(tmp_path, disk.removesuffix("/mcp"), model.removesuffix("/mcp"), *options)
    if mask:
        assert not trace["ok"] and trace["rewards"] == {} and trace["info"]["status"]["code"] == "env_error"
        assert "failed_step" in trace["errors"][0]["message"] and trace["errors"][0]["type"] == "TaskError"
    else:
        assert trace["ok"] and trace["rewards"]["mcpenv"]["score"] == 0.0
        assert trace["info"]["status"]["code"] == "completed"


def test_a_harness_speaks_to_the_user_by_a_tool(tmp_path: Path) -> None:
    player = DoorPlayer()
    with served(create_app(Booth)) as booth, served(player.app) as model:
        (trace, *_) = evaluated(tmp_path, booth.removesuffix("/mcp"), model.removesuffix("/mcp"), "-r", "1")
    assert {listed["function"]["name"] for listed in player.tools} == {"respond", "sell"}
    assert trace["ok"] and trace["rewards"]["mcpenv"]["score"] == 1.0
    said = [message["content"] for message in player.asked[-1]["messages"] if message["role"] == "tool"]
    assert len(said) == 3 and "Two." in str(said[0]) and "Goodbye" in str(said[2])


def test_a_schema_reaches_the_model_whole(tmp_path: Path) -> None:
    player = DoorPlayer()
    with served(create_app(Shop)) as shop, served(player.app) as model:
        (trace, *_) = evaluated(tmp_path, shop.removesuffix("/mcp"), model.removesuffix("/mcp"), "-r", "1")
    with Shop() as world:
        (tool,) = world.list_tools()
    assert [listed["function"] for listed in player.tools] == [tool.to_openai()["function"]]
    assert trace["rewards"]["mcpenv"]["score"] == 1.0


LOADED = """
import json, sys
from ledger_world import McpenvTaskset
from mcpenv_client import ToolNotExpressible
from mcpenv_client.trainers.verifiers import McpenvConfig
for settings in json.loads(sys.argv[1]):
    try:
        print([(task.data.prompt, task.data.row) for task in McpenvTaskset(McpenvConfig(split=None, **settings))])
    except (ToolNotExpressible, ValueError) as error:
        print(error)
"""


def test_without_a_split_tasks_are_seeds_and_what_cannot_be_asked_is_refused(doors: str, tmp_path: Path) -> None:
    with served(create_app(Odd)) as odd:
        settings = [
            {"url": doors, "num_tasks": 2},
            {"url": doors},
            {"url": odd.removesuffix("/mcp"), "num_tasks": 1},
        ]
        done = ran(tmp_path, str(python()), "-c", LOADED, json.dumps(settings))
    assert done.returncode == 0, done.stderr[-3000:]
    seeds, no_number, odd_name = done.stdout.splitlines()
    assert eval(seeds) == [("", {"seed": 0}), ("", {"seed": 1})]
    assert "num_tasks says how many seeds" in no_number
    assert "tool 'look.around': models' APIs refuse this name" in odd_name


def test_the_environment_server_that_prime_rl_starts_runs_tasks_that_its_client_loaded(
    doors: str, tmp_path: Path
) -> None:
    program = str(Path(__file__).with_name("verifiers_serve_program.py"))
    with served(DoorPlayer().app) as model:
        done = ran(tmp_path, str(python()), program, doors, model.removesuffix("/mcp"))
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    red, blue = answers["found"]
    assert answers["tasks"] == 3
    assert red == {"ok": [True, True], "turns": 3, "reward": 1.25, "status": "completed", "error": None}
    # prime-rl drops what is not ok: its reward of 0 is no reward.
    assert blue["ok"] == [False, False] and blue["status"] == "judge_error" and "EpisodeFailed" in blue["error"]
    with EnvClient(doors).sync() as client:
        assert client.capacity().active_sessions == 1


ABANDONED = """
import asyncio, sys
import verifiers.v1 as vf
from ledger_world import McpenvTaskset
from mcpenv_client import EnvClient
from mcpenv_client.trainers.verifiers import McpenvConfig

async def main():
    (task, *_) = McpenvTaskset(McpenvConfig(url=sys.argv[1]))
    async def rollout():
        await task.setup(vf.Trace(task=vf.TraceTask(type="McpenvTask", data=task.data), agent=None), None)
        raise RuntimeError
    await asyncio.gather(rollout(), return_exceptions=True)
    async with EnvClient(sys.argv[1]) as client:
        async with asyncio.timeout(20):
            while (await client.capacity()).active_sessions > 1:
                await asyncio.sleep(0.01)
asyncio.run(main())
"""


def test_a_rollout_that_fails_before_its_end_frees_its_session(doors: str, tmp_path: Path) -> None:
    done = ran(tmp_path, str(python()), "-c", ABANDONED, doors)
    assert done.returncode == 0, done.stderr
