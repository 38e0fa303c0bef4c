"""The command ``mcpenv model-proxy``: record the requests of agents to a model, and its answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page
from mcpenv.cli.ready_file import ready_file_at, write_ready_file
from mcpenv.cli.run_options import Port
from mcpenv.cli.tool_arguments import json_object
from mcpenv.server.logs import configure_logging
from mcpenv.server.uvicorn_server import listen

from .app import HOST, serve
from .turn_files import TurnFile
from .upstream import Upstream


def model_proxy(
    *,
    base_url: str,
    out: Path,
    api_key_env: str | None = None,
    request_fields: str | None = None,
    port: Port = 0,
    ready_file: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Pass requests of agents on to a model's endpoint, and record them and the answers, by episode.

    The base URL of an agent is URL/episodes/EPISODE_ID for Anthropic's messages, and the same with /v1 for OpenAI's
    chat completions and responses. mcpenv trajectories join puts the turns into the record of the episodes. For agents
    that mcpenv eval starts, give --base-url to that command instead.

    Args:
        base_url: URL of the endpoint; /chat/completions, /responses or /v1/messages is added.
        out: Folder for the turns; a new file turns-*.jsonl is written there.
        api_key_env: Environment variable with the endpoint's key, which replaces the agents' keys. Default: agents use
            their own.
        request_fields: JSON object with further fields for each request, such as {"logprobs": true}.
        port: Port to listen on, on this machine only; 0 for any free one.
        ready_file: File to write once the proxy answers: a JSON object with url and turns.
        as_json: Print that object on one line, and nothing else on stdout.
        debug: Show logs, and the traceback when something fails.
    """
    upstream = Upstream(base_url, api_key_env, json_object("--request-fields", request_fields))
    configure_logging("debug" if debug else "warning")
    with listen(HOST, port) as door, contextlib.closing(TurnFile(out)) as file:
        ready = {"url": f"http://{HOST}:{door.getsockname()[1]}", "turns": str(file.path)}

        def started() -> None:
            if ready_file is not None:
                write_ready_file(ready_file, **ready)
            if as_json:
                print(json.dumps(ready), flush=True)
            else:
                _show(Page(sys.stdout), ready, upstream)

        with ready_file_at(ready_file):
            asyncio.run(serve(upstream, file, door, started))
    return 0


def _show(page: Page, ready: dict[str, str], upstream: Upstream) -> None:
    page.line("endpoint   ", (upstream.shown, "cyan"))
    page.line("Anthropic  ", (f"{ready['url']}/episodes/EPISODE_ID", "cyan"))
    page.line("OpenAI     ", (f"{ready['url']}/episodes/EPISODE_ID/v1", "cyan"))
    page.line("turns      ", (ready["turns"], "cyan"))
    page.line(("Ctrl-C ends it.", "dim"))
    sys.stdout.flush()
