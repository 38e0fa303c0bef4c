"""Episodes of Harbor tasks of several services, by podman-compose and podman."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_bench import until
from command_line import started
from harbor_tasks import CONFIG, assert_scored, harbor_task
from podman_engine import BASE, SETTINGS, import_base, podman, podman_settings
from test_harbor_attacks import EVIL, LIBRARY, WAYS
from test_harbor_attacks import TEST as TEST_OF_WAYS

from mcpenv import ExecutionError
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv_client.providers import owner

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

COMPOSE = f"""
services:
  main:
    build: {{args: {{WORD: "${{WORD:-built}}"}}}}
    image: ${{MAIN_IMAGE_NAME:-own}}
    environment: [MODE=test]
    ports: ["127.0.0.1:1:80"]
    volumes: ["shared:/shared", "./given:/given", "${{HOST_AGENT_LOGS_PATH}}:${{ENV_AGENT_LOGS_PATH}}"]
    depends_on:
      db: {{condition: service_healthy}}
      setup: {{condition: service_completed_successfully}}
  db:
    build: ./db
    container_name: the-db
    healthcheck:
      test: ["CMD", "python3", "-c", "import urllib.request as u; u.urlopen('http://localhost:80')"]
      interval: 1s
      retries: 60
  setup:
    image: {BASE}
    command: ["sh", "-c", "echo set up > /shared/state"]
    volumes: ["shared:/shared"]
volumes:
  shared:
"""

SERVER = """
import http.server, time
time.sleep(1)
kept = [b"0"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(kept[-1])
    def do_POST(self):
        kept.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()
http.server.HTTPServer(("", 80), Handler).serve_forever()
"""

ASK = """
import sys, urllib.request
words = [word.encode() for word in sys.argv[1:]]
print(urllib.request.urlopen("http://the-db", *words).read().decode())
"""

TEST = """#!/bin/bash
found="$(python3 /usr/ask.py) $(cat /shared/* /given/* /app/mine word) $MODE"
[ "$found" = "42 set up
given
mine
built test" ] && [ ! -e /etc/mine ]; echo $((1 - $?)) > /logs/verifier/reward.txt
echo "found: $found"
"""

FILES: dict[str, str | None] = {
    "environment/docker-compose.yaml": COMPOSE,
    "environment/Dockerfile": f"FROM {BASE}\nWORKDIR /app\nARG WORD\nRUN echo $WORD > word\nCOPY ask.py /usr/\n",
    "environment/ask.py": ASK,
    "environment/given/file": "given\n",
    "environment/db/Dockerfile": f'FROM {BASE}\nCOPY server.py /\nCMD ["python3", "/server.py"]\n',
    "environment/db/server.py": SERVER,
    "tests/test.sh": TEST,
    "solution/solve.sh": "#!/bin/bash\npython3 /usr/ask.py 42; echo mine > /app/mine; echo > /etc/mine\n",
}


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with podman_settings(tmp_path_factory.mktemp("podman")):
        import_base(tmp_path_factory.mktemp("base"))
        yield


def left() -> dict[str, set[str]]:
    """The containers, networks and volumes of tasks."""
    ours = ("ls", "--quiet", "--filter", "label=mcpenv=harbor")
    return {
        "container": set(podman("container", *ours, "--all").split()),
        "network": set(podman("network", *ours).split()),
        "volume": set(podman("volume", *ours).split()),
    }


def served(folder: Path) -> type[HarborEnvironment]:
    return HarborEnvironment.from_folder(folder, provider="podman")


def execute(env: Any, command: str) -> Any:
    return env.call_tool("execute", {"command": command}).result.structured_content


def test_the_tests_find_the_services_as_the_agent_left_them_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left()
    owner.labels()  # makes the mark of this process, which stays as long as it runs
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert_scored(harbor_task(tmp_path / "shop", FILES))
    assert left() == before
    assert not [*(tmp_path / "temporary").iterdir()]


def test_two_episodes_at_once_share_neither_services_nor_files(tmp_path: Path) -> None:
    cls = served(harbor_task(tmp_path / "shop", FILES))
    with cls() as one, cls() as other:
        for env in (one, other):
            env.reset()
        execute(one, "python3 /usr/ask.py 7; echo changed > /given/file; echo changed > /shared/state")
        assert execute(other, "python3 /usr/ask.py; cat /given/file /shared/state")["stdout"] == "0\ngiven\nset up\n"
    assert (tmp_path / "shop" / "environment" / "given" / "file").read_text() == "given\n"


def test_a_task_without_a_network_has_its_services_and_no_way_out(tmp_path: Path) -> None:
    out = "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 2)\" 2>&1 | tail -1"
    networks = "ls /sys/class/net | wc -l"
    config = CONFIG.replace("[verifier]\n", '[verifier]\nnetwork_mode = "public"\n')
    test = f"python3 /usr/ask.py && [ $({networks}) = 3 ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    files = {**FILES, "tests/test.sh": f"#!/bin/bash\n{test}\n"}
    with served(harbor_task(tmp_path / "shop", files, config=config))() as env:
        env.reset()
        said = execute(env, f"python3 /usr/ask.py; {out}; {networks}")["stdout"]
        assert said.splitlines() == ["0", "OSError: [Errno 101] Network is unreachable", "2"]
        assert env.end().reward == 1.0


def test_sigterm_to_a_command_removes_the_services(tmp_path: Path) -> None:
    folder, before = harbor_task(tmp_path / "shop", FILES), left()
    command = ["execute", "command=sleep 600", "timeout_s=600", "--set", "provider=podman"]
    with started(tmp_path, "call", f"harbor:{folder}", *command) as process:
        until(lambda: len(left()["container"] - before["container"]) == 3, "the services")
        assert process.end(signal.SIGTERM) == 130
    assert left() == before


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder, before = harbor_task(tmp_path / "shop", FILES), left()
    command = ["execute", "command=sleep 600", "timeout_s=600", "--set", "provider=podman"]
    with started(tmp_path, "call", f"harbor:{folder}", *command) as process:
        until(lambda: len(left()["container"] - before["container"]) == 3, "the services")
        process.end(signal.SIGKILL)
    assert left() != before
    with served(folder)() as env:
        env.reset()
    assert left() == before


def test_a_service_that_does_not_become_ready_is_named_with_what_it_printed(tmp_path: Path) -> None:
    files = {**FILES, "environment/db/server.py": "raise SystemExit('no disk')"}
    before = left()
    with served(harbor_task(tmp_path / "shop", files))() as env, pytest.raises(ExecutionError) as raised:
        env.reset()
    assert "service 'db' ended with status 1" in str(raised.value.__cause__)
    assert "no disk" in str(raised.value.__cause__)
    assert left() == before


def test_a_task_is_refused_without_a_compose_program_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harbor_task(tmp_path / "shop", FILES)
    harbor_task(tmp_path / "hello", image=BASE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", os.path.dirname(subprocess.check_output(["which", "podman"], text=True)))
    cls = served(tmp_path)
    assert list(cls.sources) == ["hello"]
    assert "task 'shop' has several services (environment/docker-compose.yaml): podman-compose is not" in caplog.text


def test_a_task_is_refused_where_services_have_no_names_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tmp_path / "containers.conf"
    settings.write_text(f'{SETTINGS}[network]\nnetwork_backend = "cni"\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(settings))
    harbor_task(tmp_path / "tasks" / "shop", FILES)
    harbor_task(tmp_path / "tasks" / "hello", image=BASE)
    cls = served(tmp_path / "tasks")
    assert list(cls.sources) == ["hello"]
    said = "task 'shop' has several services (environment/docker-compose.yaml): podman has networks of CNI without"
    assert said in caplog.text and "install netavark and aardvark-dns" in caplog.text


# -- attacks

WAYS_OF_TESTS = f"""
FROM {BASE}
WORKDIR /app
RUN mkdir -p /srv/p bin && touch /srv/rc
ENV PATH=/app/bin:$PATH PYTHONPATH=/srv/p
"""


@pytest.mark.parametrize(
    ("services", "fresh", "reward"),
    [
        (f"services: {{main: {{}}, other: {{image: {BASE}, command: [sleep, infinity]}}}}", True, 0.0),
        (None, True, 0.0),
        (None, False, 1.0),  # in the agent's own container they run
    ],
)
def test_no_file_of_an_agent_runs_in_the_tests_of_a_container(
    tmp_path: Path, services: str | None, fresh: bool, reward: float
) -> None:
    ways = [way.command for way in WAYS.values() if way == replace(WAYS["bashrc-of-the-system"], command=way.command)]
    own = ["cp /tmp/own/evil.sh /app/bin/tool", "cp /tmp/own/evil.sh /srv/rc", "echo 'x(' > /srv/p/sitecustomize.py"]
    script = "\n".join(f"( {way} )" for way in (*ways, *own) if LIBRARY not in way)
    files: dict[str, str | None] = {
        "environment/Dockerfile": WAYS_OF_TESTS,
        "environment/docker-compose.yaml": services,
        "tests/test.sh": TEST_OF_WAYS.format(cd="python3 -c 0 || touch /tmp/evil"),
    }
    config = CONFIG.replace("[verifier]\n", '[verifier]\nenv.BASH_ENV = "/srv/rc"\n')
    folder, before = harbor_task(tmp_path / "shop", files, config=config), left()
    with HarborEnvironment.from_folder(folder, provider="podman", fresh=fresh)() as env:
        env.reset()
        execute(env, f"{EVIL}{script}\nrm -f /tmp/evil")
        assert env.end().reward == reward
    assert left() == before
