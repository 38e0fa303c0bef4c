"""Targets of other distributions: resolved by entry point, refused with a reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import mcpenv
from mcpenv import TargetError
from mcpenv.cli import execute
from mcpenv.targets.target import load_target

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


def test_an_environment_is_loaded_with_settings_of_its_target_as_values() -> None:
    with mcpenv.load("some:key", size=3) as env:
        assert env.call_tool("describe").text == "key of 3"
    with pytest.raises(TargetError, match=r"there is no setting 'colour' \(there are: size\)"):
        mcpenv.load("some:key", colour="red")


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


def test_a_module_and_class_are_still_a_target() -> None:
    assert load_target("some_platform:Hosted").spec.endswith("some_platform.py:Hosted")


def test_a_target_of_a_distribution_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert "pip install CLONE/clients/fleet" in refused("fleet:fira")


@pytest.mark.process
def test_mcpenv_imports_no_distribution_of_targets() -> None:
    program = "import mcpenv.targets.target, sys; print('mcpenv_fleet' in sys.modules, 'fleet' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert ran.stdout.split() == ["False", "False"]


KINDS = '''
from pathlib import Path

from mcpenv.targets.external import FolderKind, TargetKind
from some_platform import Hosted


def load(file: Path, /, **settings: str) -> type[Hosted]:
    return type("Hosted", (Hosted,), {"key": file.name, "size": settings, "EXPOSED_NAME": "in-a-file"})


def either(what: str | Path, /) -> type[Hosted]:
    return type("Hosted", (Hosted,), {"key": type(what).__name__, "EXPOSED_NAME": "either"})


class Foreign(Hosted):
    """One of another framework."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.size = size


def of_folder(target, folder, attribute):
    return type("Foreign", (Foreign,), {"key": f"{folder.name}:{attribute}", "EXPOSED_NAME": "foreign"})


def of_attribute(target, module, file, attribute):
    return type("Foreign", (Foreign,), {"key": f"{module}:{attribute}", "EXPOSED_NAME": "foreign"})


FOLDER = FolderKind(
    framework="Foreign",
    advice="ask",
    load_folder=of_folder,
    load_attribute=of_attribute,
    owns=lambda made: made.__name__ == "TheirEnvironment",
    explains=lambda error, missing: not missing and getattr(error, "name", "") == "their_framework",
)
COMMAND = TargetKind(load=lambda rest, /: load(Path(rest)), absolute=str.upper)
ONLY_RUN = TargetKind(run=lambda request: 7 if request.target == "served:it" else "some:key")
'''


@pytest.fixture
def _kinds(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "kinds.py").write_text(dedent(KINDS))
    with (tmp_path / "some_platform-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write(
            "file = kinds:load\neither = kinds:either\ncommand = kinds:COMMAND\nserved = kinds:ONLY_RUN\n"
            ".hosted = kinds:load\ntheir.yaml = kinds:FOLDER\n"
        )
    yield
    for name in ("kinds", "theirs", "served"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_kinds")
def test_a_path_is_found_from_other_folders(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "README.md").write_text("Read.")
    target = load_target("file:world", ["a=1", "a=2"])
    assert (target.spec, target.folder, target.readme) == (f"file:{tmp_path / 'world'}", tmp_path / "world", "Read.")
    assert target.make().call_tool("describe").text == "world of {'a': '2'}"
    assert refused("file:") == "nothing stands after file:"
    assert load_target("either:world").make().call_tool("describe").text == "str of 0"
    (tmp_path / "file").write_text("")
    assert load_target("either:file").make().call_tool("describe").text.endswith("Path of 0")
    assert load_target("command:run it").spec == "command:RUN IT"


@pytest.mark.usefixtures("_kinds")
def test_a_suffix_is_a_target_without_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "one.hosted").write_text("")
    target = load_target("one.hosted")
    assert (target.name, target.spec, target.folder) == ("in-a-file", str(tmp_path / "one.hosted"), tmp_path)
    assert refused("two.hosted").startswith("is not a folder")


@pytest.mark.usefixtures("_kinds")
def test_a_file_in_a_folder_and_a_class_of_its_framework_are_targets(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "their.yaml").write_text("")
    target = load_target("world:Part", ["size=2"])
    assert target.make().call_tool("describe").text == "world:Part of 2"
    (tmp_path / "theirs.py").write_text("class TheirEnvironment: ...\nclass Other: ...\n")
    assert load_target("theirs:TheirEnvironment").make().call_tool("describe").text == "theirs:TheirEnvironment of 0"
    assert refused("theirs:Other") == "Other is a class, but not a subclass of MCPEnvironment"
    (tmp_path / "needy.py").write_text("import their_framework\n")
    assert load_target("needy.py:World").make().call_tool("describe").text == "needy:World of 0"
    assert refused("needy.py").startswith("cannot be loaded: ModuleNotFoundError")


@pytest.mark.usefixtures("_kinds")
def test_a_target_of_mcpenv_run_only_is_a_module_to_other_commands(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text("from some_platform import Hosted\nclass World(Hosted): ...\n")
    assert load_target("served:World").spec.endswith("served.py:World")
    assert execute(["run", "served:it"]) == 7
    assert execute(["run", "served:other", "--workers", "0"]) == 2
    assert execute(["run", "served:other", "--env", "HOME"]) == 2


def test_a_broken_kind_of_folders_is_logged_and_leaves_other_targets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (tmp_path / "some_platform-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write("their.yaml = nowhere:KIND\n")
    (tmp_path / "broken.py").write_text("import their_framework\n")
    assert refused("broken.py:World").startswith("cannot be loaded: ModuleNotFoundError")
    assert "nowhere:KIND cannot be loaded" in caplog.text
