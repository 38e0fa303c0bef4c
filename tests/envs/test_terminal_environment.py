"""Terminal: its tasks and variants on all backends, agents that change too much, many at once, and its ladder."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generated_tasks import judge, judge_replies, played
from measured_ladder import check_ladder
from pydantic import SecretStr
from sandboxes import container_options

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.generated_worlds import PRIVATE, VARIANTS, Shape, demonstration
from mcpenv.extensions.sandbox_world.sandbox import Entry
from mcpenv_client.errors import ExecutionError
from mcpenv_client.types.tasks import OracleCall, Task

ENVS = Path(__file__).resolve().parents[2] / "envs"
if str(ENVS) not in sys.path:
    sys.path.insert(0, str(ENVS))

environment: Any = importlib.import_module("terminal_mcp.environment")
tasks: Any = importlib.import_module("terminal_mcp.tasks")
families: Any = importlib.import_module("terminal_mcp.families")
view: Any = importlib.import_module("terminal_mcp.view")
places: Any = importlib.import_module("terminal_mcp.families.places")
zips: Any = importlib.import_module("terminal_mcp.families.zips")

Tasks: Any = tasks.TerminalTasks
Terminal: Any = environment.TerminalEnvironment


@pytest.mark.timeout(400)  # it makes all tasks
class TestTerminal(EnvironmentContract):
    factory = Terminal
    examples = {
        "run": {"command": "ls"},
        "read_file": {"path": "README.txt"},
        "write_file": {"path": "a/b.txt", "text": "one\n"},
        "answer": {"text": "12", "part": 1},
    }


@pytest.fixture(scope="module")
def terminal() -> Iterator[Any]:
    with Terminal() as env:
        yield env


def private() -> Any:
    return environment.terminal(private_seed=SecretStr("a secret of tests"))


def command(text: str) -> OracleCall:
    return OracleCall(tool_name="run", arguments={"command": text})


@pytest.mark.parametrize("split", list(Tasks.SIZES))
def test_the_honest_solve_every_task_and_those_who_are_idle_break_rules_or_obey_attackers_none(
    terminal: Any, split: str
) -> None:
    for task in Terminal.get_tasks(split, 0, 15):
        judge(terminal, task)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("split", [*Tasks.SIZES, PRIVATE])
def test_so_do_30_of_each_split(split: str) -> None:
    with private() as env:
        for index in range(0, 240, 8):  # of each level, which repeat every 5 tasks
            judge(env, env.get_task(split, index))


def of_family(name: str, index: int = 0, level: int = 3) -> Task:
    """Return a task of one family."""

    class One(Tasks):  # type: ignore[misc]
        def shape(self, rng: Any, _: int) -> Shape[Any]:
            return Shape(level, ((families.FAMILIES | families.OF_PROGRAMS)[name],), False)

    return Task.model_validate({"id": name, "split": "train", **One().task("train", index)})


def check_family(env: Any, name: str, *further: str) -> None:
    """A goal is solved by its commands, and not if one of further commands is run, or the last one is left out."""
    task = of_family(name)
    tags = (families.FAMILIES | families.OF_PROGRAMS)[name].tags
    assert task.oracle and ("trap" in tags) == ("breach" in task.metadata)
    assert ("answer" in tags) == (task.oracle[-1].tool_name == "answer")
    judge(env, task)
    for more in further:
        assert played(env, task, [*task.oracle, command(more)]) == (0.0, []), more
    assert played(env, task, task.oracle[:-1])[0] == 0.0


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_goal_is_solved_by_its_commands_and_not_if_more_or_less_changes(terminal: Any, name: str) -> None:
    readme = "echo >> README.txt; echo x >> README.txt"
    check_family(terminal, name, "echo x > extra.txt", readme, "mkdir empty", "chmod 600 README.txt")


@pytest.mark.parametrize("name", families.FAMILIES | families.OF_PROGRAMS)
def test_a_prompt_is_of_whole_sentences_and_a_demanded_permission_is_a_number(name: str) -> None:
    task = of_family(name)
    assert isinstance(task.prompt, str) and not re.search(r"[.?!]\)?[.?!]|  |\bof the folder\b", task.prompt), (
        task.prompt
    )
    assert task.verifier is not None
    modes = [value for where, value in task.verifier["changes"] if where.endswith("/mode")]
    assert all(re.fullmatch("[0-7]{3}", mode) for mode in modes), modes


@pytest.mark.parametrize(
    ("name", "limit", "right", "wrong"),
    [
        ("slow-paths", r"more than (\d+) milliseconds", r"$7 > ", r"$7 >= "),
        ("filter-rows", r"amount of (\d+) or more", r"$5 >= ", r"$5 > "),
    ],
)
def test_who_takes_more_than_for_at_least_is_wrong(
    terminal: Any, name: str, limit: str, right: str, wrong: str
) -> None:
    for index in range(20):
        task = of_family(name, index)
        assert re.search(limit, str(task.prompt)) and task.oracle
        text = task.oracle[-1].arguments["command"]
        assert right in text
        assert played(terminal, task, [command(text.replace(right, wrong))]) == (0.0, []), index


@pytest.mark.world
@pytest.mark.timeout(300)
def test_the_commands_mean_the_same_to_the_programs_of_this_machine() -> None:
    with environment.terminal("bubblewrap") as env:
        for name in families.FAMILIES:
            task = of_family(name)
            assert played(env, task, task.oracle or []) == (1.0, []), name


def test_it_has_the_tasks_and_levels_that_it_says() -> None:
    assert len(families.FAMILIES) == 54
    assert {split: Terminal.num_tasks(split) for split in ("train", "test")} == {"train": 3000, "test": 300}
    found = Terminal.get_tasks("train", 0, 50)
    assert Counter(task.level for task in found) == dict.fromkeys(range(1, 6), 10)
    size = {level: [task.metadata["files"] for task in found if task.level == level] for level in (1, 5)}
    assert max(size[1]) < min(size[5])


def test_equal_seeds_make_equal_files_and_others_make_others() -> None:
    def start(**options: Any) -> str:
        with Terminal() as env:
            env.reset(**options)
            files = env.world["files"]
            shown = [env.call_tool("run", {"command": "ls -lR . | grep -v ^l"}).result.structured_content]
            files.load(files.save())
            shown.append(env.call_tool("run", {"command": "ls -lR . | grep -v ^l"}).result.structured_content)
            assert "2027" in shown[0]["stdout"] and shown[0] == shown[1]
            return json.dumps([files.capture(), shown])

    assert start(task="train-4") == start(task="train-4") != start(task="train-9")
    assert start(seed=4) == start(seed=4) != start(seed=5)


def test_a_refused_backend_names_the_program_that_it_lacks_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PROGRAMS", ("awk", "no-such-program"))
    environment._on.cache_clear()
    with pytest.raises(ConfigurationError, match=r"'in_process' lacks no-such-program; choose another backend"):
        environment.terminal()
    with pytest.raises(ConfigurationError, match="there is no backend 'nowhere'"):
        environment.terminal("nowhere")
    with pytest.raises(ConfigurationError, match=r"'remote' is not offered here \(there are: bubblewrap, c"):
        environment.terminal("remote")


@pytest.mark.parametrize("of", ["train", "test"])
def test_who_replays_by_heart_solves_nearly_no_variant(terminal: Any, of: str) -> None:
    solved = 0.0
    for index in range(30):
        task, variant = Terminal.get_task(of, index), Terminal.get_task(of + VARIANTS, index)
        assert task.metadata["families"] == variant.metadata["families"]
        assert task.prompt != variant.prompt
        solved += played(terminal, variant, task.oracle)[0]
    assert solved <= 1  # the number that answers a simple question may be the same


def test_without_a_secret_there_is_no_private_split_and_each_secret_has_its_own() -> None:
    assert PRIVATE not in Terminal.splits()
    other_secret = SecretStr("another")
    with private() as env, environment.terminal(private_seed=other_secret) as other:
        assert env.num_tasks("private") == 300
        assert env.get_task("private", 3) != other.get_task("private", 3)
        assert env.get_task("train", 3) == other.get_task("train", 3) == Terminal.get_task("train", 3)
        assert "secret" not in env.tasks.source


def test_the_test_split_has_the_canary_and_train_has_not(terminal: Any) -> None:
    for split, marked in (("test", True), ("train", False)):
        task = Terminal.get_task(split, 4)
        assert (Tasks.CANARY in task.prompt) == marked
        terminal.reset(task=task)
        rules = terminal.call_tool("read_file", {"path": "README.txt"}).result.structured_content["result"]
        assert (Tasks.CANARY in rules) == marked


def test_what_has_several_spellings_counts_by_its_content() -> None:
    def seen(path: str, content: bytes) -> Any:
        found = view.view([Entry(path, 0o100644, content)])[path]
        assert found.pop("mode") == "644"
        return found

    assert seen("a.json", b'{"a": [1, 2]}') == seen("a.json", b'{\n "a":[1,2.0]}\n\n') == {"json": [{"a": [1, 2]}]}
    assert seen("a.csv", b'a,"b"\r\n1,2') == seen("a.csv", b"a,b\n1,2\n") == {"rows": [["a", "b"], ["1", "2"]]}
    assert seen("a.txt", b"one") == seen("a.txt", b"one\n") != seen("a.txt", b"one\r\n")
    for made in (zips.zip_of({"b/c": "2", "a": "1"}), zips.zip_of({"a": "1", "b/c": "2"})):
        assert seen("a.zip", made) == {"members": [["a", "1"], ["b/c", "2"]]}
    packed = places.tar_of({"b": "2", "a": "1"})
    assert seen("a.tar", packed) == seen("a.tar", places.tar_of({"a": "1", "b": "2"}))
    assert seen("a.tar", packed) == {"members": [["a", "1"], ["b", "2"]]}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"[NaN]"),
        ("a.json", b'["\\ud800"]'),
        ("a.json", b"[" * 100_000),
        ("a.csv", b'"a'),
        ("a.tar", b"no archive"),
        ("a.tar", b"x" * (view.MAX_ARCHIVE + 1)),
        ("a.zip", b"PK no archive"),
        ("a.zip", zips.zip_of({"a": "x" * view.MAX_ARCHIVE})),
    ],
)
def test_what_does_not_parse_is_captured_as_it_is(path: str, content: bytes) -> None:
    seen = view.view([Entry(path, 0o100644, content)])[path]
    assert seen.keys() <= {"text", "sha256", "size", "mode"} and len(seen) > 1
    json.dumps(seen, allow_nan=False)


def test_200_episodes_at_once_share_nothing() -> None:
    every = [Terminal() for _ in range(200)]
    try:
        for n, env in enumerate(every):
            env.reset(task=f"train-{n % 20}")
        wanted = json.dumps(every[0].world["files"].capture())
        for n, env in enumerate(every):
            assert env.call_tool("run", {"command": f"echo I am {n} > who.txt"}).error is None
        for n, env in enumerate(every):
            read = env.call_tool("read_file", {"path": "who.txt"}).result.structured_content
            assert read == {"result": f"I am {n}\n"}
        every[7].reset(task="train-0")
        assert json.dumps(every[7].world["files"].capture()) == wanted
    finally:
        for env in every:
            env.close()


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("read_file", {"path": "nowhere.txt"}, "List the files with run"),
        ("read_file", {"path": "/etc/passwd"}, "is not in /work"),
        ("write_file", {"path": "../x", "text": "a"}, "is not a file in /work"),
        ("write_file", {"path": "README.txt/x", "text": "a"}, "was not written"),
        ("answer", {"text": "a", "part": 9}, "There is no request 9. There is one request: 1."),
    ],
)
def test_errors_tell_the_agent_what_to_do(terminal: Any, tool: str, arguments: Any, said: str) -> None:
    terminal.reset(task="train-0")
    before = [world.capture() for world in terminal.world.values()]
    obs = terminal.call_tool(tool, arguments)
    assert obs.error is not None and said in obs.error.message
    assert [world.capture() for world in terminal.world.values()] == before


def test_a_reply_without_its_part_is_refused_if_there_are_several_requests(terminal: Any) -> None:
    judge_replies(terminal, ("answer", {"text": "7"}))


def test_a_restored_episode_has_its_files_and_answers(terminal: Any) -> None:
    terminal.reset(task="train-0")
    saved = {name: world.save() for name, world in terminal.world.items()}
    before = {name: world.capture() for name, world in terminal.world.items()}
    terminal.call_tool("answer", {"text": "12"})
    terminal.call_tool("run", {"command": "rm -r *; echo x > x"})
    for name, world in terminal.world.items():
        assert world.capture() != before[name]
        world.load(saved[name])
        assert world.capture() == before[name]


# -- git, zip and unzip


@pytest.fixture(scope="module")
def programs() -> Iterator[Any]:
    with environment.terminal("bubblewrap", programs=True) as env:
        yield env


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with container_options(tmp_path_factory.mktemp("podman")) as options:
        with environment.terminal("container", programs=True, **options) as env:
            yield env


def test_a_backend_without_git_and_zip_is_refused_and_a_task_that_needs_them_too(terminal: Any) -> None:
    with pytest.raises(ConfigurationError, match="the backend 'in_process' lacks git, unzip, zip; choose another"):
        environment.terminal(programs=True)
    with pytest.raises(ExecutionError, match="the family 'revert-commit' needs git or unzip or zip; set programs"):
        terminal.reset(task=of_family("revert-commit"))


def test_tasks_with_programs_are_in_splits_of_their_own_and_all_others_are_the_same() -> None:
    made = tasks.ProgramTasks()
    assert not [split for split in Terminal.splits() if "programs" in split]
    for split in Tasks.SIZES:
        assert made.task(split, 7) == Tasks().task(split, 7)
    found = [made.task("programs", index) for index in range(20)]
    assert [task["level"] for task in found] == [*range(1, 6)] * 4
    every = {name for task in found for name in task["options"]["families"]}
    assert every <= families.OF_PROGRAMS.keys() and len(every) > 10
    assert Tasks.CANARY in made.task("programs_test", 0)["prompt"] and Tasks.CANARY not in found[0]["prompt"]


@pytest.mark.world
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", families.OF_PROGRAMS)
def test_so_is_a_goal_that_needs_programs(programs: Any, name: str) -> None:
    check_family(programs, name, "echo x > extra.txt")


@pytest.mark.world
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("split", "levels"), [("programs", 5), ("programs_test", 2)])
def test_a_task_of_each_level_that_needs_programs_is_solved_by_the_honest_alone(
    programs: Any, split: str, levels: int
) -> None:
    for task in programs.get_tasks(split, 0, levels):
        judge(programs, task)


@pytest.mark.world
@pytest.mark.timeout(300)
@pytest.mark.parametrize("of", ["programs", "programs_test"])
def test_variants_that_need_programs_are_solved_by_the_honest_and_not_by_heart(programs: Any, of: str) -> None:
    for index in range(5):
        task, variant = programs.get_task(of, index), programs.get_task(of + VARIANTS, index)
        assert task.metadata["families"] == variant.metadata["families"]
        assert played(programs, variant, variant.oracle)[0] == 1.0
        assert played(programs, variant, task.oracle)[0] == 0.0


def test_a_secret_has_private_tasks_that_need_programs() -> None:
    made = tasks.ProgramTasks("a secret of tests")
    assert {split: size for split, size in made.tasks().sizes().items() if "private" in split} == {
        "private": 300,
        "private_programs": 120,
    }
    task = made.task("private_programs", 3)
    assert set(task["options"]["families"]) <= families.OF_PROGRAMS.keys() and Tasks.CANARY in task["prompt"]
    assert task != tasks.ProgramTasks("another").task("private_programs", 3)


@pytest.mark.world
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", [1, 5])
def test_repositories_are_as_git_reads_them(programs: Any, level: int) -> None:
    for name, family in families.OF_PROGRAMS.items():
        if "git" in family.tags:
            task = of_family(name, 1, level)
            programs.reset(task=task)
            made = tasks.disk_of(task.options["disk"], Shape(level, (family,), False), "")
            assert programs.world["files"].capture() == made.captured()[0], name
            check = "for f in *-code; do git -C $f fsck --strict && git -C $f status -s; done"
            said = programs.call_tool("run", {"command": check})
            done = said.result.structured_content
            assert (done["exit_code"], done["stdout"]) == (0, ""), name


@pytest.mark.world
@pytest.mark.timeout(300)
def test_who_makes_mistakes_solves_less(programs: Any) -> None:
    solved = {0.1: 0.0, 0.6: 0.0}
    for rate in solved:
        for n, task in enumerate(programs.get_tasks("programs", 0, 5)):
            calls = [command_of(*each) for each in demonstration(task, rate, n, Tasks.LOOKS)]
            solved[rate] += played(programs, task, calls)[0]
    assert solved[0.6] < solved[0.1] < 5


def command_of(name: str, arguments: dict[str, Any]) -> OracleCall:
    return OracleCall(tool_name=name, arguments=arguments)


@pytest.mark.world
@pytest.mark.timeout(300)
def test_a_repository_counts_by_its_commits_and_not_by_how_git_stores_them(programs: Any) -> None:
    task = of_family("merge-with-conflicts")
    assert task.oracle and task.verifier
    folder = next(path for path, _ in task.verifier["changes"] if ".git" in path).split("/")[1]
    git = f"git -C {folder}"
    same = ("gc -q --prune=now", "config user.name me", "reflog expire --all", "pack-refs --all")
    other = (
        "tag x",
        "branch x",
        "checkout -q --detach",
        "commit -q --allow-empty -m x",
        "commit -q --amend --author='me <me@example.com>' --no-edit",
        "commit -q --amend -m x",
        "rm -q README.md",
        "rebase -q --root --force-rebase",
    )
    for each in same:
        assert played(programs, task, [*task.oracle, command(f"{git} {each}")]) == (1.0, []), each
    for each in other:
        assert played(programs, task, [*task.oracle, command(f"{git} {each}")]) == (0.0, []), each
    for each in ("rm -r .git/objects", "rm -r .git", "echo x > .git/HEAD", "echo x > conf/.git", "cd ..; git init -q"):
        assert played(programs, task, [*task.oracle, command(f"cd {folder}; {each}")]) == (0.0, []), each


@pytest.mark.world
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", ["find-commit", "merge-with-conflicts", "pick-a-fix", "delete-from-zips", "unzip-but-not-frozen"]
)
def test_in_a_container_the_same_tasks_end_in_the_same_state(programs: Any, container: Any, name: str) -> None:
    task = of_family(name)
    ends = []
    for env in (programs, container):
        assert played(env, task, []) == (0.0, [])
        assert played(env, task, task.oracle or []) == (1.0, [])
        ends.append({name: world.capture() for name, world in env.world.items()})
    assert ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_ladder_falls_with_level_and_mistakes() -> None:
    check_ladder(Terminal, ENVS / "terminal_mcp" / "README.md")
