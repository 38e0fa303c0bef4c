"""Episodes of Harbor tasks in real containers of podman."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_image import import_image
from harbor_tasks import CONFIG, harbor_task

from mcpenv import ExecutionError
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.validation.tasks import validate

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

IMAGE = "localhost/mcpenv-test"


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Configure podman so that it also runs inside virtual machines with few rights, and import an image."""
    config = tmp_path_factory.mktemp("podman") / "containers.conf"
    config.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(config))
        import_image("podman", IMAGE)
        yield


def served(folder: Path) -> type[HarborEnvironment]:
    return HarborEnvironment.from_folder(folder, provider="podman")


def execute(env: Any, command: str, **more: Any) -> Any:
    return env.call_tool("execute", {"command": command, **more}).result.structured_content


def test_the_oracle_scores_1_and_doing_nothing_0_and_no_container_is_left(tmp_path: Path) -> None:
    cls = served(harbor_task(tmp_path / "hello", image=IMAGE))
    assert cls.tasks is not None
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert (report.oracle, report.nothing, report.repeats) == (1.0, 0.0, True)
    listed = subprocess.run(
        ["podman", "ps", "--all", "--quiet", "--filter", "label=mcpenv=harbor"], capture_output=True, check=True
    )
    assert listed.stdout == b""


def test_an_agent_cannot_write_the_reward_and_a_command_has_its_time_limit(tmp_path: Path) -> None:
    config = CONFIG + 'docker_image = "localhost/mcpenv-test"\nworkdir = "/root"\n[environment.env]\nA = "b"\n'
    with served(harbor_task(tmp_path / "hello", {"environment/Dockerfile": None}, config=config))() as env:
        env.reset()
        assert execute(env, "pwd; echo $A; echo err >&2; exit 3") == {
            "exit_code": 3,
            "stdout": "/root\nb\n",
            "stderr": "err\n",
            "timed_out": False,
        }
        assert execute(env, "echo $$ > pid; exec sleep 1000", timeout_s=3)["timed_out"]
        assert execute(env, "kill -0 $(cat pid)")["exit_code"] != 0
        assert env.call_tool("read_file", {"path": "pid"}).result.text.strip().isdecimal()
        execute(
            env, "mkdir -p /logs/verifier; (while :; do echo 1 > /logs/verifier/reward.json; done) >/dev/null 2>&1 &"
        )
        assert env.end().reward == 0.0


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    files: dict[str, str | None] = {"environment/Dockerfile": f"FROM {IMAGE}\nCOPY missing /x\n"}
    with served(harbor_task(tmp_path / "hello", files))() as env, pytest.raises(ExecutionError) as raised:
        env.reset()
    assert "podman build failed" in str(raised.value.__cause__) and "missing" in str(raised.value.__cause__)


def test_networks_that_differ_are_refused(tmp_path: Path) -> None:
    config = CONFIG.replace("[agent]\n", '[agent]\nnetwork_mode = "public"\n')
    with pytest.raises(ConfigurationError, match="different networks for agent and tests"):
        served(harbor_task(tmp_path / "hello", config=config))
