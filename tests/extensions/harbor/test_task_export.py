"""Tasks written as task directories of Harbor, and the episode that their containers serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
from command_line import Cli, command_lines, free_port, started

ROOT = Path(__file__).resolve().parents[3]
LEDGER = ROOT / "envs" / "ledger_mcp"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def environment(folder: Path, tasks: list[dict[str, object]], body: str = "") -> Path:
    folder.mkdir()
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    code = f"""
        from mcpenv import MCPEnvironment, TaskSet

        class Plain(MCPEnvironment):
            tasks = TaskSet.from_jsonl("tasks.jsonl")

            def __init__(self, api_key: str = ""):
                self.tool(self.say)

            def say(self, text: str) -> str:
                return text

            {body}
        """
    (folder / "environment.py").write_text(dedent(code))
    return folder


VERIFIES = "def verify(self, evidence): return True"


def test_each_task_becomes_a_folder_with_everything_in_it(cli: Cli, tmp_path: Path) -> None:
    done = cli("tasks", "export", str(LEDGER), "--to", "out", "--split", "test", "-n", "2", "--json")
    assert done.status == 0, done.err
    first, second = json.loads(done.out)["tasks"]
    files = {path.relative_to(first).as_posix() for path in Path(first).rglob("*") if path.is_file()}
    assert files >= {
        "instruction.md",
        "task.toml",
        "environment/Dockerfile",
        "environment/start.sh",
        "environment/task.jsonl",
        "environment/code/environment.py",
        "tests/test.sh",
        "solution/solve.sh",
    }
    config = tomllib.loads((Path(first) / "task.toml").read_text())
    assert config["task"]["name"] == f"mcpenv/{Path(first).name}" and config["agent"]["user"] == "agent"
    assert (Path(second) / "environment" / "task.jsonl").read_text().count("\n") == 1
    again = cli("tasks", "export", str(LEDGER), "--to", "out", "--split", "test", "-n", "2")
    assert again.status == 2 and "exists" in again.err


def test_limits_metadata_and_settings_are_in_the_folder(cli: Cli, tmp_path: Path) -> None:
    task: dict[str, object] = {
        "id": "a b",
        "prompt": 'Say "é\\".',
        "limits": {"timeout_s": 7},
        "metadata": {"of": {"x y": [1, True, "\u007f"]}},
    }
    wheel = tmp_path / "more-1.0-py3-none-any.whl"
    wheel.touch()
    target = environment(tmp_path / "plain", [task], VERIFIES)
    done = cli("tasks", "export", str(target), "--to", "out", "--install", str(wheel), "--image", "img")
    assert done.status == 0, done.err
    folder = tmp_path / "out" / "a-b"
    config = tomllib.loads((folder / "task.toml").read_text())
    assert config["agent"]["timeout_sec"] == 7 and config["metadata"]["of"] == {"x y": [1, True, "\x7f"]}
    assert not (folder / "solution").exists()
    dockerfile = (folder / "environment" / "Dockerfile").read_text()
    assert "FROM img" in dockerfile and "wheels/more-1.0-py3-none-any.whl" in dockerfile
    assert (folder / "environment" / "wheels" / wheel.name).is_file()


def dockerfile_of(cli: Cli, tmp_path: Path, *install: str) -> list[str]:
    target = environment(tmp_path / "plain", [{"id": "a", "prompt": "p"}], VERIFIES)
    (target / "requirements.txt").write_text("shop\n")
    words = [word for item in install for word in ("--install", item)]
    done = cli("tasks", "export", str(target), "--to", "out", *words)
    assert done.status == 0, done.err
    return (tmp_path / "out" / "a" / "environment" / "Dockerfile").read_text().splitlines()


def test_what_is_installed_beside_mcpenv_is_in_a_folder_that_the_agent_cannot_read(cli: Cli, tmp_path: Path) -> None:
    lines = dockerfile_of(cli, tmp_path, "shop-rules==1", "mcpenv[postgres]>=0.1")
    public = "RUN pip install --no-cache-dir 'mcpenv[postgres]>=0.1'"
    private = "RUN venv/bin/pip install --no-cache-dir shop-rules==1 --requirement code/requirements.txt"
    closed = "RUN chmod -R go-rwx /opt/mcpenv && chmod u+x start.sh"
    assert lines.index(public) < lines.index(private) < lines.index(closed)
    assert lines.index("WORKDIR /opt/mcpenv") < lines.index("RUN python3 -m venv --system-site-packages venv")
    started_by = (tmp_path / "out" / "a" / "environment" / "start.sh").read_text()
    assert "cd /opt/mcpenv\n  setsid venv/bin/python -m mcpenv tasks serve" in started_by


@pytest.mark.parametrize("other", ["mcpenv-shop==1", "mcpenv_client==0.1", "mcpenv.rules"])
def test_a_package_whose_name_begins_like_mcpenv_is_not_mcpenv(cli: Cli, tmp_path: Path, other: str) -> None:
    (public,) = (line for line in dockerfile_of(cli, tmp_path, other) if line.startswith("RUN pip install"))
    assert "mcpenv==" in public


def test_a_folder_in_the_folder_of_code_is_refused_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    target = environment(tmp_path / "plain", [{"id": "a", "prompt": "p"}], VERIFIES)
    done = cli("tasks", "export", str(target), "--to", str(target / "out"))
    assert done.status == 2 and "is inside of the folder of code" in done.err, done.err
    assert not (target / "out").exists()


def test_an_error_while_files_are_copied_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    target = environment(tmp_path / "plain", [{"id": "a", "prompt": "p"}], VERIFIES)
    (target / "dangling").symlink_to("nowhere")
    done = cli("tasks", "export", str(target), "--to", "out")
    assert done.status != 0
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("tasks", "body", "arguments", "said"),
    [
        ([{"id": "a", "prompt": "p"}], "", (), "task 'a' cannot be exported: nothing verifies or scores it"),
        ([{"id": "a"}], VERIFIES, (), "task 'a' cannot be exported: it has no prompt"),
        (
            [{"id": "a", "prompt": "p", "metadata": {"x": [None]}}],
            VERIFIES,
            (),
            "task 'a' cannot be exported: metadata.x is null",
        ),
        (
            [{"id": "a b", "prompt": "p"}, {"id": "a-b", "prompt": "p"}],
            VERIFIES,
            (),
            "tasks 'a b' and 'a-b' both get the name 'a-b'",
        ),
        ([{"id": "a", "prompt": "p"}], VERIFIES, ("--split", "other"), "has no tasks in 'other'"),
        ([{"id": "a", "prompt": "p"}], VERIFIES, ("--set", "api_key=sk"), "--set api_key cannot be exported"),
        ([{"id": "a", "prompt": "p"}], VERIFIES, ("--install", "x.whl"), "--install x.whl: there is no such file"),
    ],
)
def test_what_harbor_cannot_express_is_refused_by_name_and_leaves_nothing(
    cli: Cli, tmp_path: Path, tasks: list[dict[str, object]], body: str, arguments: tuple[str, ...], said: str
) -> None:
    target = environment(tmp_path / "plain", tasks, body)
    done = cli("tasks", "export", str(target), "--to", "out", *arguments)
    assert done.status == 2 and said in done.err, done.err
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("target", ["http://127.0.0.1:1", "mcp:some-server", "harbor:somewhere"])
def test_only_the_code_of_an_environment_is_exported(cli: Cli, target: str) -> None:
    done = cli("tasks", "export", target, "--to", "out")
    assert done.status == 2 and "cannot be exported" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("plays", [True, False])
def test_the_served_episode_scores_its_solution_1_and_nothing_0(cli: Cli, tmp_path: Path, plays: bool) -> None:
    assert cli("tasks", "export", str(LEDGER), "--to", "out", "-n", "1").status == 0
    (folder,) = (tmp_path / "out").iterdir()
    port, socket = free_port(), tmp_path / "episode.sock"
    words = ["tasks", "serve", str(folder / "environment" / "code"), folder.name]
    words += ["--tasks", str(folder / "environment" / "task.jsonl"), "--port", str(port), "--socket", str(socket)]
    with started(tmp_path, *words) as server:
        server.wait_for("Serving task")
        assert socket.stat().st_mode & 0o077 == 0
        for foreign in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert httpx.post(f"http://127.0.0.1:{port}/mcp", json={}, headers=foreign).status_code in (403, 421)
        if plays:
            address = f"http://127.0.0.1:{port}/mcp"
            subprocess.run([sys.executable, folder / "solution" / "solve.py", address], check=True, timeout=60)
        done = cli("tasks", "score", str(socket))
        again = cli("tasks", "score", str(socket))
    assert done.status == 0, done.err
    assert json.loads(done.out)["reward"] == float(plays)
    assert json.loads(again.out)["reward"] == float(plays)
    assert not socket.exists()
    assert cli("tasks", "score", str(socket)).status == 2


# -- Harbor itself


@pytest.mark.world
def test_harbor_loads_and_lints_what_is_written(cli: Cli, tmp_path: Path) -> None:
    assert cli("tasks", "export", str(LEDGER), "--to", "out").status == 0
    folders = sorted(map(str, (tmp_path / "out").iterdir()))
    program = """
        import sys
        from harbor.models.task.task import Task

        for folder in sys.argv[1:]:
            task = Task(folder)
            assert Task.is_valid_dir(folder)
            assert task.paths.discovered_solve_path is not None and task.config.environment.mcp_servers
            assert task.config.environment.healthcheck.command == "/opt/mcpenv/start.sh"
        print(len(sys.argv) - 1)
    """
    harbor = Path(os.environ["MCPENV_HARBOR"])  # the Python of a virtual environment with Harbor, which needs 3.12
    ran = subprocess.run([harbor, "-c", dedent(program), *folders], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == len(folders) == 22
    lint = subprocess.run([harbor.with_name("harbor"), "lint", *folders], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr
