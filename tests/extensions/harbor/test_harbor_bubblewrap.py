"""Episodes of Harbor tasks in real sandboxes of bubblewrap."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import command_lines
from harbor_tasks import CONFIG, DOCKERFILE, harbor_task

from mcpenv import ExecutionError
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.validation.tasks import validate
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.errors import InvalidMessage, NotSupported
from mcpenv_client.types.status import StatusCode

pytestmark = pytest.mark.world

Begin = Callable[..., Any]


def served(folder: Path) -> Any:
    return HarborEnvironment.from_folder(folder, base_image="host")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a function that begins an episode of the task "hello", changed."""
    made: list[Any] = []

    def of(files: dict[str, str | None] | None = None, config: str = CONFIG) -> Any:
        env = served(harbor_task(tmp_path / f"hello-{len(made)}", files, config=config))()
        made.append(env)
        env.reset()
        return env

    yield of
    for env in made:
        env.close()


def execute(env: Any, command: str, **more: Any) -> dict[str, Any]:
    observation = env.call_tool("execute", {"command": command, **more})
    assert observation.error is None, observation.error
    result: dict[str, Any] = observation.result.structured_content
    return result


def out(env: Any, command: str) -> str:
    return str(execute(env, command)["stdout"])


def script_that(write: str) -> dict[str, str | None]:
    return {"tests/test.sh": f"#!/bin/bash\n{write}\n"}


# -- an episode


def test_the_oracle_scores_1_and_doing_nothing_0(tmp_path: Path) -> None:
    for name in ("one", "two"):
        harbor_task(tmp_path / name)
    cls = served(tmp_path)
    assert cls.tasks is not None
    report = validate(cls, cls.tasks, random_seeds=0)
    assert [(one.task.id, one.oracle, one.nothing, one.repeats) for one in report.tasks] == [
        ("one", 1.0, 0.0, True),
        ("two", 1.0, 0.0, True),
    ]


@pytest.mark.timeout(300)  # all parts
def test_a_task_is_validated_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = harbor_task(tmp_path / "hello")
    with command_lines(None, monkeypatch, capfd) as run:
        done = run("validate", f"harbor:{folder}", "--set", "base_image=host", "--random-seeds", "0")
    assert done.status == 0, done.err
    assert "1 of 1 played, none of them unsound" in done.out


def test_the_instruction_is_the_prompt_of_the_reset(tmp_path: Path) -> None:
    with served(harbor_task(tmp_path / "hello"))() as env:
        assert env.reset().prompt.startswith('Write "Hello, world!"')
    harbor_task(tmp_path / "other", {"instruction.md": "The other."})
    with served(tmp_path)() as env:
        with pytest.raises(InvalidMessage, match="there are 2 tasks; name one"):
            env.reset()
        assert env.reset(task="other").prompt == "The other."


def test_the_box_is_what_the_dockerfile_says(begin: Begin) -> None:
    env = begin()
    assert out(env, "pwd; cat built.txt data/seed.txt; echo $GREETING $NAME; id -un") == (
        "/app\nbuilt\nseed\nHello world\nroot\n"
    )


def test_files_are_written_and_read_as_text_and_as_bytes(begin: Begin) -> None:
    env = begin()
    assert env.call_tool("write_file", {"path": "a/b.txt", "content": "é"}).result.text == "2 bytes written to a/b.txt"
    assert env.call_tool("read_file", {"path": "/app/a/b.txt"}).result.text == "é"
    env.call_tool("write_file", {"path": "c", "content": "/wA=", "encoding": "base64"})
    assert env.call_tool("read_file", {"path": "c", "encoding": "base64"}).result.text == "/wA="
    for arguments, said in (
        ({"path": "c"}, "no UTF-8 text"),
        ({"path": "missing"}, "No such file"),
        ({"path": "/"}, "Is a directory"),
    ):
        assert said in env.call_tool("read_file", arguments).error.message
    execute(env, "head -c 2000000 /dev/zero > large")
    assert "longer than" in env.call_tool("read_file", {"path": "large"}).error.message


def test_the_outcome_of_a_command_has_status_and_both_outputs(begin: Begin) -> None:
    env = begin()
    failed = execute(env, "nosuch")
    assert failed["stderr"] == execute(env, "nosuch")["stderr"] == "/dev/fd/9: line 1: nosuch: command not found\n"
    assert execute(env, "echo a; echo b >&2; exit 3") == {
        "exit_code": 3,
        "stdout": "a\n",
        "stderr": "b\n",
        "timed_out": False,
    }
    long = execute(env, "head -c 100000 /dev/zero | tr '\\0' x; echo end")["stdout"]
    assert len(long) < 33_000 and "bytes left out" in long and long.endswith("end\n")


def test_a_command_that_takes_too_long_is_killed_and_the_box_goes_on(begin: Begin) -> None:
    env = begin()
    done = execute(env, "echo $$ > pid; sleep 1000 & sleep 1000", timeout_s=0.5)
    assert done["timed_out"] and done["exit_code"] == 124
    assert out(env, "kill -0 $(cat pid) 2>/dev/null && echo alive || echo gone") == "gone\n"


def test_a_process_in_the_background_goes_on_until_the_next_episode(begin: Begin) -> None:
    env = begin()
    execute(env, 'mkfifo ask answer; (while read -r line < ask; do echo "got $line" > answer; done) &')
    assert out(env, "echo it > ask; timeout 20 cat answer") == "got it\n"
    env.reset()
    assert execute(env, "ls ask")["exit_code"] != 0


# -- verification


def test_variables_of_the_tests_are_not_the_agents(begin: Begin) -> None:
    write = 'echo "$A" > /logs/verifier/reward.txt'
    env = begin(script_that(write), CONFIG + '[verifier.env]\nA = "0.25"\n')
    assert out(env, 'echo "[$A]"') == "[]\n"
    assert env.end().reward == 0.25


@pytest.mark.parametrize("secret", ["the-judges-secret", "1234567890123456", "12345678"])
@pytest.mark.parametrize(("name", "source"), [("JUDGE", "A_JUDGES_API_KEY"), ("JUDGES_TOKEN", "A_JUDGE")])
def test_a_secret_that_the_tests_print_is_in_no_problem(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, name: str, source: str, secret: str
) -> None:
    monkeypatch.setenv(source, secret)
    write = f'echo "with ${name}"; echo 0 > /logs/verifier/reward.txt'
    env = begin(script_that(write), CONFIG + f'[verifier.env]\n{name} = "${{{source}}}"\n')
    assert env.end().info["problems"] == ["the tests' output ends with: with ***"]


def test_rewards_by_name_become_components(begin: Begin) -> None:
    write = """echo '{"reward": 0.5, "style": 2}' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt"""
    observation = begin(script_that(write)).end()
    assert observation.reward == 0.5
    assert observation.info["reward"] == {"verified": 0.5, "verified/reward": 0.5, "verified/style": 2.0}


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ("true", "wrote neither"),
        ("echo nan > /logs/verifier/reward.txt", "no finite number"),
        ("echo yes > /logs/verifier/reward.txt", "no finite number"),
        ("touch /logs/verifier/reward.json", "no JSON"),
        ("""echo '{"a": 1, "b": 1}' > /logs/verifier/reward.json""", "no key 'reward' and not exactly one key"),
        ("""echo '{"a": "1"}' > /logs/verifier/reward.json""", "not a finite number"),
    ],
)
def test_tests_without_a_number_are_an_error_and_no_score(begin: Begin, write: str, said: str) -> None:
    env = begin(script_that(write))
    with pytest.raises(ExecutionError) as raised:
        env.end()
    assert said in str(raised.value.__cause__)
    assert env.trajectory.status.code is StatusCode.JUDGE_ERROR


def test_tests_that_take_too_long_are_an_error(begin: Begin) -> None:
    env = begin(script_that("sleep 1000"), CONFIG.replace("timeout_sec = 60.0", "timeout_sec = 0.5"))
    with pytest.raises(ExecutionError) as raised:
        env.end()
    assert "took more than 0.5 s" in str(raised.value.__cause__)


def test_the_end_of_the_tests_output_says_why_a_reward_is_low(begin: Begin) -> None:
    printed = "yes begin | head -c 1000000; echo; echo expected 14 >&2; echo was 13"
    end = " | expected 14 | was 13"
    (problem,) = begin(script_that(f"{printed}; echo 0.5 > /logs/verifier/reward.txt")).end().info["problems"]
    assert problem.endswith(end) and len(problem) < 500
    assert "problems" not in begin(script_that(f"{printed}; echo 1 > /logs/verifier/reward.txt")).end().info
    with pytest.raises(ExecutionError) as raised:
        begin(script_that(printed)).end()
    cause = str(raised.value.__cause__)
    assert "wrote neither" in cause and cause.endswith(end)


@pytest.mark.parametrize(("reward", "is_solved"), [("0.7 + 0.2 + 0.1", True), ("1 - 1e-6", False)])
def test_a_reward_that_lacks_only_rounding_solves_a_task(tmp_path: Path, reward: str, is_solved: bool) -> None:
    """Its test says nothing, and validation does not say that the oracle falls short."""
    write = f"echo was judged; python3 -c 'print({reward})' > /logs/verifier/reward.txt"
    cls = served(harbor_task(tmp_path / "hello", script_that(write)))
    with cls() as env:
        env.reset()
        ended = env.end()
    assert ended.reward == (0.7 + 0.2 + 0.1 if is_solved else 1 - 1e-6) < 1.0
    assert ("problems" in ended.info) is not is_solved
    assert cls.tasks is not None
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert any("the oracle scores" in each for each in report.problems) is not is_solved, report.problems


def test_validation_shows_the_tests_output_which_may_differ_from_run_to_run(tmp_path: Path) -> None:
    write = "echo took $(date +%N) ns; echo found no answer; echo 0 > /logs/verifier/reward.txt"
    cls = served(harbor_task(tmp_path / "hello", script_that(write)))
    assert cls.tasks is not None
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert report.repeats is True
    assert "ns | found no answer" in report.problems[0]


# -- an agent that cheats


@pytest.mark.parametrize(
    "command",
    [
        "echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        "nohup bash -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &",
        "nohup setsid bash -c 'while :; do echo 1 > /logs/verifier/reward.json; done' >/dev/null 2>&1 &",
        "mkdir /app/own; echo 1 > /app/own/reward.json; rm -rf /logs/verifier; ln -s /app/own /logs/verifier",
        "mkdir -p own/verifier; echo 1 > own/verifier/reward.json; rm -rf /logs; ln -s /app/own /logs",
        "mkdir own; printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt' > own/test.sh; ln -s /app/own /tests",
        "mkdir -p /tests/x; chmod 000 /tests/x; chmod 000 /tests; chmod 000 /logs",
        "mkdir -p /app/bin; printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt' > /bin/bash",
        "rm -rf /app",
        "kill -9 -1",
    ],
)
def test_no_command_of_an_agent_writes_the_reward(begin: Begin, command: str) -> None:
    env = begin()
    env.call_tool("execute", {"command": command})
    assert env.end().reward == 0.0


RUNS_FILES_OF_OTHERS = """
sh -c : ; bash -ic : 2>/dev/null; python3 -c 'import json' ; tool 2>/dev/null
cd /tests && python3 -m pip --version >/dev/null 2>&1
ls /tmp/evil /pytest.ini /conftest.py 2>/dev/null | grep .
echo $((1 - $?)) > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    "command",
    [
        "echo 'touch /tmp/evil' >> ~/.bashrc; echo 'touch /tmp/evil' >> /etc/bash.bashrc",
        "p=$(python3 -m site --user-site); mkdir -p $p; echo 'open(\"/tmp/evil\", \"w\")' > $p/usercustomize.py",
        "p=$(python3 -m site --user-site); mkdir -p $p; echo 'import os; os.mkdir(\"/tmp/evil\")' > $p/x.pth",
        "cd /opt/tools/bin; printf '#!/bin/sh\ntouch /tmp/evil' > tool; chmod +x tool",
        "cd /app/.venv/bin; printf '#!/bin/sh\ntouch /tmp/evil' > tool; chmod +x tool",
        "rm -rf /root /etc; ln -s /app/r /root; ln -s /app/e /etc; mkdir r e; echo 'touch /tmp/evil' > r/.bashrc",
        "echo 'touch /tmp/evil' | tee /pytest.ini /conftest.py rc; echo BASH_ENV=/app/rc > /etc/environment",
    ],
)  # fmt: skip
def test_no_file_of_an_agent_runs_in_the_programs_of_the_tests(begin: Begin, command: str) -> None:
    dockerfile = DOCKERFILE.format(image="a") + "ENV PATH=/opt/tools/bin:/app/.venv/bin:$PATH\n"
    dockerfile += "RUN mkdir -p .venv/bin /opt/tools/bin && echo 'exit 1' > .venv/bin/tool && chmod +x .venv/bin/tool\n"
    env = begin({"environment/Dockerfile": dockerfile, **script_that(RUNS_FILES_OF_OTHERS)})
    execute(env, command)
    assert env.end().reward == 0.0


def test_the_tests_find_the_work_and_the_systems_own_files(begin: Begin) -> None:
    write = (
        "cat /app/work /data/work /root/work /home/a/work /logs/artifacts/work /var/lib/x/work && ! cat /app/gone "
        "&& ! cat /etc/mine && ! cat /file && cat /etc/hosts && [ $(stat -c %a /app/work) = 640 ] "
        "&& echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    )
    dockerfile = DOCKERFILE.format(image="a") + "RUN touch gone\n"
    env = begin({"environment/Dockerfile": dockerfile, **script_that(write)})
    folders = "/app /data /root /home/a /logs/artifacts /var/lib/x"
    execute(env, f"mkdir -p {folders}; for f in {folders}; do echo x > $f/work; done; chmod 640 work; rm gone")
    execute(env, "echo x > /etc/mine; echo x > /file; chmod 555 /home/a")
    assert env.end().reward == 1.0


@pytest.mark.parametrize("how", [{"config": CONFIG + '[metadata.mcpenv]\nkeep = ["/etc/mine"]\n'}, {"fresh": False}])
def test_changes_of_the_system_that_tests_judge_are_kept_on_demand(tmp_path: Path, how: dict[str, Any]) -> None:
    write = "cp /etc/mine /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    config = str(how.get("config", CONFIG)).replace('[metadata]\ndifficulty = "easy"\n', "")
    folder = harbor_task(tmp_path / "hello", script_that(write), config=config)
    with HarborEnvironment.from_folder(folder, base_image="host", fresh=how.get("fresh", True))() as env:
        env.reset()
        execute(env, "echo 0.5 > /etc/mine")
        assert env.end().reward == 0.5


def test_an_agent_sees_neither_the_tests_nor_the_files_of_this_machine(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("the secret")
    monkeypatch.setenv("A_SECRET", "the secret")
    env = begin()
    assert out(env, "ls /tests /solution /tmp /root /home 2>/dev/null; env | grep SECRET").split() == [
        "/home:",
        "/root:",
        "/tmp:",
    ]
    assert execute(env, f"cat {tmp_path}/secret")["exit_code"] != 0
    assert execute(env, "cat /etc/shadow")["exit_code"] != 0
    assert execute(env, "touch /usr/x || touch /bin/x || touch /lib/x")["exit_code"] != 0


def test_outputs_that_an_agent_replaces_by_links_are_not_followed(begin: Begin) -> None:
    env = begin()
    command = "f=$(ls /run/mcpenv/out/*.stdout); rm $f; ln -s /etc/passwd $f; ls -l $f >&2"
    done = execute(env, command)
    assert "/etc/passwd" in done["stderr"] and done["stdout"] == ""


def test_an_agent_has_no_network_if_the_task_says_so_and_no_privileges(begin: Begin) -> None:
    env = begin()
    assert out(env, "ls /sys/class/net 2>/dev/null || sed 1,2d /proc/net/dev | cut -d: -f1").split() == ["lo"]
    assert out(env, "grep CapEff /proc/self/status").split() == ["CapEff:", "0000000000000000"]
    assert execute(env, "mount -t tmpfs none /mnt")["exit_code"] != 0


PUBLIC = CONFIG.replace("no-network", "public")


@pytest.mark.skipif(shutil.which("slirp4netns") is None, reason="slirp4netns is not installed")
def test_no_loopback_port_and_no_abstract_socket_of_this_machine_answers_in_a_box_with_a_network(begin: Begin) -> None:
    name = f"mcpenv-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        port = server.getsockname()[1]
        addresses = ("127.0.0.1", "10.0.2.2", "10.0.2.3", "0.0.0.0", "255.255.255.255", "localhost", "::1")
        reach = f"""import socket
for address in {addresses}:
    try:
        socket.create_connection((address, {port}), 5)
        print("reached", address)
    except OSError as error:
        pass
try:
    socket.socket(socket.AF_UNIX).connect(chr(0) + "{name}")
    print("reached a socket")
except OSError:
    pass
"""
        env = begin(
            {"tests/test.sh": "#!/bin/bash\npython3 seen.py | grep -c reached > /logs/verifier/reward.txt"}, PUBLIC
        )
        assert out(env, "cut -d: -f1 -s /proc/net/dev").split() == ["lo", "tap0"]
        env.call_tool("write_file", {"path": "seen.py", "content": reach})
        assert execute(env, "python3 seen.py") == {"exit_code": 0, "stdout": "", "stderr": "", "timed_out": False}
        assert env.end().reward == 0.0


@pytest.mark.skipif(shutil.which("slirp4netns") is None, reason="slirp4netns is not installed")
def test_a_box_with_a_network_reaches_other_addresses_and_leaves_no_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        own = probe.getsockname()[0]
    with socket.create_server((own, 0)) as server, served(harbor_task(tmp_path / "hello", config=PUBLIC))() as env:
        env.reset()
        host, port = server.getsockname()
        assert execute(env, f"echo hello > /dev/tcp/{host}/{port}")["exit_code"] == 0
        server.settimeout(10)
        assert server.accept()[0].recv(6) == b"hello\n"
        env.end()
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args"], capture_output=True, text=True)
    assert "slirp4netns" not in children.stdout


def test_a_task_with_a_network_is_refused_by_what_is_missing_or_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, which = harbor_task(tmp_path / "hello", config=PUBLIC), shutil.which
    monkeypatch.setattr("shutil.which", lambda name: None if name == "slirp4netns" else which(name))
    with pytest.raises(ConfigurationError, match=r"needs a network: slirp4netns is not installed.*--set network=none"):
        served(folder)
    with HarborEnvironment.from_folder(folder, base_image="host", network="none")() as env:
        env.reset()
        assert out(env, "cut -d: -f1 -s /proc/net/dev").split() == ["lo"]


# -- boxes


def test_a_build_that_fails_says_which_line_and_why(tmp_path: Path) -> None:
    dockerfile = DOCKERFILE.format(image="debian:12") + "RUN echo too bad >&2 && false\n"
    with served(harbor_task(tmp_path / "hello", {"environment/Dockerfile": dockerfile}))() as env:
        with pytest.raises(ExecutionError) as raised:
            env.reset()
    assert "line 7 of " in str(raised.value.__cause__) and "too bad" in str(raised.value.__cause__)


def test_a_build_has_its_time_limit(tmp_path: Path) -> None:
    config = CONFIG + "build_timeout_sec = 0.5\n"
    files = {"environment/Dockerfile": "FROM a\nRUN sleep 1000\n"}
    harbor_task(tmp_path / "tasks" / "slow", files, config=config)
    harbor_task(tmp_path / "tasks" / "patient", config=CONFIG + "build_timeout_sec = 1000.0\n")
    with served(tmp_path / "tasks")() as env:
        with pytest.raises(ExecutionError) as raised:
            env.reset(task="slow")  # not within the time of the other task
        assert "took more than 0.5 s" in str(raised.value.__cause__)
        assert env.reset(task="patient").prompt


def test_an_episode_cannot_be_saved(begin: Begin) -> None:
    with pytest.raises(NotSupported, match="its state is in the processes of a container"):
        begin().snapshot()


def test_no_process_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    cls = served(harbor_task(tmp_path / "hello"))
    for _ in range(3):
        with cls() as env:
            env.reset()
            execute(env, "nohup sleep 98765 >/dev/null 2>&1 & mkdir -p x/y; touch x/y/z; chmod 000 x/y")
            env.end()
    assert "98765" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    left = {path.name.rpartition("-")[0] for path in (tmp_path / "temporary").iterdir()}
    assert left <= {"mcpenv-harbor-image"}  # kept for further episodes


def test_episodes_at_once_share_nothing_over_a_server(tmp_path: Path) -> None:
    cls = served(harbor_task(tmp_path / "hello"))

    async def play(url: str, number: int) -> tuple[str, float | None]:
        async with EnvClient(url) as client:
            await client.reset()
            await client.call_tool("execute", {"command": f"echo {number} >> n.txt; sleep 1"})
            seen: Any = (await client.call_tool("execute", {"command": "cat n.txt"})).result
            if number % 2:
                await client.call_tool("write_file", {"path": "hello.txt", "content": "Hello, world!"})
            return seen.structured_content["stdout"], (await client.end()).reward

    async def play_all(url: str) -> list[tuple[str, float | None]]:
        return await asyncio.gather(*(play(url, number) for number in range(8)))

    with serving(cls, ServerConfig()) as url:
        found = asyncio.run(play_all(url))
    assert found == [(f"{number}\n", float(number % 2)) for number in range(8)]


def test_an_episode_begins_once_the_health_check_succeeds(tmp_path: Path) -> None:
    check = '[environment.healthcheck]\ncommand = "{}"\ninterval_sec = 0\nretries = 3\n'
    ready = "echo x >> tries; [ $(wc -l < tries) = 3 ]"
    with served(harbor_task(tmp_path / "hello", config=CONFIG + check.format(ready)))() as env:
        env.reset()
        assert env.call_tool("read_file", {"path": "tries"}).result.text == "x\nx\nx\n"
    broken = check.format("echo not yet >&2; false")
    with served(harbor_task(tmp_path / "other", config=CONFIG + broken))() as env:
        with pytest.raises(ExecutionError) as raised:
            env.reset()
        assert "the health check failed 3 times: echo not yet >&2; false: not yet" in str(raised.value.__cause__)


def test_changes_that_the_tests_do_not_find_are_named_and_settings_of_servers_are_found(tmp_path: Path) -> None:
    solution = (
        "#!/bin/bash\nmkdir -p /etc/nginx /opt/tool && echo a > /etc/nginx/mine && echo b > /opt/tool/run\n"
        "echo c > /etc/mine; echo d >> ~/.bashrc; rm /etc/services; touch $'/etc/odd\\nname'\n"
    )
    test = "#!/bin/bash\ncat /etc/nginx/mine\n[ -e /etc/mine ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    files: dict[str, str | None] = {"solution/solve.sh": solution, "tests/test.sh": test}
    cls = served(harbor_task(tmp_path / "hello", files))
    (report,) = validate(cls, cls.tasks, random_seeds=0).tasks
    assert report.oracle == 0.0
    (problem,) = [each for each in report.problems if "keep" in each]
    assert "the tests' output ends with: a" in problem
    home = "/root"  # of the user of the box
    named = f"/etc/mine, /etc/odd?name, /etc/services, {home}/.bashrc, /opt/tool/run; name what they judge by keep in"
    assert f"the tests find the image's own files in place of {named} [metadata.mcpenv]" in problem
