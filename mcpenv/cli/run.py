"""The command ``mcpenv run``: serve an environment and print how to use it.

Its help imports this module, but not the server.
"""

from __future__ import annotations

from mcpenv.errors import ConfigurationError

from .ready_file import ready_file_at
from .run_options import Addresses, Credentials, Flag, Limits, Sessions
from .run_request import RunOptions, RunRequest


def run(
    target: str | None = None,
    /,
    *,
    mcp: str | None = None,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    debug: Flag = False,
    addresses: Addresses = Addresses(),  # noqa: B008
    credentials: Credentials = Credentials(),  # noqa: B008
    sessions: Sessions = Sessions(),  # noqa: B008
    limits: Limits = Limits(),  # noqa: B008
) -> int:
    """Serve an environment over HTTP or stdio, until Ctrl-C or SIGTERM.

    MCP clients connect to URL/mcp, orchestrators and trainers to URL, browsers to URL/console. Programs of this machine
    reach the server; for others give --host, and credentials. To write the configuration of an MCP host: mcpenv
    connect --help

    Args:
        target: The environment, in one of the forms at the end.
        mcp: Command or URL of an MCP server to serve as an environment, instead of a target.
        debug: Show the traceback when something fails.
    """
    if (target is None) == (mcp is None):
        raise ConfigurationError("name one environment: a TARGET, or --mcp with the command or URL of an MCP server")
    request = RunRequest(
        **vars(options),
        target=target if target is not None else f"mcp:{mcp}",
        addresses=addresses,
        credentials=credentials,
        sessions=sessions,
        limits=limits,
    )
    from .serving import serve

    with ready_file_at(options.ready_file):
        return serve(request)
