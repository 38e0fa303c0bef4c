"""The distribution: what it imports and promises, its README, its example."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fleet_platform import Platform
from test_fleet_tasks import ROW

import mcpenv_fleet

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]
README = (FOLDER / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "fleet.md").read_text(encoding="utf-8")
EXAMPLE = FOLDER / "examples" / "fleet_rollout.py"
TIMEOUT_S = 100


def project(folder: Path) -> dict[str, Any]:
    """Return the ``[project]`` table of a distribution."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def python(program: str, cwd: Path) -> str:
    """Return the output of a program in a Python of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


class Model(BaseHTTPRequestHandler):
    """A model that adds the ticket, reads the list, and answers."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert [tool["function"]["name"] for tool in asked["tools"]][:2] == ["add_ticket", "list_tickets"]
        messages = asked["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        calls = [("add_ticket", '{"title": "second"}'), ("list_tickets", "{}")]
        if any(tool["function"]["name"] == "manage_context" for tool in asked["tools"]):
            calls += [("manage_context", '{"keep_recent_turns": 1}')]
            if "Dropped: turns 1 to 2." in json.dumps(messages):
                assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * turn]
                turn, calls = turn - 1, [("search_history", '{"text": "added second"}')]
        reply: dict[str, Any] = {"role": "assistant", "content": "two"}
        if turn < len(calls):
            name, arguments = calls[turn]
            function = {"name": name, "arguments": arguments}
            reply |= {"content": None, "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}
        body = json.dumps({"choices": [{"message": reply}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def model() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_line_2_the_client_imports_neither_mcpenv_nor_the_sdk_until_they_are_used(tmp_path: Path) -> None:
    program = (
        "import sys, mcpenv_fleet; print(*(n for n in ('mcpenv', 'fastmcp', 'starlette', 'fleet') if n in sys.modules))"
    )
    assert python(program, tmp_path).split() == []


def test_line_2_the_orchestrator_does_without_mcpenv(platform: Platform, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom mcpenv_fleet import FleetEnv\nenv, _ = FleetEnv.from_fleet('fira')\nenv.reset()\n"
        "print(env.call_tool('shared').text, 'mcpenv' in sys.modules, 'fleet' in sys.modules)\nenv.close()"
    )
    assert python(program, tmp_path).splitlines()[-1] == "of api False True"


def test_line_2_tests_replace_nothing_but_the_network() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    assert not re.search(r"^(from|import) unittest\.mock", text, re.MULTILINE)


def test_line_4_the_readme_says_why_there_is_no_server_folder() -> None:
    section = README.partition("## Why there is no server folder\n")[2].partition("\n## ")[0]
    assert "because Fleet hosts them" in section
    assert not (ROOT / "envs" / "fleet").exists()


def test_line_3_the_readme_says_who_computes_the_reward() -> None:
    section = README.partition("## Who computes the reward\n")[2].partition("\n## ")[0]
    assert "**the platform** runs the task's verifier" in section
    assert "`reward_fn(action, observation)` overrides" in section


def test_line_20_no_module_runs_code_that_it_is_given() -> None:
    called = {
        node.func.id
        for path in (FOLDER / "mcpenv_fleet").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called & {"exec", "eval", "compile", "__import__"} == set()
    source = "\n".join(path.read_text(encoding="utf-8") for path in (FOLDER / "mcpenv_fleet").glob("*.py"))
    assert not re.search(r"\.(verify_detailed|load_task_from_json|verify_raw|verifier_from_string)\(", source)


def test_line_26_mcpenv_has_an_extra_for_the_distribution() -> None:
    version = project(ROOT)["version"]
    assert project(ROOT)["optional-dependencies"]["fleet"] == [f"mcpenv-fleet=={version}"]
    assert project(FOLDER)["version"] == version
    assert f"mcpenv-client[mcp]=={version}" in project(FOLDER)["dependencies"]
    assert "fleet-python>=0.2.133,<0.3" in project(FOLDER)["dependencies"]


def test_line_26_the_example_plays_tasks_with_a_model(platform: Platform, model: str, tmp_path: Path) -> None:
    broken = {**ROW, "key": "broken", "verifier_func": "def verify(env): return None"}
    (tmp_path / "tasks.json").write_text(json.dumps([ROW, broken]))
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "tasks.json"), "--base-url", model, "--model", "scripted"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[:4] == [
        "add-second: Add a ticket: second.",
        '  add_ticket({"title": "second"}): added second',
        '  list_tickets({}): ["first", "second"]',
        "  score: 1.0",
    ]
    assert "  task 'broken' is not verified: the verifier ended without a result" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "1 tasks scored, mean 1"
    assert platform.running == []


def test_line_25_the_model_of_the_example_manages_its_context(platform: Platform, model: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([ROW]))
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "tasks.json"), "--base-url", model, "--model", "scripted"]
    ran = subprocess.run(
        [*command, "--context-tokens", "1000"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"manage_context\(.*\): Dropped: turns 1 to 2\.", ran.stdout)
    assert "search_history" in ran.stdout
    assert "1 match" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "1 tasks scored, mean 1"


def test_line_26_the_example_names_the_variable_that_is_missing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_API_KEY")
    command = [sys.executable, str(EXAMPLE), "tasks.json", "--base-url", "http://127.0.0.1:1", "--model", "none"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 1
    assert "FLEET_API_KEY" in ran.stderr


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_the_python_of_the_readme_runs(platform: Platform, tmp_path: Path, number: int) -> None:
    assert python(blocks(README, "python")[number], tmp_path)
    assert platform.running == []


def test_the_python_of_the_guide_runs(platform: Platform, tmp_path: Path) -> None:
    (program,) = blocks(GUIDE, "py")
    assert python(program, tmp_path).splitlines()[0] == "added second"


def test_every_public_name_can_be_imported_and_is_in_the_readme() -> None:
    names = mcpenv_fleet.__all__
    assert [name for name in names if not hasattr(mcpenv_fleet, name)] == []
    assert [name for name in names if not re.search(rf"\b{name}\b", README)] == []


def test_a_target_is_registered() -> None:
    (entry,) = importlib.metadata.entry_points(group="mcpenv.targets", name="fleet")
    assert entry.value == "mcpenv_fleet.environment:environment_class"


def test_the_distribution_is_typed_and_licensed() -> None:
    assert (FOLDER / "mcpenv_fleet" / "py.typed").is_file()
    assert project(FOLDER)["license"] == "Apache-2.0"
    assert "Apache License" in (FOLDER / "LICENSE").read_text(encoding="utf-8")


def test_only_versions_of_python_that_ran_are_claimed() -> None:
    claimed = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project(FOLDER)["classifiers"]))
    page = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    (tested,) = re.findall(r"^\| `mcpenv-fleet` \| ([\d., ]+) \|$", page, re.MULTILINE)
    assert claimed == tested.split(", ")
    assert project(FOLDER)["requires-python"] == f">={claimed[0]}"
