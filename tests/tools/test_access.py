"""``auth=`` of tools: what an agent may not use does not exist for it, on every address; nobody else is asked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import AuthorizationError
from fastmcp.server.auth import AuthContext, StaticTokenVerifier, require_scopes
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from mcpenv import CallToolAction, ListToolsAction, MCPEnvironment, Mode
from mcpenv.server.config import ServerConfig
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

ERAS = ("legacy", "2026-07-28")
TIMEOUT_S = 30
TOKENS = {
    "token-of-ada": {"client_id": "ada", "sub": "ada", "scopes": ["write"]},
    "token-of-bob": {"client_id": "bob", "sub": "bob", "scopes": []},
}
ADA, BOB = TOKENS


class Ledger(MCPEnvironment):
    """Some may write."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.lines: list[str] = []

        @self.tool
        async def read() -> int:
            return len(self.lines)

        @self.tool(auth=require_scopes("write"), tags={"writing"})
        async def write(line: str) -> int:
            self.lines.append(line)
            return len(self.lines)

        @self.tool(auth=[require_scopes("write"), self.only_twice])
        def write_twice(line: str) -> int:
            self.lines.append(line)
            return len(self.lines)

        @self.tool(auth=broken)
        def out_of_order() -> None: ...

        @self.tool(auth=refusing, terminal=True)
        def seal() -> None: ...

    async def only_twice(self, context: AuthContext) -> bool:
        """A check that knows its instance."""
        return len(self.lines) < 2


class MountedServer(Ledger):
    """The same beside the tools of a server."""

    def __init__(self) -> None:
        server = FastMCP("books")

        @server.tool(auth=require_scopes("write"))
        def burn() -> str:
            """Burn all."""
            return "burnt"

        @server.tool
        def count() -> int:
            """Count."""
            return 0

        MCPEnvironment.__init__(self, server)
        super().__init__()


def broken(context: AuthContext) -> bool:
    raise RuntimeError("out of order")


def refusing(context: AuthContext) -> bool:
    raise AuthorizationError("nobody")


@pytest.fixture(scope="module", params=[Ledger, MountedServer])
def world(request: pytest.FixtureRequest) -> type[Ledger]:
    """The environment."""
    chosen: type[Ledger] = request.param
    return chosen


@pytest.fixture(scope="module", params=list(Mode))
def url(request: pytest.FixtureRequest, world: type[Ledger]) -> Iterator[str]:
    """A server on which Ada may write and Bob may not."""
    with serving(world, ServerConfig(mode=request.param), auth=StaticTokenVerifier(TOKENS)) as address:
        yield address


def for_all(world: type[Ledger]) -> set[str]:
    return {"read", "count"} if world is MountedServer else {"read"}


def for_writers(world: type[Ledger]) -> set[str]:
    return for_all(world) | {"write", "write_twice"} | ({"burn"} if world is MountedServer else set())


def for_orchestrators(world: type[Ledger]) -> set[str]:
    return for_writers(world) | {"out_of_order", "seal"}


async def listed(client: Any) -> set[str]:
    return {tool.name for tool in await client.list_tools()}


async def refused(client: Any, name: str, **arguments: Any) -> None:
    """The call is answered as that of a tool that does not exist."""
    answers = []
    for each in (name, name[:-1] + "0"):  # both are as near to the names of other tools
        with pytest.raises(MCPError) as caught:
            await client.call_tool(each, arguments)
        assert caught.value.error.code == INVALID_PARAMS
        answers.append(caught.value.error.message.replace(each, "?"))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("era", ERAS)
def test_what_an_agent_may_not_use_does_not_exist_for_it(url: str, world: type[Ledger], era: Any) -> None:
    async def main() -> None:
        async with Client(f"{url}/mcp", auth=BOB, mode=era) as bob:
            for _ in range(2):  # a prototype lists at first, Bob's own instance then
                assert await listed(bob) == for_all(world)
                assert (await bob.call_tool("read")).data == 0
            for name in for_orchestrators(world) - for_all(world):
                await refused(bob, name, line="bob was here")
            assert (await bob.call_tool("read")).data == 0

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_agents_with_static_tokens_have_the_scopes_that_they_are_given() -> None:
    auth = agent_auth_from(tokens={"ada": ADA, "bob": BOB}, scopes={"ada": ["read", "write"]})

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", auth=ADA) as ada, Client(f"{url}/mcp", auth=BOB) as bob:
            assert await listed(ada) == for_writers(Ledger)
            assert await listed(bob) == for_all(Ledger)

    with serving(Ledger, auth=auth) as url:
        asyncio.run(asyncio.wait_for(main(url), TIMEOUT_S))


@pytest.mark.parametrize("era", ERAS)
def test_a_check_is_made_anew_at_every_use(world: type[Ledger], era: Any) -> None:
    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", auth=ADA, mode=era) as ada:
            assert await listed(ada) == for_writers(world)
            assert (await ada.call_tool("write", {"line": "one"})).data == 1
            assert (await ada.call_tool("write_twice", {"line": "two"})).data == 2
            assert await listed(ada) == for_writers(world) - {"write_twice"}
            await refused(ada, "write_twice", line="three")
            assert (await ada.call_tool("read")).data == 2

    with serving(world, auth=StaticTokenVerifier(TOKENS)) as url:
        asyncio.run(asyncio.wait_for(main(url), TIMEOUT_S))


@pytest.mark.parametrize("era", ERAS)
def test_on_an_episode_the_orchestrator_is_not_asked_and_a_refused_call_is_no_step(
    world: type[Ledger], era: Any
) -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as orchestrator:
            mcp_url = (await orchestrator.reset()).info["mcp_url"]
            assert await listed(orchestrator) == for_orchestrators(world)
            assert (await orchestrator.call_tool("write", {"line": "mine"})).text == "1"
            async with Client(mcp_url, auth=BOB, mode=era) as bob:
                assert await listed(bob) == for_all(world)
                await refused(bob, "write", line="bob's")
                async with Client(mcp_url, auth=ADA, mode=era) as ada:
                    assert (await ada.call_tool("write", {"line": "ada's"})).data == 2
                assert (await orchestrator.state()).step_count == 3  # "nonesuch" was one
                assert (await orchestrator.call_tool("seal")).done
                assert await listed(bob) == for_all(world)
                await orchestrator.reset()
                assert await listed(bob) == for_all(world)

    with serving(world, auth=StaticTokenVerifier(TOKENS)) as url:
        asyncio.run(asyncio.wait_for(main(url), TIMEOUT_S))


def test_in_process_nobody_is_asked(world: type[Ledger]) -> None:
    with world() as env:
        env.reset()
        assert {tool.name for tool in env.step(ListToolsAction()).tools} == for_orchestrators(world)
        assert env.step(CallToolAction(tool_name="write", arguments={"line": "a"})).result.data == 1


def test_without_a_token_an_agent_has_only_what_is_for_all(world: type[Ledger]) -> None:
    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            assert await listed(client) == for_all(world)
            await refused(client, "write", line="anonymous")

    with serving(world) as url:
        asyncio.run(asyncio.wait_for(main(url), TIMEOUT_S))


@pytest.mark.extension("stdio")
@pytest.mark.process
def test_a_client_over_stdio_started_the_server_and_may_all(tmp_path: Path) -> None:
    program = tmp_path / "ledger.py"
    program.write_text(
        "from mcpenv.extensions.stdio.serving import serve_stdio\n"
        "from mcpenv.server.config import ServerConfig\n"
        "from test_access import Ledger\n\n"
        "serve_stdio(Ledger, ServerConfig(), log_level='error')\n"
    )

    async def main() -> None:
        servers = {
            "ledger": {
                "command": sys.executable,
                "args": [str(program)],
                "env": {"PYTHONPATH": str(Path(__file__).parent)},
            }
        }
        async with Client({"mcpServers": servers}) as client:
            assert await listed(client) == for_orchestrators(Ledger)
            assert (await client.call_tool("write", {"line": "a"})).data == 1

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_checks_made_for_each_instance_cost_no_parse() -> None:
    first, second = Ledger(), Ledger()
    kinds = [[tool.kind for tool in env._execution.tools.listed(Mode.SIMULATION)] for env in (first, second)]
    assert all(one is other for one, other in zip(*kinds, strict=True))
