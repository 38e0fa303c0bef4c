"""The git world: what is seen of a repository, what is not, and that nothing that it names is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mcpenv import ANY, Changes, Evidence, MCPEnvironment, Verdict
from mcpenv.extensions.git_world import GitWorld
from mcpenv.extensions.git_world.reader import GitFailed

WHO = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@x.org",
    "GIT_COMMITTER_NAME": "Bo",
    "GIT_COMMITTER_EMAIL": "b",
}


def git(folder: Path, *arguments: str, **variables: str) -> str:
    env = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, **variables}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout


def commit(folder: Path, message: str, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder, "First", a_py="a = 1\n", src__b_py="b = 1\n")
    return folder


def seen_by(folder: Path) -> dict[str, Any]:
    return GitWorld(folder).capture()


def test_a_commit_is_four_changes_at_most(repository: Path) -> None:
    before = seen_by(repository)
    commit(repository, "Second\n\nWith a body.", a_py="a = 2\n")
    changes = Changes(before, seen_by(repository))
    assert changes.expect_exactly(
        {
            "branches/main": "Second",
            "commits/Second": {
                "author": "Ann <ann@x.org>",
                "message": "Second\n\nWith a body.\n",
                "parents": ["First"],
                "files": {"a.py": "modified"},
                "tree": ANY,
            },
            "trees/HEAD/a.py/text": "a = 2\n",
        }
    ), changes


def test_a_whole_repository_is_seen(repository: Path) -> None:
    git(repository, "tag", "light")
    git(repository, "tag", "-a", "v1", "-m", "One")
    git(repository, "branch", "fix/a")
    seen = seen_by(repository)
    tree = seen["commits/First"].pop("tree")
    assert len(tree) == 12
    assert seen == {
        "HEAD": "main",
        "branches/main": "First",
        "branches/fix/a": "First",
        "tags/light": "First",
        "tags/v1": {"commit": "First", "message": "One\n"},
        "commits/First": {
            "author": "Ann <ann@x.org>",
            "message": "First\n",
            "parents": [],
            "files": {"a.py": "added", "src/b.py": "added"},
        },
        "trees/HEAD/a.py": {"text": "a = 1\n"},
        "trees/HEAD/src/b.py": {"text": "b = 1\n"},
    }


def test_times_and_hashes_do_not_count(tmp_path: Path) -> None:
    seen = []
    for name, when in (("one", "2001-01-01T00:00:00Z"), ("two", "2020-01-01T00:00:00Z")):
        folder = tmp_path / name
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch", "main")
        (folder / "a").write_text("a")
        git(folder, "add", "a")
        git(folder, "commit", "-q", "-m", "First", GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when)
        git(folder, "commit", "-q", "-m", "First", "--allow-empty", GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when)
        seen.append(seen_by(folder))
    assert seen[0] == seen[1]
    assert seen[0]["branches/main"] == "First#2" and seen[0]["commits/First#2"]["parents"] == ["First"]


def test_an_amended_commit_with_the_same_message_and_files_is_a_change(repository: Path) -> None:
    git(repository, "branch", "other")
    before = seen_by(repository)
    git(repository, "checkout", "--quiet", "other")
    (repository / "a.py").write_text("a = 666\n")
    git(repository, "commit", "--quiet", "--all", "--amend", "--no-edit")
    git(repository, "branch", "--force", "main", "other")
    git(repository, "checkout", "--quiet", "main")
    assert {change.where for change in Changes(before, seen_by(repository))} == {
        "commits/First/tree",
        "trees/HEAD/a.py/text",
    }


def test_status_has_code_and_content(repository: Path) -> None:
    (repository / "a.py").write_text("a = 2\n")
    git(repository, "add", "a.py")
    (repository / "a.py").write_text("a = 3\n")
    (repository / "src" / "b.py").unlink()
    (repository / "new").mkdir()
    (repository / "new" / "file").write_text("x")
    seen = {path: state for path, state in seen_by(repository).items() if path.startswith("status/")}
    assert seen == {
        "status/a.py": {"code": "MM", "text": "a = 3\n", "staged": {"text": "a = 2\n"}},
        "status/src/b.py": {"code": ".D"},
        "status/new/file": {"code": "??", "text": "x"},
    }


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_flag_in_the_index_hides_no_change(repository: Path, flag: str) -> None:
    git(repository, "update-index", flag, "a.py")
    (repository / "a.py").write_text("a = 666\n")
    assert seen_by(repository)["status/a.py"] == {"code": ".M", "text": "a = 666\n"}


def test_a_merge_and_its_conflict_are_seen(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "-b", "side")
    commit(repository, "Side", a_py="a = 2\n")
    git(repository, "checkout", "--quiet", "main")
    commit(repository, "Main", a_py="a = 3\n")
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "merge", "side")
    seen = seen_by(repository)
    assert seen["operation"] == "merge" and seen["status/a.py"]["code"] == "UU"
    commit(repository, "Merge", a_py="a = 5\n")
    seen = seen_by(repository)
    assert "operation" not in seen
    assert seen["commits/Merge"]["parents"] == ["Main", "Side"]
    assert seen["commits/Merge"]["files"] == {"a.py": "modified"}


def test_a_detached_head_and_other_references_are_seen(repository: Path) -> None:
    (repository / "a.py").write_text("a = 2\n")
    git(repository, "stash")
    git(repository, "checkout", "--quiet", "--detach")
    seen = seen_by(repository)
    assert seen["HEAD"] == {"commit": "First"}
    assert seen["refs/stash"].startswith("WIP on main")


def test_without_a_repository_the_world_is_empty(tmp_path: Path) -> None:
    assert GitWorld(tmp_path).capture() == {}
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    assert GitWorld(tmp_path).capture() == {"HEAD": "main"}


def test_a_bare_repository_and_named_trees_are_seen(repository: Path, tmp_path: Path) -> None:
    git(repository, "branch", "fix")
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
    seen = GitWorld(tmp_path / "bare.git", trees=("fix", "absent")).capture()
    assert seen["branches/fix"] == "First" and seen["trees/fix/a.py"] == {"text": "a = 1\n"}
    assert not any(path.startswith(("status", "trees/HEAD", "trees/absent")) for path in seen)


def test_the_history_of_a_base_is_not_listed(repository: Path) -> None:
    git(repository, "tag", "base")
    commit(repository, "Second")
    seen = GitWorld(repository, base="base").capture()
    assert [path for path in seen if path.startswith("commits/")] == ["commits/Second"]
    named = f"First ({git(repository, 'rev-parse', 'base')[:12]})"
    assert seen["commits/Second"]["parents"] == [named] and seen["tags/base"] == named
    with pytest.raises(GitFailed, match="there is no commit 'elsewhere', the base"):
        GitWorld(repository, base="elsewhere").capture()


def test_nothing_that_the_repository_names_is_run(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.external", "core.pager"):
        git(repository, "config", name, str(program))
    git(repository, "config", "filter.x.required", "true")
    (repository / ".gitattributes").write_text("* filter=x diff=x\n")
    for hook in ("post-index-change", "pre-commit", "reference-transaction"):
        (repository / ".git" / "hooks").mkdir(exist_ok=True)
        (repository / ".git" / "hooks" / hook).symlink_to(program)
    (repository / "a.py").write_text("a = 2\n")
    assert seen_by(repository)["status/a.py"] == {"code": ".M", "text": "a = 2\n"}
    assert not mark.exists()


def test_replaced_objects_do_not_hide_what_is_there(repository: Path) -> None:
    before = seen_by(repository)
    commit(repository, "Second", a_py="a = 666\n")
    git(repository, "replace", "HEAD", "HEAD^")
    changes = Changes(before, seen_by(repository))
    assert "trees/HEAD/a.py/text" in {change.where for change in changes}


def test_a_repository_elsewhere_is_refused(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").symlink_to(repository / ".git")
    with pytest.raises(GitFailed, match="is a link or a file"):
        GitWorld(other).capture()


def test_a_damaged_repository_is_an_error_and_no_empty_world(repository: Path) -> None:
    for file in (repository / ".git" / "objects").rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(GitFailed, match=r"failed with status|is missing"):
        GitWorld(repository).capture()


def test_a_repository_comes_back_as_it_was(repository: Path) -> None:
    world = GitWorld(repository)
    (repository / "untracked").write_text("x")
    saved, seen = world.save(), world.capture()
    commit(repository, "Second", a_py="a = 2\n")
    world.load(saved)
    assert world.capture() == seen
    assert git(repository, "fsck") == ""


def test_an_environment_forks_with_its_repository(repository: Path, tmp_path: Path) -> None:
    class Repository(MCPEnvironment):
        """One repository for each instance."""

        made = 0

        def __init__(self) -> None:
            Repository.made += 1
            self.folder = tmp_path / f"instance-{Repository.made}"
            git(tmp_path, "clone", "--quiet", str(repository), self.folder.name)
            self.world = GitWorld(self.folder)

            @self.tool
            def add(name: str) -> str:
                """Commit a file."""
                commit(self.folder, f"Add {name}", **{name: "x"})
                return git(self.folder, "log", "--format=%s")

        def verify(self, evidence: Evidence) -> Verdict:
            return evidence.changes.expect_only(
                {"**": ANY}, require={"trees/HEAD/two": {"text": "x"}, "branches/main": "Add two"}
            )

    with Repository() as env:
        env.reset()
        env.call_tool("add", {"name": "one"})
        with env.fork() as other:
            assert other.folder != env.folder
            assert other.call_tool("add", {"name": "two"}).text.split("\n")[:2] == ["Add two", "Add one"]
            assert other.end().reward == 1.0
        assert env.end().reward == 0.0
