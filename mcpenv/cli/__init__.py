"""The command line.

For environments and servers: ``mcpenv init | dev | run | inspect | call | connect | sessions | manifest |
import-openenv``. To ship them: ``mcpenv build | push | fork | deploy``. For tasks and episodes: ``mcpenv tasks |
validate | eval | model-proxy | trajectories | console | replay | rescore``.

Exit status 0: success. 1: the environment's code failed (a tool, a reset). 2: the command was refused before it ran
(usage, TARGET, configuration, connection). 130: Ctrl-C. A failure prints one line on stderr, and with ``--json`` one
JSON object on stdout; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from mcpenv import __version__
from mcpenv.errors import InvalidTasks, StartupError
from mcpenv_client.errors import ConnectionFailed, ListingFailed, McpenvError

from .failure import USAGE, Failures, asks_for_json
from .output import settle_streams, short_warnings

FAILED = 1
REFUSED = 2
INTERRUPTED = 130

_REFUSALS = (StartupError, InvalidTasks, ConnectionFailed, ListingFailed)

app = App(
    name="mcpenv",
    version=__version__,
    help="Tool environments, written once: served to MCP clients, stepped by orchestrators.",
    help_epilogue=(
        "TARGET is a folder with mcpenv.yaml or environment.py, a .py file, folder:Class, module:Class, "
        "module:factory, a folder with openenv.yaml, the name of an installed environment (echo_mcp), or "
        "harbor:PATH, tau2:DOMAIN, openapi:URL, gymnasium:ID, fleet:KEY; for MCP servers a JSON file with mcpServers, "
        "mcp:COMMAND, mcp:URL, or cassette:DIR; for `run` also hub:OWNER/NAME@REVISION and image:REF."
    ),
)

# Named by import path, so that `mcpenv --help` does not load the server.
app.command(
    "mcpenv.extensions.shipping.init:init",
    name="init",
    help="Make a new environment's folder.",
    help_epilogue="",
    sort_key=0,
)
app.command("mcpenv.cli.run:run", name="run", help="Serve an environment over HTTP or stdio.", sort_key=1)
app.command("mcpenv.extensions.reload.dev:dev", name="dev", help="Serve an environment while you write it.", sort_key=1)
app.command("mcpenv.cli.inspect:inspect", name="inspect", help="Show tools, schemas and modes.", sort_key=2)
app.command("mcpenv.cli.call:call", name="call", help="Call one tool.", sort_key=3)
app.command("mcpenv.cli.play:play", name="play", help="Play an episode by hand.", sort_key=3)
tasks = App(name="tasks", help="Show the tasks of an environment.", sort_key=4)
tasks.command("mcpenv.cli.tasks:list_tasks", name="list", help="List tasks.", sort_key=1)
tasks.command("mcpenv.cli.tasks:show_task", name="show", help="Show one task in full.", sort_key=2)
tasks.command(
    "mcpenv.extensions.harbor.export_tasks:export_tasks",
    name="export",
    help="Write tasks as task directories of Harbor.",
    sort_key=3,
)
tasks.command(
    "mcpenv.extensions.harbor.served_episode:serve", name="serve", help="Serve one episode of a task.", sort_key=4
)
tasks.command(
    "mcpenv.extensions.harbor.served_episode:score",
    name="score",
    help="End a served episode, and print its score.",
    sort_key=5,
)
app.command(tasks)
app.command(
    "mcpenv.extensions.validation.validate:validate",
    name="validate",
    help="Judge an environment: is it sound?",
    sort_key=5,
)
app.command(
    "mcpenv.extensions.shipping.build:build",
    name="build",
    help="Build the container image of an environment.",
    help_epilogue="",
    sort_key=11,
)
app.command(
    "mcpenv.extensions.shipping.push:push",
    name="push",
    help="Send an environment to a registry or a Space.",
    help_epilogue="",
    sort_key=12,
)
app.command(
    "mcpenv.extensions.shipping.fork:fork",
    name="fork",
    help="Copy the environment of a Space.",
    help_epilogue="",
    sort_key=13,
)
app.command("mcpenv.cli.connect:connect", name="connect", help="Configure an MCP host for an environment.", sort_key=6)
app.command(
    "mcpenv.cli.sessions:sessions", name="sessions", help="Show a server's sessions.", help_epilogue="", sort_key=7
)
_of_records = App(
    name="trajectories", help="List, show, export, check and join recorded episodes.", help_epilogue="", sort_key=8
)
_of_records.command("mcpenv.extensions.records.command:list_episodes", name="list", help="List episodes.", sort_key=1)
_of_records.command("mcpenv.extensions.records.command:show", name="show", help="Show one episode.", sort_key=2)
_of_records.command(
    "mcpenv.extensions.records.command:stats", name="stats", help="Show figures of a record.", sort_key=3
)
_of_records.command(
    "mcpenv.extensions.exports.command:export_episodes",
    name="export",
    help="Write chats, Parquet, ATIF, or a page to share.",
    sort_key=4,
)
_of_records.command(
    "mcpenv.extensions.records.check_command:check_command", name="check", help="Find unsound episodes.", sort_key=5
)
_of_records.command(
    "mcpenv.extensions.model_proxy.join_turns:join_command", name="join", help="Add the turns of models.", sort_key=6
)
app.command(_of_records)
app.command(
    "mcpenv.extensions.console.command:console",
    name="console",
    help="Show recorded episodes in the browser.",
    help_epilogue="",
    sort_key=8,
)
app.command("mcpenv.cli.replay:replay", name="replay", help="Replay recorded calls and compare results.", sort_key=9)
app.command(
    "mcpenv.extensions.records.rescore:rescore",
    name="rescore",
    help="Score recorded episodes again with another rubric.",
    help_epilogue="",
    sort_key=10,
)
app.command(
    "mcpenv.extensions.evaluation.evaluations:evaluations",
    name="eval",
    help="Evaluate an agent on the tasks, or compare two evaluations.",
    sort_key=7,
)
app.command(
    "mcpenv.extensions.model_proxy.command:model_proxy",
    name="model-proxy",
    help="Record what agents ask of a model.",
    help_epilogue="",
    sort_key=7,
)
app.command(
    "mcpenv.extensions.openenv.import_openenv:import_openenv",
    name="import-openenv",
    help="Convert an OpenEnv environment to mcpenv.",
    help_epilogue="",
    sort_key=20,
)


_of_deployments = App(name="deploy", help="Write manifests for a cluster.", help_epilogue="", sort_key=18)
_of_deployments.command(
    "mcpenv.extensions.shipping.deploy:k8s", name="k8s", help="Write or check manifests of Kubernetes."
)
app.command(_of_deployments)

_of_manifests = App(name="manifest", help="Show the format of mcpenv.yaml.", help_epilogue="", sort_key=19)
_of_manifests.command("mcpenv.cli.manifest:schema", name="schema", help="Print its JSON Schema for editors.")
app.command(_of_manifests)


def main() -> None:
    """Run the command line of this process and exit with its status."""
    status = execute(sys.argv[1:])
    gc.freeze()  # the interpreter would collect what was imported as it ends, for some 0.3 s
    sys.exit(status)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    settle_streams()
    try:
        return _run(arguments, Failures(asks_for_json(arguments)))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. The interpreter's flush at exit would fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(arguments: Sequence[str], failures: Failures) -> int:
    try:
        command, bound, _ = app.parse_args(list(arguments), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        return failures.print(f"{error} (see --help)", USAGE, REFUSED)
    debug = bool(bound.arguments.get("debug"))
    try:
        with short_warnings():
            status = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except McpenvError as error:
        if debug:
            traceback.print_exception(error)
        return failures.print(str(error), error, REFUSED if isinstance(error, _REFUSALS) else FAILED)
    except Exception as error:  # noqa: BLE001 - the command line's boundary: a bug in mcpenv
        if debug:
            traceback.print_exception(error)
        text = f"{type(error).__name__}: {error} (a bug in mcpenv; --debug shows the traceback)"
        return failures.print(text, error, FAILED)
    return int(status or 0)


__all__ = ["app", "execute", "main"]
