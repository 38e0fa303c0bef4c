"""The ledger, the workspace and the maze: their rules, their tasks, and that every plane and process plays alike."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import Client

from mcpenv import MCPEnvironment, Observation
from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.server.serve import serving
from mcpenv_client import CallToolObservation, EnvClient, StepResult
from mcpenv_client.types.tasks import Task
from mcpenv_client.wire.protocol import parse_observation

ENVS = Path(__file__).resolve().parents[2] / "envs"
NAMES = ("ledger_mcp", "workspace_mcp", "maze_mcp")


def _load(name: str) -> Any:
    """The module of an environment; others have a module of the same name."""
    folder = ENVS / name
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"{name}_environment", folder / "environment.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ledger, workspace, maze = map(_load, NAMES)
CLASSES: dict[str, type[MCPEnvironment]] = {
    "ledger_mcp": ledger.LedgerEnvironment,
    "workspace_mcp": workspace.WorkspaceEnvironment,
    "maze_mcp": maze.MazeEnvironment,
}


class TestLedger(EnvironmentContract):
    factory = ledger.LedgerEnvironment
    examples = {
        "list_accounts": {"owner": "Ana"},
        "quote_fee": {"source": 2, "target": 4, "amount": 5_000},
        "transfer": {"source": 2, "target": 4, "amount": 5_000},
        "place_hold": {"account": 2, "amount": 100, "reason": "a"},
        "release_hold": {"hold": 2},
        "capture_hold": {"hold": 1, "target": 2},
        "open_account": {"owner": "Eli", "kind": "savings"},
        "set_status": {"account": 9, "status": "closed"},
    }


class TestWorkspace(EnvironmentContract):
    factory = workspace.WorkspaceEnvironment
    examples = {
        "read_file": {"path": "welcome.txt"},
        "write_file": {"path": "a/b.txt", "text": "one"},
        "replace_text": {"path": "a/b.txt", "old": "one", "new": "two"},
        "move_file": {"source": "a/b.txt", "target": "c.txt"},
        "delete_file": {"path": "c.txt"},
    }


class TestMaze(EnvironmentContract):
    factory = maze.MazeEnvironment


# -- their tasks

TASKS = [(name, task) for name, cls in CLASSES.items() if cls.tasks is not None for task in cls.tasks]


@pytest.fixture(scope="module")
def envs() -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = {name: cls() for name, cls in CLASSES.items()}
    yield made
    for env in made.values():
        env.close()


@pytest.mark.parametrize(("name", "task"), TASKS, ids=[f"{name}-{task.id}" for name, task in TASKS])
def test_the_oracle_scores_full_and_doing_nothing_the_floor(envs: dict[str, Any], name: str, task: Task) -> None:
    env = envs[name]
    assert task.oracle is not None and task.limits.max_steps is not None
    assert env.reset(task=task.id).prompt == task.prompt != ""
    for call in task.oracle:
        obs = env.call_tool(call.tool_name, call.arguments)
        assert obs.error is None, call
    assert env.end().info["return"] == 1.0
    env.reset(task=task)
    assert env.end().info["return"] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_a_random_player_passes_no_task(envs: dict[str, Any], name: str) -> None:
    env, rng = envs[name], random.Random(1)
    tasks = CLASSES[name].tasks
    assert tasks is not None
    for task in tasks:
        env.reset(task=task)
        while not (env.trajectory.terminated or env.trajectory.truncated):
            tool, arguments = rng.choice(sensible_calls(name, rng))
            env.call_tool(tool, arguments)
        assert env.end().info["return"] == 0.0, task.id


def sensible_calls(name: str, rng: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Calls that somebody makes who knows the tools and what is there, and nothing of the task."""
    if name == "maze_mcp":
        walk = ("walk", {"direction": rng.choice(["north", "east", "south", "west"])})
        return [walk, walk, walk, ("look", {}), ("take_key", {}), ("unlock_door", {})]
    if name == "ledger_mcp":
        account, other, hold = rng.randint(1, 10), rng.randint(1, 10), rng.randint(1, 3)
        amount = rng.choice([2_000, 5_000, 30_000, 85_000])
        return [
            ("transfer", {"source": account, "target": other, "amount": amount}),
            ("place_hold", {"account": account, "amount": amount, "reason": "x"}),
            ("release_hold", {"hold": hold}),
            ("capture_hold", {"hold": hold, "target": other}),
            ("set_status", {"account": account, "status": rng.choice(["open", "frozen", "closed"])}),
            ("open_account", {"owner": rng.choice(["Ana", "Bo", "Eli"]), "kind": "savings"}),
        ]
    paths = ["errors.txt", "config.json", "logs/tue.log", "logs/mon.log", "drafts/speech.md", "inbox/letter.txt"]
    path, other_path = rng.choice(paths), rng.choice(paths)
    return [
        ("delete_file", {"path": path}),
        ("move_file", {"source": path, "target": other_path}),
        ("write_file", {"path": path, "text": rng.choice(["3", "{}", "{", "", "true\n", '[{"name": 1}]'])}),
        ("replace_text", {"path": path, "old": "e", "new": ""}),
        ("read_file", {"path": path}),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_there_are_some_twenty_tasks_in_two_splits_and_no_two_are_the_same(name: str) -> None:
    tasks = CLASSES[name].tasks
    assert tasks is not None
    assert tasks.splits() == ["train", "test"]
    assert 14 <= tasks.size("train") <= 16 and 6 <= tasks.size("test") <= 7
    for one, other in combinations(tasks, 2):
        assert (one.prompt, one.options, one.seed) != (other.prompt, other.options, other.seed)


@pytest.mark.parametrize("name", ["ledger_mcp", "workspace_mcp"])
def test_whoever_does_the_task_and_something_else_besides_has_not_done_it(envs: dict[str, Any], name: str) -> None:
    extra = {
        "ledger_mcp": ("file_report", {"subject": "by the way", "value": 1}),
        "workspace_mcp": ("write_file", {"path": "by-the-way.txt", "text": "hello"}),
    }[name]
    env, tasks = envs[name], CLASSES[name].tasks
    assert tasks is not None
    for task in tasks:
        if task.id == "what-does-it-cost":  # which says that other figures may be filed
            continue
        env.reset(task=task)
        for call in task.oracle or []:
            env.call_tool(call.tool_name, call.arguments)
        env.call_tool(*extra)
        assert env.end().info["return"] == 0.0, task.id


# -- the ledger's rules


def book(env: Any) -> dict[int, Any]:
    return {account.id: account for account in env.list_accounts()}


def test_no_calls_overdraw_an_account_or_make_or_lose_a_cent() -> None:
    env, rng = ledger.LedgerEnvironment(), random.Random(7)
    env.reset(holds=[(4, 40_000, "a"), (2, 10_000, "b")])
    total = sum(account.balance for account in book(env).values())
    outcomes: set[bool] = set()
    for _ in range(1500):
        tool, arguments = rng.choice(sensible_calls("ledger_mcp", rng))
        before = book(env)
        obs = env.call_tool(tool, arguments)
        after = book(env)
        outcomes.add(obs.error is None)
        assert sum(account.balance for account in after.values()) == total
        for number, account in after.items():
            assert 0 <= account.available <= account.balance, obs
            if number in before and before[number].status == account.status != "open":
                assert account.balance == before[number].balance
        if obs.error is not None:
            assert before == after
    assert outcomes == {True, False}
    env.close()


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "transfer",
            {"source": 6, "target": 4, "amount": 8_050},
            "has 8050 cents available; 8131 are needed",
        ),
        (
            "transfer",
            {"source": 4, "target": 5, "amount": 5_001},
            "has 5000 cents available; 5001 are needed",
        ),
        ("transfer", {"source": 7, "target": 4, "amount": 1}, "account 7 is frozen"),
        ("transfer", {"source": 4, "target": 7, "amount": 1}, "account 7 is frozen"),
        ("transfer", {"source": 4, "target": 4, "amount": 1}, "the same account"),
        ("transfer", {"source": 4, "target": 99, "amount": 1}, "there is no account 99"),
        ("place_hold", {"account": 4, "amount": 5_001, "reason": "x"}, "account 4 has 5000 cents available"),
        ("capture_hold", {"hold": 1, "target": 4}, "the account that the hold is on"),
        ("capture_hold", {"hold": 9, "target": 4}, "there is no hold 9"),
        ("open_account", {"owner": "Bo", "kind": "savings"}, "Bo has a savings account"),
        ("set_status", {"account": 5, "status": "closed"}, "account 5 still has 20000 cents"),
        ("set_status", {"account": 1, "status": "frozen"}, "the bank's own account stays open"),
    ],
)
def test_the_ledger_refuses_what_breaks_its_rules_and_says_why(tool: str, arguments: Any, said: str) -> None:
    with ledger.LedgerEnvironment() as env:
        env.reset(holds=[(4, 40_000, "x")])
        before = env.world.capture()
        obs = env.call_tool(tool, arguments)
        assert obs.error is not None and said in obs.error.message
        assert env.world.capture() == before


def test_a_cent_less_than_what_is_refused_is_taken() -> None:
    with ledger.LedgerEnvironment() as env:
        env.reset(holds=[(4, 40_000, "x")])
        assert env.call_tool("transfer", {"source": 4, "target": 5, "amount": 5_000}).error is None
        assert env.call_tool("transfer", {"source": 6, "target": 4, "amount": 7_970}).error is None
        assert (book(env)[6].balance, book(env)[1].balance) == (0, 80)


# -- the workspace's walls

OUTSIDE = [
    "../secret.txt",
    "/etc/passwd",
    "a/../../secret.txt",
    "a/..",
    "..",
    ".",
    "",
    "a\0b",
    "link/secret.txt",
    "link",
    "secret-link.txt",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_tool_of_the_workspace_reaches_what_is_outside_of_it(path: str, tmp_path: Path) -> None:
    with workspace.WorkspaceEnvironment() as env:
        env.reset(files={"a/b.txt": "inside"})
        root = env.world.folder
        secret = root.parent / f"secret-{root.name}.txt"
        (tmp_path / "secret.txt").write_text("the secret")
        (root / "link").symlink_to(tmp_path)
        (root / "secret-link.txt").symlink_to(tmp_path / "secret.txt")
        for tool, arguments in (
            ("read_file", {"path": path}),
            ("write_file", {"path": path, "text": "mine"}),
            ("replace_text", {"path": path, "old": "the secret", "new": "mine"}),
            ("move_file", {"source": path, "target": "taken.txt"}),
            ("move_file", {"source": "a/b.txt", "target": path}),
            ("delete_file", {"path": path}),
        ):
            obs = env.call_tool(tool, arguments)
            assert obs.error is not None, (tool, path)
            assert "the secret" not in obs.error.message and str(root) not in obs.error.message
        seen = env.call_tool("search", {"text": "secret"}).text + env.call_tool("list_files").text
        assert "the secret" not in seen and "secret.txt" not in seen
        if path not in (".", ""):
            assert env.call_tool("list_files", {"folder": path}).error is not None
        assert (tmp_path / "secret.txt").read_text() == "the secret" and not secret.exists()
        assert (root / "a" / "b.txt").read_text() == "inside"


def test_the_workspace_bounds_files_and_folders_go_with_their_files() -> None:
    with workspace.WorkspaceEnvironment() as env:
        env.reset(files={f"{number}.txt": "" for number in range(workspace.MAX_FILES - 1)})
        assert env.call_tool("write_file", {"path": "x/y/last.txt", "text": "é" * 100}).error is None
        assert "no room" in env.call_tool("write_file", {"path": "one-more.txt", "text": ""}).error.message
        large = env.call_tool("write_file", {"path": "0.txt", "text": "x" * (workspace.MAX_BYTES + 1)})
        assert "65536 at most" in large.error.message
        assert "is a file" in env.call_tool("move_file", {"source": "1.txt", "target": "0.txt/a"}).error.message
        assert env.call_tool("move_file", {"source": "x/y/last.txt", "target": "last.txt"}).error is None
        assert not (env.world.folder / "x").exists()
    assert not env.world.folder.exists()


# -- the maze


@pytest.mark.parametrize("size", [3, 5, 12, 20])
def test_a_maze_has_one_way_from_each_room_to_each(size: int) -> None:
    for seed in range(5):
        dug = maze.Maze.dig(size, random.Random(seed))
        assert len(dug.ways) == size * size
        assert sum(map(len, dug.ways.values())) == 2 * (size * size - 1)
        assert all(dug.path(dug.start, room) or room == dug.start for room in dug.ways)
        assert len({dug.start, dug.key, dug.door}) == 3


def test_what_is_seen_in_the_maze_is_what_is_there() -> None:
    with maze.MazeEnvironment() as env:
        for seed in range(20):
            env.reset(seed=seed, size=6)
            seen = dict(env.look().rooms_ahead)
            for way in ("north", "east", "south", "west"):
                env.game.room = env.game.maze.start
                walked = 0
                while "walked" in env.walk(way).said:
                    walked += 1
                assert seen.get(way, 0) == walked
        env.game.room, env.game.has_key = env.game.maze.door, False
        assert (env.unlock_door().said, env.game.escaped) == ("The door is locked, and you have no key.", False)


# -- every plane, every process


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with (
        serving(CLASSES["ledger_mcp"]) as one,
        serving(CLASSES["workspace_mcp"]) as two,
        serving(CLASSES["maze_mcp"]) as three,
    ):
        yield dict(zip(NAMES, (one, two, three), strict=True))


Seen = list[Any]


def seen_of(result: Observation | StepResult[Any]) -> Seen:
    observation = result.observation if isinstance(result, StepResult) else result
    shown = {"metadata": observation.metadata, "text": observation.text, "error": str(observation.error)}
    return [shown, result.reward, result.done, result.info.get("return"), result.info.get("task")]


def played(
    reset: Callable[..., Any], call: Callable[..., Any], end: Callable[[], Any], chosen: Any, task: Task
) -> Seen:
    """An episode in which the task is solved, and ended by the orchestrator."""
    episode = [seen_of(reset(**chosen))]
    for each in task.oracle or []:
        episode.append(seen_of(call(each.tool_name, each.arguments)))
    return [*episode, seen_of(end())]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_the_same_episode_however_it_is_chosen_and_wherever_it_is_played(
    envs: dict[str, Any], urls: dict[str, str], name: str
) -> None:
    env, url = envs[name], urls[name]
    tasks = CLASSES[name].tasks
    assert tasks is not None
    task = tasks.get("test", 3)
    ways: list[dict[str, Any]] = [{"split": "test", "index": 3}, {"task": task.id}, {"task": task.model_dump()}]
    episodes: list[Seen] = []
    with EnvClient(url).sync() as client:
        for chosen in (*ways, {"task": task}):
            episodes.append(played(env.reset, env.call_tool, env.end, chosen, task))
            episodes.append(played(client.reset, client.call_tool, client.end, chosen, task))
    with httpx.Client(base_url=url) as http:
        for chosen in ways:
            episodes.append(played_over_http(http, chosen, task))
    assert episodes[0][0][0]["metadata"]["prompt"] == task.prompt
    assert episodes[0][0][-1] == {"id": task.id, "split": "test", "version": "1"}
    assert episodes[0][-1][1:4] == [1.0, True, 1.0]
    for episode in episodes[1:]:
        assert episode == episodes[0]


def played_over_http(http: httpx.Client, chosen: dict[str, Any], task: Task) -> Seen:
    session: dict[str, Any] = {}

    def post(path: str, body: dict[str, Any]) -> Any:
        reply = http.post(path, json={**body, **session})
        assert reply.status_code == 200, reply.text
        data = reply.json()
        session["session_id"] = data.pop("session_id", None) or session["session_id"]
        return data

    def observed(path: str, body: dict[str, Any]) -> Observation:
        data = post(path, body)
        return parse_observation(data, CallToolObservation if "tool_name" in data["observation"] else Observation)

    def reset(**options: Any) -> Observation:
        return observed("/reset", options)

    def call(tool_name: str, arguments: dict[str, Any]) -> Observation:
        return observed("/step", {"action": {"type": "call_tool", "tool_name": tool_name, "arguments": arguments}})

    def end() -> Observation:
        return observed("/end", {})

    episode = played(reset, call, end, chosen, task)
    assert http.delete(f"/sessions/{session['session_id']}").status_code == 200
    return episode


PROGRAM = """
import json, sys
from mcpenv.targets.target import load_target
for folder in sys.argv[1:]:
    env = load_target(folder).make()
    for task in env.tasks:
        first = env.reset(task=task)
        print(first.model_dump_json(exclude={"info"}), env.trajectory.seed)
        print(json.dumps(env.world.capture()))
        for call in task.oracle:
            print(env.call_tool(call.tool_name, call.arguments).model_dump_json(exclude={"info"}))
        print(env.end().info["return"], json.dumps(env.world.capture()))
    env.close()
"""


@pytest.mark.slow
def test_every_process_plays_the_same_episodes_byte_for_byte() -> None:
    def episodes(hash_seed: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *(str(ENVS / name) for name in NAMES)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout

    first = episodes("1")
    assert first == episodes("2") and first.count(b"\n1.0 ") == len(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_agents_never_see_a_task(urls: dict[str, str], name: str) -> None:
    async def look() -> str:
        async with Client(f"{urls[name]}/mcp") as client:
            tools = [tool.model_dump_json() for tool in await client.list_tools()]
            listed = [*await client.list_resources(), *await client.list_prompts()]
            return "".join([*tools, *(each.model_dump_json() for each in listed)])

    text = asyncio.run(look())
    tasks = CLASSES[name].tasks
    assert tasks is not None
    for task in tasks:
        assert task.prompt not in text and f'"{task.id}"' not in text


@pytest.mark.parametrize("name", NAMES)
def test_the_python_of_a_readme_runs(name: str, tmp_path: Path) -> None:
    readme = (ENVS / name / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ENVS / name, capture_output=True, text=True, check=True, timeout=60
    )
    written = re.findall(r"# (.*)$", code, re.MULTILINE)
    printed = ended.stdout.splitlines()
    assert [line.split(" ...")[0] for line in written] == [
        line[: len(wanted.split(" ...")[0])] for line, wanted in zip(printed[-len(written) :], written, strict=True)
    ]


def test_the_tasks_of_the_ledger_are_a_file_of_json_lines() -> None:
    lines = (ENVS / "ledger_mcp" / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["verifier"]["kind"] in ("expect_exactly", "expect_only", "python") for line in lines)
