"""Verifiers in code: what they are given, what their results become, and what they cannot reach."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcpenv import MCPEnvironment, Reward, TaskSet
from mcpenv.errors import InvalidVerifier, VerifierFailed
from mcpenv.extensions.contract import Verdict, check_environment
from mcpenv.extensions.sandbox.process import CHILD, MAX_ANSWER
from mcpenv.rewards.verifiers import Evidence, check, run
from mcpenv.rewards.verifiers.specs import parse
from mcpenv_client.types.tasks import LABELS, OracleCall, Task

TASK = Task(id="pay", metadata={"amount": 10}, oracle=[OracleCall(tool_name="pay")], reward_range=(-1.0, 2.0))
BEFORE = {"accounts": {"1": {"balance": 100}}}
AFTER = {"accounts": {"1": {"balance": 90}}}

linux = pytest.mark.skipif(sys.platform != "linux", reason="the process sandbox is Linux's")
SANDBOXES = ["monty", pytest.param("process", marks=[linux, pytest.mark.process])]


def verified(spec: dict[str, Any], after: Any = AFTER, before: Any = BEFORE, task: Task | None = TASK) -> Reward | None:
    check(spec)
    return asyncio.run(run(spec, Evidence(task, before, after)))


def python(body: str, sandbox: str = "monty", ignore: tuple[str, ...] = (), **limits: Any) -> dict[str, Any]:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    code = f"def verify(task, before, after, changes):\n{lines}\n"
    return {"kind": "python", "code": code, "sandbox": sandbox, "limits": limits, "ignore": list(ignore)}


def failure(spec: dict[str, Any], after: Any = AFTER, before: Any = BEFORE) -> str:
    with pytest.raises(VerifierFailed) as failed:
        verified(spec, after, before)
    return str(failed.value)


# -- specs

NOTHING = "def verify(task, before, after, changes): pass"

WRONG: dict[str, tuple[Any, str]] = {
    "no code": ({"kind": "python"}, r"^verifier\.code: field required"),
    "code that cannot be read": ({"kind": "python", "code": "def verify(:"}, r"^verifier\.code: line 1: invalid"),
    "code without a verifier": ({"kind": "python", "code": "x = 1"}, r"^verifier\.code: it defines no function verify"),
    "unknown sandbox": ({"kind": "python", "code": NOTHING, "sandbox": "none"}, r"^verifier\.sandbox: .*'monty' or"),
    "unknown field": ({"kind": "python", "code": NOTHING, "timeout": 1}, r"^verifier\.timeout"),
    "no time": ({"kind": "python", "code": NOTHING, "limits": {"time_s": 0}}, r"^verifier\.limits\.time_s: .*greater"),
    "endless": ({"kind": "python", "code": NOTHING, "limits": {"time_s": float("inf")}}, r"^verifier\.limits\.time_s"),
    "files in monty": ({"kind": "python", "code": NOTHING, "limits": {"files_mb": 1}}, r"files_mb: monty has no files"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_spec_that_is_wrong_is_refused_before_any_episode(what: str) -> None:
    spec, said = WRONG[what]
    with pytest.raises(InvalidVerifier, match=said):
        check(spec)


def test_code_needs_no_world() -> None:
    check(python("return 1"), has_world=False)


class Talk(MCPEnvironment):
    """A task that code verifies."""

    tasks = TaskSet([Task(id="a", prompt="x", verifier=python("return True"))])

    def __init__(self) -> None:
        @self.tool
        def say() -> str:
            """Say."""
            return ""


def test_the_kit_is_silent_about_a_task_with_code() -> None:
    report = check_environment(Talk)
    assert report["tasks"].verdict is report["verify"].verdict is Verdict.OK


# -- code


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_code_is_given_the_task_without_its_answer_and_the_world(sandbox: str) -> None:
    body = """assert sorted(task) == sorted(task_fields), task
assert before['accounts']['1']['balance'] == 100 and after['accounts']['1']['balance'] == 90
assert changes == [{'path': ['accounts', '1', 'balance'], 'kind': 'changed', 'before': 100, 'after': 90}]
return task['metadata']['amount'] / 20"""
    fields = sorted(Task.model_fields.keys() - {"oracle", "verifier", *LABELS})  # it has no labels
    assert verified(python(body.replace("sorted(task_fields)", repr(fields)), sandbox)) == Reward(0.5)
    assert verified(python("return len(changes)", sandbox, ignore=("**",))) == Reward(0.0)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_code_returns_is_the_reward(sandbox: str) -> None:
    assert verified(python("return None", sandbox)) is None
    assert verified(python("return 0", sandbox)) == Reward(0.0)
    assert verified(python("return True", sandbox)) == Reward(2.0)
    assert verified(python("return False", sandbox)) == Reward(-1.0)
    assert verified(python("return {'value': 1.5, 'components': {'a': 1, 'b': 0.5}}", sandbox)) == Reward(
        1.5, {"a": 1.0, "b": 0.5}
    )


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_rounding_above_the_range_is_the_top_of_it(sandbox: str) -> None:
    assert verified(python("return 2 * (0.2 + 0.4 + 0.3 + 0.1)", sandbox)) == Reward(2.0)
    with pytest.raises(VerifierFailed, match="above the task's reward range"):
        verified(python("return 2.0001", sandbox))


MALFORMED = {
    "a text": "return '1.0'",
    "a list": "return [1.0]",
    "NaN": "return float('nan')",
    "infinity": "return {'value': float('inf')}",
    "a number too large": "return 10 ** 400",
    "no value": "return {'components': {}}",
    "other fields": "return {'value': 1, 'passed': True}",
    "components that are none": "return {'value': 1, 'components': {'a': 'b'}}",
    "components of truth": "return {'value': 1, 'components': {'a': True}}",
    "a value of truth": "return {'value': True}",
    "a list of components": "return {'value': 1, 'components': [1]}",
    "an object of its own": "class A: pass\nreturn A()",
    "a function": "return verify",
    "more than full": "return 2.01",
    "an exception": "raise ValueError('no')",
    "a wrong key": "return after['nobody']",
    "endless recursion": "return verify(task, before, after, changes)",
}


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("what", MALFORMED)
def test_nothing_but_a_finite_number_becomes_a_score(what: str, sandbox: str) -> None:
    assert failure(python(MALFORMED[what], sandbox)).startswith("the verifier ")


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("code", ["verify = 1", "def verify(task): return 1", "1/0\nverify = 1"])
def test_code_that_has_no_verifier_is_no_score(code: str, sandbox: str) -> None:
    spec = {"kind": "python", "code": code, "sandbox": sandbox}
    assert failure(spec).startswith("the verifier ")


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_limit_that_is_passed_is_no_score(sandbox: str) -> None:
    assert "limit" in failure(python("while True: pass", sandbox, time_s=0.3))
    assert "memory" in failure(python("x = [0] * 10 ** 9\nreturn 1", sandbox, memory_mb=128))
    assert "limit" in failure(
        python("try:\n    while True: pass\nexcept BaseException: pass\nreturn 1", sandbox, time_s=0.3)
    )


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_two_runs_over_the_same_world_agree(sandbox: str) -> None:
    body = "import random\nreturn random.random() if False else len(str({'a', 'b', 'c', 'd'})) / 100"
    assert verified(python(body, sandbox)) == verified(python(body, sandbox))


def test_sleeping_in_monty_takes_no_time_and_its_chance_is_always_the_same() -> None:
    body = "import random, time\ntime.sleep(1000)\nreturn random.random()"
    assert verified(python(body, time_s=5)) == verified(python(body, time_s=5))


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_world_that_was_made_huge_or_deep_is_no_score(sandbox: str) -> None:
    deep: Any = 1
    for _ in range(160):
        deep = {"in": deep}
    spec = python("return 2.0", sandbox)
    assert "levels deep" in failure(spec, {"a": deep}) and "levels deep" in failure(spec, {"a": [[deep]]})
    assert "too large" in failure(spec, {"files": {str(n): "x" * 1000 for n in range(70_000)}})
    state = {"kind": "expect_only", "changes": {"**": {"$any": True}}}
    assert "too large" in failure(state, {"files": ["x" * 1000] * 70_000})
    assert verified(spec, {"a": {"b": "x" * 10_000_000}}) == Reward(2.0)


# -- what code cannot reach


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of this machine, and that nobody knocked is seen at its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


PACKAGES = os.path.join(sysconfig.get_paths()["stdlib"], "site-packages")
REACHING = {
    "a file": "return len(open('/etc/passwd').read())",
    "a file by its number": "import os\nreturn os.open('/etc/passwd', 0)",
    "a file by a link": "import os\nos.symlink('/etc/passwd', 'p')\nreturn len(open('p').read())",
    "a folder": "import os\nreturn len(os.listdir('/'))",
    "the folder of this code": "import os\nreturn len(os.listdir(FOLDER))",
    "a new file": "open('here.txt', 'w').write('x')\nreturn 1",
    "a new file elsewhere": "open(FOLDER + '/verdict.json', 'w').write('1')\nreturn 1",
    "another's file": "import os\nos.remove(FOLDER + '/there.txt')\nreturn 1",
    "another's file by truncation": "import os\nos.truncate(FOLDER + '/there.txt', 0)\nreturn 1",
    "another's permissions": "import os\nos.chmod(FOLDER + '/there.txt', 0o777)\nreturn 1",
    "a folder of its own": "import os\nos.mkdir('d')\nreturn 1",
    "the server's memory": "import os\nreturn len(open(f'/proc/{os.getppid()}/mem', 'rb').read(1))",
    "the server's variables": "import os\nreturn len(open(f'/proc/{os.getppid()}/environ').read())",
    "its own memory map": "return len(open('/proc/self/maps').read())",
    "a connection": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)\nreturn 1",
    "a datagram": "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))\nreturn 1",
    "a local socket": "import socket\nsocket.socket(socket.AF_UNIX)\nreturn 1",
    "a name": "import socket\nsocket.getaddrinfo('example.com', 80)\nreturn 1",
    "a page": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT/')\nreturn 1",
    "a process": "import subprocess\nsubprocess.run(['true'])\nreturn 1",
    "a shell": "import os\nreturn 1 if os.system('true') == 0 else 1 / 0",
    "a fork": "import os\nos.fork()\nreturn 1",
    "a thread": "import threading\nthreading.Thread(target=print).start()\nreturn 1",
    "another program": "import os\nos.execv('/bin/true', ['true'])",
    "a signal to the server": "import os\nos.kill(os.getppid(), 0)\nreturn 1",
    "a signal by a file's owner": "import fcntl, os\nfcntl.fcntl(0, 8, os.getppid())\nreturn 1",
    "more memory": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nreturn 1",
    "the framework": "import mcpenv\nreturn 1",
    "installed packages": "import pydantic\nreturn 1",
    "installed packages by their path": f"import sys\nsys.path += {sys.path}\nimport pydantic\nreturn 1",
    "packages of this Python": f"import os\nreturn len(os.listdir({PACKAGES!r}))",
}


@pytest.mark.process
@linux
@pytest.mark.parametrize("what", REACHING)
def test_code_in_a_process_reaches_nothing(what: str, listener: int, tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("kept")
    (tmp_path / "there.txt").chmod(0o600)
    body = REACHING[what].replace("FOLDER", repr(str(tmp_path))).replace("PORT", str(listener))
    said = failure(python(body, "process"))
    assert said.startswith("the verifier raised ")
    assert [path.name for path in tmp_path.iterdir()] == ["there.txt"]
    assert (tmp_path / "there.txt").read_text() == "kept" and (tmp_path / "there.txt").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", REACHING)
def test_code_in_monty_reaches_nothing(what: str, listener: int, tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("kept")
    body = REACHING[what].replace("FOLDER", repr(str(tmp_path))).replace("PORT", str(listener))
    assert failure(python(body)).startswith("the verifier raised ")
    assert (tmp_path / "there.txt").read_text() == "kept"


@pytest.mark.process
@linux
def test_code_in_a_process_sees_no_variable_and_no_open_file_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN", "secret")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    body = f"""import os
assert 'MCPENV_CONTROL_TOKEN' not in os.environ and 'secret' not in str(os.environ), os.environ
try:
    os.write({write}, b'x')
except OSError:
    return 1.0"""
    try:
        assert verified(python(body, "process")) == Reward(1.0)
    finally:
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            assert pipe.read() == b""


@pytest.mark.smoke
@linux
def test_code_in_a_process_can_use_the_standard_library() -> None:
    body = """import csv, datetime, decimal, io, json, re, sqlite3, statistics, zoneinfo
assert sqlite3.connect(':memory:').execute('select 1').fetchone() == (1,)
assert str(decimal.Decimal('0.1') * 3) == '0.3'
return statistics.mean([1, 0])"""
    assert verified(python(body, "process")) == Reward(0.5)


@pytest.mark.process
@linux
def test_what_code_prints_is_no_answer() -> None:
    lines = r"""import sys, os
for stream in (sys.stdout, sys.stderr, sys.__stdout__):
    print('{"value": 2.0}', file=stream, flush=True)
for number in (1, 2):
    os.write(number, b'\n{"value": 2.0}\n')
return 0"""
    assert verified(python(lines, "process")) == Reward(0.0)
    assert verified(python("print(after['note'])\nreturn 0", "process"), {"note": '\n{"value": 2.0}\n'}) == Reward(0.0)


@pytest.mark.process
@linux
def test_code_that_dies_is_no_score() -> None:
    assert "crashed (SIGSEGV)" in failure(python("import ctypes\nctypes.string_at(0)", "process"))
    assert "exit status 0" in failure(python("import os\nos._exit(0)", "process"))
    assert "SystemExit" in failure(python("raise SystemExit(0)", "process"))
    assert "limit of 0.3 s" in failure(python("import time\ntime.sleep(60)", "process", time_s=0.3))
    flood = (
        f"import os\nfor n in range(3, 20):\n    try: os.write(n, b'x' * {2 * MAX_ANSWER})\n    except OSError: pass"
    )
    assert "answered more" in failure(python(flood, "process"))


@pytest.mark.process
@linux
def test_code_may_write_as_much_as_it_is_given_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder that only this test writes to: others verify at the same time.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write = (
        "import os\nos.mkdir('d')\nwith open('d/x', 'w') as f: f.write('a' * 10)\nreturn os.path.getsize('d/x') / 10"
    )
    try:
        assert verified(python(write, "process", files_mb=1)) == Reward(1.0)
    except VerifierFailed as refused:
        pytest.skip(str(refused))  # a container that gives no namespaces
    many = "for n in range(10000): open(str(n), 'w').close()\nreturn 1"
    assert "No space left" in failure(python(many, "process", files_mb=1))
    several = "for n in range(9):\n    with open(str(n), 'w') as f: f.write('a' * 500000)\nreturn 1"
    assert "No space left" in failure(python(several, "process", files_mb=1))
    assert not list(tmp_path.iterdir())


@pytest.mark.process
@linux
def test_who_is_cancelled_leaves_no_process_behind() -> None:
    async def cancelled() -> None:
        spec = python("import time\ntime.sleep(600)", "process", time_s=600)
        others = children_of_this_process()
        running = asyncio.create_task(run(spec, Evidence(TASK, BEFORE, AFTER)))
        while not (children := children_of_this_process() - others):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while children & children_of_this_process():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(cancelled(), 30))


def children_of_this_process() -> set[str]:
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended
            found.update((thread / "children").read_text().split())
    return found


def test_the_event_loop_goes_on_while_a_verifier_runs() -> None:
    async def both() -> list[str]:
        order: list[str] = []
        turns = threading.Event()

        async def turn() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            order.append("others")
            turns.set()

        async def verifying() -> None:
            with pytest.raises(VerifierFailed):
                await run(python("while True: pass", time_s=0.3), Evidence(TASK, BEFORE, AFTER))
            order.append("verifier")

        await asyncio.gather(verifying(), turn())
        return order

    assert asyncio.run(both()) == ["others", "verifier"]


@linux
def test_where_there_are_no_walls_it_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidVerifier, match="needs Linux, and this is darwin"):
        check(python("return 1", "process"))


# -- the walls themselves


def put_up(*altered: str) -> str:
    """Return the output of a bare interpreter that puts up the walls, some of them altered."""
    program = f"""
import os, sys
sys.path.insert(0, {str(CHILD.parent)!r})
import isolation
{"; ".join(altered)}
try:
    print(*isolation.put_up({tempfile.gettempdir()!r}, [], time_s=5, memory_mb=256, files_mb=0))
except isolation.NoIsolation as error:
    print("no walls:", error)
"""
    return subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.smoke
@linux
def test_the_walls_hold_also_where_there_are_no_namespaces() -> None:
    assert put_up("isolation._enter_namespaces = lambda: False") == "landlock seccomp"
    assert put_up() in ("landlock seccomp", "landlock seccomp namespaces")


@pytest.mark.process
@linux
def test_without_one_of_the_walls_nothing_is_run() -> None:
    assert "could open a socket" in put_up("isolation._seccomp = print")
    assert "could open /" in put_up("isolation._landlock = lambda *rules: None")
    assert "and this is riscv64" in put_up("isolation.platform.machine = lambda: 'riscv64'")
    assert "Landlock, in Linux 5.13 or later" in put_up("isolation._CREATE_RULESET = 9999")


class _Garbage:
    """Lets go of the interpreter when the collector finds it, in the middle of whatever runs then."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_may_read_verifiers_at_once() -> None:
    wrong: list[BaseException] = []

    def read(thread: int) -> None:
        for number in range(100):
            for _ in range(20):
                _Garbage()
            lines = [f"    x{line} = [[{{'a': ({line}, {number}, {thread})}}]]" for line in range(30)]
            code = "\n".join(["def verify(task, before, after, changes):", *lines, "    return 1"])
            try:
                parse({"kind": "python", "code": code})
            except BaseException as error:  # noqa: BLE001 - looked at below
                wrong.append(error)

    thresholds = gc.get_threshold()
    gc.set_threshold(200)
    try:
        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*thresholds)
    assert wrong == []
