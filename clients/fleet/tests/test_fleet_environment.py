"""Fleet's environments as environments of mcpenv: the class, the target of every command, the server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fleet_platform import API, KEY, MCP, PNG, Fault, Platform
from test_fleet_tasks import ROW

from mcpenv.errors import StartupError, TargetError
from mcpenv.extensions.reload.watched import watched_path
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target
from mcpenv_client import EnvClient, ExecutionError, NotSupported, StatusCode, SyncEnvClient, ToolErrorType
from mcpenv_fleet.environment import FleetEnvironment, environment_class

NAMES = ["add_ticket", "list_tickets", "shared", "answer", "computer"]
TIMEOUT_S = 100


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    file = tmp_path / "tasks.json"
    other = {**ROW, "key": "elsewhere", "env_id": "jira"}
    look = {**ROW, "key": "look", "task_modality": "computer_use"}
    broken = {**ROW, "key": "broken", "verifier_func": "def verify(env): raise KeyError('x')"}
    file.write_text(json.dumps([ROW, look, broken, other]))
    return file


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mcpenv as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "mcpenv", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def names_of(client: SyncEnvClient[Any, Any]) -> list[str]:
    return [tool.name for tool in client.list_tools()]


def test_an_episode_over_the_control_plane(platform: Platform) -> None:
    with serving(environment_class("fira:1.2"), ServerConfig()) as url, EnvClient(url).sync() as client:
        first = client.reset(seed=7)
        assert first.metadata["environment"]["version"] == "v1.2"
        assert names_of(client) == NAMES
        assert client.call_tool("add_ticket", {"title": "second"}).text == "added second"
        assert client.call_tool("list_tickets").text == '["first of 7", "second"]'
        assert client.call_tool("shared").text == "of api"
        result = client.call_tool("computer", {"action": "screenshot"}).result
        assert result is not None
        assert result.content[1] == {"type": "image", "data": PNG, "mimeType": "image/png"}
        assert client.call_tool("answer", {"kind": "error"}).result.is_error  # type: ignore[union-attr]
        assert client.end().reward is None
    assert platform.running == []


def test_an_agent_over_mcp_sees_the_tools_and_their_results(platform: Platform) -> None:
    async def main(url: str) -> Any:
        async with Client(url) as client:
            assert [tool.name for tool in await client.list_tools()] == NAMES
            structured = await client.call_tool("answer", {"kind": "structured"})
            image = (await client.call_tool("computer", {"action": "screenshot"})).content[1]
            return structured.structured_content, image.type

    with serving(environment_class("fira"), ServerConfig()) as url, EnvClient(url).sync() as client:
        assert asyncio.run(main(client.reset().info["mcp_url"])) == ({"count": 2}, "image")


def test_the_instance_by_which_the_tools_were_learned_is_the_first_sessions(platform: Platform) -> None:
    with serving(environment_class("fira"), ServerConfig()) as url:
        assert len(platform.instances) == 1
        with EnvClient(url).sync() as one, EnvClient(url).sync() as other:
            one.reset(seed=1)
            other.reset(seed=2)
            assert len(platform.instances) == 2
            one.call_tool("add_ticket", {"title": "of one"})
            assert other.call_tool("list_tickets").text == '["first of 2"]'
            one.reset(seed=3)
            assert one.call_tool("list_tickets").text == '["first of 3"]'
            assert len(platform.instances) == 2
        platform.wait_until_none_runs()


def test_line_18_a_task_is_played_and_verified_at_its_end(platform: Platform, task_file: Path) -> None:
    cls = environment_class("fira", task_file=task_file)
    with serving(cls, ServerConfig()) as url, EnvClient(url).sync() as client:
        assert [task.id for task in client.get_tasks("train")] == ["add-second", "look", "broken"]
        assert client.reset(task="add-second").prompt == "Add a ticket: second."
        assert "submit_answer" in names_of(client)
        client.call_tool("add_ticket", {"title": "second"})
        assert client.end().reward == 1.0
        client.reset(task="add-second")
        client.call_tool("add_ticket", {"title": "second"})
        end = client.call_tool("submit_answer", {"final_answer": "three"})
        assert (end.terminated, end.reward) == (True, 0.0)
    last = list(platform.instances.values())[-1].request
    assert (last["env_version"], last["data_key"], last["data_version"]) == ("v1.2.0", "acme", "v3")


def test_line_18_orchestrators_see_no_code_of_a_verifier(platform: Platform, task_file: Path) -> None:
    tasks = environment_class("fira", task_file=task_file).tasks
    assert tasks is not None
    task = next(iter(tasks))
    assert "def " not in task.model_dump_json()
    assert task.metadata["env_key"] == "fira:v1.2.0"


def test_line_23_a_verifier_that_fails_is_a_judges_error_and_no_score(platform: Platform, task_file: Path) -> None:
    cls = environment_class("fira", task_file=task_file)
    with serving(cls, ServerConfig()) as url, EnvClient(url).sync() as client:
        client.reset(task="broken")
        with pytest.raises(ExecutionError) as failure:
            client.end()
        assert failure.value.status is not None
        assert failure.value.status.code is StatusCode.JUDGE_ERROR


def test_line_27_the_reset_of_a_task_of_computer_use_has_a_screenshot(platform: Platform, task_file: Path) -> None:
    cls = environment_class("fira", task_file=task_file)
    with serving(cls, ServerConfig()) as url, EnvClient(url).sync() as client:
        blocks = client.reset(task="look").metadata["screenshot"]
        assert blocks[-1]["data"] == PNG
    assert list(platform.instances.values())[-1].request["image_type"] == "mcp"


def test_line_27_a_screenshot_is_kept_in_the_record(platform: Platform) -> None:
    with serving(environment_class("fira"), ServerConfig()) as url, EnvClient(url).sync() as client:
        client.reset()
        client.call_tool("computer", {"action": "screenshot"})
        (step,) = client.trajectory().steps
        assert step.outcome.result is not None
        assert step.outcome.result.content[1] == {"type": "image", "data": PNG, "mimeType": "image/png"}


def test_line_25_long_outputs_are_cut_searched_and_paged(platform: Platform) -> None:
    cls = load_target("fleet:fira", ["max_output_characters=600"]).factory
    with serving(cls, ServerConfig()) as url, EnvClient(url).sync() as client:
        client.reset()
        assert {"search_tool_output", "view_tool_output"} < set(names_of(client))
        cut = client.call_tool("answer", {"kind": "long"})
        assert len(cut.text) < 1000
        assert "the ticket" not in cut.text
        assert "output-1" in cut.text
        found = client.call_tool("search_tool_output", {"id": "output-1", "pattern": "the ticket"})
        assert "line 777: the ticket" in found.text
        page = client.call_tool("view_tool_output", {"id": "output-1", "line": 778, "lines": 1})
        assert "line 777: the ticket" in page.text


def test_a_call_that_was_lost_truncates_the_episode_and_no_other(platform: Platform) -> None:
    with serving(environment_class("fira"), ServerConfig()) as url:
        with EnvClient(url).sync() as one, EnvClient(url).sync() as other:
            one.reset()
            other.reset()
            platform.fail(f"{API} tools/call", Fault(status=502, before=False))
            lost = one.call_tool("add_ticket", {"title": "second"})
            assert lost.error is not None
            assert lost.error.error_type is ToolErrorType.TRANSPORT_ERROR
            assert lost.truncated
            assert lost.episode_status is not None
            assert lost.episode_status.code is StatusCode.TRANSPORT_LOST
            assert other.call_tool("shared").text == "of api"
            one.reset()
            assert one.call_tool("shared").text == "of api"


def test_an_instance_that_has_expired_is_replaced_at_the_next_reset(platform: Platform) -> None:
    with serving(environment_class("fira"), ServerConfig()) as url, EnvClient(url).sync() as client:
        client.reset()
        platform.instances["i0"].status = "stopped"
        assert client.call_tool("shared").truncated
        client.reset()
        assert client.call_tool("shared").text == "of api"
        assert [instance.status for instance in platform.instances.values()] == ["stopped", "running"]


def test_line_19_a_reset_that_fails_is_an_error_of_the_environment(platform: Platform) -> None:
    with serving(environment_class("fira"), ServerConfig()) as url, EnvClient(url).sync() as client:
        platform.fail("POST api/v1/env/reset", Fault(status=500))
        with pytest.raises(ExecutionError):
            client.reset()
        client.reset()


def test_a_fleet_episode_cannot_be_saved_and_says_so(platform: Platform) -> None:
    with serving(environment_class("fira"), ServerConfig()) as url, EnvClient(url).sync() as client:
        client.reset()
        with pytest.raises(NotSupported, match="cannot be saved in a snapshot"):
            client.snapshot()


def test_a_server_without_tools_does_not_start(platform: Platform) -> None:
    platform.endpoints = (MCP,)
    platform.without_tools = {MCP}
    with pytest.raises(StartupError, match="fleet:fira has no instance to begin with: cannot list the tools"):
        with serving(environment_class("fira"), ServerConfig()):
            pytest.fail("it has started")
    assert platform.running == []


def test_the_target_is_resolved_by_its_entry_point_with_typed_settings(platform: Platform, task_file: Path) -> None:
    settings = ["data_key=acme:v3", "ttl_seconds=600", 'env_variables={"LANG": "C"}', f"task_file={task_file}"]
    target = load_target("fleet:fira:1.2", settings)
    assert (target.name, target.spec) == ("fira", "fleet:fira:1.2")
    assert target.environment_class is not None
    assert issubclass(target.environment_class, FleetEnvironment)
    assert target.environment_class.env_key == "fira:1.2"
    options = target.environment_class.options
    assert (options.data_key, options.ttl_seconds, options.env_variables) == ("acme:v3", 600, {"LANG": "C"})
    assert platform.seen == []


@pytest.mark.parametrize(
    ("target", "settings", "told"),
    [
        ("fleet:", [], "the key of an environment is missing"),
        ("fleet:fira", ["ttl_seconds=soon"], "--set ttl_seconds=soon: Input should be a valid integer"),
        ("fleet:fira", ["max_output_characters=3"], "max_characters is 3; it must be 500 or more"),
        ("fleet:fira", ["data=acme"], "there is no setting 'data'"),
        ("fleet:fira", ["task_file=nowhere.json"], "nowhere.json: .*No such file"),
        ("fleet:linear", ["task_file={file}"], "there are no tasks of linear; its tasks are of: fira, jira"),
    ],
)
def test_a_target_that_cannot_be_used_says_why(
    platform: Platform, task_file: Path, target: str, settings: list[str], told: str
) -> None:
    with pytest.raises(TargetError, match=told):
        load_target(target, [setting.format(file=task_file) for setting in settings])


def test_there_is_nothing_to_watch(platform: Platform) -> None:
    with pytest.raises(TargetError, match="nothing to watch"):
        watched_path("fleet:fira")


def test_line_26_a_command_without_an_api_key_names_the_variable(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_API_KEY")
    ended = command("call", "fleet:fira", "shared")
    assert ended.returncode == 2
    assert "there is no API key of Fleet: set FLEET_API_KEY" in ended.stderr


def test_the_commands_take_the_target(platform: Platform, task_file: Path) -> None:
    called = command("call", "fleet:fira", "add_ticket", "title=second")
    assert called.returncode == 0, called.stderr
    assert "added second" in called.stdout
    inspected = command("inspect", "fleet:fira", "--set", f"task_file={task_file}")
    assert inspected.returncode == 0, inspected.stderr
    assert "computer" in inspected.stdout
    assert KEY not in called.stdout + called.stderr + inspected.stdout + inspected.stderr
    assert platform.running == []
