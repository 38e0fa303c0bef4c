"""Test servers in bubblewrap: what they see, write and reach, and what is refused."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proxying import about, call, descendants, environment, has_ended, plain

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.delivery import DiscoveryFailed
from mcpenv.extensions.sandbox.bubblewrap import find_bubblewrap


def fault() -> str | None:
    try:
        find_bubblewrap("--unshare-net")
    except ConfigurationError as error:
        return str(error)
    return None


FAULT = fault()
needs_bubblewrap = pytest.mark.skipif(FAULT is not None, reason=str(FAULT))


@needs_bubblewrap
def test_an_isolated_server_has_the_workspace_at_one_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    cls = environment(tmp_path, server=plain("{workspace}", env={"PLACE": "{workspace}/x"}))
    told = []
    for _ in range(2):
        with cls() as env:
            env.reset()
            about_it = about(env)
            assert call(env, "read", name="a.txt").text == "first"
            assert call(env, "write", name="b.txt", text="b").text == "written to /episode/b.txt"
            assert env.workspace is not None and (env.workspace.path / "b.txt").read_text() == "b"
            told.append({key: about_it[key] for key in ("arguments", "cwd", "variables", "process")})
    assert told[0] == told[1]
    assert (told[0]["cwd"], told[0]["arguments"]) == ("/episode", ["/episode"])
    assert told[0]["variables"]["PLACE"] == "/episode/x"


@needs_bubblewrap
def test_an_isolated_server_writes_only_to_the_workspace_and_to_temporary_folders(tmp_path: Path) -> None:
    here = Path(__file__).parent
    with environment(tmp_path, server=plain())() as env:
        env.reset()
        for name in (f"{here}/left", "/etc/left", "/left"):
            assert "Read-only" in call(env, "write", name=name, text="x").text
        assert call(env, "write", name="/tmp/own", text="x").text == "written to /tmp/own"
    assert not Path("/tmp/own").exists() and not (here / "left").exists()


@needs_bubblewrap
def test_an_isolated_server_does_not_see_files_of_others_in_temporary_folders(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    folder = tmp_path / "template"
    folder.mkdir()
    with environment(folder, server=plain())() as env:
        env.reset()
        assert "No such file" in call(env, "read", name=str(secret)).text
    with environment(folder, server=plain("{workspace}", str(secret)))() as env:  # its settings name it
        env.reset()
        assert call(env, "read", name=str(secret)).text == "hunter2"


@needs_bubblewrap
@pytest.mark.parametrize("network", [False, True])
def test_an_isolated_server_reaches_the_network_only_if_that_is_asked_for(tmp_path: Path, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with environment(tmp_path, server=plain(network=network))() as env:
            env.reset()
            answered = call(env, "connect", port=listening.getsockname()[1])
    assert (answered.text == "connected") is network
    assert (answered.result is not None and answered.result.is_error) is not network


@needs_bubblewrap
def test_an_isolated_server_can_be_kept(tmp_path: Path) -> None:
    with environment(tmp_path, server=plain(state="workspace", per_episode="keep"))() as env:
        env.reset()
        number = about(env)["random"]
        call(env, "write", name="a", text="b")
        assert "replaced" not in env.reset().metadata
        assert "No such file" in call(env, "read", name="a").text
        assert about(env)["random"] != number


@needs_bubblewrap
def test_no_isolated_server_outlives_a_process_that_was_killed(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from proxying import about, environment, plain\n"
        "env = environment(None, server=plain())()\n"
        "env.reset()\n"
        "about(env)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        below = descendants(parent.pid)
        assert len(below) >= 2
        parent.kill()
    assert all(has_ended(each) for each in below)


@needs_bubblewrap
def test_a_server_that_fails_in_its_sandbox_is_told_with_the_keys_that_change_it(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("import socket\nsocket.create_connection(('127.0.0.1', 1))\n")
    with pytest.raises(DiscoveryFailed, match=r"did not start in its sandbox \(see its keys network and isolation\)"):
        environment(server={"command": sys.executable, "args": [str(script), "{workspace}"]})


@pytest.mark.parametrize(
    ("more", "isolated"),
    [
        ({"state": "workspace"}, True),
        ({}, True),
        ({"state": "workspace", "isolation": "none"}, False),
        ({"state": "external"}, False),
        ({"state": "none"}, False),
    ],
)
def test_auto_isolates_servers_whose_state_is_in_the_workspace(more: dict[str, Any], isolated: bool) -> None:
    cls = environment(server=plain(**more))
    assert cls.catalog.launchers["server"].isolated is (isolated and FAULT is None)


def test_a_server_without_a_workspace_is_isolated_only_if_that_is_asked_for() -> None:
    assert not environment(server=plain("/")).catalog.launchers["server"].isolated
    if FAULT is None:
        assert environment(server=plain("/", isolation="bubblewrap")).catalog.launchers["server"].isolated


def test_without_bubblewrap_auto_goes_on_and_the_demand_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with environment(server=plain())() as env:
        env.reset()
        assert about(env)["cwd"] == "/episode"  # by name only
        assert call(env, "read", name="/episode/../files/none").text.endswith("'/episode/../files/none'")
    with pytest.raises(ConfigurationError) as raised:
        environment(server=plain(isolation="bubblewrap"))
    assert str(raised.value).startswith(
        "server 'server': isolation \"bubblewrap\": bubblewrap (bwrap) is not installed"
    )


@needs_bubblewrap
def test_isolated_and_not_isolated_servers_give_equal_results(tmp_path: Path) -> None:
    said = []
    for isolation in ("none", "bubblewrap"):
        with environment(tmp_path, server=plain(isolation=isolation))() as env:
            reset = env.reset()
            texts = [call(env, "write", name="/episode/a", text="b").text, call(env, "read", name="missing").text]
            said.append(json.dumps([reset.metadata, texts]))
    assert said[0] == said[1]
