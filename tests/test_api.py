"""The names that `mcpenv` offers, and the cost of loading it: FastMCP only where it is needed."""

from __future__ import annotations

import importlib.metadata
import pkgutil
import subprocess
import sys

import pytest

import mcpenv
import mcpenv_client
from mcpenv import api, server

LOADED = "print('fastmcp' in sys.modules)"


def run(script: str) -> str:
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_all_names_what_is_there_once() -> None:
    assert len(set(api.__all__)) == len(api.__all__)
    assert mcpenv.__all__ == [*api.__all__, "__version__"]
    for name in mcpenv.__all__:
        assert getattr(mcpenv, name) is not None
        assert name in dir(mcpenv)
    assert mcpenv.__version__ == importlib.metadata.version("mcpenv")


def test_there_are_few_enough_to_read() -> None:
    assert len(mcpenv.__all__) <= 60


def test_what_trainers_compute_is_in_the_client_too() -> None:
    for name in ("advantages", "ranks", "score_of"):
        assert getattr(mcpenv_client, name) is getattr(mcpenv, name)


def test_nothing_offered_is_called_as_a_module_of_ours() -> None:
    assert not {module.name for module in pkgutil.iter_modules(mcpenv.__path__)} & set(api.__all__)


@pytest.mark.process
def test_what_is_not_there_is_said_as_of_every_module() -> None:
    with pytest.raises(AttributeError, match="module 'mcpenv' has no attribute 'nonsense'"):
        getattr(mcpenv, "nonsense")  # noqa: B009
    assert not hasattr(mcpenv, "__wrapped__")
    assert run("try:\n    from mcpenv import nonsense\nexcept ImportError as error: print(error.name)") == "mcpenv"


@pytest.mark.process
def test_names_are_there_however_they_are_asked_for() -> None:
    assert (
        run("import mcpenv; print(mcpenv.Reward(1.0).value, mcpenv.trajectories.Recorder is mcpenv.Recorder)")
        == "1.0 True"
    )
    assert run("from mcpenv import *; print(MCPEnvironment.__module__, __version__ > '')") == "mcpenv.environment True"


@pytest.mark.process
def test_what_a_program_puts_on_the_module_stays() -> None:
    put = "import mcpenv; mcpenv.Recorder = 'mine'; mcpenv.MCPEnvironment; hasattr(mcpenv, 'newer')"
    assert run(f"{put}; print(mcpenv.Recorder)") == "mine"
    assert not hasattr(mcpenv, "a.b")


@pytest.mark.process
def test_threads_may_load_it_at_once() -> None:
    script = (
        "import mcpenv, threading\n"
        "wrong = []\n"
        "threading.excepthook = lambda args: wrong.append(args.exc_value)\n"
        "barrier = threading.Barrier(4)\n"
        "def load(name):\n"
        "    barrier.wait()\n"
        "    getattr(mcpenv, name)\n"
        "names = ['MCPEnvironment', 'Recorder', 'tasks', 'worlds']\n"
        "threads = [threading.Thread(target=load, args=(name,)) for name in names]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(wrong)"
    )
    assert run(script) == "[]"


@pytest.mark.process
def test_the_names_to_embed_a_server_are_those_of_its_package() -> None:
    assert run("from mcpenv.server import *; print(create_app.__module__, EnvServer, serving, AgentTokens)")
    assert run("from mcpenv.server import ServerConfig as C, config; print(C is config.ServerConfig)") == "True"
    for name in server.__all__:
        assert getattr(server, name).__module__.startswith("mcpenv.server.")
    with pytest.raises(AttributeError, match=r"module 'mcpenv\.server' has no attribute 'nonsense'"):
        getattr(server, "nonsense")  # noqa: B009


NO_SERVER = [
    "mcpenv.cli",
    *(f"mcpenv.extensions.shipping.{name}" for name in ("init", "build", "push", "fork")),
    "mcpenv.extensions.records.command",
    "mcpenv.trajectories",
    "mcpenv.tasks",
    "mcpenv.server.config",
]


@pytest.mark.smoke
def test_what_needs_no_server_loads_no_fastmcp() -> None:
    assert run("; ".join(["import sys", *(f"from {module} import *" for module in NO_SERVER), LOADED])) == "False"


@pytest.mark.smoke
def test_an_environment_loads_fastmcp() -> None:
    assert run(f"import sys; from mcpenv.environment import *; {LOADED}") == "True"
