"""Stock clients use what ``mcpenv run`` serves, each as a program. docs/reference/mcp-clients.md has what was seen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import clients_table
import httpx
import pytest
from bench import BY_ANOTHER, HANDLE, MCP, STDIO, TALLY, TOKEN, WITH_TOKEN, Bench, Driven, places_of
from programs import HERE
from serving import served
from stock_clients import CLIENTS, STATELESS, StockClient
from tally import OF_EACH_CALL

from mcpenv_client.mcp_client import MCPToolClient

ROWS = [(client, mode) for client in CLIENTS for mode in client.modes]
RUNS = [(*row, place) for row in ROWS for place in places_of(row[0])]
EPISODES = [run for run in RUNS if run[2].startswith(HANDLE)]
OVER = "The episode is over."

pytestmark = pytest.mark.timeout(400)  # the first test of a client waits for all of its runs


def named(value: object) -> str | None:
    """The id of a parameter."""
    return value.id if isinstance(value, StockClient) else None


@pytest.fixture(scope="session")
def bench(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    venvs = os.environ.get("MCPENV_CLIENT_VENVS")
    assert venvs, "MCPENV_CLIENT_VENVS names no folder for virtual environments; .ci/run makes one and sets it"
    with ExitStack() as stack:
        servers = (
            stack.enter_context(served(TALLY)),
            stack.enter_context(served(TALLY, "--agent-token", f"stock={TOKEN}")),
        )
        with MCPToolClient(servers[0], protocol=STATELESS).sync() as another:
            assert another.call_tool("add", {"by": BY_ANOTHER}).data == BY_ANOTHER
        yield Bench(servers, Path(venvs).resolve(), node_modules, tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize(("client", "mode", "place"), RUNS, ids=named)
def test_it_lists_calls_reads_a_failure_and_ends(
    bench: Bench, client: StockClient, mode: str | None, place: str
) -> None:
    seen = bench.drive(client, mode, place)
    assert seen.tools == ["add", "stop"]
    assert (seen.failed[:4], seen.texts[3]) == ([False, False, True, False], "Stopped.")
    assert "by: Input should be a valid integer" in seen.texts[2]
    assert seen.requests or place == STDIO


@pytest.mark.parametrize(("client", "mode", "place"), EPISODES, ids=named)
def test_at_a_handle_it_acts_on_the_episode_whatever_its_sessions(
    bench: Bench, client: StockClient, mode: str | None, place: str
) -> None:
    seen = bench.drive(client, mode, place)
    assert seen.texts[:2] == ["1", "3"]
    assert seen.episode is not None
    # The call that failed is a step, the one after the end is none.
    assert (seen.episode["total"], seen.episode["step_count"]) == (3, 4)


@pytest.mark.parametrize(("client", "mode", "place"), EPISODES, ids=named)
def test_after_the_end_it_reads_that_the_episode_is_over(
    bench: Bench, client: StockClient, mode: str | None, place: str
) -> None:
    seen = bench.drive(client, mode, place)
    assert seen.failed[4] and OVER in seen.texts[4]


@pytest.mark.parametrize(("client", "mode", "place"), EPISODES, ids=named)
def test_invariant_2_it_is_sent_nothing_of_the_rewards_that_its_calls_earn(
    bench: Bench, client: StockClient, mode: str | None, place: str
) -> None:
    seen = bench.drive(client, mode, place)
    assert seen.episode is not None
    assert seen.episode["scored"] == pytest.approx(4 * OF_EACH_CALL)
    assert seen.rewards == []


def test_the_server_with_a_token_lets_nobody_in_without_it(bench: Bench) -> None:
    _, guarded = bench.servers
    # Without this header it would be OpenEnv's plain JSON-RPC, which is the control plane's.
    accept = {"Accept": "application/json, text/event-stream"}
    assert httpx.post(f"{guarded}/mcp", json={}, headers=accept).status_code == 401


@pytest.mark.parametrize(("client", "mode"), ROWS, ids=named)
def test_its_token_is_one_agent_whatever_its_sessions(bench: Bench, client: StockClient, mode: str | None) -> None:
    seen = bench.drive(client, mode, MCP + WITH_TOKEN)
    # Of other requests some go without: mcp-use looks first whether it would be asked for a token.
    assert {request.headers.get("authorization") for request in seen.calls()} == {f"Bearer {TOKEN}"}
    assert seen.kept
    assert int(seen.texts[4]) == int(seen.texts[1]) + 4


@pytest.mark.parametrize(("client", "mode"), ROWS, ids=named)
def test_without_a_token_it_keeps_state_unless_each_call_is_a_session_and_shares_it_if_it_has_none(
    bench: Bench, client: StockClient, mode: str | None
) -> None:
    seen = bench.drive(client, mode, MCP)
    assert seen.kept is not seen.sessions.startswith("one per call")
    assert seen.shared is (seen.protocol == STATELESS)


@pytest.mark.parametrize("client", CLIENTS, ids=named)
def test_the_line_of_the_table_is_one_of_its_program_or_a_command(client: StockClient) -> None:
    program = (HERE / "client_programs" / client.program).read_text(encoding="utf-8")
    assert client.line in program or client.line.startswith("npx ")


@pytest.mark.parametrize("package", sorted({package for client in CLIENTS for package in client.npm}))
def test_npm_installed_the_version_of_the_table(node_modules: Path, package: str) -> None:
    name, _, version = package.rpartition("@")
    assert json.loads((node_modules / name / "package.json").read_text(encoding="utf-8"))["version"] == version


@pytest.mark.timeout(2000)  # alone, it makes every run
def test_the_table_in_the_docs_is_what_was_seen(bench: Bench) -> None:
    def of(client: StockClient, mode: str | None) -> dict[str, Driven]:
        return {place: bench.drive(client, mode, place) for place in places_of(client)}

    seen = clients_table.rendered([(client, mode, of(client, mode)) for client, mode in ROWS])
    if os.environ.get("MCPENV_WRITE_TABLES"):
        clients_table.write(seen)
    assert clients_table.committed() == seen, "MCPENV_WRITE_TABLES=1 writes it"
