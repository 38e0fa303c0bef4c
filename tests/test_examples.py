"""Run every file of ``examples/`` to its end in a process of its own, silent on stderr."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from forked import Forks
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcpenv_client import EnvClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
from serving import ECHO_MCP, GUESS_NUMBER, served  # noqa: E402

HELPERS = {"serving", "choose_calls", "tiny_model"}
NEEDS_A_MODEL = {"llm_rollout"}
NEEDS_TORCH = {"train_ppo", "train_grpo"}  # tests/extensions/trainers/test_train_ppo.py, test_train_grpo.py
NEEDS_FILES = {"plot_curves"}
NEEDS_TIME = {"train_black_box", "chat_agent"}  # the first starts the second for each episode
PLOTTING = ("matplotlib.figure", "matplotlib.backends.backend_agg")
NEEDS_AGENTS = {"rollouts_openai_agents", "rollouts_langgraph", "rollouts_pydantic_ai"}  # tests/extensions/trainers
ALONE = sorted(
    {path.stem for path in EXAMPLES.glob("*.py")}
    - (HELPERS | NEEDS_A_MODEL | NEEDS_TORCH | NEEDS_FILES | NEEDS_AGENTS | NEEDS_TIME)
)
STARTING_PROCESSES = {
    path.stem for path in EXAMPLES.glob("*.py") if re.search(r"\bserved\(|\bsubprocess\b", path.read_text("utf-8"))
} | {"evaluate_a_model"}
TRAINING = {"train_async", "train_two_worlds"}
"""Programs that train a policy, for some seconds of a processor. They end in asserts of what it has learned."""
LONGER = TRAINING | {"compare_samplers", "train_from_midstates"}

RunExample = Callable[..., str]


@pytest.fixture
def run_example(forked: Forks) -> RunExample:
    """Run an example, which must end well and write nothing to stderr, and return its output."""

    def run(name: str, *arguments: str) -> str:
        program = EXAMPLES / f"{name}.py"
        imports = PLOTTING if name == "plot_curves" else ()
        ended = forked.run(program, *arguments, cwd=EXAMPLES.parent, env={"OPENAI_API_KEY": "secret"}, imports=imports)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ended.stderr == ""
        return ended.stdout

    return run


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.process] * (name in STARTING_PROCESSES | LONGER)) for name in ALONE],
)
def test_an_example_ends_well_and_prints_a_few_lines(name: str, run_example: RunExample) -> None:
    assert 0 < len(run_example(name).splitlines()) <= 40


@pytest.mark.parametrize("name", [*sorted(TRAINING), "train_black_box", "preference_pairs"])
def test_a_whole_program_has_fewer_than_120_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) < 120


def return_of(client: Any, task: str, messages: list[dict[str, Any]]) -> float:
    """Return what the calls of a conversation are worth."""
    client.reset(task=task)
    for message in messages:
        for call in message.get("tool_calls") or ():
            client.call_tool(call["function"]["name"], json.loads(call["function"]["arguments"]))
    value: float = client.end().info["return"]
    return value


def pairs_of(run: RunExample, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    out = folder / "pairs.jsonl"
    said = run("preference_pairs", "--out", str(out), *arguments)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert said.startswith(f"{len(found)} pairs of ")
    return found


@pytest.mark.process
def test_the_chosen_conversation_of_a_pair_is_worth_more_and_its_form_is_trls(
    tmp_path: Path, run_example: RunExample
) -> None:
    pairs = pairs_of(run_example, tmp_path)
    assert len(pairs) >= 3
    with served(EXAMPLES.parent / "envs" / "ledger_mcp") as url, EnvClient(url).sync() as client:
        tasks = {task.prompt: task.id for task in client.get_tasks("train")}
        for pair in pairs:
            assert pair.keys() == {"prompt", "chosen", "rejected", "tools"}  # what DPOTrainer documents
            (asked,) = pair["prompt"]
            assert asked["role"] == "user" and pair["chosen"] != pair["rejected"]
            for side in ("chosen", "rejected"):
                assert pair[side][0]["role"] == "assistant"
                assert {message["role"] for message in pair[side]} <= {"assistant", "tool"}
            assert all(tool["type"] == "function" for tool in json.loads(pair["tools"]))
            task = tasks[asked["content"]]
            assert return_of(client, task, pair["chosen"]) > return_of(client, task, pair["rejected"])


FULL = """
import errno
from mcpenv import MCPEnvironment, TaskSet

ORACLE = [{"tool_name": "put", "arguments": {}}] * 3

class Full(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": at, "prompt": at, "oracle": ORACLE, "options": {"disk": at}} for at in ("free", "full")])

    def __init__(self):
        self.tool(self.put)

    def reset(self, seed=None, episode_id=None, disk="free"):
        self.disk, self.calls = disk, 0

    def put(self) -> str:
        self.calls += 1
        if self.disk == "full" and self.calls == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "put"

    def verify(self, evidence):
        return self.calls / 3
"""


@pytest.mark.process
def test_an_episode_in_which_the_world_failed_is_in_no_pair(tmp_path: Path, forked: Forks) -> None:
    def run(name: str, *arguments: str) -> str:
        return forked.run(EXAMPLES / f"{name}.py", *arguments, cwd=EXAMPLES.parent).stdout  # stderr has the failures

    (tmp_path / "world.py").write_text(FULL)
    pairs = pairs_of(run, tmp_path, "--env", f"{tmp_path / 'world.py'}:Full", "--tasks", "2", "--group", "12")
    assert [pair["prompt"][0]["content"] for pair in pairs] == ["free"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", sorted(TRAINING))
def test_a_policy_learns_from_any_seed(name: str, seed: int, run_example: RunExample) -> None:
    assert "before" in run_example(name, str(seed))


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("seed", [1])
def test_the_model_of_a_black_box_learns_from_the_tokens_of_its_own_requests(seed: int) -> None:
    command = [sys.executable, str(EXAMPLES / "train_black_box.py"), str(seed)]
    ended = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0 and ended.stderr == "", ended.stdout + ended.stderr
    assert re.search(r"reward 0\.\d\d before, [01]\.\d\d after", ended.stdout)


@pytest.mark.process
@pytest.mark.parametrize("name", ["remote_rollout", "many_episodes"])
def test_an_example_uses_the_server_that_it_is_given(name: str, run_example: RunExample) -> None:
    with served(GUESS_NUMBER) as url:
        assert run_example(name, url)


@pytest.mark.process
def test_the_mcp_client_example_uses_the_server_that_it_is_given(run_example: RunExample) -> None:
    with served(ECHO_MCP) as url:
        assert "2025-11-25: echo_message, echo_with_length, say_goodbye" in run_example(
            "plain_mcp_client", f"{url}/mcp"
        )


def test_a_model_plays_in_process(run_example: RunExample) -> None:
    with scripted_model() as base_url:
        said = run_example("llm_rollout", "--base-url", base_url, "--model", "scripted")
    assert said.splitlines()[-1] == "return: 0.9"  # a hint for 0.1, and the number found


@pytest.mark.process
def test_a_model_plays_on_a_server(run_example: RunExample) -> None:
    with served(GUESS_NUMBER) as url, scripted_model() as base_url:
        said = run_example("llm_rollout", "--base-url", base_url, "--model", "scripted", "--env", url)
    assert said.splitlines()[-1] == "return: 0.9"


IMAGES = EXAMPLES.parent / "docs" / "images"


def test_the_curves_of_the_docs_are_drawn_and_their_figures_are_those_of_the_page(
    tmp_path: Path, run_example: RunExample
) -> None:
    pages = EXAMPLES.parent / "docs"
    for name, files in (
        ("tutorials/train-a-policy", "train-ppo/seed-*.json"),
        ("tutorials/train-a-policy", "train-ppo/cheat-*.json"),
        ("tutorials/train-a-language-model", "train-grpo/seed-*.json"),
        ("tutorials/train-a-language-model", "train-office/seed-*.json"),
        ("how-to/pools", "samplers/levels.json"),
        ("how-to/pools", "samplers/powers.json"),
        ("how-to/branch-from-records", "midstates/seeds.json"),
    ):
        page, runs = (pages / f"{name}.md").read_text(encoding="utf-8"), sorted(IMAGES.glob(files))
        said = run_example("plot_curves", *map(str, runs), "--out", str(tmp_path / "curves.png"))
        assert said and said in page
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("updates", [None, 4])
def test_a_file_without_a_curve_is_refused(updates: int | None, tmp_path: Path, forked: Forks) -> None:
    run = json.loads((IMAGES / "train-ppo" / "seed-1.json").read_text())
    (tmp_path / "none.json").write_text(json.dumps({**run, "curve": run["curve"][:updates]} if updates else {}))
    program, out = EXAMPLES / "plot_curves.py", ("--out", "curves.png")
    ended = forked.run(program, "none.json", *out, cwd=tmp_path, imports=PLOTTING)
    complaint = f"has {updates} updates" if updates else "is no file that train_ppo.py or train_grpo.py wrote"
    assert ended.returncode == 1 and f"none.json {complaint}" in ended.stderr


# -- a model


@contextmanager
def scripted_model() -> Iterator[str]:
    """The base URL of an OpenAI-compatible endpoint whose model asks for a hint and then halves what is left."""
    app = Starlette(routes=[Route("/v1/chat/completions", _complete, methods=["POST"])])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # from here on connections wait until they are accepted
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
        thread = Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()


async def _complete(request: Request) -> JSONResponse:
    body = await request.json()
    refused = _refuse(request.headers.get("authorization"), body)
    if refused is not None:
        return JSONResponse({"error": {"message": refused}}, status_code=400)
    message = {"role": "assistant", "content": None, "tool_calls": _next_calls(body["messages"])}
    return JSONResponse({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})


def _refuse(authorization: str | None, body: dict[str, Any]) -> str | None:
    """Return what an endpoint would find wrong with the request."""
    if authorization != "Bearer secret" or body["model"] != "scripted":
        return "who are you?"
    if body["messages"][0] != {"role": "user", "content": "Guess a number from 1 to 100."}:
        return "the task is missing"
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    if functions["guess"]["properties"] != {"number": {"type": "integer"}} or "hint" not in functions:
        return "the tools are not as listed"
    asked = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
    answered = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    return None if asked == answered else "a call without its answer"


def _next_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a hint and the first guess in one turn, then a guess a turn."""
    answers = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    low, high = 1, 100
    for call in calls:
        if call["function"]["name"] == "guess":
            number = json.loads(call["function"]["arguments"])["number"]
            low, high = (number + 1, high) if answers[call["id"]] == "higher" else (low, number - 1)
    guess = _call(len(calls) + 1, "guess", json.dumps({"number": (low + high) // 2}))
    return [guess] if calls else [_call(0, "hint", ""), guess]


def _call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
