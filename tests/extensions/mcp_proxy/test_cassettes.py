"""Cassettes: a proxied episode is recorded, and played back with the server gone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from mcpenv import CallToolAction, ExecutionError, NotSupported, ObjectWorld, Recorder, Task, TaskSet, read_episodes
from mcpenv.errors import TargetError
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.records.replay import Verdict, replay
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target
from mcpenv_client import EnvClient
from mcpenv_client.errors import InvalidMessage

SERVER = '''
"""A counter, whose state is in the process."""

import os
import sys
import time

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError

server = FastMCP("counter", version="1.0")
count = 0


@server.tool
async def add(ctx: Context, by: int = 1) -> int:
    """Add to the counter."""
    global count
    count += by
    await ctx.report_progress(1, 2, "half")
    await ctx.info("added")
    return count


@server.tool(annotations={"readOnlyHint": True})
def read() -> int:
    """Read the counter."""
    return count


@server.tool(annotations={"readOnlyHint": True})
def clock() -> str:
    """Return the time."""
    return str(time.time_ns())


@server.tool
def fail(text: str) -> str:
    """Fail."""
    raise ToolError(text)


@server.tool
def login(user: str) -> str:
    """Return a token."""
    return f"the token is {os.environ.get('TOKEN', '')}"


@server.tool
def use(token: str) -> str:
    """Use the token."""
    return "welcome" if token == os.environ.get("TOKEN") else "go away"


@server.tool
def die() -> str:
    """End the process."""
    os._exit(3)


MORE
server.run(show_banner=False)
'''


class Recording:
    """A server in a file, and a record of its episodes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "server.py"
        self.record = folder / "record"
        self.settings: dict[str, Any] = {}
        self.server: dict[str, Any] = {}
        self._live: Any = None
        self.serve()

    def serve(self, more: str = "") -> None:
        self.file.write_text(SERVER.replace("MORE", more))
        self._live = None

    def live(self) -> Any:
        if self._live is None:
            server = {"command": sys.executable, "args": [str(self.file)], **self.server}
            self._live = ProxyEnvironment.from_config({"mcpServers": {"counter": server}, "mcpenv": self.settings})
        return self._live

    def episode(self, *calls: tuple[str, dict[str, Any]], cls: Any = None, end: bool = True, **reset: Any) -> list[str]:
        """Record an episode of these calls, and return their texts."""
        with Recorder(self.record) as recorder, (cls or self.live())() as env:
            recorder.attach(env)
            return play(env, *calls, end=end, **reset)

    def gone(self) -> str:
        """Delete the server, and return the target of the record."""
        self.file.unlink()
        return f"cassette:{self.record}"


def play(env: Any, *calls: tuple[str, dict[str, Any]], end: bool = True, **reset: Any) -> list[str]:
    env.reset(**reset)
    texts = [env.step(CallToolAction(tool_name=name, arguments=arguments)).text for name, arguments in calls]
    if end and not env.trajectory.done:
        env.end()
    return texts


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


Call = tuple[str, dict[str, Any]]
ADD: Call = ("add", {})
READ: Call = ("read", {})


# -- equal


def test_a_recorded_episode_is_played_with_the_server_gone_and_is_equal_by_hash(recording: Recording) -> None:
    recording.episode(ADD, READ, ("add", {"by": 2}), ("fail", {"text": "not today"}), READ)
    recording.episode(ADD, ADD, end=False)
    target = recording.gone()
    loaded = load_target(target)
    assert (loaded.name, loaded.spec) == ("counter", target)
    for episode in read_episodes(recording.record):
        with loaded.make() as env:
            replayed = replay(env, episode)
            assert env.trajectory is not None
            logs = [[(log.level, log.message, log.total) for log in step.logs] for step in env.trajectory.steps]
            recorded = [[(log.level, log.message, log.total) for log in step.logs] for step in episode.trajectory.steps]
            assert logs == recorded and logs[0] == [("progress", "half", 2.0), ("info", "added", None)]
        assert (replayed.verdict, replayed.why) == (Verdict.AGREES, None)
        assert replayed.recorded_hash == replayed.replayed_hash


@pytest.mark.slow
def test_the_command_replays_a_record_from_itself(recording: Recording) -> None:
    recording.episode(ADD, READ)
    command = [
        sys.executable,
        "-m",
        "mcpenv",
        "trajectories",
        "replay",
        str(recording.record),
        "--target",
        recording.gone(),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (replayed,) = json.loads(done.stdout)["replayed"]
    assert replayed["verdict"] == "agrees" and replayed["recorded_hash"] == replayed["replayed_hash"]


@pytest.mark.slow
def test_rewards_ends_and_verifications_are_played(recording: Recording) -> None:
    task = Task(
        id="three",
        prompt="Reach three.",
        verifier={"kind": "expect_exactly", "changes": {"count": 3}},
    )

    class Scored(recording.live()):  # type: ignore[misc]
        """Reach three."""

        tasks = TaskSet([task])

        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.world = ObjectWorld(lambda: {"count": self.count})

        def score(self, call: Any, outcome: Any) -> float:
            self.count = int(outcome.result.data)
            if self.count == 3:
                self.finish()
            return 0.25

    recording.episode(ADD, ("add", {"by": 2}), cls=Scored, task="three")
    recording.episode(ADD, ADD, cls=Scored, task="three")
    target = recording.gone()
    for episode in read_episodes(recording.record):
        with load_target(target).make() as env:
            replayed = replay(env, episode)
            assert replayed.recorded_hash == replayed.replayed_hash, replayed
    with load_target(target).make() as env:
        assert env.reset(task="three").metadata["prompt"] == "Reach three."
        assert env.call_tool("add").reward == 0.25
        ended = env.call_tool("add", {"by": 2})
        assert ended.terminated and ended.reward == 1.25
        env.reset(task="three")
        missed = env.call_tool("add", {"by": 9})
        assert missed.reward is None and missed.info["episode_status"]["limit"] == "cassette_miss"
        env.reset(task="three")
        env.call_tool("add")
        with pytest.raises(ExecutionError):  # nobody has stopped there
            env.end()


# -- the key


def test_reads_agree_in_any_order_and_again(recording: Recording) -> None:
    recording.episode(READ, ADD, READ)
    with load_target(recording.gone()).make() as env:
        assert play(env, ADD, READ, READ) == ["1", "1", "1"]
        assert env.trajectory is not None and not env.trajectory.truncated
        assert play(env, READ, READ, ADD) == ["0", "0", "1"]


@pytest.mark.slow
def test_episodes_share_their_beginning(recording: Recording) -> None:
    recording.episode(ADD, ("add", {"by": 2}))
    recording.episode(ADD, ("add", {"by": 5}), READ)
    cls = load_target(recording.gone()).make
    with cls() as env:
        assert play(env, ADD, ("add", {"by": 5}), READ) == ["1", "6", "6"]
        assert play(env, ADD, ("add", {"by": 2})) == ["1", "3"]


def test_a_miss_truncates_the_episode_and_says_what_is_recorded(recording: Recording) -> None:
    recording.episode(ADD, ("add", {"by": 2}))
    with load_target(recording.gone()).make() as env:
        env.reset()
        env.call_tool("add")
        missed = env.call_tool("add", {"by": 7})
        assert missed.truncated and not missed.terminated and missed.info["reason"] == "cassette_miss"
        assert missed.error is not None
        assert 'does not have add {"by": 7}' in missed.error.message
        assert 'recorded there: add {"by": 2}' in missed.error.message
        status = {"code": "env_error", "stage": "tool", "retryable": False, "limit": "cassette_miss"}
        assert missed.info["status"] == missed.info["episode_status"] == status
        env.reset()
        env.call_tool("add")
        env.call_tool("add", {"by": 2})
        last = env.call_tool("read").error
        assert last is not None and "nothing is recorded there" in last.message


@pytest.mark.slow
def test_what_changes_by_itself_is_played_from_one_episode(recording: Recording) -> None:
    clocks: Call = ("clock", {})
    first = recording.episode(clocks, clocks, ADD, clocks)
    second = recording.episode(clocks, ADD, clocks, episode_id="second")
    assert len({*first, *second}) == 6
    with load_target(recording.gone()).make() as env:
        assert play(env, clocks, clocks, ADD, clocks) == first
        assert play(env, clocks, ADD, clocks) == [first[0], *first[2:]]
        assert play(env, clocks, ADD, clocks, episode_id="second") == second
        assert play(env, clocks, clocks, clocks)[1:] == [first[1], first[1]]


@pytest.mark.slow
def test_nothing_is_known_after_a_call_without_an_answer(recording: Recording) -> None:
    recording.episode(ADD, ("die", {}))
    with load_target(recording.gone()).make() as env:
        assert play(env, ADD)[0] == "1"
        missed = env.trajectory
        assert missed is not None and missed.terminated
        env.reset()
        env.call_tool("add")
        assert env.call_tool("die").info["reason"] == "cassette_miss"


@pytest.mark.slow
def test_a_task_that_was_not_recorded_is_refused(recording: Recording) -> None:
    class Tasks(recording.live()):  # type: ignore[misc]
        """Tasks."""

        tasks = TaskSet([Task(id="a"), Task(id="b")])

    recording.episode(ADD, cls=Tasks, task="a")
    with load_target(recording.gone()).make() as env:
        assert play(env, ADD, task="a") == ["1"]
        with pytest.raises(InvalidMessage, match=r"without a task and options {}; recorded tasks: 'a'"):
            env.reset()
        with pytest.raises(NotSupported, match="it plays recorded episodes"):
            play(env, ADD, task="a", end=False)
            env.snapshot()


@pytest.mark.slow
def test_a_subclass_adds_tools_and_scores(recording: Recording) -> None:
    def scored(base: Any) -> Any:
        class Scored(base):  # type: ignore[misc]
            """Two, then stop."""

            def __init__(self) -> None:
                super().__init__()
                Answer = str

                def stop(answer: Answer) -> str:  # type: ignore[valid-type]
                    """Stop."""
                    return f"stopped with {answer}"

                self.tool(stop, terminal=True)

            def score(self, call: Any, outcome: Any) -> float:
                return 2.0 if call.name == "add" else 0.5

        return Scored

    recording.episode(("stop", {"answer": "x"}), cls=scored(recording.live()))
    recording.episode(ADD, ("stop", {"answer": "x"}), cls=scored(recording.live()))
    from mcpenv.extensions.mcp_proxy.cassette import CassetteEnvironment

    recording.gone()
    with scored(CassetteEnvironment.from_record(recording.record))() as env:
        env.reset()
        assert env.call_tool("add").reward == 2.0
        ended = env.call_tool("stop", {"answer": "another"})
        assert ended.text == "stopped with another" and ended.terminated and ended.reward == 0.5


@pytest.mark.slow
def test_a_limit_is_reached_after_as_many_steps_as_it_was(recording: Recording) -> None:
    recording.settings["max_steps"] = 3
    recording.episode(READ, ADD, READ)
    with load_target(recording.gone()).make() as env:
        play(env, ADD, READ, end=False)
        assert env.trajectory is not None and not env.trajectory.done
        last = env.call_tool("read")
        assert last.text == "1" and last.truncated and last.info["reason"] == "max_steps"


# -- over the wire


@pytest.mark.slow
def test_an_agent_and_an_orchestrator_play_over_a_server(recording: Recording) -> None:
    recording.episode(ADD, READ)

    async def main(url: str) -> list[Any]:
        async with Client(url) as client:
            names = {tool.name for tool in await client.list_tools()}
            missed = await client.call_tool("add", {"by": 9}, raise_on_error=False)
            return [names >= {"add", "read"}, missed.is_error, missed.content[0].text]

    with serving(load_target(recording.gone()).factory, ServerConfig()) as url, EnvClient(url).sync() as orchestrator:
        episode = orchestrator.reset()
        assert orchestrator.call_tool("add").observation.text == "1"
        listed, is_error, text = asyncio.run(main(episode.info["mcp_url"]))
        assert listed and is_error and 'does not have add {"by": 9}' in text
        assert orchestrator.reset().info["episode_id"] != episode.info["episode_id"]


# -- changed servers


@pytest.mark.slow
def test_a_changed_server_is_named_by_the_hash_of_its_tools(recording: Recording) -> None:
    recording.episode(ADD)
    (old,) = read_episodes(recording.record)
    recording.serve('@server.tool\ndef subtract() -> str:\n    """New."""\n    return "new"\n')
    with recording.live()() as env:
        replayed = replay(env, old)
    assert replayed.verdict is Verdict.DIFFERS and replayed.difference is not None
    assert replayed.difference.field == "observation.metadata.servers.counter.tools_hash"
    hashes = (replayed.difference.recorded, replayed.difference.replayed)
    recording.episode(ADD, ("subtract", {}))
    target = recording.gone()
    with pytest.raises(TargetError) as raised:
        load_target(target)
    said = str(raised.value)
    assert "a server was changed between the episodes" in said and all(each[:12] in said for each in hashes)
    assert f"'counter' 1.0 has tools {hashes[0][:12]}" in said and f"--set tools={hashes[1][:12]}" in said
    for number, expected in enumerate((False, True)):
        with load_target(target, [f"tools={hashes[number][:12]}"]).make() as env:
            env.reset()
            assert ("subtract" in {tool.name for tool in env.list_tools()}) is expected
    with pytest.raises(TargetError, match="no episode was recorded with tools 123"):
        load_target(target, ["tools=123"])


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (lambda folder: folder / "absent", [], "there is no such record"),
        (lambda folder: folder, [], "there is no episode to play"),
        (lambda folder: folder, ["tool=1"], "a cassette has no setting 'tool'; it has: tools"),
    ],
)
def test_a_record_that_cannot_be_played_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], settings: list[str], said: str
) -> None:
    with pytest.raises(TargetError) as raised:
        load_target(f"cassette:{make(tmp_path)}", settings)
    assert said in str(raised.value)


# -- secrets


@pytest.mark.slow
def test_a_secret_is_redacted_by_name_and_placed_back(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "hunter2-hunter2")
    recording.server["env"] = {"TOKEN": "${SERVICE_TOKEN}"}
    recording.settings["redact"] = {"service-token": "${SERVICE_TOKEN}", "user": {"pattern": r"user_\d+"}}
    login, use = ("login", {"user": "user_17"}), ("use", {"token": "hunter2-hunter2"})
    assert recording.episode(login, use) == ["the token is hunter2-hunter2", "welcome"]
    (episode,) = read_episodes(recording.record)
    text = episode.line().decode()
    assert "hunter2" not in text and "user_17" not in text
    steps = episode.trajectory.steps
    assert (
        steps[0].outcome.result is not None and steps[0].outcome.result.text == "the token is [redacted: service-token]"
    )
    assert [step.call.arguments for step in steps] == [
        {"user": "[redacted: user]"},
        {"token": "[redacted: service-token]"},
    ]
    target = recording.gone()
    with pytest.raises(TargetError, match=r"'service-token' is redacted .* Set MCPENV_SECRET_SERVICE_TOKEN"):
        load_target(target)
    monkeypatch.setenv("MCPENV_SECRET_SERVICE_TOKEN", "another-token")
    with load_target(target).make() as env:
        assert play(env, login, ("use", {"token": "another-token"})) == ["the token is another-token", "welcome"]
        replayed = replay(env, episode)
        assert replayed.recorded_hash == replayed.replayed_hash, replayed


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"a b": "long enough"}, "the name 'a b' of a secret must have only letters"),
        ({"short": "abc"}, "the secret 'short' has fewer than 4 characters"),
        ({"p": {"pattern": "("}}, "is no regular expression"),
        ({"p": {"pattern": "x*"}}, "fits an empty text"),
        ({"p": "${NOT_SET_ANYWHERE}"}, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(recording: Recording, rules: dict[str, Any], said: str) -> None:
    recording.settings["redact"] = rules
    with pytest.raises(Exception, match=r"mcpenv\.redact") as raised:
        recording.live()
    assert said in str(raised.value)
