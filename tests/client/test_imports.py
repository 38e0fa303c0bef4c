"""Test what importing the client costs, and what it must not import."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import mcpenv_client

BUDGET = 1.6
"""Times pydantic with a model and websockets."""
NOT_IMPORTED = ("mcpenv", "fastmcp", "mcp", "mcp_types", "starlette", "uvicorn", "httpx", "httpx2", "anyio", "numpy")


def run(script: str) -> str:
    """Return the output of a script in a Python of its own."""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.smoke
def test_invariant_10_the_client_imports_nothing_of_a_server() -> None:
    loaded = run(
        "import sys, mcpenv_client; mcpenv_client.EnvClient; print(*(name for name in sys.modules if '.' not in name))"
    ).split()
    assert not set(NOT_IMPORTED) & set(loaded)
    assert {"pydantic", "websockets"} <= set(loaded)


@pytest.mark.process
def test_importing_the_package_alone_loads_nothing_else() -> None:
    loaded = run("import sys, mcpenv_client; print(*(name for name in sys.modules if '.' not in name))").split()
    assert not {"pydantic", "websockets"} & set(loaded)
    assert run("import mcpenv_client; print(mcpenv_client.errors.SessionLost.__name__)") == "SessionLost"


@pytest.mark.process
def test_the_server_loads_no_http_client_of_its_own_before_it_asks_somebody() -> None:
    assert run("import sys, mcpenv; print('httpx' in sys.modules)") == "False"


OF_AN_EXTRA = (
    "mcp_client",
    *("pool.actor", "providers.kubernetes_api", "providers.ray_servers", "providers.sandbox_api"),
    *(
        f"trainers.{name}"
        for name in (
            "agent_function",
            "atropos",
            "gymnasium",
            "inspect",
            "skyrl",
            "text_spaces",
            "tinker",
            "trl",
            "verifiers",
            "verl",
        )
    ),
)
"""The beginnings of modules that import httpx, or packages which the tests' extra does not have."""


@pytest.mark.process
def test_invariant_10_every_module_but_mcp_client_does_without_mcp() -> None:
    folder = Path(mcpenv_client.__file__).parent
    modules = sorted(
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if path.stem != "__init__"
    )
    names = [name for name in modules if not name.startswith(OF_AN_EXTRA)]
    assert all(any(name.startswith(extra) for name in modules) for extra in OF_AN_EXTRA)
    assert len(names) > 20
    imports = "; ".join(f"import mcpenv_client.{name}" for name in names)
    loaded = run(f"import sys; {imports}; print(*(name for name in sys.modules if '.' not in name))").split()
    assert not set(NOT_IMPORTED) & set(loaded)


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mcp", "mcp_types", "httpx2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import mcpenv_client
for ask in ("from mcpenv_client.mcp_client import MCPToolClient", "mcpenv_client.MCPToolClient"):
    try:
        exec(ask)
    except ImportError as error:
        print(error)
"""


@pytest.mark.process
def test_invariant_10_the_mcp_client_names_its_extra_where_mcp_is_missing() -> None:
    lines = run(WITHOUT).splitlines()
    assert len(lines) == 2
    assert all('pip install "mcpenv-client[mcp]"' in line for line in lines)


@pytest.mark.process
def test_httpx_is_loaded_by_the_first_request_over_http_only() -> None:
    script = """
import asyncio, sys
from mcpenv_client import ConnectionFailed, EnvClient
client = EnvClient("http://127.0.0.1:9")
try:
    asyncio.run(client.connect())
except ConnectionFailed:
    print("httpx" in sys.modules)
try:
    asyncio.run(client.metadata())
except ConnectionFailed:
    print("httpx" in sys.modules)
"""
    assert run(script).split() == ["False", "True"]


@pytest.mark.process
def test_importing_costs_little_more_than_what_it_stands_on() -> None:
    # Processor time, the best of some runs, beside each other: a slow or busy machine has no part in the ratio.
    script = "import time; begun = time.process_time(); {}; print(time.process_time() - begun)"
    # pydantic loads most of itself with the first model.
    stands_on = "import websockets.asyncio.client, pydantic; pydantic.create_model('M', a=(int, 1))"
    beneath, whole = [], []
    for _ in range(5):
        beneath.append(float(run(script.format(stands_on))))
        whole.append(float(run(script.format("from mcpenv_client import EnvClient"))))
    assert min(whole) <= BUDGET * min(beneath)


def test_all_names_what_is_there_once() -> None:
    assert len(set(mcpenv_client.__all__)) == len(mcpenv_client.__all__)
    for name in mcpenv_client.__all__:
        getattr(mcpenv_client, name)
    public = {
        name
        for name, value in vars(mcpenv_client).items()
        if str(getattr(value, "__module__", "")).startswith("mcpenv_client")
    }
    assert public - set(mcpenv_client.__all__) <= {"MCPToolClient", "lazy_names", "__getattr__", "__dir__", "_get"}


def test_the_version_is_that_of_the_distribution() -> None:
    assert mcpenv_client.__version__ == importlib.metadata.version("mcpenv-client")


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        getattr(mcpenv_client, "nothing")  # noqa: B009
