"""The command ``mcpenv console``: look at a record in the browser, without its environment."""

from __future__ import annotations

import json
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page
from mcpenv.cli.ready_file import ready_file_at, write_ready_file
from mcpenv.cli.run_options import Port
from mcpenv.extensions.evaluation.run_listing import RunListing
from mcpenv.server.logs import configure_logging

from .viewer import HOST, has_record, record_in, serve_viewer, viewer


def console(
    directory: Path,
    /,
    *,
    port: Port = 0,
    open_page: Annotated[bool, Parameter(name="--open", negative=(), show_default=False)] = False,
    ready_file: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Show recorded episodes, or evaluations to compare, in the console, on this machine only.

    The record may grow meanwhile. A running server that records shows its own at /console.

    Args:
        directory: Folder that was given as --record, or as --out to mcpenv eval, or a folder of several of those:
            the records of several servers are shown as one.
        port: Port to listen on; 0 for any free one.
        open_page: Open the console in a browser.
        ready_file: File to write once the console answers: a JSON object with url, console, and record or
            evaluations.
        as_json: Print that object on one line, and nothing else on stdout.
        debug: Show the traceback when something fails.
    """
    runs = RunListing(directory)
    evaluations = runs if runs.names() else None
    record = None if evaluations is not None and not has_record(directory) else record_in(directory)
    configure_logging("warning")

    def started(port: int) -> None:
        url = f"http://{HOST}:{port}"
        ready = {"url": url, "console": f"{url}/console"}
        if record is not None:
            ready["record"] = str(record)
        if evaluations is not None:
            ready["evaluations"] = str(directory)
        if ready_file is not None:
            write_ready_file(ready_file, **ready)
        if as_json:
            print(json.dumps(ready), flush=True)
        else:
            page = Page(sys.stdout)
            for name in [each for each in ready if each != "url"]:
                page.line(f"{name:13}", (ready[name], "cyan"))
            page.line(("Ctrl-C ends it.", "dim"))
            sys.stdout.flush()
        if open_page:
            threading.Thread(target=webbrowser.open, args=(ready["console"],), daemon=True).start()

    with ready_file_at(ready_file):
        serve_viewer(viewer(record, directory.resolve().name, evaluations), port, started)
    return 0
