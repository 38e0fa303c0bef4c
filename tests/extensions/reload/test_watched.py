"""The folder or file that ``mcpenv dev`` watches, found without loading code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcpenv import TargetError
from mcpenv.extensions.reload.watched import watched_path

BROKEN = "raise RuntimeError('not to be run')\n"
PLATFORM = """
from pathlib import Path
from mcpenv.targets.external import FolderKind


def load(file: Path, /): ...


def elsewhere(key: str, /): ...


FOLDER = FolderKind(
    framework="Foreign",
    advice="ask",
    load_folder=load,
    load_attribute=load,
    owns=lambda made: False,
    explains=lambda error, missing: False,
)
"""
ENTRY_POINTS = """[mcpenv.targets]
file = watched_platform:load
some = watched_platform:elsewhere
watched.yaml = watched_platform:FOLDER
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


@pytest.fixture
def _platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with targets, in the working directory."""
    (tmp_path / "watched_platform.py").write_text(PLATFORM)
    info = tmp_path / "watched_platform-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: watched-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def write(name: str, text: str = BROKEN) -> None:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_the_watched_folder_is_found_without_loading(tmp_path: Path) -> None:
    for name in ("game/environment.py", "envs/__init__.py", "envs/game/__init__.py", "envs/game/environment.py"):
        write(name)
    for name in ("world.py", "package/__init__.py"):
        write(name)
    assert watched_path("game") == tmp_path / "game"
    assert watched_path("envs/game") == tmp_path / "envs"
    assert watched_path("world.py:World") == tmp_path
    assert watched_path("world:World") == tmp_path
    assert watched_path("package.inner:World") == tmp_path / "package"


def test_a_folder_with_a_manifest_is_watched_even_if_the_manifest_is_invalid(tmp_path: Path) -> None:
    write("env/mcpenv.yaml", "schema_version: 1\nname: 7\n")
    assert watched_path("env") == tmp_path / "env"


@pytest.mark.parametrize("target", ["nowhere", "nowhere:World", "sys:World"])
def test_a_missing_target_cannot_be_watched(target: str) -> None:
    with pytest.raises(TargetError):
        watched_path(target)


@pytest.mark.usefixtures("_platform")
def test_paths_of_other_distributions_targets_are_watched(tmp_path: Path) -> None:
    write("world/README.md")
    write("foreign/watched.yaml", "")
    assert watched_path("file:world") == tmp_path / "world"
    assert watched_path("foreign") == tmp_path / "foreign"
    with pytest.raises(TargetError, match="names no file or folder that can be watched"):
        watched_path("file:nowhere")
    with pytest.raises(TargetError, match="nothing to watch"):
        watched_path("some:key")
