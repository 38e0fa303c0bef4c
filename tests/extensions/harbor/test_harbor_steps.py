"""Tasks of several steps, and with a separate verifier, in real sandboxes of bubblewrap."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import command_lines
from harbor_tasks import CONFIG, harbor_task
from stepped_tasks import separate_task, stepped_task

from mcpenv import ExecutionError
from mcpenv.extensions.harbor import episode
from mcpenv.extensions.harbor.artifacts import MAX_ARTIFACT, harmless
from mcpenv.extensions.harbor.config import Config
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.harbor.steps import aggregated, falls_short, steps_of
from mcpenv.extensions.validation.tasks import validate
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

Begin = Callable[..., Any]

PLAN = {"command": "echo a plan > plan.txt"}
BUILD = {"command": 'echo "built $(cat set-up.txt)" > built.txt'}


def served(folder: Path, **more: Any) -> Any:
    return HarborEnvironment.from_folder(folder, base_image="host", **more)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return a function that begins an episode of a task."""
    made: list[Any] = []

    def of(folder: Path, **more: Any) -> Any:
        made.append(served(folder, **more)())
        made[-1].reset()
        return made[-1]

    yield of
    for env in made:
        env.close()


def execute(env: Any, command: str, **more: Any) -> Any:
    observation = env.call_tool("execute", {"command": command, **more})
    assert observation.error is None, observation.error
    return observation.result.structured_content


def finish(env: Any) -> str:
    observation = env.call_tool("finish_step", {})
    assert observation.error is None, observation.error
    return str(observation.result.structured_content["result"])


def parts(env: Any) -> dict[str, float]:
    """The components of the reward that the tests have given."""
    found = env.trajectory.verified.components
    return {name.removeprefix("verified/"): value for name, value in found.items() if name != "verified"}


# -- steps


@pytest.mark.world
def test_the_oracle_of_each_step_scores_1_and_doing_nothing_0(tmp_path: Path) -> None:
    cls = served(stepped_task(tmp_path / "two"))
    assert cls.tasks is not None
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert (report.oracle, report.nothing, report.repeats) == (1.0, 0.0, True)


@pytest.mark.world
def test_a_step_ends_by_a_tool_that_gives_the_next_instruction(begin: Begin, tmp_path: Path) -> None:
    env = begin(stepped_task(tmp_path / "two"))
    assert env.task is None
    assert [tool.name for tool in env.list_tools()] == ["execute", "read_file", "write_file", "finish_step"]
    execute(env, "echo a plan > plan.txt; echo 1 > /etc/mine; touch /logs/agent/a /logs/artifacts/b")
    said = finish(env)
    assert said.startswith("Build what is planned, into built.txt.\n") and "step 2 of 2" in said and "1.0" not in said
    there = execute(env, "cat set-up.txt plan.txt /etc/mine; ls /tests /logs/verifier /logs/agent /logs/artifacts; ls")
    listing = there["stdout"].splitlines()
    assert listing[:3] == ["given", "a plan", "1"] and "common.sh" not in listing
    assert "left-by-tests" not in listing and "b" not in listing
    execute(env, BUILD["command"])
    observation = env.call_tool("finish_step", {})
    assert observation.done and observation.reward == 1.0
    assert parts(env) == {"plan.reward": 1.0, "build.reward": 1.0, "reward": 1.0}


@pytest.mark.world
@pytest.mark.parametrize(("strategy", "reward"), [("mean", 0.5), ("final", 0.0)])
def test_steps_that_an_agent_leaves_out_are_judged_as_it_left_them(
    begin: Begin, tmp_path: Path, strategy: str, reward: float
) -> None:
    env = begin(stepped_task(tmp_path / "two", strategy=strategy))
    execute(env, **PLAN)
    assert env.end().reward == reward
    assert parts(env) == {"plan.reward": 1.0, "build.reward": 0.0, "reward": reward}
    assert any("step 'build': " in text for text in env.trajectory.problems)


@pytest.mark.world
def test_a_step_below_its_least_reward_ends_the_task(begin: Begin, tmp_path: Path) -> None:
    env = begin(stepped_task(tmp_path / "two", first="min_reward = 1"))
    observation = env.call_tool("finish_step", {})
    assert observation.done and observation.reward == 0.0
    assert parts(env) == {"plan.reward": 0.0, "reward": 0.0}


@pytest.mark.world
def test_the_setup_of_a_step_has_600_seconds(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert episode.SETUP_TIMEOUT_S == 600.0
    monkeypatch.setattr(episode, "SETUP_TIMEOUT_S", 1.0)
    files = {"steps/build/workdir/setup.sh": "#!/bin/bash\nsleep 1000\n"}
    env = begin(stepped_task(tmp_path / "slow", files))
    execute(env, **PLAN)
    with pytest.raises(ExecutionError, match=r"step 'build': .*setup\.sh failed"):
        env.call_tool("finish_step", {})


@pytest.mark.world
def test_a_step_has_its_own_time_limit(begin: Begin, tmp_path: Path) -> None:
    env = begin(stepped_task(tmp_path / "two", first="agent = {timeout_sec = 2}"))
    execute(env, **PLAN)
    assert execute(env, "sleep 60", timeout_s=100)["timed_out"]
    assert "the time of this step is over; call finish_step" in str(env.call_tool("execute", PLAN).error)
    assert "step 2 of 2" in finish(env)
    execute(env, BUILD["command"])
    assert env.end().reward == 1.0


@pytest.mark.world
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"steps/build/workdir/setup.sh": "echo no >&2; exit 3"}, "step 'build': .*setup.sh failed with status 3: no"),
        ({"steps/plan/tests/test.sh": "#!/bin/bash\necho oh\n"}, "step 'plan': the tests wrote neither .* with: oh"),
    ],
)
def test_a_step_without_a_number_is_an_error_of_the_task(
    begin: Begin, tmp_path: Path, files: dict[str, str | None], said: str
) -> None:
    env = begin(stepped_task(tmp_path / "two", files))
    execute(env, **PLAN)
    with pytest.raises(ExecutionError, match=said):
        env.call_tool("finish_step", {})


@pytest.mark.world
def test_steps_go_on_in_the_agents_own_box_on_demand(begin: Begin, tmp_path: Path) -> None:
    env = begin(stepped_task(tmp_path / "two"), fresh=False)
    execute(env, **PLAN)
    finish(env)
    assert execute(env, "cat left-by-tests; ls /tests /logs/verifier")["stdout"].split() == [
        "secret",
        "/logs/verifier:",
        "/tests:",
    ]
    execute(env, BUILD["command"])
    assert env.end().reward == 1.0


def test_rewards_of_steps_become_one_as_in_harbor() -> None:
    rewards = [{"reward": 1.0, "style": 0.5}, {"reward": 0.5}]
    assert aggregated(rewards, None) == aggregated(rewards, "mean") == {"reward": 0.75, "style": 0.25}
    assert aggregated(rewards, "final") == {"reward": 0.5}
    assert falls_short({"reward": 0.5}, 0.6) and not falls_short({"reward": 0.5}, 0.5)
    assert not falls_short({"reward": 0.7 + 0.2 + 0.1}, 1.0) and falls_short({"reward": 1.0 - 1e-6}, 1.0)
    assert falls_short({"style": 1.0}, 0.0) and falls_short({"reward": 1.0}, {"style": 0.1})
    assert not falls_short({"style": 1.0}, {"style": 0.1}) and not falls_short({}, None)


# -- an agent that breaks its verification


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """Return a function that names what boxes have left in the temporary folder, except images for further ones."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    names = {"mcpenv-harbor-image"}
    return lambda: {path.name.rpartition("-")[0] for path in (tmp_path / "temporary").iterdir()} - names


def briefly_tested(folder: Path) -> Path:
    return harbor_task(folder, config=CONFIG.replace("timeout_sec = 60.0", "timeout_sec = 3.0"))


@pytest.mark.world
@pytest.mark.parametrize(
    ("make", "command"),
    [
        (briefly_tested, "mkfifo hello.txt"),
        (separate_task, "kill -9 2; sleep 1"),
        (stepped_task, "mkdir -p /app/setup.sh/x"),
    ],
)
def test_who_breaks_the_tests_of_a_harbor_task_gets_the_bottom(
    tmp_path: Path, left: Callable[[], set[str]], make: Callable[[Path], Path], command: str
) -> None:
    with served(make(tmp_path / "task"))() as env:
        env.reset()
        env.call_tool("execute", {"command": command})
        ended = env.end()
        assert (ended.reward, env.trajectory.status.usable) == (0.0, True)
        assert ended.info["problems"][0].startswith("verification fails on this world: StepFailed: ")
    assert left() == set()


@pytest.mark.world
def test_who_makes_the_tests_pass_the_deadline_of_a_server_gets_the_bottom(tmp_path: Path) -> None:
    async def main(url: str) -> Any:
        async with EnvClient(url) as client:
            await client.reset()
            await client.call_tool("execute", {"command": "mkfifo hello.txt"})
            return await client.end()

    with serving(served(harbor_task(tmp_path / "hello")), ServerConfig(step_timeout_s=5.0)) as url:
        ended = asyncio.run(main(url))
    assert ended.reward == 0.0
    assert ended.info["problems"][0].startswith("verification fails on this world: OperationTimeout: ")


@pytest.mark.world
@pytest.mark.parametrize(("name", "depth"), [("d", 1200), ("in-a-path-that-is-too-long", 200)])
def test_deeply_nested_folders_of_an_agent_are_deleted_and_the_tests_run(
    tmp_path: Path, left: Callable[[], set[str]], name: str, depth: int
) -> None:
    nest = f"import os, sys; os.chdir(sys.argv[1]); [(os.mkdir('{name}'), os.chdir('{name}')) for _ in range({depth})]"
    with served(harbor_task(tmp_path / "hello"))() as env:
        env.reset()
        execute(env, 'echo "Hello, world!" > hello.txt')
        for folder in ("/etc", "/app", "/tests", "/logs/verifier"):
            execute(env, f'mkdir -p {folder}; python3 -c "{nest}" {folder}')
        assert env.end().reward == 1.0
    assert left() == set()


# -- separate verifiers


@pytest.mark.world
def test_the_tests_of_a_separate_verifier_find_the_artifacts_alone(begin: Begin, tmp_path: Path) -> None:
    cls = served(separate_task(tmp_path / "apart"))
    assert cls.tasks is not None
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert (report.oracle, report.nothing, report.repeats) == (1.0, 0.0, True)
    files = {"tests/test.sh": "#!/bin/bash\nls -A /app /app/out\necho 0 > /logs/verifier/reward.txt\n"}
    env = begin(separate_task(tmp_path / "listed", files))
    execute(env, "mkdir out; cd out; echo 1 > a; touch a.log ../b; ln -s /etc/passwd out-of-it; ln -s a in-it")
    env.end()
    problems = " ".join(env.trajectory.problems)
    assert "/app: | out | /app/out: | a | in-it" in problems
    assert "1 parts of the artifact /app/out are left out, './out-of-it' for one" in problems


@pytest.mark.world
@pytest.mark.parametrize("mode", ["shared", "separate"])
def test_the_folders_of_tests_and_logs_are_empty_when_the_next_step_begins(
    begin: Begin, tmp_path: Path, mode: str
) -> None:
    env = begin(stepped_task(tmp_path / "two", first=f'[steps.verifier]\nenvironment_mode = "{mode}"'))
    folders = "/tests /logs/verifier /logs/agent /logs/artifacts"
    execute(env, f"for f in {folders}; do mkdir -p $f/.a; touch $f/b; done")
    assert "step 2 of 2" in env.call_tool("finish_step", {}).result.text
    found = env.call_tool("execute", {"command": f"ls -A {folders} | grep -v :"}).result.structured_content
    assert found["stdout"].split() == []


@pytest.mark.world
def test_what_is_left_out_and_a_failed_collect_are_told_at_reward_1_too(begin: Begin, tmp_path: Path) -> None:
    more = '[[verifier.collect]]\ncommand = "exit 3"\n'
    files = {"tests/test.sh": "#!/bin/bash\necho printed\necho 1 > /logs/verifier/reward.txt\n"}
    env = begin(separate_task(tmp_path / "apart", files, more=more))
    execute(env, "mkdir out; ln -s /etc/passwd out/out-of-it")
    assert env.end().reward == 1.0
    assert env.trajectory.problems == [
        "[[verifier.collect]] 'exit 3' failed: exit status 3",
        "1 parts of the artifact /app/out are left out, './out-of-it' for one",
    ]


@pytest.mark.world
def test_a_separate_verifier_without_an_image_has_the_tasks_own_and_is_given_the_tests(
    begin: Begin, tmp_path: Path
) -> None:
    files = {
        "tests/Dockerfile": None,
        "tests/test.sh": "#!/bin/bash\n[ -f /app/out/x -a ! -e /app/y ] && echo 1 > /logs/verifier/reward.txt\n",
    }
    env = begin(separate_task(tmp_path / "apart", files))
    execute(env, "mkdir out; touch out/x y; echo exit > /tests; rm -rf /logs; touch /logs")
    assert env.end().reward == 1.0


@pytest.mark.world
def test_a_verifier_without_its_tests_is_an_error_of_the_task(begin: Begin, tmp_path: Path) -> None:
    env = begin(separate_task(tmp_path / "apart", {"tests/Dockerfile": "FROM debian\n"}))
    with pytest.raises(ExecutionError, match="the tests wrote neither"):
        env.end()


@pytest.mark.world
def test_a_verifier_is_built_before_an_agent_works(tmp_path: Path) -> None:
    files: dict[str, str | None] = {"tests/Dockerfile": "FROM debian\nRUN echo broken >&2; exit 3\n"}
    config = "[verifier.environment]\nbuild_timeout_sec = 1000.0\n"
    folder = separate_task(tmp_path / "apart", files)
    (folder / "task.toml").write_text(CONFIG + config)
    cls = served(folder)
    assert cls.RESET_TIMEOUT_S == 120 + 600 + 1000
    with cls() as env, pytest.raises(ExecutionError) as raised:
        env.reset()
    assert "the container of the tests: line 2 of" in str(raised.value.__cause__)


@pytest.mark.world
def test_an_artifact_that_is_too_long_is_missing_and_named(begin: Begin, tmp_path: Path) -> None:
    env = begin(separate_task(tmp_path / "apart"))
    execute(env, f"mkdir out; truncate -s {MAX_ARTIFACT} out/answer.txt")
    assert env.end().reward == 0.0
    assert f"/app/out is longer than {MAX_ARTIFACT} bytes" in " ".join(env.trajectory.problems)


@pytest.mark.world
def test_what_is_collected_before_the_artifacts_is_found_by_the_tests(begin: Begin, tmp_path: Path) -> None:
    more = '[[verifier.collect]]\ncommand = "mkdir out; cp answer.txt out; cp answer.txt /logs/artifacts/a.txt"\n'
    env = begin(separate_task(tmp_path / "apart", more=more))
    execute(env, "echo expected > answer.txt")
    assert env.end().reward == 1.0


@pytest.mark.world
def test_an_artifact_is_no_reward(begin: Begin, tmp_path: Path) -> None:
    folder = separate_task(tmp_path / "apart", {"tests/test.sh": "#!/bin/bash\ncat /logs/verifier/other\n"})
    config = folder / "task.toml"
    config.write_text(config.read_text().replace('"/app/out"', '"/logs"'))
    env = begin(folder)
    execute(
        env, "mkdir -p /logs/verifier; cd /logs/verifier; echo 1 > reward.txt; echo 1 > reward.json; echo x > other"
    )
    with pytest.raises(ExecutionError, match=r"the tests wrote neither .* with: x"):
        env.end()


@pytest.mark.world
def test_steps_may_have_separate_verifiers(begin: Begin, tmp_path: Path) -> None:
    files = {
        "steps/plan/tests/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY test.sh /tests/test.sh\n",
        "steps/plan/tests/test.sh": "#!/bin/bash\nwc -l < /logs/artifacts/plan > /logs/verifier/reward.txt\n",
    }
    first = 'verifier = {environment_mode = "separate"}'
    env = begin(stepped_task(tmp_path / "two", files, first=first))
    execute(env, "(sleep 300; echo > /tmp/it) & echo plan > /logs/artifacts/plan")
    finish(env)
    assert "sleep" in execute(env, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["stdout"]
    assert env.end().reward == 0.5


@pytest.mark.world
def test_a_task_of_steps_is_validated_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = stepped_task(tmp_path / "two", {"steps/build/solution/solve.sh": "#!/bin/bash\nexit 1\n"})
    with command_lines(None, monkeypatch, capfd) as run:
        done = run("validate", f"harbor:{folder}", "--set", "base_image=host", "--random-seeds", "0", "--only", "tasks")
    assert done.status == 1, done.err
    assert "step 'build'" in done.out


def test_the_container_of_a_verifier_is_the_nearest_one_that_is_named(tmp_path: Path) -> None:
    def judge(text: dict[str, Any], *files: str) -> Any:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        found = steps_of(folder, Config.model_validate(text))[0].judge
        if found is None:
            return None
        return found.context.relative_to(folder).as_posix(), found.environment.docker_image, found.has_tests

    separate = {"environment_mode": "separate"}
    image = {"environment": {"docker_image": "x"}}
    of_task = {"environment": {"docker_image": "y"}}
    a: dict[str, Any] = {"name": "a"}
    assert judge({}) is None and judge({"verifier": {"environment_mode": "shared"}}) is None
    assert judge({**of_task, "verifier": separate}) == ("environment", "y", False)
    assert judge({**of_task, "verifier": {"environment": {}}}) == ("environment", "y", False)
    assert judge({**of_task, "verifier": separate}, "tests/Dockerfile") == ("tests", None, True)
    assert judge({"verifier": image}, "tests/Dockerfile") == ("tests", "x", True)
    assert judge({"verifier": image, "steps": [a]}) == ("tests", "x", True)
    assert judge({"verifier": separate, "steps": [a]}, "steps/a/tests/Dockerfile") == ("steps/a/tests", None, True)
    assert judge({"verifier": separate, "steps": [{**a, "verifier": {"environment_mode": "shared"}}]}) is None
    assert judge({"steps": [{**a, "verifier": image}]}) == ("steps/a/tests", "x", True)


def archive(*members: tuple[str, str, str]) -> bytes:
    """An archive of members: a name, a type of tarfile and the target of a link or the content of a file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name, kind, more in members:
            info = tarfile.TarInfo(name)
            info.type = getattr(tarfile, kind)
            info.mode = 0o6755
            if kind == "REGTYPE":
                info.size = len(more)
            else:
                info.linkname = more
            file.addfile(info, io.BytesIO(more.encode()) if kind == "REGTYPE" else None)
    return made.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("l", "SYMTYPE", "/tests")],
        [("l", "SYMTYPE", "../tests")],
        [("a", "DIRTYPE", ""), ("a/l", "SYMTYPE", "../../tests")],
        [("a/b/up", "SYMTYPE", "../.."), ("l", "SYMTYPE", "a/b/up/../../tests")],
        [("l", "SYMTYPE", "l")],
        [("d", "SYMTYPE", "."), ("d/f", "REGTYPE", "x")],
        [("../f", "REGTYPE", "x")],
        [("f", "FIFOTYPE", "")],
        [("f", "CHRTYPE", "")],
        [("h", "LNKTYPE", "../tests/test.sh")],
        [("h", "LNKTYPE", "/etc/passwd")],
    ],
)
def test_no_part_of_an_artifact_leads_out_of_it(members: list[tuple[str, str, str]]) -> None:
    packed, refused = harmless(archive(*members))
    assert refused == [members[-1][0]]
    with tarfile.open(fileobj=io.BytesIO(packed)) as result:
        assert members[-1][0] not in result.getnames()


def test_an_artifact_keeps_its_files_and_the_links_within_it() -> None:
    members = [
        (".", "DIRTYPE", ""),
        ("./bin", "DIRTYPE", ""),
        ("./bin/run", "SYMTYPE", "../lib/run"),
        ("./lib/run", "REGTYPE", "echo"),
        ("./other", "LNKTYPE", "./lib/run"),
    ]
    packed, refused = harmless(archive(*members))
    assert refused == []
    with tarfile.open(fileobj=io.BytesIO(packed)) as result:
        assert result.getnames() == [".", "bin", "bin/run", "lib/run", "other"]
        assert {member.mode for member in result} == {0o755}
