"""`mcpenv validate` never says "ok" of what it did not measure: it names what was not tried, and why."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from command_line import Cli, command_lines
from fastmcp import FastMCP
from pydantic import Field
from served import served
from starlette.types import ASGIApp, Receive, Scope, Send
from test_validated_server import found_in

from mcpenv import MCPEnvironment, ToolError
from mcpenv.extensions.contract.findings import Verdict
from mcpenv.extensions.files_world import FilesWorld
from mcpenv.extensions.validation.parts import Candidate, Judged, load
from mcpenv.extensions.validation.parts.cheats import judge_cheats
from mcpenv.extensions.validation.parts.contract import find, judge_contract, judge_schemas
from mcpenv.extensions.validation.parts.load import judge_load
from mcpenv.extensions.validation.parts.security import judge_security
from mcpenv_client.types.tasks import OracleCall, Task

Code = Annotated[str, Field(pattern="^qx[a-z]{6}[0-9]{3}$")]
"""A text that no arguments are made for."""


class Closed(MCPEnvironment):
    """Tools that no generated call reaches."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool(annotations={"readOnlyHint": True})
        def look(path: str, code: Code) -> str:
            """Look."""
            return path + code

        @self.tool(annotations={"readOnlyHint": True})
        def refuse() -> str:
            """Refuse."""
            raise ToolError("never")

    def verify(self, evidence: object) -> float:
        return 0.0


class Empty(MCPEnvironment):
    """No tools."""


class EmptyFolder(MCPEnvironment):
    """A folder without files, and a tool that writes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = FilesWorld(self.folder)

        @self.tool
        def write(path: str, content: str) -> str:
            """Write a file."""
            (self.folder / Path(path).name).write_text(content)
            return "written"

    def verify(self, evidence: object) -> float:
        return float((self.folder / "b.txt").exists())

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def judged(judge: Any, candidate: Candidate) -> dict[str, tuple[str, str]]:
    """Verdict and reason of each check."""
    into = Judged("part")
    judge(candidate, into)
    return {each.check: (each.verdict.value, f"{each.where}: {each.reason}") for each in into.findings}


def test_tools_that_no_call_reaches_are_not_called_secure() -> None:
    found = judged(judge_security, Candidate(Closed))
    assert found["reach"][0] == "warning" and "look: not tried, because no arguments" in found["reach"][1]
    assert found["annotations"][0] == "warning"
    assert "look, refuse: not tried, because no call of it succeeded" in found["annotations"][1]


def test_tools_that_no_call_reaches_are_not_called_honest() -> None:
    found = judged(judge_cheats, Candidate(Closed))
    assert found["scoring tools"] == ("warning", "look: not tried, because no arguments could be made")


def test_an_environment_without_tools_has_none_that_is_ok() -> None:
    candidate = Candidate(Empty)
    for judge, check in ((judge_contract, "calls"), (judge_schemas, "schemas"), (judge_cheats, "scoring tools")):
        assert judged(judge, candidate)[check][0] == "not applicable"
    assert judged(judge_contract, candidate)["constructor"][0] == "ok"


def test_an_end_that_nothing_verifies_is_not_verified() -> None:
    for cls, verdict in ((Empty, "not applicable"), (Closed, "ok")):
        into = Judged("tasks")
        find(Candidate(cls), "verify", into)
        assert [each.verdict.value for each in into.findings] == [verdict]


def test_calls_of_oracles_count_only_if_oracles_are_played() -> None:
    call = OracleCall(tool_name="look", arguments={"path": "a", "code": "qxabcde123"})
    candidate = Candidate(Closed, [Task(id="one", prompt="Look.", oracle=[call])])
    assert "look" not in judged(judge_contract, candidate)["calls"][1].partition(":")[0]
    candidate.plays_oracles = False
    assert "look, refuse" in judged(judge_contract, candidate)["calls"][1]


def test_a_folder_without_files_has_none_that_decides() -> None:
    call = OracleCall(tool_name="write", arguments={"path": "b.txt", "content": "b"})
    candidate = Candidate(EmptyFolder, [Task(id="one", prompt="Write b.", oracle=[call])])
    assert judged(judge_cheats, candidate)["scored files"][0] == "not applicable"


def test_open_files_that_the_system_does_not_list_are_not_called_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_held", lambda: {"threads": 1})
    monkeypatch.setattr(load, "_resident", lambda: 0)
    into = Judged("load")
    judge_load(Candidate(Closed), into)
    (finding,) = (each for each in into.findings if each.check == "open files")
    assert finding.verdict is Verdict.NOT_APPLICABLE and "memory not measured" in into.summary


def test_a_long_file_is_not_called_free_of_secrets(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "environment.py").write_text("import mcpenv\n\n\nclass A(mcpenv.MCPEnvironment):\n    pass\n")
    (tmp_path / "data.csv").write_text("hf_" + "a" * 2**20)
    done = cli("validate", str(tmp_path), "--only", "security", "--json")
    assert found_in(json.loads(done.out), "not applicable")["secrets in long files"]["reason"].endswith(": data.csv")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


class _Behind:
    """An application behind a proxy that asks for a login at its Host, and has a broken control plane."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = dict(scope.get("headers", ())).get(b"user-agent", b"")
        if scope["type"] == "http" and (scope["path"] == "/sessions" or client.startswith(b"python-httpx/")):
            status = 500 if scope["path"] == "/sessions" else 407
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)


def test_a_server_is_not_called_closed_to_others_if_it_refuses_everything(cli: Cli) -> None:
    server: FastMCP[Any] = FastMCP("open")

    @server.tool(annotations={"readOnlyHint": True})
    def fails() -> str:
        """Fail."""
        raise ValueError("never")

    with served(_Behind(server.http_app())) as url:
        done = cli("validate", url, "--only", "security", "--only", "cheats", "--only", "load", "--json")
    assert done.status == 1
    skipped = found_in(json.loads(done.out), "skipped")
    assert {"Host", "Origin"} < skipped.keys() and "answers 407" in skipped["Host"]["reason"]
    warned = found_in(json.loads(done.out), "warning")
    assert "/sessions answers 500" in warned["control plane"]["reason"]
    assert warned["calls"]["where"] == "fails"
    assert "only this machine" in found_in(json.loads(done.out), "not applicable")["transport"]["reason"]
