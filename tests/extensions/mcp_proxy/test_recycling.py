"""Test resets of proxied servers: what is kept, what is replaced, and how it is proved."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from proxying import about, call, environment, has_ended, plain

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.workspace import digest_of

KEPT = {"state": "workspace", "per_episode": "keep", "isolation": "none"}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    folder = tmp_path / "template"
    folder.mkdir()
    (folder / "a.txt").write_text("first")
    return folder


def test_a_kept_process_goes_on_in_a_restored_workspace(template: Path) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        first = env.reset()
        process = about(env)["process"]
        call(env, "write", name="a.txt", text="changed")
        assert env.reset().metadata == first.metadata
        assert (about(env)["process"], call(env, "read", name="a.txt").text) == (process, "first")


def test_the_reset_tells_the_hashes_of_tools_and_workspace(template: Path) -> None:
    cls = environment(template, server=plain(**KEPT))
    with cls() as env:
        told = env.reset().metadata
    assert told["workspace"] == digest_of(template)
    assert told["servers"]["server"]["tools_hash"] == cls.catalog.servers["server"]["tools_hash"]
    assert "replaced" not in told


def test_a_kept_process_with_another_tool_list_is_replaced_and_reported(
    template: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        env.reset()
        process = about(env)["process"]
        call(env, "learn")
        with caplog.at_level(logging.WARNING, "mcpenv.upstream"):
            told = env.reset().metadata
        assert told["replaced"] == {"server": "its list of tools differed from the first one"}
        assert "server 'server' was kept, and is replaced: its list of tools differed" in caplog.text
        assert about(env)["process"] != process and has_ended(process)
        assert "replaced" not in env.reset().metadata


def test_a_workspace_that_differs_after_its_restore_is_reported_and_its_servers_replaced(
    template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        env.reset()
        process = about(env)["process"]
        _leave_a_file(monkeypatch, env.workspace, lambda in_place: in_place)
        told = env.reset().metadata
        assert told["replaced"] == {"server": "the restored workspace differed from its template"}
        assert about(env)["process"] != process
        assert digest_of(env.workspace.path) == digest_of(template) == told["workspace"]


def test_a_workspace_that_cannot_be_restored_fails_the_reset(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        _leave_a_file(monkeypatch, env.workspace, lambda in_place: True)
        with pytest.raises(Exception, match="reset") as raised:
            env.reset()
        assert "is not equal to its template: something else writes to it" in str(raised.value.__cause__)


def test_a_template_that_changes_is_said_and_used(template: Path, caplog: pytest.LogCaptureFixture) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        before = env.reset().metadata["workspace"]
        (template / "a.txt").write_text("second")
        with caplog.at_level(logging.WARNING, "mcpenv.upstream"):
            after = env.reset().metadata["workspace"]
        assert call(env, "read", name="a.txt").text == "second"
        assert before != after == digest_of(template)
        assert "has changed since the environment was made" in caplog.text


def test_a_kept_process_is_replaced_after_max_reuses(template: Path) -> None:
    with environment(template, server=plain(**KEPT, max_reuses=2))() as env:
        seen = []
        for _ in range(6):
            assert "replaced" not in env.reset().metadata
            seen.append(about(env)["process"])
    assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4] == seen[5]


def test_a_kept_process_that_left_a_call_without_an_answer_is_replaced(
    template: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with environment(template, server=plain(**KEPT, call_timeout_s=0.5))() as env:
        env.reset()
        process = about(env)["process"]
        late = call(env, "never")
        assert late.error is not None and late.error.error_type == "timeout"
        with caplog.at_level(logging.WARNING, "mcpenv.upstream"):
            env.reset()
        assert about(env)["process"] != process and has_ended(process)
        assert "a call was left without an answer" in caplog.text


def test_a_kept_process_that_answers_with_an_error_is_kept(template: Path) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        env.reset()
        process = about(env)["process"]
        assert call(env, "read", name="missing").result.is_error
        env.reset()
        assert about(env)["process"] == process


def test_a_kept_process_that_ended_is_replaced(template: Path) -> None:
    with environment(template, server=plain(**KEPT))() as env:
        env.reset()
        process = about(env)["process"]
        call(env, "end")
        env.reset()
        assert about(env)["process"] != process


def _leave_a_file(patch: pytest.MonkeyPatch, workspace: Any, when: Callable[[bool], bool]) -> None:
    """Make each restore leave a file, as a process does that writes at that time."""
    restore = workspace.restore

    def disturbed(*, in_place: bool = True) -> None:
        restore(in_place=in_place)
        if when(in_place):
            (workspace.path / "left.txt").write_text("left")

    patch.setattr(workspace, "restore", disturbed)


# -- settings that do not fit together


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://x", "per_episode": "fork"}, 'per_episode "fork" is for a command'),
        ({"url": "http://x", "isolation": "bubblewrap"}, "isolation and network are for a command"),
        ({"url": "http://x", "network": True}, "isolation and network are for a command"),
        ({"command": "x", "per_episode": "fork", "isolation": "bubblewrap"}, '"fork" cannot be isolated'),
        ({"command": "x", "isolation": "none", "network": True}, "network is for an isolated process"),
        ({"command": "x", "max_reuses": 3}, "max_reuses is for a server that is kept"),
        ({"command": "x", "isolation": "docker"}, "mcpServers.s.isolation"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        environment(s=settings)
    assert said in str(raised.value) and "mcpServers.s" in str(raised.value)
