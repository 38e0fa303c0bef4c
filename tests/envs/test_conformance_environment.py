"""The conformance environment where no MCP client is: in process, over ``/ws``, and by the contract kit."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpenv import MCPEnvironment
from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, ToolErrorType

FOLDER = Path(__file__).resolve().parents[2] / "envs" / "conformance_mcp"


def _load() -> type[MCPEnvironment]:
    """Its class; other environments have a module of the same name."""
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("conformance_environment", FOLDER / "environment.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[MCPEnvironment] = module.ConformanceEnvironment
    return found


ConformanceEnvironment = _load()

ARGUMENTS: dict[str, dict[str, Any]] = {
    "json_schema_2020_12_tool": {"name": "Ada", "phone": "1"},
    "test_sampling": {"prompt": "Hello"},
    "test_elicitation": {"message": "Who?"},
    "test_update_resource": {"uri": "test://watched-resource"},
    "test_mirrored_argument": {"region": "eu"},
}
NEEDS_A_CLIENT = (
    "test_sampling",
    "test_elicitation",
    "test_input_required",
    "test_streaming",
    "test_missing_capability",
)
SAYS_SO = ("nobody to ask", "did not come from one", "needs a client")


@pytest.mark.filterwarnings("ignore::mcpenv.extensions.contract.ContractWarning")
@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
class TestConformance(EnvironmentContract):
    factory = ConformanceEnvironment
    examples = {name: given for name, given in ARGUMENTS.items() if not name.startswith(NEEDS_A_CLIENT)}


def answered(name: str, error: Any) -> None:
    """Check that a tool worked, or failed because it needs an MCP client or always fails."""
    needs_a_client = name.startswith(NEEDS_A_CLIENT) and name != "test_input_required_result_capabilities"
    if needs_a_client:
        assert error.error_type is ToolErrorType.EXECUTION_ERROR, name
        assert any(words in error.message for words in SAYS_SO), (name, error.message)
    else:
        assert (error is not None) == (name == "test_error_handling"), (name, error)


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
def test_what_needs_an_mcp_client_says_so_in_process_and_is_a_step() -> None:
    with ConformanceEnvironment() as env:
        env.reset()
        names = [tool.name for tool in env.list_tools()]
        for name in names:
            answered(name, env.call_tool(name, ARGUMENTS.get(name, {})).error)
        assert env.step_count == len(names) > 25


def test_what_needs_an_mcp_client_says_so_to_an_orchestrator_and_is_a_step() -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as client:
            await client.reset()
            names = [tool.name for tool in await client.list_tools()]
            for name in names:
                answered(name, (await client.call_tool(name, ARGUMENTS.get(name, {}))).error)
            assert (await client.state()).step_count == len(names) > 25

    with serving(ConformanceEnvironment) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))
