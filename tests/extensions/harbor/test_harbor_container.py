"""Episodes of Harbor tasks in real containers of podman."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_bench import until
from command_line import started
from container_image import import_image
from harbor_tasks import CONFIG, harbor_task

from mcpenv import ExecutionError
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.harbor.container import MOST_AT_ONCE
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.validation.tasks import validate

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

IMAGE = "localhost/mcpenv-test"


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Configure podman so that it also runs inside virtual machines with few rights, and import an image."""
    config = tmp_path_factory.mktemp("podman") / "containers.conf"
    config.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(config))
        import_image("podman", IMAGE)
        yield


def containers() -> set[bytes]:
    """The ids of the containers of tasks, of those that have ended, too."""
    command = ["podman", "ps", "--all", "--quiet", "--filter", "label=mcpenv=harbor"]
    return set(subprocess.run(command, capture_output=True, check=True).stdout.split())


def served(folder: Path) -> type[HarborEnvironment]:
    return HarborEnvironment.from_folder(folder, provider="podman")


def execute(env: Any, command: str, **more: Any) -> Any:
    return env.call_tool("execute", {"command": command, **more}).result.structured_content


def test_the_oracle_scores_1_and_doing_nothing_0_and_no_container_is_left(tmp_path: Path) -> None:
    cls = served(harbor_task(tmp_path / "hello", image=IMAGE))
    assert cls.tasks is not None
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert (report.oracle, report.nothing, report.repeats) == (1.0, 0.0, True)
    assert containers() == set()


def test_sigterm_to_a_command_removes_the_container(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "hello", image=IMAGE)
    others = containers()
    options = ("--task", "hello", "--set", "provider=podman")
    with started(tmp_path, "play", f"harbor:{folder}", *options) as process:
        until(lambda: bool(containers() - others), "a container")
        assert process.end(signal.SIGTERM) == 130
    assert containers() - others == set()


def test_an_agent_cannot_write_the_reward_and_a_command_has_its_time_limit(tmp_path: Path) -> None:
    config = CONFIG + 'docker_image = "localhost/mcpenv-test"\nworkdir = "/root"\n[environment.env]\nA = "b"\n'
    with served(harbor_task(tmp_path / "hello", {"environment/Dockerfile": None}, config=config))() as env:
        env.reset()
        assert execute(env, "pwd; echo $A; echo err >&2; exit 3") == {
            "exit_code": 3,
            "stdout": "/root\nb\n",
            "stderr": "err\n",
            "timed_out": False,
        }
        assert execute(env, "echo $$ > pid; exec sleep 1000", timeout_s=3)["timed_out"]
        assert execute(env, "kill -0 $(cat pid)")["exit_code"] != 0
        assert env.call_tool("read_file", {"path": "pid"}).result.text.strip().isdecimal()
        execute(
            env, "mkdir -p /logs/verifier; (while :; do echo 1 > /logs/verifier/reward.json; done) >/dev/null 2>&1 &"
        )
        assert env.end().reward == 0.0


def test_an_output_without_end_costs_the_server_no_memory(tmp_path: Path) -> None:
    with served(harbor_task(tmp_path / "hello", image=IMAGE))() as env:
        env.reset()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        long = execute(env, "echo begin; for i in {1..400}; do printf '%*s' 1000000 x; done; echo end")
        grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert long["stdout"].startswith("begin\n  ")
    assert long["stdout"].endswith("xend\n")
    assert re.search(r"\n\[\.\.\. 399968\d{3} bytes left out \.\.\.\]\n", long["stdout"])
    assert grown_mib < 100


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    files: dict[str, str | None] = {"environment/Dockerfile": f"FROM {IMAGE}\nCOPY missing /x\n"}
    with served(harbor_task(tmp_path / "hello", files))() as env, pytest.raises(ExecutionError) as raised:
        env.reset()
    assert "podman build failed" in str(raised.value.__cause__) and "missing" in str(raised.value.__cause__)


def test_the_tests_run_in_a_new_container_with_the_work_and_the_images_own_system(tmp_path: Path) -> None:
    home = "/root"  # of the image's user
    write = (
        f"cat /app/kept/a /data/b {home}/c /logs/artifacts/d && ! ls {home}/n1 && ! ls {home}/n{MOST_AT_ONCE + 1} "
        f"&& ! cat /app/gone && ! cat /etc/mine && ! cat {home}/.profile "
        "&& ! cat /usr/mine && ! cat /pytest.ini; echo $((1 - $?)) > /logs/verifier/reward.txt"
    )
    files: dict[str, str | None] = {
        "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\nRUN echo > gone\n"
        f"RUN bash -c 'for n in {{1..{MOST_AT_ONCE + 1}}}; do echo > {home}/n$n; done'\n",
        "tests/test.sh": f"#!/bin/bash\n{write}\n",
    }
    with served(harbor_task(tmp_path / "hello", files))() as env:
        env.reset()
        works = f"echo a > kept/a; echo b > /data/b; echo c > {home}/c; echo d > /logs/artifacts/d"
        assert execute(env, f"mkdir -p kept /data /usr; {works}; rm gone {home}/n*")["exit_code"] == 0
        planted = execute(
            env, f"for f in /etc/mine {home}/.profile /usr/mine /pytest.ini; do echo x > $f && cat $f; done"
        )
        assert planted["stdout"] == "x\n" * 4  # what the tests do not find was there
        assert env.end().reward == 1.0


def test_no_dot_file_of_an_agent_runs_in_the_home_of_a_user_or_of_the_root_folder(tmp_path: Path) -> None:
    users = CONFIG.replace("[agent]\n", '[agent]\nuser = "app"\n').replace("[verifier]\n", '[verifier]\nuser = "app"\n')
    passwd = "root:x:0:0::/root:/bin/bash\\napp:x:1000:1000:app:/srv/app:/bin/bash\\n"
    files: dict[str, str | None] = {
        "environment/Dockerfile": f"FROM {IMAGE}\nRUN mkdir -p /srv/app/.nvm/v/bin /srv/work /.cargo && chmod -R 777 "
        f"/srv /.cargo && printf '{passwd}' > /etc/passwd && echo kept > /srv/app/.nvm/v/bin/tool\n"
        "ENV PATH=/bin:/srv/app/.nvm/v/bin\nWORKDIR /srv/work\n",
        "tests/test.sh": '#!/bin/bash\ncat /srv/app/work /srv/app/.nvm/v/bin/tool || exit 1\nbash -lc "[ -e done ]" || '
        "[ -e /.cargo/config.toml ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n",
    }
    with served(harbor_task(tmp_path / "hello", files, config=users))() as env:
        env.reset()
        execute(env, 'echo "[() { return 0; }" > ~/.bash_profile; echo > /.cargo/config.toml; echo > ~/work')
        assert execute(env, 'bash -lc "[ -e done ]"; ls ~/.bash_profile /.cargo/config.toml')["exit_code"] == 0
        assert env.end().reward == 0.0


@pytest.mark.parametrize("name", ["sh", "rm", "mkdir", "mv"])
def test_no_program_of_an_agent_runs_while_its_work_is_carried_over(tmp_path: Path, name: str) -> None:
    files: dict[str, str | None] = {
        "environment/Dockerfile": f"FROM {IMAGE}\nENV PATH=/t/bin:/bin\nRUN mkdir -p /t/bin && cp /bin/cat /t/bin/a\n",
        "tests/test.sh": "#!/bin/bash\n[ -e /tmp/evil ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n",
    }
    with served(harbor_task(tmp_path / "hello", files))() as env:
        env.reset()
        program = f'#!/bin/bash\necho > /tmp/evil\nexec /bin/{name} "$@"\n'
        env.call_tool("write_file", {"path": f"/t/bin/{name}", "content": program})
        execute(env, f"chmod +x /t/bin/{name}; echo work > /t/work")
        assert env.end().reward == 0.0


def test_changes_that_the_tests_do_not_find_are_named_and_settings_of_servers_are_found(tmp_path: Path) -> None:
    test = '#!/bin/bash\n[ "$(cat /etc/nginx/mine)" = a ]; echo "$((1 - $?))e-1" > /logs/verifier/reward.txt\n'
    with served(harbor_task(tmp_path / "hello", {"tests/test.sh": test}, image=IMAGE))() as env:
        env.reset()
        execute(env, "mkdir -p /etc/nginx /usr/new; echo a > /etc/nginx/mine; echo > /etc/mine; echo > /usr/new/b")
        ended = env.end()
    assert ended.reward == 0.1
    assert "own files in place of /etc/mine, /usr/new/b; name what they judge by keep" in ended.info["problems"][-1]


def test_networks_that_differ_are_refused_in_the_agents_own_container(tmp_path: Path) -> None:
    config = CONFIG.replace("[agent]\n", '[agent]\nnetwork_mode = "public"\n')
    with pytest.raises(ConfigurationError, match="different networks for agent and tests"):
        HarborEnvironment.from_folder(harbor_task(tmp_path / "hello", config=config), provider="podman", fresh=False)
    HarborEnvironment.from_folder(tmp_path / "hello", provider="podman")


def test_no_loopback_port_of_this_machine_answers_whatever_the_engines_default_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "containers.conf"
    text = Path(os.environ["CONTAINERS_CONF"]).read_text().replace("[containers]\n", '[containers]\nnetns = "host"\n')
    config.write_text(text)
    monkeypatch.setenv("CONTAINERS_CONF", str(config))
    folder = harbor_task(tmp_path / "hello", config=CONFIG.replace("no-network", "public"), image=IMAGE)
    with socket.create_server(("127.0.0.1", 0)) as server, served(folder)() as env:
        env.reset()
        assert execute(env, f"echo > /dev/tcp/127.0.0.1/{server.getsockname()[1]}")["exit_code"] != 0
