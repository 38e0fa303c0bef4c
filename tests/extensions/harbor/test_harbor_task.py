"""Read task directories of Harbor, and refuse what cannot be served. Nothing here needs a container."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest
from command_line import command_lines
from harbor_tasks import CONFIG, harbor_task
from stepped_tasks import stepped_task

from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.extensions.harbor.config import (
    HARBOR,
    Agent,
    Artifact,
    Collect,
    Config,
    Environment,
    Solution,
    StepConfig,
    Verifier,
)
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.harbor.task import read_task, read_tasks
from mcpenv.targets.target import load_target


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def refusal(task: Path, *settings: str) -> str:
    with pytest.raises(TargetError) as raised:
        load_target(f"harbor:{task}", settings)
    return raised.value.reason


def test_a_task_has_the_instruction_the_time_limit_and_the_metadata(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello", {"instruction.md": "<!-- canary 1 -->\n# a canary\n\nDo it.\n"})
    task = read_task(folder).task()
    assert (task.id, task.prompt, task.limits.timeout_s) == ("hello", "Do it.", 120.0)
    assert task.metadata["difficulty"] == "easy" and task.metadata["harbor"]["name"] == "mcpenv/hello"
    (folder / "tests" / "test.sh").write_text("other")
    assert read_task(folder).task().version != task.version


def test_the_solution_is_the_oracle(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello", config=CONFIG + '[solution.env]\nWHO = "a b"\n')
    (folder / "solution" / "data.bin").write_bytes(b"\xff\x00")
    calls = read_task(folder).task().oracle
    assert calls is not None
    assert [call.tool_name for call in calls] == ["write_file", "write_file", "execute"]
    assert calls[0].arguments == {"path": "/solution/data.bin", "content": "/wA=", "encoding": "base64"}
    assert calls[2].arguments["command"].endswith("WHO='a b' /solution/solve.sh")
    assert read_task(harbor_task(tmp_path / "without", {"solution/solve.sh": None})).task().oracle is None


def test_a_solution_that_needs_a_secret_is_no_oracle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = harbor_task(tmp_path / "hello", config=CONFIG + '[solution.env]\nAPI_KEY = "${API_KEY}"\n')
    assert read_task(folder).task().oracle is None
    assert "API_KEY" in caplog.text


def test_a_folder_of_tasks_has_them_by_name(tmp_path: Path) -> None:
    for name in ("two", "one"):
        harbor_task(tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert [task.name for task in read_tasks(tmp_path)] == ["one", "two"]
    with pytest.raises(ConfigurationError, match="neither the folder nor one in it has a task"):
        read_tasks(tmp_path / "notes")


def test_variables_of_this_process_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIG + '[verifier.env]\nA = "${THE_A}"\nB = "${THE_B:-other}"\nC = "as is"\n'
    folder = harbor_task(tmp_path / "hello", config=config)
    monkeypatch.setenv("THE_A", "a")
    assert read_task(folder).tests_env[0] == {"A": "a", "B": "other", "C": "as is"}
    monkeypatch.delenv("THE_A")
    with pytest.raises(ConfigurationError, match="needs the environment variable THE_A, which is not set"):
        read_task(folder)


def test_sizes_of_older_versions_are_mib(tmp_path: Path) -> None:
    config = CONFIG + 'memory = "2G"\nstorage = "512M"\nstorage_mb = 512\n'
    environment = read_task(harbor_task(tmp_path / "hello", config=config)).config.environment
    assert (environment.memory_mb, environment.storage_mb) == (2048, 512)


def test_keys_without_effect_are_logged_once_for_all_tasks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = CONFIG.replace("[agent]\n", '[agent]\nmood = "good"\n') + 'skills_dir = "/skills"\nstorage_mb = 9\n'
    for name in ("one", "two"):
        harbor_task(tmp_path / name, config=config)
    with caplog.at_level(logging.WARNING):
        HarborEnvironment.from_folder(tmp_path, base_image="host")
    keys = ("[agent] mood", "[environment] skills_dir")
    assert [each for each in caplog.messages if " has no effect" in each] == [
        f"{key} has no effect (task 'one' and 1 more)" for key in keys
    ]
    server = CONFIG + '[[environment.mcp_servers]]\nname = "a"\nurl = "http://a"\ncolour = "red"\n'
    assert list(read_task(harbor_task(tmp_path / "x", config=server)).without_effect) == [
        "[environment.mcp_servers] colour"
    ]
    judges = '[verifier.environment]\nskills_dir = "/s"\n[verifier.environment.healthcheck]\ncommand = "true"\n'
    judges += '[[steps]]\nname = "a"\n[steps.verifier.environment]\ngpu_types = ["H100"]\n'
    task = harbor_task(
        tmp_path / "y", {f"steps/a/{name}": "" for name in ("instruction.md", "tests/test.sh")}, config=CONFIG + judges
    )
    assert list(read_task(task).without_effect) == [
        "[verifier.environment] healthcheck",
        "[verifier.environment] skills_dir",
        "[steps.verifier.environment] gpu_types",
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task.toml": "["}, "task.toml: "),
        ({"task.toml": "[agent]\ntimeout_sec = -1"}, "agent.timeout_sec: "),
        ({"task.toml": '[agent]\nallowed_hosts = ["a.org"]'}, "agent: .*only valid with network_mode"),
        (
            {"task.toml": '[environment]\nmemory = "2G"\nmemory_mb = 4'},
            "'2G' is 2048 MiB, and memory_mb = 4: leave",
        ),
        ({"task.toml": '[environment]\nmemory = "lots"'}, "'lots' is no size such as '2G'"),
        (
            {"task.toml": '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1'},
            r"verifier: .* and \[verifier.environment\] exclude each other",
        ),
        (
            {"task.toml": '[[environment.mcp_servers]]\nname = "a"\ncommand = "b"'},
            "environment.mcp_servers.0: .*transport 'sse', the default, needs 'url'",
        ),
        ({"instruction.md": None}, "has no instruction.md"),
        ({"tests/test.sh": None}, "has no tests/test.sh"),
        ({"task.toml": '[[steps]]\nname = "a"'}, r"has several steps .* and no steps/a/instruction.md"),
        ({"task.toml": '[[steps]]\nname = "../a"'}, "steps.0.name: .* is no name of a folder"),
        ({"task.toml": '[[steps]]\nname = "a"\n[[steps]]\nname = "A"'}, "steps: .*two steps are named 'a'"),
        ({"task.toml": 'artifacts = ["/a/../b"]'}, "artifacts.0.source: .* has the part '..'"),
    ],
)
def test_a_broken_task_is_refused_with_its_place(tmp_path: Path, files: dict[str, str | None], said: str) -> None:
    folder = harbor_task(tmp_path / "hello", files)
    with pytest.raises(ConfigurationError, match=said):
        read_task(folder)


def folder_in_place(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("instruction.md", b"\xe9", "task 'bad': instruction.md: 'utf-8' codec can't decode byte 0xe9"),
        ("instruction.md", None, "task 'bad' has no instruction.md"),
        ("environment/Dockerfile", b"FROM a\n# \xe9", "engine for environment/Dockerfile: 'utf-8' codec can't decode"),
        ("environment/Dockerfile", b"FROM", "engine for line 1 of environment/Dockerfile: FROM  "),
        ("environment/Dockerfile", b"FROM a\nCOPY b", "engine for line 2 of environment/Dockerfile: COPY b "),
        ("environment/Dockerfile", b"FROM a\nENV", "engine for line 2 of environment/Dockerfile: ENV "),
        ("environment/Dockerfile", None, "task 'bad' has no image: "),
        ("environment/docker-compose.yaml", None, "task 'bad' needs a container engine for its services"),
        ("task.toml", b"# \xe9", "bad/task.toml: 'utf-8' codec can't decode byte 0xe9"),
        ("task.toml", b"a = " + b"[" * 9999, "bad/task.toml: "),
        ("task.toml", None, "bad/task.toml: .*Is a directory"),
        ("task.toml", b"[agent]\ntimeout_sec = inf", "bad/task.toml: agent.timeout_sec: .*finite"),
        ("task.toml", b"[verifier]\ntimeout_sec = inf", "bad/task.toml: verifier.timeout_sec: .*finite"),
        ("task.toml", b"[environment]\ncpus = nan", "bad/task.toml: environment.cpus: .*finite"),
        ("task.toml", b'[environment]\nmemory = "1e400G"', "bad/task.toml: .* is no size such as"),
        ("task.toml", b"[environment]\nmemory_mb = inf", "bad/task.toml: environment.memory_mb: "),
        ("task.toml", b"[metadata]\na = inf", "task 'bad': .*metadata.a: "),
        ("environment/.dockerignore", b"\xe9", "task 'bad' needs a container engine for environment/.dockerignore"),
        ("tests/test.sh", None, "task 'bad' has no tests/test.sh"),
    ],
)
def test_a_task_with_a_file_that_cannot_be_read_is_left_out_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None, said: str
) -> None:
    for task in ("bad", "good"):
        harbor_task(tmp_path / task)
    bad = tmp_path / "bad" / name
    folder_in_place(bad) if content is None else bad.write_bytes(content)
    tasks = HarborEnvironment.from_folder(tmp_path, base_image="host").tasks
    assert tasks is not None and [task.id for task in tasks] == ["good"]
    (left_out,) = [each for each in caplog.messages if each.startswith("left out: ")]
    assert re.search(said, left_out) and "\n" not in left_out


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", ["", "task.toml", "instruction.md", "environment", "tests", "tests/test.sh"])
def test_a_task_with_a_file_that_may_not_be_read_is_left_out_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for task in ("bad", "good"):
        harbor_task(tmp_path / task)
    (tmp_path / "bad" / name).chmod(0)
    assert [task.name for task in read_tasks(tmp_path)] == ["good"]
    assert re.search("left out: .*bad.*Permission denied", caplog.text)
    (tmp_path / "bad" / name).chmod(0o700)


def test_a_loop_of_links_is_refused_and_a_name_of_other_bytes_is_not(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello")
    (folder / "tests" / os.fsdecode(b"\xe9")).write_text("a")
    assert read_task(folder).task().id == "hello"
    (folder / "tests" / "loop").symlink_to("loop")
    with pytest.raises(ConfigurationError, match=r"task 'hello': .*loop"):
        read_task(folder)


def test_a_link_out_of_the_task_is_refused(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello")
    (folder / "tests" / "all").symlink_to("/etc")
    with pytest.raises(ConfigurationError, match="the link tests/all leads out of the task"):
        read_task(folder)


@pytest.mark.parametrize(
    ("more", "files", "said"),
    [
        ("gpus = 1\n", {}, "GPUs"),
        ('os = "windows"\n', {}, "the system 'windows'"),
        (
            '[verifier.environment]\n[[verifier.collect]]\ncommand = "true"\nservice = "db"\n',
            {},
            r"\[\[verifier.collect\]\] in another service",
        ),
        (
            '[[environment.mcp_servers]]\nname = "a"\nurl = "http://a"\n',
            {},
            r"MCP servers .*: a by sse",
        ),
        ('tpu = {type = "v5e"}\n', {}, "TPUs"),
        (
            "",
            {"task.toml": CONFIG.replace('"no-network"', '"allowlist"\nallowed_hosts = ["a.org"]')},
            "a list of allowed hosts",
        ),
        (
            '[verifier.environment]\n[[artifacts]]\nsource = "/a"\nservice = "db"\n',
            {},
            "artifacts of another service",
        ),
        ("", {"trajectory.json": "{}"}, "trajectory.json"),
        ("", {"environment/docker-compose.yaml": "services: {}"}, "a container engine for its services"),
        ("", {".harborignore": "x"}, ".harborignore"),
    ],
)
def test_what_nothing_here_has_is_refused_by_name(
    tmp_path: Path, more: str, files: dict[str, str | None], said: str
) -> None:
    folder = harbor_task(tmp_path / "hello", files, config=CONFIG + more)
    with pytest.raises(TargetError, match=f"task 'hello' needs {said}"):
        load_target(f"harbor:{folder}", ["base_image=host"])


def test_steps_with_different_networks_are_refused_by_that_name(tmp_path: Path) -> None:
    more = 'agent = {network_mode = "public"}'
    folder = stepped_task(tmp_path / "two", first=more)
    assert "task 'two' needs networks that differ between its steps" in refusal(folder, "base_image=host")


@pytest.mark.parametrize("table", ["verifier", "environment"])
def test_a_variable_without_a_value_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.delenv("AN_API_KEY", raising=False)
    config = CONFIG + f'[{table}.env]\nKEY = "${{AN_API_KEY}}"\n'
    assert "AN_API_KEY" in refusal(harbor_task(tmp_path / "hello", config=config), "base_image=host")


def test_a_task_without_an_image_says_so(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello", {"environment/Dockerfile": None})
    said = "task 'hello' has no image: there is neither environment/Dockerfile nor [environment] docker_image"
    assert refusal(folder) == refusal(folder, "base_image=host") == said


def test_a_task_of_terminal_bench_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("instruction: Do it.\n")
    assert "convert it by harbor task migrate" in refusal(tmp_path)


def test_an_image_of_a_separate_verifier_needs_an_engine(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello", config=CONFIG + '[verifier.environment]\ndocker_image = "x"\n')
    said = "the separate verifier of task 'hello' needs a container engine for its image 'x'"
    assert said in refusal(folder, "base_image=host")


def test_every_key_of_the_models_has_a_row_in_the_reference() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/inputs.md").read_text(encoding="utf-8")
    section = page.partition("## Tasks of Harbor")[2].partition("\n## ")[0]
    assert f"Harbor {HARBOR}" in section
    for model in (Config, StepConfig, Agent, Verifier, Collect, Artifact, Environment, Solution):
        for key in model.model_fields:
            assert re.search(rf"[`\[ ]{key}[`\] ]", section), f"{model.__name__}.{key}"


@pytest.mark.usefixtures("no_engine")
def test_a_task_that_needs_an_engine_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = harbor_task(tmp_path / "hello")
    with command_lines(None, monkeypatch, capfd) as run:
        ran = run("run", f"harbor:{folder}")
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert "task 'hello' needs a container engine (docker is not installed; podman is not installed)" in ran.err
    assert "--set base_image=host" in ran.err


@pytest.mark.usefixtures("no_engine")
def test_bubblewrap_does_not_stand_in_for_an_image_unasked(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello")
    assert "for its image 'debian:12'" in refusal(folder, "provider=bubblewrap")
    assert refusal(folder, "base_image=host") == "bubblewrap (bwrap) is not installed"
    assert "is for bubblewrap" in refusal(folder, "base_image=host", "provider=docker")
    assert "there is no setting 'image'" in refusal(folder, "image=host")


def test_a_target_without_a_path_is_refused() -> None:
    with pytest.raises(TargetError, match="nothing stands after harbor:"):
        load_target("harbor:")
