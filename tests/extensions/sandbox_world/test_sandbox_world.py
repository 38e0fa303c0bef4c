"""Every backend of a sandbox behaves alike: files, commands, capture, saved states; and what each keeps out."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster import CLAIMS, url_in
from container_image import import_image
from podman_engine import podman
from sandboxes import IMAGE, container_options, remote_options

from mcpenv import MCPEnvironment, TaskSet
from mcpenv.errors import ConfigurationError, WorldUnreadable
from mcpenv.extensions.sandbox_world import Sandbox, SandboxFailed, make_sandbox
from mcpenv.extensions.sandbox_world import in_process as of_bashkit
from mcpenv.extensions.sandbox_world import sandbox as base
from mcpenv.worlds import World

BACKENDS = [
    "in_process",
    *(pytest.param(each, marks=pytest.mark.world) for each in ("bubblewrap", "container", "remote")),
]
FILES = {"a/b c.txt": b"one\ntwo\n", "x.sh": b"#!/bin/sh\necho hi\n", "data.bin": b"\xff\x00"}

SUM = "awk '{s+=$1} END{print s}' n.txt > sum.txt"

Make = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with container_options(tmp_path_factory.mktemp("podman")) as options:
        yield options


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with remote_options(tmp_path_factory.mktemp("cluster")) as options:
        yield options


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Sandbox] = []
    backend = request.param
    needed = request.getfixturevalue(backend) if backend in ("container", "remote") else {}

    def make(**options: float) -> Sandbox:
        timeout_s = options.get("timeout_s", 30.0)
        made.append(make_sandbox(backend, timeout_s=timeout_s, env={"GIVEN": "yes"}, **needed))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_each_command_has_a_shell_of_its_own_in_the_folder(make: Make) -> None:
    sandbox = make()
    assert isinstance(sandbox, World)
    done = sandbox.run("mkdir d; cd d; export FOO=1; pwd; echo $FOO $GIVEN; echo wrong >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (
        3,
        f"{base.FOLDER}/d\n1 yes\n",
        "wrong\n",
        False,
    )
    assert sandbox.run('pwd; echo "[$FOO]"').stdout == f"{base.FOLDER}\n[]\n"
    assert sandbox.run("cat; echo end", stdin=b"given\n").stdout == "given\nend\n"
    assert sandbox.run("cat; echo 'it'\"'\"'s'").stdout == "it's\n"


def test_files_are_captured_with_unusual_permissions_links_and_empty_folders(make: Make) -> None:
    sandbox = make()
    sandbox.fill(base.files(FILES, {"x.sh": 0o755, "a": 0o750}))
    assert sandbox.capture() == {
        "a": {"folder": True, "mode": "750"},
        "a/b c.txt": {"text": "one\ntwo\n"},
        "data.bin": {"sha256": "ea5dbf9596d187e9500f23e9a680109475341cf4e81f7e043f7d97152c10772f", "size": 2},
        "x.sh": {"text": "#!/bin/sh\necho hi\n", "mode": "755"},
    }
    assert sandbox.run("chmod 600 x.sh; ln -s x.sh link; mkdir e; chmod 000 e data.bin; rm -r a").exit_code == 0
    assert sandbox.capture() == {
        "data.bin": {**sandbox.capture()["data.bin"], "size": 2, "mode": "0"},
        "e": {"folder": True, "mode": "0"},
        "link": {"link": "x.sh"},
        "x.sh": {"text": "#!/bin/sh\necho hi\n", "mode": "600"},
    }


def test_a_saved_state_is_all_there_is_after_it_is_loaded(make: Make) -> None:
    sandbox, other = make(), make()
    sandbox.fill(base.files(FILES, {"x.sh": 0o755}))
    sandbox.run("ln -s 'a/b c.txt' link; chmod 500 a")
    saved, state = sandbox.save(), sandbox.capture()
    sandbox.run("chmod 700 a; rm -rf *; echo new > new.txt; mkdir -p locked/in; chmod 000 locked")
    sandbox.load(saved)
    assert sandbox.capture() == state
    other.load(saved)
    assert other.capture() == state and other.save() == saved == sandbox.save()


def test_reads_and_writes_stay_in_the_folder(make: Make) -> None:
    sandbox = make()
    sandbox.write("new/deep er/it's.txt", b"hello\xff\n")
    assert sandbox.read(f"{base.FOLDER}/new/deep er/it's.txt") == b"hello\xff\n"
    for path in ("../x", "/etc/passwd", "a/../../x", "", str(base.FOLDER), f"{base.FOLDER}ers/x", "nul\0"):
        with pytest.raises(FileNotFoundError):
            sandbox.read(path)
        with pytest.raises(FileNotFoundError):
            sandbox.write(path, b"x")
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt"):
        sandbox.read("nothing.txt")
    with pytest.raises(OSError, match=r".+"):
        sandbox.write("new", b"a folder is there")


def test_a_command_ends_at_its_time_limit_and_the_next_one_runs(make: Make) -> None:
    sandbox = make(timeout_s=5.0)
    sandbox.write("kept.txt", b"before\n")
    done = sandbox.run("sleep 60; echo after > kept.txt")
    assert done.timed_out and done.exit_code == 124
    assert "time limit (5 s)" in done.stderr or "timeout (5s)" in done.stderr
    done = sandbox.run("cat kept.txt")
    assert (done.exit_code, done.stdout, done.timed_out) == (0, "before\n", False)


def test_the_middle_of_a_long_output_is_left_out(make: Make) -> None:
    output = make().run("for i in $(seq 1 9000); do echo line $i; done").stdout
    assert output.startswith("line 1\n") and output.endswith("line 9000\n")
    assert "bytes left out" in output and len(output) < base.MAX_OUTPUT + 100


def test_an_output_says_that_its_end_was_not_kept(make: Make) -> None:
    """In process, the shell keeps 1 MiB."""
    sandbox = make()
    output = sandbox.run("for i in $(seq 1 300); do printf '%05000d' $i; done").stdout
    assert "bytes left out" in output
    assert output.endswith("what follows is left out ...]\n" if sandbox.backend == "in_process" else "0300")


def test_a_file_that_is_too_large_is_refused_by_name_before_anything_is_written(make: Make) -> None:
    sandbox = make()
    sandbox.write("kept", b"x")
    large = b"x" * (sandbox.max_file + 1)
    refused = f"{len(large)} bytes.*at most {sandbox.max_file}.*large"
    with pytest.raises(OSError, match=refused):
        sandbox.write("large", large)
    with pytest.raises(OSError, match=refused):
        sandbox.fill(base.files({"large": large}))
    assert set(sandbox.capture()) == {"kept"}
    sandbox.fill(base.files({"fits": large[1:]}))
    assert sandbox.read("fits") == large[1:]


def test_no_process_outlives_its_command_but_where_the_backend_says_so(make: Make) -> None:
    sandbox = make()
    sandbox.run("setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid")
    goes_on = sandbox.run("kill -0 $(cat pid)").exit_code == 0
    assert goes_on == ("ended" not in sandbox.capabilities)


def test_missing_programs_are_named(make: Make) -> None:
    sandbox = make()
    assert sandbox.missing(["awk", "no-such-program", "sed"]) == ["no-such-program"]
    sandbox.require(["awk", "sed"])
    with pytest.raises(ConfigurationError, match=f"{sandbox.backend}.*no-such-program, nor-this"):
        sandbox.require(["no-such-program", "awk", "nor-this"])


def test_a_backend_without_a_capability_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = make_sandbox(needs=["ended", "bounded"])
    assert sandbox.run("echo 1").stdout == "1\n"
    sandbox.close()
    monkeypatch.setattr(subprocess, "Popen", None)
    refused = {
        ("in_process", "python"): "'in_process' lacks the capability python; choose bubblewrap",
        ("remote", "ended"): "'remote' lacks the capability ended; choose in_process or bubblewrap or container",
        ("bubblewrap", "python", "bounded"): "'bubblewrap' lacks the capability bounded; no backend has them all",
        ("container", "pyhton"): "no capability 'pyhton' .*python",
    }
    for (backend, *needs), reason in refused.items():
        with pytest.raises(ConfigurationError, match=reason):
            make_sandbox(backend, needs=needs)


def test_a_closed_sandbox_says_so(make: Make) -> None:
    sandbox = make()
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxFailed, match="closed"):
        sandbox.run("true")
    with pytest.raises(SandboxFailed, match="closed"):
        sandbox.fill(())


def test_too_many_bytes_are_refused_before_a_verifier_has_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = make()
    sandbox.run("head -c 2000 /dev/zero > a; head -c 2000 /dev/zero > b")
    assert set(sandbox.capture()) == {"a", "b"}
    monkeypatch.setattr(base, "MAX_BYTES", 3000)
    with pytest.raises(WorldUnreadable, match=r"the sandbox has more than 0 MiB$"):
        sandbox.capture()


def test_an_environment_is_verified_by_the_files(make: Make) -> None:
    class Terminal(MCPEnvironment):
        tasks = TaskSet(
            [
                {
                    "id": "sum",
                    "prompt": "Write the sum of the numbers in n.txt to sum.txt.",
                    "oracle": [{"tool_name": "run", "arguments": {"command": SUM}}],
                    "verifier": {"kind": "expect_exactly", "changes": {"sum.txt": {"text": "42\n"}}},
                }
            ]
        )

        world: Sandbox

        def __init__(self) -> None:
            self.world = make()

            @self.tool
            def run(command: str) -> str:
                """Run a command."""
                return self.world.run(command).stdout

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
            self.world.fill(base.files({"n.txt": b"12\n30\n"}))

        def close(self) -> None:
            self.world.close()

    with Terminal() as env:
        task = Terminal.tasks.get("train", 0)
        for calls, value in (([], 0.0), ([{"command": "echo 42 > sum.txt; rm n.txt"}], 0.0), (None, 1.0)):
            env.reset(task=task)
            oracle = [call.arguments for call in task.oracle or []]
            for arguments in oracle if calls is None else calls:
                assert env.call_tool("run", arguments).error is None
            assert env.end().info["return"] == value


# -- in process


def test_more_shells_than_are_kept_live_keep_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_bashkit, "MAX_AWAKE", 3)
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    many = [make_sandbox() for _ in range(30)]
    for number, sandbox in enumerate(many):
        sandbox.write("mine.txt", str(number).encode())
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) < before + 30
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert [each.stdout for each in pool.map(lambda each: each.run("cat mine.txt"), many)] == [
                str(number) for number in range(30)
            ]
    for sandbox in many:
        sandbox.close()


@pytest.mark.skipif(sys.platform != "linux", reason="it counts open files in /proc")
def test_shells_leave_half_of_the_files_that_the_process_may_open() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 3 * max(map(int, os.listdir("/proc/self/fd"))) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        many = [make_sandbox() for _ in range(allowed // 3 + 10)]
        for number, sandbox in enumerate(many):
            assert sandbox.run(f"echo {number} > mine.txt").exit_code == 0
        assert many[0].run("cat mine.txt").stdout == "0\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for sandbox in many:
        sandbox.close()


def test_random_numbers_are_the_same_in_each_episode() -> None:
    sandbox = make_sandbox()
    first = sandbox.run("echo $RANDOM $RANDOM").stdout
    assert first == sandbox.run("echo $RANDOM $RANDOM").stdout and len(set(first.split())) == 2


def test_commands_that_have_only_the_name_of_a_program_are_missing() -> None:
    sandbox = make_sandbox()
    assert sandbox.missing(["zip", "tar", "unzip", "zip", "git"]) == ["zip", "unzip", "git"]
    packed = "cd /tmp && echo one > a.txt && zip a.zip a.txt && head -c 2 a.zip"
    assert "PK" not in sandbox.run(packed).stdout  # a format of its own; if it becomes that of zip, it is not missing


def test_an_endless_loop_ends() -> None:
    done = make_sandbox(timeout_s=20.0).run("while true; do :; done")
    assert done.exit_code != 0 and "exceeded" in done.stderr


def test_bashkit_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bashkit", None)
    monkeypatch.delitem(sys.modules, of_bashkit.__name__)
    with pytest.raises(ConfigurationError, match=r"mcpenv\[terminal\]"):
        make_sandbox()


def test_unknown_backends_and_limits_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'docker'.*in_process, bubblewrap, container, remote"):
        make_sandbox("docker")
    with pytest.raises(ConfigurationError, match=r"'in_process' has no option 'image'"):
        make_sandbox("in_process", image="debian")
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigurationError, match="timeout_s"):
            make_sandbox(timeout_s=limit)


# -- bubblewrap


@pytest.mark.world
def test_nothing_of_this_machine_is_seen_but_its_programs(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    sandbox = make_sandbox("bubblewrap")
    assert sandbox.run(f"cat {tmp_path}/secret /etc/shadow; ls /root /home /var").stdout == ""
    assert sandbox.run("ls /tmp; echo left > /tmp/x").stdout == ""
    assert sandbox.run("ls /tmp; cat < /dev/tcp/127.0.0.1/1").stdout == ""
    assert f"HOME={base.FOLDER}" in sandbox.run("env").stdout.splitlines()
    assert not any(name.startswith("PYTEST") for name in sandbox.run("env").stdout.splitlines())
    sandbox.close()


@pytest.mark.world
def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    sandbox = make_sandbox("bubblewrap")
    sandbox.run(f"ln -s {tmp_path} out; ln -s {tmp_path}/secret file; mkfifo pipe")
    seen = sandbox.capture()
    assert seen["out"] == {"link": str(tmp_path)} and seen["file"] == {"link": f"{tmp_path}/secret"}
    assert seen["pipe"]["special"] == "p"
    with pytest.raises(FileNotFoundError):
        sandbox.read("file")
    sandbox.fill(())
    assert (tmp_path / "secret").read_text() == "hidden" and stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    sandbox.close()


# -- container


def containers() -> list[str]:
    return podman("ps", "--all", "--quiet", "--filter", "label=mcpenv.provider=sandbox").split()


@pytest.mark.world
def test_a_container_has_no_network_no_rights_and_a_limit_of_processes(container: dict[str, Any]) -> None:
    with contextlib.closing(make_sandbox("container", pids=30, timeout_s=5.0, **container)) as sandbox:
        assert sandbox.run("cat < /dev/tcp/127.0.0.1/1; echo x > /bin/mine; echo x > /mine").stdout == ""
        assert "CapEff:\t0000000000000000\n" in sandbox.run("cat /proc/self/status").stdout
        assert sandbox.run("ls /bin/mine /mine").exit_code != 0
        sandbox.run("for i in $(seq 1 100); do sleep 1000 & done; wait -n; echo all > all.txt")
        assert sandbox.run("ls").stdout == ""
    assert containers() == []


@pytest.mark.world
def test_a_command_that_ends_the_shell_around_it_leaves_no_process(container: dict[str, Any]) -> None:
    with contextlib.closing(make_sandbox("container", **container)) as sandbox:
        sandbox.run("echo kept > kept.txt; setsid bash -c 'while :; do kill -KILL -1; done' & wait")
        assert sandbox.run("cat kept.txt; for each in /proc/[0-9]*; do echo; done").stdout.count("\n") <= 5
        assert sandbox.capture() == {"kept.txt": {"text": "kept\n"}}


@pytest.mark.world
def test_links_between_files_are_captured_and_an_archive_is_no_larger_than_a_sandbox(container: dict[str, Any]) -> None:
    with contextlib.closing(make_sandbox("container", **container)) as sandbox:
        sandbox.run("echo one > a; ln a b; ln -s /etc/passwd out; mkfifo pipe")
        assert sandbox.capture() == {
            "a": {"text": "one\n"},
            "b": {"text": "one\n"},
            "out": {"link": "/etc/passwd"},
            "pipe": {"special": "p"},
        }
        with pytest.raises(FileNotFoundError):
            sandbox.read("out")


@pytest.mark.world
def test_what_a_container_needs_is_named_before_it_starts(
    container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="needs image=, an image with bash"):
        make_sandbox("container")
    with pytest.raises(ConfigurationError, match=r"localhost/nowhere:1.*run: docker pull localhost/nowhere:1"):
        make_sandbox("container", image="localhost/nowhere:1")
    import_image("podman", "localhost/mcpenv-test-no-bash:1", ("sh", "sleep"))
    with pytest.raises(ConfigurationError, match=r"localhost/mcpenv-test-no-bash:1"):
        make_sandbox("container", image="localhost/mcpenv-test-no-bash:1")
    assert containers() == []
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")
    with pytest.raises(
        ConfigurationError, match=r"Docker or Podman .*apt install podman.*set DOCKER_HOST to the socket"
    ):
        make_sandbox("container", image=IMAGE)


# -- remote


@pytest.mark.world
def test_what_a_remote_sandbox_needs_is_named_before_it_starts(remote: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs pool=, the name of a SandboxWarmPool"):
        make_sandbox("remote")
    with pytest.raises(ConfigurationError, match="needs the SandboxWarmPool none, which the namespace envs lacks"):
        make_sandbox("remote", **{**remote, "pool": "none"})
    with pytest.raises(ConfigurationError, match=r"needs a cluster with agent-sandbox: .*; set KUBECONFIG"):
        make_sandbox("remote", **{**remote, "kubeconfig": str(tmp_path / "none")})


@pytest.mark.world
def test_claims_are_given_up(remote: dict[str, Any]) -> None:
    with contextlib.closing(make_sandbox("remote", **remote)) as sandbox:
        sandbox.run("echo x > x")
        first = claims(remote)
        sandbox.fill(())
        assert len(first) == len(claims(remote)) == 1 and first != claims(remote)
        assert sandbox.capture() == {}
    assert claims(remote) == []


def claims(remote: dict[str, Any]) -> list[str]:
    found = httpx.get(f"{url_in(remote['kubeconfig'])}{CLAIMS}/sandboxclaims", timeout=30).json()["items"]
    return [each["metadata"]["name"] for each in found]
