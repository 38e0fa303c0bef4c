"""Targets of other distributions: resolved by entry point, refused with a reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from mcpenv import TargetError
from mcpenv.targets.target import load_target
from mcpenv.targets.watched import watched_path

PLATFORM = '''
from mcpenv import MCPEnvironment
from mcpenv.errors import ConfigurationError


class Hosted(MCPEnvironment):
    """Count."""

    key = ""
    size = 0

    def __init__(self) -> None:
        self.tool(self.describe)

    def describe(self) -> str:
        """Describe the environment."""
        return f"{self.key} of {self.size}"


def environment_class(rest: str, /, *, size: int = 1) -> type[MCPEnvironment]:
    if not rest:
        raise ConfigurationError("the key is missing")
    return type("Hosted", (Hosted,), {"key": rest, "size": size, "EXPOSED_NAME": rest})


def nothing(rest: str, /) -> None:
    return None
'''


@pytest.fixture(autouse=True)
def _platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with targets, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some_platform.py").write_text(dedent(PLATFORM))
    info = tmp_path / "some_platform-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mcpenv.targets]\nsome = some_platform:environment_class\nno = some_platform:nothing\ngone = nowhere:make\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("some_platform", None)


def refused(target: str, *settings: str) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(target, settings)
    assert str(caught.value).startswith(f"{target}: ")
    return caught.value.reason


def test_the_entry_point_makes_the_class_of_the_rest_with_settings_of_its_types() -> None:
    target = load_target("some:key:v1", ["size=3"])
    assert (target.name, target.spec) == ("key-v1", "some:key:v1")
    with target.make() as env:
        assert env.call_tool("describe").text == "key:v1 of 3"


def test_tasks_of_a_file_are_used_instead_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "one", "prompt": "Count."}\n')
    with load_target("some:key", (), tmp_path / "tasks.jsonl").make() as env:
        assert env.reset(task="one").prompt == "Count."


def test_what_the_distribution_refuses_is_told_with_the_target() -> None:
    assert refused("some:") == "the key is missing"
    assert refused("some:key", "size=large").startswith("--set size=large: Input should be a valid integer")
    assert refused("some:key", "colour=red") == "--set colour=red: there is no setting 'colour' (there are: size)"


def test_an_entry_point_that_does_not_work_is_named() -> None:
    assert refused("gone:key").startswith("nowhere:make cannot be loaded: ModuleNotFoundError")
    assert refused("no:key") == "some_platform:nothing returned None, not an environment class"


def test_there_is_no_code_to_watch() -> None:
    with pytest.raises(TargetError, match="nothing to watch"):
        watched_path("some:key")


def test_a_module_and_class_are_still_a_target() -> None:
    assert load_target("some_platform:Hosted").spec.endswith("some_platform.py:Hosted")


def test_a_target_of_a_distribution_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert "pip install mcpenv-fleet" in refused("fleet:fira")


def test_mcpenv_imports_no_distribution_of_targets() -> None:
    program = "import mcpenv.targets.target, sys; print('mcpenv_fleet' in sys.modules, 'fleet' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert ran.stdout.split() == ["False", "False"]
