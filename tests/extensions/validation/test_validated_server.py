"""`mcpenv validate URL` judges what can be judged of a running server, and names what needs its code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, command_lines, started
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware
from served import served
from starlette.types import ASGIApp, Receive, Scope, Send

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "control-of-the-maze"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(ROOT, monkeypatch, capfd) as run:
        yield run


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {part["part"]: part["verdict"] for part in document["parts"]}


def found_in(document: dict[str, Any], *kinds: str) -> dict[str, dict[str, str]]:
    return {
        finding["check"]: finding
        for part in document["parts"]
        for finding in part["findings"]
        if finding["verdict"] in kinds
    }


def test_a_server_behind_its_control_token_is_sound_in_every_part_that_needs_no_code(cli: Cli) -> None:
    arguments = ("run", str(ROOT / "envs" / "maze_mcp"), "--port", "0")
    with started(ROOT, *arguments, MCPENV_CONTROL_TOKEN=TOKEN) as server:
        done = cli("validate", server.url(), "--json")
    document = json.loads(done.out)
    assert done.status == 0 and found_in(document, "failed", "warning") == {}
    judged = dict.fromkeys(("contract", "schemas", "cheats", "load", "security"), "ok")
    assert verdicts(document) == {**judged, **dict.fromkeys(("tasks", "durability", "packaging"), "not applicable")}
    facts = next(part["facts"] for part in document["parts"] if part["part"] == "load")
    assert facts["requests"] == 100 and 0 < facts["request_p50_ms"] <= facts["request_p95_ms"]


def test_an_open_control_plane_is_a_warning_on_this_machine(cli: Cli) -> None:
    with started(ROOT, "run", str(ROOT / "envs" / "echo_mcp"), "--port", "0") as server:
        done = cli("validate", f"{server.url()}/mcp", "--only", "cheats")
    assert done.status == 0
    assert "/sessions, /capacity answer without a token: an agent can read rewards" in done.out
    assert "--control-token-file" in done.out
    assert "skipped: contract, schemas, tasks, load, durability, security, packaging" in done.out


def test_a_server_that_answers_to_any_host_is_unsound(cli: Cli) -> None:
    server: FastMCP[Any] = FastMCP("open")

    @server.tool
    def verify_answer(answer: str) -> bool:
        return answer == "heron"

    with served(_TakesAnyHost(server.http_app())) as url:
        done = cli("validate", url, "--json")
    document = json.loads(done.out)
    assert done.status == 1
    failed = found_in(document, "failed")
    assert failed.keys() == {"Host", "Origin", "descriptions"}
    assert failed["Host"]["where"] == url and "421" in failed["Host"]["remedy"]
    warned = found_in(document, "warning")
    assert warned["scoring tools"]["where"] == "verify_answer" and warned["/health"]["remedy"]
    assert found_in(document, "not applicable")["/metadata"]["reason"] == "it is no server of mcpenv"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://127.0.0.1:1",), "127.0.0.1:1"),
        (("http://127.0.0.1:1", "--set", "a=1"), "--set is for an environment's code"),
        (("http://127.0.0.1:1", "-n", "1"), "-n is for an environment's code"),
        (("http://127.0.0.1:1", "--tasks", "tasks.jsonl"), "--tasks is for an environment's code"),
        (("echo_mcp", "--agent-token", "a-token-of-an-agent"), "--agent-token"),
    ],
)
def test_a_server_that_cannot_be_judged_is_refused(arguments: tuple[str, ...], said: str, cli: Cli) -> None:
    done = cli("validate", *arguments)
    assert done.status == 2 and said in done.err and done.out == "" and done.err.count("\n") == 1


class _TakesAnyHost:
    """An application that believes every Host and Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            kept = [(name, value) for name, value in scope["headers"] if name not in (b"host", b"origin")]
            scope = {**scope, "headers": [*kept, (b"host", b"127.0.0.1")]}
        await self._app(scope, receive, send)


def test_a_proxied_server_that_accepts_what_its_schema_refuses_is_a_warning(cli: Cli) -> None:
    server: FastMCP[Any] = FastMCP("lenient", strict_input_validation=False)

    @server.tool
    def add(number: int = 1, other: int = 2) -> int:
        """Add two numbers."""
        return number + other

    async def described_strictly(context: Any, call_next: Any) -> Any:
        tools = await call_next(context)
        for tool in tools:
            tool.parameters = {**tool.parameters, "required": ["number"], "additionalProperties": False}
        return tools

    class Strict(Middleware):
        on_list_tools = staticmethod(described_strictly)

    server.add_middleware(Strict())
    with served(server.http_app()) as url:
        done = cli("validate", f"mcp:{url}", "--only", "contract", "--live", "--json")
    document = json.loads(done.out)
    assert done.status == 0, done.out
    assert (
        "wrong arguments are accepted, against the schema: add" in found_in(document, "warning")["bad_calls"]["reason"]
    )
    assert found_in(document, "not applicable")["determinism"]["reason"] == "deterministic=False"
