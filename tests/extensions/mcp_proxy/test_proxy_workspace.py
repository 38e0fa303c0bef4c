"""Test the folders of episodes: copies and overlays of a template, and their restore in place."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy import workspace as module
from mcpenv.extensions.mcp_proxy.workspace import Template, Workspace, digest_of, fault_of_overlay

OVERLAYS = fault_of_overlay(Path(__file__).parent)
needs_overlays = pytest.mark.skipif(OVERLAYS is not None, reason=str(OVERLAYS))
BOTH = ["copy", pytest.param("overlay", marks=needs_overlays)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "template"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("first")
    (folder / "sub" / "b.txt").write_text("second")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("a.txt")
    return folder


@pytest.fixture(params=BOTH)
def workspace(request: pytest.FixtureRequest, folder: Path) -> Iterator[Workspace]:
    made = Workspace(Template.prepare(folder, request.param))
    made.restore()
    yield made
    made.remove()


def test_a_workspace_is_equal_to_its_template(workspace: Workspace, folder: Path) -> None:
    assert workspace.digest() == digest_of(workspace.path) == digest_of(folder)
    assert os.access(workspace.path / "run.sh", os.X_OK) and (workspace.path / "link").is_symlink()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_restore_undoes_every_change(workspace: Workspace, folder: Path, in_place: bool) -> None:
    root = workspace.path
    (root / "a.txt").write_text("1st!!")  # as long as before
    (root / "sub" / "b.txt").unlink()
    (root / "sub" / "b.txt").mkdir()
    (root / "sub" / "b.txt" / "c").write_text("new")
    (root / "sub" / "deep").rmdir()
    (root / "run.sh").chmod(0o644)
    (root / "link").unlink()
    (root / "link").write_text("a file")
    os.mkfifo(root / "pipe")
    assert workspace.digest() != digest_of(folder)
    workspace.restore(in_place=in_place)
    assert workspace.digest() == digest_of(workspace.path) == digest_of(folder)
    assert (folder / "a.txt").read_text() == "first"


def test_a_restore_in_place_keeps_the_folder_and_the_files_that_are_open(workspace: Workspace) -> None:
    here = os.open(workspace.path, os.O_RDONLY)
    with open(workspace.path / "a.txt", "r+") as file:
        file.write("other")
        file.flush()
        workspace.restore(in_place=True)
        file.seek(0)
        assert file.read() == "first"
    assert "a.txt" in os.listdir(here)
    os.close(here)


def test_an_unchanged_file_is_not_written_by_a_restore(folder: Path) -> None:
    workspace = Workspace(Template.prepare(folder, "copy"))
    workspace.restore()
    before = (workspace.path / "a.txt").stat()
    workspace.restore()
    assert (workspace.path / "a.txt").stat() == before
    workspace.remove()


def test_removal_runs_in_the_background_and_leaves_nothing(workspace: Workspace) -> None:
    home = workspace.path.parent
    workspace.remove()
    assert not workspace.path.exists()
    for thread in threading.enumerate():
        if thread.name == "mcpenv-removal":
            thread.join(20)
    assert not list(home.parent.glob(f"{home.name}*"))


def test_the_digest_sees_names_contents_and_permissions(tmp_path: Path) -> None:
    seen = {digest_of(tmp_path)}
    (tmp_path / "a").write_text("x")
    seen.add(digest_of(tmp_path))
    (tmp_path / "a").write_text("y")
    seen.add(digest_of(tmp_path))
    (tmp_path / "a").chmod(stat.S_IRWXU)
    seen.add(digest_of(tmp_path))
    (tmp_path / "a").rename(tmp_path / "b")
    seen.add(digest_of(tmp_path))
    assert len(seen) == 5


@needs_overlays
def test_auto_prefers_an_overlay_for_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Template.prepare(folder, "auto").overlaid
    monkeypatch.setattr(module, "WORTH_AN_OVERLAY", 3)
    assert Template.prepare(folder, "auto").overlaid


def test_an_overlay_that_the_machine_cannot_make_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "with:colon"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match=r'"overlay": the path .* overlayfs does not take; use "copy"'):
        Template.prepare(folder, "overlay")
    with pytest.raises(ConfigurationError, match="needs a folder"):
        Template.prepare(None, "overlay")
