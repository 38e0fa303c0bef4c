"""Tasks of several steps, and with a separate verifier, in real containers of podman."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from harbor_tasks import assert_scored
from podman_engine import BASE, import_base, podman, podman_settings
from stepped_tasks import separate_task, stepped_task

from mcpenv.extensions.harbor.environment import HarborEnvironment

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

SERVICES: Mapping[str, str | None] = {
    "environment/docker-compose.yaml": f"""
services:
  main: {{volumes: ["shared:/shared"]}}
  side: {{image: "{BASE}", command: ["sleep", "infinity"], volumes: ["shared:/shared"]}}
volumes: {{shared: }}
"""
}


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with podman_settings(tmp_path_factory.mktemp("podman")):
        import_base(tmp_path_factory.mktemp("base"))
        yield


def left() -> set[str]:
    """The containers of tasks."""
    return set(podman("container", "ls", "--all", "--quiet", "--filter", "label=mcpenv=harbor").split())


@pytest.fixture(autouse=True)
def no_container_stays(engine: None) -> Iterator[None]:
    before = left()
    yield
    assert left() <= before


def test_steps_find_the_services_and_the_files_of_the_step_before(tmp_path: Path) -> None:
    assert_scored(stepped_task(tmp_path / "two", SERVICES, image=BASE))


def test_the_agent_goes_on_without_what_the_tests_have_written_and_doing_nothing_scores_0(tmp_path: Path) -> None:
    cls = HarborEnvironment.from_folder(stepped_task(tmp_path / "two", image=BASE), provider="podman")
    with cls() as env:
        env.reset()
        env.call_tool("execute", {"command": "echo a plan > plan.txt; echo 1 > /etc/mine"})
        assert "step 2 of 2" in env.call_tool("finish_step", {}).result.text
        listing = env.call_tool("execute", {"command": "cat /etc/mine; ls /app /tests /logs/verifier"})
        assert listing.result.structured_content["stdout"].split() == [
            *("1", "/app:", "given.txt", "plan.txt", "set-up.txt", "setup.sh", "/logs/verifier:", "/tests:")
        ]
        env.call_tool("execute", {"command": 'echo "built given" > built.txt'})
        assert env.end().reward == 1.0
        env.reset()
        assert env.end().reward == 0.0


def test_a_separate_verifier_is_built_and_finds_the_artifacts_alone(tmp_path: Path) -> None:
    assert_scored(separate_task(tmp_path / "apart", image=BASE))


def test_a_separate_verifier_may_have_services(tmp_path: Path) -> None:
    services = {"tests/docker-compose.yaml": SERVICES["environment/docker-compose.yaml"]}
    assert_scored(separate_task(tmp_path / "apart", services, image=BASE))
