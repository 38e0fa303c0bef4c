"""Environments of OpenEnv's, unchanged, served by mcpenv."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastmcp import Client
from openenv_servers import (
    ECHO,
    HERE,
    TIMEOUT_S,
    openenv_python,
    openenvs_own_server,
    program,
    run,
    run_each,
)

from mcpenv import MCPEnvironment
from mcpenv.cli import execute
from mcpenv.errors import TargetError
from mcpenv.extensions.openenv.adapter import OpenEnvEnvironment
from mcpenv.extensions.openenv.process import CHILD, error_of
from mcpenv.server.serve import serving
from mcpenv.targets.target import Target, load_target
from mcpenv_client import CallToolAction, EnvClient, ExecutionError, InvalidMessage, NotSupported, ToolErrorType

# Each process that imports OpenEnv needs seconds for it, and a test has up to four of them.
pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
MORE = HERE / "openenv_more.py"
TOOLS = ["echo_message", "echo_with_length", "echo_late"]
sys.path.insert(0, str(ROOT / "examples"))
from serving import served  # noqa: E402


@pytest.fixture(scope="module")
def guess_url() -> Iterator[str]:
    openenv_python()
    with serving(load_target(f"{MORE}:GuessEnvironment", ["number=4"]).factory) as base_url:
        yield base_url


@pytest.fixture(scope="module")
def counting() -> Target:
    openenv_python()
    return load_target(f"{MORE}:CountingEnvironment")


@pytest.fixture(scope="module")
def counting_url(counting: Target) -> Iterator[str]:
    with serving(counting.factory) as base_url:
        yield base_url


def pid_of(target: Target) -> int:
    cls = target.environment_class
    assert cls is not None and issubclass(cls, OpenEnvEnvironment)
    pid = cls.process.pid
    assert pid is not None
    return pid


def mcpenv(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcpenv", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


# -- the same program on both


def test_a_program_of_its_users_runs_on_openenvs_own_server_and_on_mcpenv(theirs: str, ours: str) -> None:
    printed = [each.splitlines() for each in run_each(program("rollout", theirs), program("rollout", ours))]
    assert list(zip(*printed, strict=True)) == [
        ("reset: False", "reset: False"),
        ("step: to | reward None | done False", "step: to | reward 0.1 | done False"),
        ("step: and fro | reward None | done False", "step: and fro | reward 0.2 | done False"),
        ("steps: 2", "steps: 2"),
        (f"tools: {', '.join(TOOLS)}", f"tools: {', '.join(TOOLS)}, hint"),
        ("call: hello", "call: hello"),
        ("steps: 0", "steps: 1"),
    ]


# -- what is served


def test_the_manifest_and_the_class_say_what_is_served(ours: str) -> None:
    metadata = httpx.get(f"{ours}/metadata").json()
    assert (metadata["name"], metadata["version"]) == ("openenv_echo", "0.3.0")
    assert metadata["description"] == "Gives messages back."
    assert metadata["supports_concurrent_sessions"] is True
    reset = httpx.get(f"{ours}/schema").json()["reset"]
    assert set(reset["properties"]) == {"seed", "episode_id", "split", "index"}
    assert reset["additionalProperties"] is False


def test_the_tools_of_a_mode_are_listed_with_whole_schemas_and_can_be_called(ours: str) -> None:
    with EnvClient(ours).sync() as env:
        env.reset()
        tools = {tool.name: tool for tool in env.list_tools()}
        assert list(tools) == [*TOOLS, "hint"]
        assert tools["hint"].input_schema["properties"]["topics"] == {"items": {"type": "string"}, "type": "array"}
        assert env.call_tool("hint", {"topics": ["to", "fro"], "loud": True}).observation.text == "ECHO TO AND FRO"
        assert _error(env.call_tool("support", {"text": "x"})) is ToolErrorType.TOOL_NOT_FOUND


def test_production_has_the_tools_of_production(ours_in_production: str) -> None:
    async def use() -> tuple[list[str], str]:
        async with Client(f"{ours_in_production}/mcp") as client:
            names = [tool.name for tool in await client.list_tools()]
            return names, (await client.call_tool("support", {"text": "help"})).data

    assert asyncio.run(use()) == ([*TOOLS, "support"], "ticket: help")
    assert httpx.get(f"{ours_in_production}/list_environments").status_code == 404


def _error(result: Any) -> ToolErrorType | None:
    return None if result.observation.error is None else result.observation.error.error_type


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        # Its text has the words "invalid argument"; OpenEnv goes by them, and says invalid_args.
        ("echo_with_length", {"message": "x", "times": 0}, ToolErrorType.EXECUTION_ERROR),
        ("echo_with_length", {"message": "x", "times": "many"}, ToolErrorType.INVALID_ARGS),
        ("echo_message", {"text": "x"}, ToolErrorType.INVALID_ARGS),
        ("hint", {"topics": "not a list"}, ToolErrorType.INVALID_ARGS),
        ("shout", {}, ToolErrorType.TOOL_NOT_FOUND),
    ],
)
def test_invariant_8_failures_are_sorted_by_type(
    ours: str, name: str, arguments: dict[str, Any], kind: ToolErrorType
) -> None:
    with EnvClient(ours).sync() as env:
        env.reset()
        assert _error(env.call_tool(name, arguments)) is kind
        assert env.call_tool("echo_message", {"message": "still here"}).observation.text == "still here"


def test_a_rubric_scores_tool_calls_once(ours: str) -> None:
    with EnvClient(ours).sync() as env:
        env.reset()
        assert [env.call_tool("echo_message", {"message": m}).reward for m in ("a", "b c", "d e f")] == [
            0.1,
            0.2,
            pytest.approx(0.3),
        ]
        assert env.call_tool("hint", {"topics": []}).reward == 0.0


def test_a_rubric_that_the_environments_own_step_asks_is_not_asked_again(guess_url: str) -> None:
    with EnvClient(guess_url).sync() as env:
        env.reset()
        lower, right = env.step({"type": "guess", "number": 9}), env.step({"type": "guess", "number": 4})
        assert (lower.reward, lower.done, right.reward, right.done) == (0.0, False, 1.0, True)
        assert env.trajectory().total_reward == 1.0


def test_an_agent_on_an_episode_sees_no_reward_and_the_orchestrator_does(ours: str) -> None:
    async def act(mcp_url: str) -> str:
        async with Client(mcp_url) as client:
            result = await client.call_tool("echo_message", {"message": "two words"})
            return json.dumps(result.structured_content) + json.dumps(result.meta)

    with EnvClient(ours).sync() as env:
        mcp_url = env.reset(index=1).info["mcp_url"]
        seen = asyncio.run(act(mcp_url))
        assert "two words" in seen and "0.2" not in seen and "reward" not in seen
        assert env.trajectory().total_reward == 0.2
        state: Any = env.state()
        assert (state.step_count, state.task) == (1, "say fro")


def test_the_episode_has_one_id_on_both_sides(ours: str) -> None:
    with EnvClient(ours).sync() as env:
        assert env.reset().info["episode_id"] == env.state().episode_id
        env.reset(episode_id="mine")
        assert env.state().episode_id == "mine"


def test_an_unknown_reset_option_is_refused_and_one_that_does_not_work_is_the_environments_failure(ours: str) -> None:
    with EnvClient(ours).sync() as env:
        with pytest.raises(InvalidMessage, match="unknown reset option 'level'"):
            env.reset(level=1)
        with pytest.raises(ExecutionError, match="reset raised KeyError"):
            env.reset(split="none")
        assert env.reset(split="test").observation.metadata["greeting"] == "Welcome."


# -- environments without tools


def test_own_actions_observations_and_states_cross(guess_url: str) -> None:
    with EnvClient(guess_url).sync() as env:
        first: Any = env.reset(limit=20)
        assert first.observation.hint == "1 to 20"
        step: Any = env.step({"number": 3})
        assert (step.observation.hint, step.reward) == ("higher", 0.0)
        with pytest.raises(InvalidMessage) as refused:
            env.step({"type": "guess", "number": "many"})
        assert refused.value.errors[0]["loc"] == ["number"]
        with pytest.raises(ExecutionError, match="act raised ArithmeticError") as failed:
            env.step({"number": -1})
        assert "secret" not in str(failed.value)
        state: Any = env.state()
        assert (state.guesses, state.step_count, state.same_thread) == ([3], 1, True)
    action = httpx.get(f"{guess_url}/schema").json()["action"]
    assert "A number between 1 and 10." in json.dumps(action)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"number": "many"}, "number: Input should be a valid integer"),
        ({}, "number: Field required"),
        ({"number": 4, "colour": "red"}, "colour: Extra inputs are not permitted. The parameters are: "),
        ({"type": "shout", "number": 4}, "type: Input should be 'guess'"),
    ],
)
def test_an_action_that_does_not_fit_is_the_agents_error_with_its_field(
    guess_url: str, arguments: dict[str, Any], said: str
) -> None:
    with EnvClient(guess_url).sync() as env:
        env.reset()
        refused = env.call_tool("act", arguments)
        assert refused.info["status"] == {"code": "agent_error", "retryable": False, "stage": "tool"}
        assert refused.error is not None and refused.error.error_type is ToolErrorType.INVALID_ARGS
        assert refused.error.message.startswith(f"act: invalid arguments: {said}")
        assert env.call_tool("act", {"number": 4}).done


def test_reset_options_may_have_any_name() -> None:
    openenv_python()
    with load_target(f"{MORE}:OddlyNamedEnvironment").make() as env:
        for name in ("options", "asynchronous", "synchronous", "task", "mode", "schema", "instance"):
            first: Any = env.reset(**{name: "x"})
            assert first.hint == "['x']", name
        first = env.reset(args=1, fn=1, op=1)
        assert first.hint == "['args', 'fn', 'op']"


def test_agents_take_own_actions_by_a_tool_and_see_no_reward(guess_url: str) -> None:
    async def guess(mcp_url: str) -> list[Any]:
        async with Client(mcp_url) as client:
            (tool,) = await client.list_tools()
            assert tool.name == "act" and set(tool.input_schema["properties"]) == {"type", "number"}
            return [(await client.call_tool("act", {"number": n})).structured_content for n in (9, 4)]

    with EnvClient(guess_url).sync() as env:
        assert asyncio.run(guess(env.reset().info["mcp_url"])) == [{"hint": "lower"}, {"hint": "yes"}]
        end = env.wait(10)
        assert (end.done, end.info["return"]) == (True, 1.0)


def test_the_environment_that_openenv_init_writes_works_with_its_own_client(tmp_path: Path) -> None:
    run_each(["openenv.cli", "init", "my_echo"], cwd=tmp_path)
    use = tmp_path / "use.py"
    use.write_text(
        "import sys\n"
        "from my_echo import MyEchoAction, MyEchoEnv\n"
        "with MyEchoEnv(base_url=sys.argv[1]).sync() as env:\n"
        "    print(env.reset().observation.echoed_message)\n"
        "    step = env.step(MyEchoAction(message='hello'))\n"
        "    print(step.observation.echoed_message, step.observation.message_length, step.reward, step.done)\n"
        "    print(env.state().step_count)\n"
    )
    with openenvs_own_server(tmp_path / "my_echo") as theirs, served(tmp_path / "my_echo") as ours:
        printed = run_each([str(use), theirs], [str(use), ours], cwd=tmp_path)
    assert printed == ["My Echo environment ready!\nhello 5 0.5 False\n1\n"] * 2


# -- whose step counts, and what does not stop


def test_a_step_that_a_subclass_wrote_is_the_one_that_is_taken(counting_url: str) -> None:
    with EnvClient(counting_url).sync() as env:
        env.reset()
        steps = [env.call_tool("add", {"by": by}) for by in (2, 3)]
        assert [(step.reward, step.done) for step in steps] == [(2.0, False), (5.0, True)]
        assert env.state().step_count == 2  # listing is no step


def test_a_step_over_the_wire_has_a_deadline_and_the_next_episode_begins_afresh(counting_url: str) -> None:
    with EnvClient(counting_url).sync() as env:
        env.reset()
        env.call_tool("add", {"by": 1})
        late = env.call_tool("wait", timeout_s=0.2)
        assert (_error(late), late.truncated) == (ToolErrorType.TIMEOUT, True)
        env.reset()
        assert env.call_tool("add", {"by": 1}).reward == 1.0


def test_a_process_that_dies_ends_its_sessions_and_no_more(counting: Target, counting_url: str) -> None:
    with EnvClient(counting_url).sync() as env:
        env.reset()
        pid = pid_of(counting)
        os.kill(pid, signal.SIGKILL)
        assert _error(env.call_tool("add", {"by": 1})) is ToolErrorType.EXECUTION_ERROR
    with EnvClient(counting_url).sync() as env:
        env.reset()
        assert env.call_tool("add", {"by": 1}).reward == 1.0
        assert pid_of(counting) != pid


def test_nothing_is_left_when_the_server_has_ended(counting: Target) -> None:
    with serving(counting.factory) as url, EnvClient(url).sync() as env:
        env.reset()
        pid = pid_of(counting)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_whose_server_was_killed_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mcpenv", "run", str(ECHO), "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert "openenv_echo" in server.stdout.readline()
        tasks = Path(f"/proc/{server.pid}/task").glob("*/children")  # of each thread
        children = [child for each in tasks for child in each.read_text().split()]
        assert len(children) == 1
        # A descriptor of the process, that becomes readable when it ends.
        handle = os.pidfd_open(int(children[0]))
        try:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            ended = asyncio.run(_readable(handle))
        finally:
            os.close(handle)
    assert ended


async def _readable(handle: int) -> bool:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, event.set)
    try:
        await asyncio.wait_for(event.wait(), 30)
    finally:
        loop.remove_reader(handle)
    return True


# -- tasks


def test_the_task_api_answers_as_openenvs_own_server_does(theirs: str, ours: str) -> None:
    asked: list[tuple[str, str, Any]] = [
        ("GET", "/list_environments", None),
        ("GET", "/openenv_echo/splits", None),
        ("POST", "/OpenEnv_Echo/tasks", {"split": "train"}),
        ("POST", "/openenv_echo/num_tasks", {"split": "train"}),
        ("POST", "/openenv_echo/task", {"split": "test", "index": 0}),
        ("POST", "/openenv_echo/task", {"split": "test", "index": 9}),
        ("POST", "/openenv_echo/task", {"split": "test"}),
        ("POST", "/openenv_echo/task_range", {"split": "train", "start": 1}),
        ("GET", "/another/splits", None),
    ]
    for method, path, body in asked:
        expected = httpx.request(method, theirs + path, json=body)
        answered = httpx.request(method, ours + path, json=body)
        assert answered.status_code == expected.status_code, path
        if answered.status_code == 200:
            # A task names its environment besides: clients of ORS read that from the same route.
            named = {"env_name": "openenv_echo"} if path.rpartition("/")[2] in ("task", "task_range") else {}
            told = expected.json()
            assert answered.json() == ({**told, **named} if named else told), path


def test_an_environment_without_tasks_says_so(guess_url: str) -> None:
    assert httpx.get(f"{guess_url}/GuessEnvironment/splits").status_code == 501


def test_tasks_need_the_control_token_where_one_is_set(ours_with_a_token: str) -> None:
    splits = f"{ours_with_a_token}/openenv_echo/splits"
    assert httpx.get(splits).status_code == 401
    assert httpx.get(splits, headers={"Authorization": "Bearer the-control-token"}).status_code == 200


# -- the command line, and in process


def test_call_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("call", str(ECHO), "echo_message", "message=hello")) == 0
    assert capsys.readouterr().out == "hello\n"


def test_settings_reach_its_constructor(echo: Target) -> None:
    with echo.make() as env:
        assert isinstance(env, MCPEnvironment)
        assert env.reset().metadata["greeting"] == "Welcome."
        obs = env.step(CallToolAction(tool_name="echo_message", arguments={"message": "in process"}))
        assert (obs.text, obs.reward) == ("in process", 0.2)


def test_inspect_knows_a_class_of_an_installed_package_named_as_any_other() -> None:
    ended = mcpenv("inspect", "server.echo_environment:EchoEnvironment", "--json", cwd=ECHO)
    assert ended.returncode == 0, ended.stderr
    assert [tool["name"] for tool in json.loads(ended.stdout)["tools"]][:2] == ["echo_message", "echo_with_length"]


def folder_of(folder: Path, manifest: str, app: str) -> Path:
    (folder / "server").mkdir(parents=True)
    (folder / "openenv.yaml").write_text(manifest)
    (folder / "server" / "app.py").write_text(app)
    return folder


def test_one_that_does_not_load_is_one_line_and_status_2(tmp_path: Path) -> None:
    ended = mcpenv("inspect", str(folder_of(tmp_path, "name: x", "import missing_module")))
    assert ended.returncode == 2
    said = f"error: {tmp_path}: cannot be loaded: ModuleNotFoundError: No module named 'missing_module'"
    assert ended.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in ended.stderr


def test_one_that_creates_no_server_is_refused_with_its_target(tmp_path: Path) -> None:
    openenv_python()
    with pytest.raises(TargetError, match=f"^{tmp_path}: server.app creates no server of an OpenEnv environment"):
        load_target(str(folder_of(tmp_path, "name: x", "app = None")))


LOAD_EACH = """
import json, os, runpy, sys
child = runpy.run_path(sys.argv[1])
assert "gradio" not in sys.modules
for folder in sys.argv[2:]:
    if os.fork() == 0:
        try:
            answer = child["hosted"]({"folder": folder}).describe()
        except BaseException as error:
            answer = child["error_data"](error)
        print(json.dumps(answer), flush=True)
        os._exit(0)
    os.wait()
"""
"""Loads folders as the process of an environment does, each in a fork, because importing OpenEnv takes seconds."""

WITH_A_WEB_PAGE = f"""
import sys
from openenv.core.env_server import create_web_interface_app
sys.path.append({str(HERE)!r})
from openenv_more import Guess, GuessEnvironment, Hint
app = create_web_interface_app(GuessEnvironment, Guess, Hint)
"""
FALLBACK = """
try:
    import missing_module
except ImportError:
    from .. import stand_in
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the process of an environment answers of four folders."""
    contents = [
        ("- no mapping", ""),
        ("name: x", FALLBACK),
        ("name: x", "raise SystemExit(3)"),
        ("name: x", WITH_A_WEB_PAGE),
    ]
    folders = [folder_of(tmp_path_factory.mktemp("folder"), *each) for each in contents]
    return [json.loads(line) for line in run(LOAD_EACH, CHILD, *folders).splitlines()]


def test_the_reason_why_one_does_not_load_is_named(loaded: list[dict[str, Any]]) -> None:
    errors = [error_of(each) for each in loaded[:3]]
    assert [(type(error).__name__, str(error)) for error in errors] == [
        ("OpenEnvRefusal", "openenv.yaml is not a mapping"),
        (
            "ImportError",
            "attempted relative import beyond top-level package, after: No module named 'missing_module'",
        ),
        ("SystemExit", "3"),
    ]


def test_one_may_make_its_web_page_itself(loaded: list[dict[str, Any]]) -> None:
    assert (loaded[3]["name"], loaded[3]["class"]) == ("x", "GuessEnvironment")


def test_its_snapshot_is_refused_and_the_port_named() -> None:
    with pytest.raises(NotSupported, match="import-openenv"):
        OpenEnvEnvironment.save_state(cast(Any, None))
