"""Test environments made of MCP servers, with real server processes and real HTTP servers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.server.dependencies import get_context
from proxying import has_ended
from served import http_server

from mcpenv import CallToolAction, ListToolsAction, Mode, NotSupported
from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.mcp_proxy.delivery import DiscoveryFailed
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.mcp_proxy.workspace import digest_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target
from mcpenv_client import EnvClient

SERVERS = Path(__file__).parent / "mcp_servers"


def command(name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of one of the servers beside this file."""
    return {"command": sys.executable, "args": [str(SERVERS / f"{name}.py"), *more.pop("args", [])], **more}


def proxied(environment: dict[str, Any] | None = None, **servers: dict[str, Any]) -> Any:
    return ProxyEnvironment.from_config({"mcpServers": servers, "mcpenv": environment or {}})


def call(env: Any, tool: str, **arguments: Any) -> Any:
    return env.step(CallToolAction(tool_name=tool, arguments=arguments))


@pytest.fixture(scope="module")
def everything() -> Any:
    return proxied(every=command("everything"))


@pytest.fixture
def env(everything: Any) -> Iterator[Any]:
    with everything() as made:
        made.reset()
        yield made


# -- what passes


def test_the_tools_are_those_of_the_server(env: Any) -> None:
    tools = {tool.name: tool for tool in env.step(ListToolsAction()).tools or ()}
    assert tools["add"].description == "Add to the counter."
    assert tools["add"].input_schema["properties"] == {"by": {"default": 1, "type": "integer"}}
    assert (tools["read"].annotations or {})["readOnlyHint"] is True
    assert tools["add"].output_schema is not None


def test_every_kind_of_content_passes(env: Any) -> None:
    image, sound, structured = (call(env, name).result for name in ("picture", "sound", "structured"))
    assert image is not None and image.content[0]["mimeType"] == "image/png"
    assert sound is not None and sound.content[0]["mimeType"] == "audio/wav"
    assert structured is not None
    assert structured.content[0]["text"] == "see below"
    assert structured.structured_content == {"a": [1, None]} and structured.meta == {"k": "v"}


def test_an_error_of_the_tool_is_data(env: Any) -> None:
    failed = call(env, "fail", text="not today")
    assert failed.result is not None and failed.result.is_error and failed.text == "not today"
    assert not failed.done and failed.info["status"]["code"] == "agent_error"


def test_progress_and_logs_of_the_server_stand_in_the_record(env: Any) -> None:
    call(env, "work", steps=2)
    assert env.trajectory is not None
    logs = env.trajectory.steps[-1].logs
    assert [(log.level, log.message) for log in logs] == [
        ("progress", "step 1"),
        ("progress", "step 2"),
        ("info", "nearly there"),
    ]


def test_progress_reaches_an_agent_over_mcp(everything: Any) -> None:
    seen: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async def main(url: str) -> Any:
        async with Client(url) as client:
            return await client.call_tool("work", {"steps": 2}, progress_handler=on_progress)

    with serving(everything, ServerConfig()) as url, EnvClient(url).sync() as orchestrator:
        episode = orchestrator.reset()
        assert asyncio.run(main(episode.info["mcp_url"])).data == "worked"
    assert seen == [(1.0, "step 1"), (2.0, "step 2")]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_agents_of_both_eras_call_a_server_of_one(everything: Any, mode: str) -> None:
    async def main(url: str) -> list[Any]:
        async with Client(url, mode=mode) as client:
            return [(await client.call_tool("add", {"by": by})).data for by in (1, 2)]

    with serving(everything, ServerConfig()) as url, EnvClient(url).sync() as orchestrator:
        assert asyncio.run(main(orchestrator.reset().info["mcp_url"])) == [1, 3]
        assert orchestrator.call_tool("read").observation.text == "3"


def test_a_process_gets_few_variables_of_this_one(everything: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "hunter2")
    with everything() as env:
        env.reset()
        assert "SECRET_OF_THE_SERVICE" not in call(env, "variables").text


def test_a_call_that_is_cancelled_leaves_the_server_usable(everything: Any) -> None:
    async def main() -> Any:
        env = everything()
        await env.reset_async()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await env.step_async(CallToolAction(tool_name="wait", arguments={"seconds": 60}))
        text = (await env.step_async(CallToolAction(tool_name="add", arguments={}))).text
        await env.close_async()
        return text

    assert asyncio.run(main()) == "1"


# -- reset


def test_a_reset_starts_a_process(env: Any) -> None:
    call(env, "add", by=5)
    before = call(env, "process").text
    env.reset()
    assert call(env, "read").text == "0"
    assert call(env, "process").text != before
    assert has_ended(int(before))


@pytest.mark.slow
def test_a_server_without_state_is_kept() -> None:
    with proxied(every=command("everything", state="none"))() as env:
        env.reset()
        before = call(env, "process").text
        env.reset()
        assert call(env, "process").text == before


@pytest.mark.slow
def test_two_episodes_share_nothing(everything: Any) -> None:
    with everything() as one, everything() as other:
        one.reset()
        other.reset()
        call(one, "add", by=3)
        assert (call(one, "read").text, call(other, "read").text) == ("3", "0")


def test_a_snapshot_says_why_it_cannot_be(env: Any) -> None:
    with pytest.raises(NotSupported, match="its servers keep state in processes of their own"):
        env.snapshot()


def test_close_leaves_no_process(everything: Any) -> None:
    env = everything()
    env.reset()
    process = int(call(env, "process").text)
    env.close()
    assert has_ended(process)


@pytest.mark.slow
def test_no_process_outlives_one_that_was_killed() -> None:
    program = (
        "import sys\n"
        "from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment\n"
        "from mcpenv import CallToolAction\n"
        f"env = ProxyEnvironment.from_config({{'mcpServers': {{'s': {command('stubborn')!r}}}}})()\n"
        "env.reset()\n"
        "print(env.step(CallToolAction(tool_name='process', arguments={})).text, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not has_ended(child, within_s=0)
        parent.kill()
    assert has_ended(child)


@pytest.mark.slow
def test_a_stubborn_server_is_killed() -> None:
    env = proxied(s=command("stubborn"))()
    env.reset()
    process = int(call(env, "process").text)
    env.close()
    assert has_ended(process)


# -- the workspace


@pytest.fixture
def template(tmp_path: Path) -> Path:
    folder = tmp_path / "template"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("first")
    (folder / "sub" / "b.txt").write_text("second")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["start", "keep"])
def test_a_reset_restores_the_workspace(template: Path, kept: str) -> None:
    files = command("files", args=["{workspace}"], state="workspace", per_episode=kept, isolation="none")
    with proxied({"workspace": str(template)}, files=files)() as env:
        env.reset()
        assert env.workspace is not None
        assert call(env, "read", name="a.txt").text == "first"
        process = call(env, "process").text
        call(env, "write", name="a.txt", text="changed")
        call(env, "write", name="sub/new.txt", text="new")
        assert digest_of(env.workspace.path) != digest_of(template)
        env.reset()
        assert digest_of(env.workspace.path) == digest_of(template)
        assert call(env, "read", name="a.txt").text == "first"
        assert (call(env, "process").text == process) is (kept == "keep")
        path = env.workspace.path
    assert not path.exists()
    assert (template / "a.txt").read_text() == "first"


def test_a_bound_argument_is_not_seen_and_cannot_be_set(template: Path) -> None:
    tools = {"read_at": {"arguments": {"folder": "{workspace}"}, "name": "peek", "description": "Peek."}}
    with proxied({"workspace": str(template)}, files=command("files", args=["/"], tools=tools))() as env:
        env.reset()
        (peek,) = [tool for tool in env.list_tools() if tool.name == "peek"]
        assert (list(peek.input_schema["properties"]), peek.description) == (["name"], "Peek.")
        assert "folder" not in peek.input_schema["required"]
        assert call(env, "peek", name="a.txt").text == "first"
        refused = call(env, "peek", name="a.txt", folder="/nowhere")
        assert refused.error is not None and refused.error.error_type == "invalid_args"
        assert "folder" in refused.error.message


# -- several servers


@pytest.mark.slow
def test_names_that_clash_get_their_servers_name() -> None:
    with proxied(one=command("everything"), two=command("everything"), files=command("files", args=["/"]))() as env:
        env.reset()
        names = {tool.name for tool in env.list_tools()}
        assert {"one_add", "two_add", "write"} <= names and "add" not in names
        call(env, "one_add", by=4)
        assert (call(env, "one_read").text, call(env, "two_read").text) == ("4", "0")


@pytest.mark.slow
def test_names_may_always_have_a_namespace() -> None:
    cls = proxied({"namespace": "always"}, files=command("files", args=["/"]))
    assert {tool.kind.name for tool in cls.catalog.tools} >= {"files_read", "files_write"}


@pytest.mark.slow
def test_tools_can_be_hidden_and_given_one_mode() -> None:
    tools = {"die": {"hidden": True}, "add": {"mode": "simulation", "annotations": {"destructiveHint": False}}}
    cls = proxied(every=command("everything", tools=tools))
    with cls() as env:
        env.reset()
        listed = {tool.name: tool for tool in env.list_tools()}
        assert "die" not in listed and listed["add"].annotations == {"destructiveHint": False}

    async def main(url: str) -> set[str]:
        async with Client(f"{url}/mcp") as client:
            return {tool.name for tool in await client.list_tools()}

    with serving(cls, ServerConfig(mode=Mode.PRODUCTION)) as url:
        names = asyncio.run(main(url))
    assert "read" in names and "add" not in names


def test_a_subclass_adds_tools_scores_and_ends(everything: Any) -> None:
    class Scored(everything):  # type: ignore[misc]
        """The counter, scored."""

        def __init__(self) -> None:
            super().__init__()

            def stop() -> str:
                """Stop."""
                return "stopped"

            self.tool(stop, terminal=True)

        def score(self, call: Any, outcome: Any) -> float:
            return float(outcome.error is None and call.name == "add")

    with Scored() as env:
        env.reset()
        assert call(env, "add").reward == 1.0
        assert call(env, "stop").done


# -- failures


def test_a_server_that_ends_in_a_call_loses_the_episode(env: Any) -> None:
    lost = call(env, "die")
    assert lost.done and lost.truncated and not lost.terminated
    assert lost.error is not None and lost.error.error_type == "transport_error"
    assert "'every'" in lost.error.message and "status 3" in lost.error.message
    assert lost.info["status"] == {"code": "transport_lost", "stage": "tool", "retryable": True}
    assert lost.info["episode_status"]["code"] == "transport_lost"
    env.reset()
    assert call(env, "read").text == "0"


@pytest.mark.slow
def test_a_call_that_was_not_delivered_is_repeated_where_no_state_was_lost() -> None:
    with proxied(every=command("everything", state="external"))() as env:
        env.reset()
        first = call(env, "process").text
        os.kill(int(first), 9)
        assert has_ended(int(first))
        second = call(env, "process")
        assert second.text not in ("", first) and not second.done


@pytest.mark.slow
def test_a_call_of_unknown_outcome_is_repeated_only_if_that_is_safe(tmp_path: Path) -> None:
    with proxied(every=command("everything", state="external"))() as env:
        env.reset()
        assert call(env, "die_once", path=str(tmp_path / "mark")).text == "alive"
        assert call(env, "die").done


@pytest.mark.slow
def test_another_episode_does_not_notice(everything: Any) -> None:
    with everything() as one, everything() as other:
        one.reset()
        other.reset()
        call(other, "add")
        assert call(one, "die").done
        assert call(other, "add").text == "2"


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
def test_a_service_goes_on_with_a_new_process(everything: Any, mode: Mode) -> None:
    async def main(url: str) -> list[Any]:
        async with Client(f"{url}/mcp") as client:
            await client.call_tool("add")
            died = await client.call_tool("die", raise_on_error=False)
            return [died.is_error, (await client.call_tool("add")).data]

    with serving(everything, ServerConfig(mode=mode)) as url:
        assert asyncio.run(main(url)) == [True, 1]


@pytest.mark.slow
def test_lines_that_are_no_messages_are_passed_over() -> None:
    with proxied(noisy=command("noisy"))() as env:
        env.reset()
        assert call(env, "speak").text == "spoken"


@pytest.mark.slow
def test_a_call_that_takes_too_long_fails_and_the_server_stays() -> None:
    with proxied(every=command("everything", call_timeout_s=0.3))() as env:
        env.reset()
        late = call(env, "wait", seconds=30)
        assert late.error is not None and late.error.error_type == "timeout"


def test_a_server_that_does_not_start_is_quoted() -> None:
    with pytest.raises(DiscoveryFailed) as raised:
        proxied(broken=command("broken"))
    assert "'broken'" in str(raised.value) and "the database is missing" in str(raised.value)
    assert "status 7" in str(raised.value)


@pytest.mark.slow
def test_a_server_that_is_not_required_may_be_absent() -> None:
    cls = proxied(broken=command("broken", required=False), every=command("everything"))
    assert list(cls.catalog.servers) == ["every"]
    with cls() as env:
        env.reset()
        assert call(env, "add").text == "1"


# -- over HTTP


def counting() -> FastMCP:
    """Return a server whose state is in the MCP session, where there is one."""
    server, counts = FastMCP("counting"), dict[str, int]()

    @server.tool
    def add() -> int:
        """Count."""
        session = get_context().session_id
        counts[session] = counts.get(session, 0) + 1
        return counts[session]

    return server


def test_a_server_at_a_url_is_called(tmp_path: Path) -> None:
    with http_server(counting()) as url, proxied(counting={"url": url, "state": "none"})() as env:
        env.reset()
        assert call(env, "add").text == "1"


def test_a_server_at_a_url_that_does_not_accept_is_called_again_when_it_does() -> None:
    with http_server(counting()) as url:
        cls = proxied(counting={"url": url, "state": "none"})
        env = cls()
        env.reset()
        assert call(env, "add").text == "1"
    gone = call(env, "add")
    assert gone.done and gone.info["status"]["code"] == "transport_lost"
    assert gone.error is not None and "does not accept connections" in gone.error.message
    with http_server(counting(), int(url.rsplit(":", 1)[1].split("/")[0])):
        env.reset()
        assert call(env, "add").text == "1"
    env.close()


# -- configurations and targets


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"mcpServers": {}}, "mcpServers"),
        ({"mcpServers": {"a": {"comand": "x"}}}, "mcpServers.a.comand: unknown key 'comand'. Did you mean 'command'?"),
        ({"mcpserver": {}}, "unknown key 'mcpserver'. Did you mean 'mcpServers'?"),
        ({"mcpServers": {"a": {"command": "x"}}, "mcpenv": {"max_step": 3}}, "Did you mean 'max_steps'?"),
        ({"mcpServers": {"a": {"command": "x", "tools": {"b": {"hiden": True}}}}}, "Did you mean 'hidden'?"),
        ({"mcpServers": {"a": {"command": "x", "zzzz": 1}}}, "unknown key 'zzzz': the keys are type, command"),
        ({"mcpServers": {"a": {}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "x", "headers": {"a": "b"}}}}, "headers are for a url"),
        ({"mcpServers": {"a": {"command": "x", "per_episode": "keep"}}}, "would keep the state of the episode before"),
        ({"mcpServers": {"a": {"command": "x", "disabled": True}}}, "every server is disabled"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": "${NOT_SET_ANYWHERE}"}}}}, "NOT_SET_ANYWHERE is not set"),
        ({"mcpServers": {"a": {"command": "x"}}, "mcpenv": {"workspace": "/not/there"}}, "there is no folder"),
        ({"mcpServers": {"a": command("everything", tools={"ad": {}})}}, "has no tool 'ad'; it has: add"),
        ({"mcpServers": {"a": command("everything", tools={"add": {"name": "step"}})}}, "reserved"),
        (
            {"mcpServers": {"a": command("everything", tools={"add": {"name": "read"}})}},
            "tools 'add' and 'read' of server 'a' would both be 'a_read'; rename one",
        ),
        ({"mcpServers": {"a": command("everything", tools={"add": {"arguments": {"x": 1}}})}}, "no argument 'x'"),
        (
            {"mcpServers": {"a": command("everything", tools={"add": {"arguments": {"by": "x"}}})}},
            "the value bound to 'by' does not fit its schema (type: 'integer')",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(source: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ProxyEnvironment.from_config(source)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_is_a_target(tmp_path: Path, template: Path) -> None:
    servers = {"files": command("files", args=["{workspace}"], autoApprove=["read"])}
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps({"mcpServers": servers, "mcpenv": {"name": "notes", "max_steps": 2, "durability": "restart"}})
    )
    loaded = load_target(str(file), ["workspace=template"] if Path.cwd() == tmp_path else [f"workspace={template}"])
    assert (loaded.name, loaded.spec) == ("notes", str(file))
    with loaded.make() as env:
        assert type(env).DURABILITY == "restart"
        env.reset()
        assert env.call_tool("read", {"name": "a.txt"}).text == "first"
        assert env.call_tool("read", {"name": "a.txt"}).truncated


def test_calls_are_not_made_again_in_a_world_that_outlives_the_episode(everything: Any) -> None:
    assert everything.DURABILITY is None
    assert proxied(every=command("everything", state="external")).DURABILITY == "restart"


def test_proxied_tools_have_the_descriptions_of_their_server(everything: Any) -> None:
    class Kit(EnvironmentContract):
        factory = everything

    Kit().test_descriptions()


def test_a_command_is_a_target() -> None:
    loaded = load_target(f"mcp:{sys.executable} {SERVERS / 'everything.py'}")
    assert loaded.name == "everything"
    with loaded.make() as env:
        env.reset()
        assert env.call_tool("add").text == "1"


def test_the_target_of_a_command_works_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SERVERS)
    loaded = load_target(f"mcp:{sys.executable} everything.py ./ everything")
    assert loaded.spec == f"mcp:{sys.executable} {SERVERS / 'everything.py'} {SERVERS} everything"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("mcp:", "the command is missing"),
        ("mcp:no-such-program-anywhere", "there is no program 'no-such-program-anywhere'"),
        ("mcp:'a", "quot"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_line(target: str, said: str) -> None:
    with pytest.raises(TargetError) as raised:
        load_target(target)
    assert said in str(raised.value)
