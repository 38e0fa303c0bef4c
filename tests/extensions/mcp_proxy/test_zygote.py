"""Test servers that are forked from a process that has imported them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from proxying import PLAIN, about, call, environment, has_ended, plain

from mcpenv.extensions.mcp_proxy.delivery import DiscoveryFailed

FORKED = {"per_episode": "fork"}


def zygote_of(told: dict[str, Any]) -> int:
    """Return the process that forked a server that runs: the parent of its guard."""
    return int(Path(f"/proc/{told['parent']}/stat").read_text().rpartition(")")[2].split()[1])


def test_each_episode_has_a_process_of_one_zygote(tmp_path: Path) -> None:
    with environment(tmp_path, server=plain(**FORKED))() as env:
        told, zygotes = [], set()
        for _ in range(3):
            env.reset()
            told.append(about(env))
            zygotes.add(zygote_of(told[-1]))
    assert len({each["process"] for each in told}) == 3 and len(zygotes) == 1 and os.getpid() not in zygotes
    assert all(has_ended(each["process"]) and has_ended(each["parent"]) for each in told)


def test_forked_processes_share_nothing_that_changes(tmp_path: Path) -> None:
    cls = environment(tmp_path, server=plain(**FORKED, env={"PLACE": "{workspace}", "A": "b"}))
    with cls() as one, cls() as other:
        one.reset()
        other.reset()
        first, second = about(one), about(other)
        assert call(one, "write", name="mine", text="x").text == "written to /episode/mine"
        assert call(other, "read", name="mine").result.is_error
        call(one, "learn")
        assert "replaced" not in other.reset().metadata
    assert first["random"] != second["random"]
    assert first["variables"]["PLACE"] == first["cwd"] == "/episode" == second["cwd"]
    assert first["variables"]["A"] == "b" and set(first["variables"]) <= {*second["variables"]}


def test_many_fork_at_once(tmp_path: Path) -> None:
    cls = environment(tmp_path, server=plain(**FORKED))

    async def main() -> list[str]:
        envs = [cls() for _ in range(20)]
        await asyncio.gather(*(env.reset_async() for env in envs))
        texts = [(await env.call_tool_async("write", {"name": "a", "text": str(n)})).text for n, env in enumerate(envs)]
        texts += [(await env.call_tool_async("read", {"name": "a"})).text for env in envs]
        await asyncio.gather(*(env.close_async() for env in envs))
        return texts

    assert asyncio.run(main()) == ["written to /episode/a"] * 20 + [str(n) for n in range(20)]


def test_a_forked_process_that_ends_is_told_with_its_status(tmp_path: Path) -> None:
    with environment(tmp_path, server=plain(**FORKED))() as env:
        env.reset()
        lost = call(env, "end")
        assert lost.done and lost.error is not None and "status 3" in lost.error.message
        env.reset()
        assert about(env)["process"]


def test_a_zygote_that_was_killed_is_started_again(tmp_path: Path) -> None:
    with environment(tmp_path, server=plain(**FORKED))() as env:
        env.reset()
        before = about(env)
        zygote = zygote_of(before)
        os.kill(zygote, signal.SIGKILL)
        assert has_ended(before["process"]) and has_ended(before["parent"])
        env.reset()
        assert zygote_of(about(env)) != zygote


def test_a_module_is_forked(tmp_path: Path) -> None:
    package = tmp_path / "forkable"
    package.mkdir()
    (package / "__init__.py").write_text(PLAIN.read_text())
    (package / "__main__.py").write_text("from forkable import main\n\nmain()\n")
    server = {"command": sys.executable, "args": ["-m", "forkable", "x"], "env": {"PYTHONPATH": str(tmp_path)}}
    with environment(server={**server, **FORKED})() as env:
        env.reset()
        assert about(env)["arguments"] == ["x"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
            "starts 1 threads",
        ),
        ("import asyncio\nloop = asyncio.new_event_loop()\n", "makes an event loop"),
        ("raise ValueError('no settings')\n", "ValueError: no settings"),
        ("import sys\nsys.exit('never')\n", "never"),
    ],
)
def test_a_server_that_cannot_be_forked_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(f"{text}if __name__ == '__main__':\n    pass\n")
    with pytest.raises(DiscoveryFailed) as raised:
        environment(server={"command": sys.executable, "args": [str(script)], **FORKED})
    assert "server 'server'" in str(raised.value) and "cannot be forked" in str(raised.value)
    assert reason in str(raised.value) and 'Use per_episode "start"' in str(raised.value)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"command": sys.executable, "args": ["-c", "pass"]}, "is no Python program"),
        ({"command": "/bin/true"}, "is no Python program"),
        ({"command": sys.executable, "args": ["-m", "no_such_module"]}, "there is no module 'no_such_module'"),
    ],
)
def test_what_is_no_python_server_is_refused(command: dict[str, Any], reason: str) -> None:
    with pytest.raises(DiscoveryFailed, match=reason):
        environment(server={**command, **FORKED})


def test_a_script_without_a_guard_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("print('it would run')\n")
    with pytest.raises(DiscoveryFailed, match="has no line: if __name__ == '__main__'"):
        environment(server={"command": sys.executable, "args": [str(script)], **FORKED})
