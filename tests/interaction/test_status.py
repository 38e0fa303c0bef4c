"""Each status really happens, and the answer, the record and the exports agree on it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import pytest
from fastmcp import FastMCP
from fastmcp.tools.base import ToolResult as FastMCPResult
from pydantic import AfterValidator
from websockets.asyncio.client import connect

from mcpenv import (
    Action,
    Evidence,
    JudgeFailed,
    MCPEnvironment,
    Observation,
    Recorder,
    Rubric,
    Status,
    Task,
    TaskLimits,
    ToolCall,
    ToolError,
    ToolOutcome,
    Trajectory,
    read_episodes,
)
from mcpenv.extensions.exports.anthropic import anthropic_row
from mcpenv.extensions.exports.atif import atif_document
from mcpenv.extensions.exports.openai import openai_row
from mcpenv.extensions.exports.parquet import row_of
from mcpenv.extensions.models import Judge
from mcpenv.extensions.records.statistics import statistics_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEpisode
from mcpenv_client import (
    CallToolAction,
    ConnectionFailed,
    EnvClient,
    ExecutionError,
    OperationTimeout,
    SessionLost,
    Stage,
    StatusCode,
    WireError,
)
from mcpenv_client.errors import from_wire
from mcpenv_client.types.status import read_status

COMPLETED = Status(StatusCode.COMPLETED)
REFUSED = Status(StatusCode.AGENT_ERROR, Stage.TOOL)
CRASHED = Status(StatusCode.ENV_ERROR, Stage.TOOL, True)
LATE = Status(StatusCode.ENV_ERROR, Stage.TOOL, True, "timeout")
ABANDONED = Status(StatusCode.CANCELLED, None, True)
LOST = Status(StatusCode.TRANSPORT_LOST, None, True)
PLANES = ("process", "ws", "http")


def truncated(limit: str | None, stage: Stage | None = None) -> Status:
    return Status(StatusCode.TRUNCATED, stage, stage is not None, limit)


def _crash(number: int) -> int:
    raise RuntimeError("no validator")


class Several(MCPEnvironment):
    """An environment with a tool for each status of a step."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    max_steps = 4

    def __init__(self) -> None:
        @self.tool
        def fine() -> str:
            return "fine"

        @self.tool
        def refuses() -> str:
            raise ToolError("the door is locked")

        @self.tool
        def flagged() -> FastMCPResult:
            return FastMCPResult(content="the door is locked", is_error=True)

        @self.tool
        def takes(number: int) -> int:
            return number

        @self.tool
        def crashes() -> str:
            raise ValueError("the database is gone")

        @self.tool
        def nan() -> dict[str, float]:
            return {"score": float("nan")}

        @self.tool(timeout_s=0.05)
        async def late() -> str:
            await asyncio.Event().wait()
            return "never"

        @self.tool(timeout_s=0.05)
        def sticks() -> str:
            time.sleep(0.3)
            return "late"

        @self.tool
        def checked(number: Annotated[int, AfterValidator(_crash)]) -> int:
            return number

        @self.tool
        async def naps() -> str:
            await asyncio.sleep(0.06)
            return "awake"

        @self.tool
        def wins() -> str:
            self.finish(1.0, reason="won")
            return "won"

        @self.tool
        def gives_up() -> str:
            self.finish(truncated=True, reason="out of fuel")
            return "no fuel"

        @self.tool
        def infinite() -> str:
            self.finish(float("inf"))
            return "never"

        @self.tool
        def unscored() -> str:
            return "not to be scored"

        @self.tool
        def judged() -> str:
            return "to be judged"

    def reset(self, seed: int | None = None, episode_id: str | None = None, how: str = "well") -> Observation:
        if how == "raises":
            raise RuntimeError("no database")
        if how == "ends":
            self.finish(truncated=True, reason="nothing to do")
        return Observation()

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        if call.name == "unscored":
            raise RuntimeError("no ruler")
        if call.name == "judged":
            raise JudgeFailed("no opinion")
        return 0.5


class Survivor(Several):
    SURVIVES_TIMEOUT = True


class Broken(Rubric):
    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        raise RuntimeError("no ruler")


class BrokenEnd(Rubric):
    def score_trajectory(self, trajectory: Trajectory) -> float:
        assert trajectory.status is not None
        raise RuntimeError("no ruler")


class WithRubric(Several):
    rubric = Broken()


class WithEndRubric(Several):
    rubric = BrokenEnd()


class WithJudge(Several):
    """Its judge's endpoint refuses connections."""

    rubric = Judge("http://127.0.0.1:9/v1", "a-model", "Was it polite?", at="step", tries=2, backoff_s=0.001)


class WithVerifier(Several):
    def verify(self, evidence: Evidence) -> bool:
        raise RuntimeError("the evidence is gone")


SERVER = FastMCP("mounted")


@SERVER.tool
def mounted_fine() -> str:
    return "fine"


@SERVER.tool
def mounted_refuses() -> str:
    raise ToolError("the door is locked")


@SERVER.tool
def mounted_crashes() -> str:
    raise ValueError("the database is gone")


@SERVER.tool
def mounted_flagged() -> FastMCPResult:
    return FastMCPResult(content="the door is locked", is_error=True)


class WithServer(MCPEnvironment):
    """Tools of a FastMCP server, and a tool of its own behind that server's middleware."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(SERVER)

        @self.tool
        def crashes(number: int = 1) -> str:
            raise ValueError("the database is gone")

        @self.tool(timeout_s=0.05)
        async def late() -> str:
            await asyncio.Event().wait()
            return "never"


class Move(Action):
    type: Literal["move"] = "move"
    to: str = "north"


class Walk(MCPEnvironment):
    """Has an action of its own."""

    action_types = (Move,)

    async def act(self, action: Action) -> Observation:
        assert isinstance(action, Move)
        if action.to == "nowhere":
            await asyncio.Event().wait()
        if action.to != "north":
            raise ValueError("no such way")
        return Observation()


@dataclass(frozen=True)
class Case:
    """An episode, and the status of its last step and of itself."""

    calls: list[tuple[str, dict[str, Any]]]
    step: Status
    episode: Status
    cls: Callable[..., MCPEnvironment] = Several
    options: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    refused: bool = False


def calls(*names: str) -> list[tuple[str, dict[str, Any]]]:
    return [(name, {}) for name in names]


VERIFIED = Task(
    id="verified",
    prompt="Win.",
    verifier={"kind": "python", "code": "def verify(task, before, after, changes):\n    return 1 / 0\n"},
)
SLOW = Task(id="slow", prompt="Nap.", limits=TaskLimits(timeout_s=0.05))
CASES = {
    "it went well": Case(calls("fine", "wins"), COMPLETED, COMPLETED),
    "the orchestrator ended it": Case(calls("fine"), COMPLETED, COMPLETED, end={}),
    "max_steps": Case(calls("fine", "fine", "fine", "fine"), COMPLETED, truncated("max_steps")),
    "time limit": Case(calls("naps"), COMPLETED, truncated("time_limit"), options={"task": SLOW}),
    "a limit of the author's": Case(calls("gives_up"), COMPLETED, truncated("out of fuel")),
    "a limit of the orchestrator's": Case(
        calls("fine"), COMPLETED, truncated("tokens"), end={"truncated": True, "reason": "tokens"}
    ),
    "an agent that the orchestrator found too slow": Case(
        calls("fine"), COMPLETED, truncated("timeout"), end={"truncated": True, "reason": "timeout"}
    ),
    "a tool's timeout": Case(calls("late"), LATE, truncated("timeout", Stage.TOOL)),
    "a timeout that the world survives": Case(calls("late", "fine"), COMPLETED, ABANDONED, Survivor),
    "a ToolError": Case(calls("refuses"), REFUSED, COMPLETED, end={}),
    "a result marked as an error": Case(calls("flagged"), REFUSED, COMPLETED, end={}),
    "invalid arguments": Case([("takes", {"number": "many"})], REFUSED, COMPLETED, end={}),
    "an unknown tool": Case(calls("shout"), REFUSED, COMPLETED, end={}),
    "a tool that raises": Case(calls("crashes"), CRASHED, COMPLETED, end={}),
    "a result without a JSON form": Case(calls("nan"), CRASHED, COMPLETED, end={}),
    "score raises": Case(
        calls("unscored"),
        Status(StatusCode.ENV_ERROR, Stage.SCORE, True),
        Status(StatusCode.ENV_ERROR, Stage.SCORE, True),
        refused=True,
    ),
    "an infinite reward": Case(
        calls("infinite"),
        Status(StatusCode.ENV_ERROR, Stage.SCORE, True),
        Status(StatusCode.ENV_ERROR, Stage.SCORE, True),
        refused=True,
    ),
    "a rubric raises": Case(
        calls("fine"),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        WithRubric,
        refused=True,
    ),
    "a model judge fails": Case(
        calls("fine"),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        WithJudge,
        refused=True,
    ),
    "a rubric of the end raises": Case(
        calls("wins"),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        WithEndRubric,
        refused=True,
    ),
    "a rubric raises at the orchestrator's end": Case(
        calls("fine"), COMPLETED, Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True), WithEndRubric, end={}, refused=True
    ),
    "the verifier raises": Case(
        calls("wins"),
        Status(StatusCode.JUDGE_ERROR, Stage.VERIFY, True),
        Status(StatusCode.JUDGE_ERROR, Stage.VERIFY, True),
        WithVerifier,
        refused=True,
    ),
    "the verifier raises at the orchestrator's end": Case(
        calls("fine"),
        COMPLETED,
        Status(StatusCode.JUDGE_ERROR, Stage.VERIFY, True),
        WithVerifier,
        end={},
        refused=True,
    ),
    "the task's verifier fails": Case(
        calls("wins"),
        Status(StatusCode.JUDGE_ERROR, Stage.VERIFY, True),
        Status(StatusCode.JUDGE_ERROR, Stage.VERIFY, True),
        options={"task": VERIFIED},
        refused=True,
    ),
    "score finds that a judge failed": Case(
        calls("judged"),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        Status(StatusCode.JUDGE_ERROR, Stage.SCORE, True),
        refused=True,
    ),
    "a tool that cannot be stopped": Case(calls("sticks"), LATE, truncated("a tool could not be stopped", Stage.TOOL)),
    "a tool that cannot be stopped, so that the end is not scored": Case(calls("sticks"), LATE, LATE, WithEndRubric),
    "a validator of the author's that raises": Case([("checked", {"number": 1})], CRASHED, COMPLETED, end={}),
    "a mounted tool": Case(calls("mounted_fine"), COMPLETED, COMPLETED, WithServer, end={}),
    "a mounted tool's ToolError": Case(calls("mounted_refuses"), REFUSED, COMPLETED, WithServer, end={}),
    "a mounted tool's error result": Case(calls("mounted_flagged"), REFUSED, COMPLETED, WithServer, end={}),
    "a mounted tool that raises": Case(calls("mounted_crashes"), CRASHED, COMPLETED, WithServer, end={}),
    "an own tool behind a mounted server raises": Case(calls("crashes"), CRASHED, COMPLETED, WithServer, end={}),
    "an own tool behind a mounted server is late": Case(
        calls("late"), LATE, truncated("timeout", Stage.TOOL), WithServer
    ),
    "invalid arguments behind a mounted server": Case(
        [("crashes", {"number": "many"})], REFUSED, COMPLETED, WithServer, end={}
    ),
    "an unknown tool of a mounted server": Case(calls("shout"), REFUSED, COMPLETED, WithServer, end={}),
    "the orchestrator closes it before its end": Case(calls("fine"), COMPLETED, ABANDONED),
}


@dataclass
class Seen:
    """The statuses that a plane answered."""

    step: Status | None = None
    episode: Status | None = None
    refused: Status | None = None


def _infos(seen: Seen, info: dict[str, Any], *, of_step: bool = True) -> None:
    if of_step:
        seen.step = read_status(info.get("status"))
    seen.episode = read_status(info.get("episode_status"))


def _options(case: Case) -> dict[str, Any]:
    return {
        name: value.model_dump(mode="json") if isinstance(value, Task) else value
        for name, value in case.options.items()
    }


def in_process(case: Case, record: Path) -> Seen:
    seen, env = Seen(), case.cls()
    with Recorder(record) as recorder:
        recorder.attach(env)
        env.reset(**_options(case))
        try:
            for name, arguments in case.calls:
                _infos(seen, env.step(CallToolAction(tool_name=name, arguments=arguments)).info)
            if case.end is not None:
                _infos(seen, env.end(**case.end).info, of_step=False)
        except WireError as error:
            seen.refused = error.status
        env.close()
    return seen


def over_ws(case: Case, record: Path) -> Seen:
    seen = Seen()
    with (
        serving(case.cls, ServerConfig(record=record)) as url,
        EnvClient[Any, Any, Any](url).sync() as client,
    ):
        client.reset(**_options(case))
        try:
            for name, arguments in case.calls:
                result = client.call_tool(name, arguments)
                seen.step, seen.episode = result.status, result.episode_status
            if case.end is not None:
                seen.episode = client.end(**case.end).episode_status
        except WireError as error:
            seen.refused = error.status
        waited = client.wait(0.001)
        assert waited.episode_status is None or waited.episode_status == case.episode
        trajectory = client.trajectory()
        assert trajectory.steps[-1].status == case.step
        assert trajectory.status in (None, case.episode)
        if not waited.done:
            assert waited.episode_status is None
    return seen


def over_http(case: Case, record: Path) -> Seen:
    seen = Seen()
    with serving(case.cls, ServerConfig(record=record)) as url, httpx.Client(base_url=url, timeout=30) as http:
        session_id = http.post("/reset", json=_options(case)).json()["session_id"]
        exchanges = [
            ("/step", {"action": {"type": "call_tool", "tool_name": name, "arguments": arguments}})
            for name, arguments in case.calls
        ]
        for path, body in [*exchanges, *([("/end", case.end)] if case.end is not None else [])]:
            reply = http.post(path, json={**body, "session_id": session_id})
            if reply.is_error:
                seen.refused = from_wire(reply.json()).status
                assert reply.json()["status"]["code"]
            else:
                _infos(seen, reply.json()["info"], of_step=path == "/step")
        assert http.delete(f"/sessions/{session_id}").is_success
    return seen


RUNS = {"process": in_process, "ws": over_ws, "http": over_http}


def the_recorded(record: Path) -> RecordedEpisode:
    (episode,) = read_episodes(record)
    return episode


def the_exports_say(episode: RecordedEpisode, step: Status | None, status: Status) -> None:
    expected = {
        "status": status.code.value,
        "status_stage": None if status.stage is None else status.stage.value,
        "status_retryable": status.retryable,
        "status_limit": status.limit,
    }
    documents = [
        openai_row(episode, [])["metadata"],
        anthropic_row(episode, [])["metadata"],
        atif_document(episode, [])["extra"],
        row_of(episode, []),
    ]
    for document in documents:
        assert {name: document[name] for name in expected} == expected
    if step is not None:
        assert row_of(episode, [])["steps"][-1]["status"] == step.code.value
    assert statistics_of([episode])["statuses"] == {status.code.value: 1}


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("name", CASES)
def test_answer_record_and_exports_agree_on_the_status(name: str, plane: str, tmp_path: Path) -> None:
    case = CASES[name]
    seen = RUNS[plane](case, tmp_path / "record")
    if case.refused:
        assert seen.refused == (case.step if case.end is None else case.episode)
    else:
        assert seen.refused is None and seen.step == case.step
        assert seen.episode == (None if case.episode == ABANDONED else case.episode)
    episode = the_recorded(tmp_path / "record")
    assert episode.trajectory.steps[-1].status == case.step
    assert episode.trajectory.status == case.episode
    assert RecordedEpisode.from_line(episode.line()).trajectory.status == case.episode
    the_exports_say(episode, case.step, case.episode)


@pytest.mark.parametrize("plane", PLANES)
def test_an_episode_that_its_reset_ends_has_a_status(plane: str) -> None:
    expected = truncated("nothing to do").to_plain()
    if plane == "process":
        assert Several().reset(how="ends").info["episode_status"] == expected
        return
    with serving(Several) as url:
        if plane == "http":
            info = httpx.post(f"{url}/reset", json={"how": "ends"}).json()["info"]
        else:
            with EnvClient[Any, Any, Any](url).sync() as client:
                info = client.reset(how="ends").info
    assert info["episode_status"] == expected and "status" not in info


@pytest.mark.parametrize("plane", PLANES)
def test_a_reset_that_raises_is_an_error_of_the_environment(plane: str) -> None:
    expected = Status(StatusCode.ENV_ERROR, Stage.RESET, True)
    if plane == "process":
        with pytest.raises(ExecutionError) as raised:
            Several().reset(how="raises")
        assert raised.value.status == expected
        return
    with serving(Several) as url:
        if plane == "http":
            assert httpx.post(f"{url}/reset", json={"how": "raises"}).json()["status"] == expected.to_plain()
            refused = httpx.post(f"{url}/reset", json={"nonsense": 1}).json()
            assert refused["code"] == "VALIDATION_ERROR" and "status" not in refused
        else:
            with EnvClient[Any, Any, Any](url).sync() as client, pytest.raises(ExecutionError) as raised:
                client.reset(how="raises")
            assert raised.value.status == expected


class Slow(MCPEnvironment):
    """An environment with a tool that never returns by itself."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    began = threading.Event()

    def __init__(self) -> None:
        @self.tool
        async def waits() -> str:
            self.began.set()
            await asyncio.Event().wait()
            return "never"


async def _begun() -> None:
    assert await asyncio.to_thread(Slow.began.wait, 20)


def test_a_step_that_is_cancelled_by_its_id_is_cancelled(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with connect(url.replace("http", "ws") + "/ws") as socket:

            async def ask(frame: dict[str, Any]) -> dict[str, Any]:
                await socket.send(json.dumps(frame))
                reply: dict[str, Any] = json.loads(await socket.recv())
                return reply

            await ask({"type": "reset"})
            step = {"type": "step", "data": {"type": "call_tool", "tool_name": "waits"}, "request_id": "s"}
            await socket.send(json.dumps(step))
            await _begun()
            await socket.send(json.dumps({"type": "cancel", "data": {"request_id": "s"}, "request_id": "c"}))
            replies = {reply["request_id"]: reply for reply in [json.loads(await socket.recv()) for _ in range(2)]}
            assert replies["s"]["data"]["code"] == "CANCELLED"
            assert from_wire(replies["s"]["data"]).status == Status(StatusCode.CANCELLED, Stage.TOOL, True)
            ended = await ask({"type": "end", "data": {"truncated": True, "reason": "cancelled"}})
            assert ended["data"]["info"]["episode_status"] == truncated("cancelled").to_plain()

    Slow.began.clear()
    with serving(Slow, ServerConfig(record=tmp_path)) as url:
        asyncio.run(main(url))
    episode = the_recorded(tmp_path)
    assert episode.trajectory.steps[-1].status == Status(StatusCode.CANCELLED, Stage.TOOL, True)
    the_exports_say(episode, episode.trajectory.steps[-1].status, truncated("cancelled"))


def test_an_episode_whose_socket_is_lost_is_lost(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with connect(url.replace("http", "ws") + "/ws") as socket:
            await socket.send(json.dumps({"type": "reset"}))
            await socket.recv()
            await socket.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "waits"}}))
            await _begun()
            socket.transport.abort()

    Slow.began.clear()
    with serving(Slow, ServerConfig(record=tmp_path)) as url:
        asyncio.run(main(url))
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob("episodes-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
    episode = the_recorded(tmp_path)
    assert (episode.trajectory.reason, episode.trajectory.status) == ("disconnected", LOST)
    assert episode.trajectory.steps[-1].status == Status(StatusCode.CANCELLED, Stage.TOOL, True)
    the_exports_say(episode, episode.trajectory.steps[-1].status, LOST)


def test_errors_of_the_connection_have_a_status() -> None:
    with serving(Several) as url:
        client = EnvClient[Any, Any, Any](url).sync()
        client.reset()
        client.close()
        with pytest.raises(SessionLost) as lost:
            client.call_tool("fine")
        assert lost.value.status == LOST
    with pytest.raises(ConnectionFailed) as failed:
        EnvClient[Any, Any, Any]("http://127.0.0.1:9").sync().reset()
    assert failed.value.status == LOST


class Unclosable(Slow):
    def close(self) -> None:
        raise RuntimeError("it cannot be closed")


def test_a_close_that_raises_is_an_error_of_the_environment() -> None:
    env = Unclosable()
    env.reset()
    with pytest.raises(ExecutionError) as raised:
        env.close()
    assert raised.value.status == Status(StatusCode.ENV_ERROR, Stage.CLOSE, True)


def test_an_own_action_has_a_status() -> None:
    env = Walk()
    env.reset()
    assert env.step(Move()).info["status"] == COMPLETED.to_plain()
    with pytest.raises(ExecutionError) as raised:
        env.step(Move(to="south"))
    assert raised.value.status == CRASHED
    with pytest.raises(OperationTimeout) as late:
        env.step(Move(to="nowhere"), timeout_s=0.05)
    assert late.value.status == LATE
    trajectory = env.trajectory
    assert trajectory is not None and [step.status for step in trajectory.steps] == [COMPLETED, CRASHED, LATE]
    env.close()


def test_an_episode_that_a_reset_replaces_is_cancelled(tmp_path: Path) -> None:
    env = Several()
    with Recorder(tmp_path) as recorder:
        recorder.attach(env)
        for _ in range(2):
            env.reset()
            env.step(CallToolAction(tool_name="fine"))
        env.close()
    assert [each.trajectory.status for each in read_episodes(tmp_path)] == [ABANDONED, ABANDONED]


def test_a_failure_in_the_middle_makes_the_whole_return_unknown() -> None:
    env = Several()
    env.reset()
    with pytest.raises(ExecutionError):
        env.step(CallToolAction(tool_name="unscored"))
    last = env.step(CallToolAction(tool_name="wins"))
    assert last.info["status"] == COMPLETED.to_plain()
    assert last.info["episode_status"] == Status(StatusCode.ENV_ERROR, Stage.SCORE, True).to_plain()
    env.close()


def test_who_changes_the_status_of_one_observation_changes_no_other() -> None:
    env = Several()
    env.reset()
    env.step(CallToolAction(tool_name="fine")).info["status"]["code"] = "changed"
    assert env.step(CallToolAction(tool_name="fine")).info["status"] == COMPLETED.to_plain()
    env.close()
