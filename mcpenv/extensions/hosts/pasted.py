"""The lines to paste into the configuration of MCP hosts, which ``mcpenv run`` prints on a terminal."""

from __future__ import annotations

from pathlib import Path

from mcpenv.cli.output import Page
from mcpenv_client.types.tools import Mode

from .hosts import PASTED, Place, Server


def print_pasted(page: Page, name: str, spec: str, mode: Mode) -> None:
    """Print, for each host, the lines by which it starts an environment over stdio.

    Args:
        name: the name of the server in the host.
        spec: the TARGET of the environment.
    """
    server = Server.over_stdio(name, spec, ("--mode", mode.value))
    place = Place.here()
    page.line("To use it from an MCP host, paste (or see: mcpenv connect --help)")
    page.line()
    for host in PASTED:
        file = host.file(place)
        page.line((host.title, "bold"), (f"  {_shown(file, place)}" if file is not None else "", "dim"), indent=2)
        page.block(host.snippet(server), indent=4)
        page.line()


def _shown(file: Path, place: Place) -> str:
    if file.is_relative_to(place.folder):
        return str(file.relative_to(place.folder))
    return f"~/{file.relative_to(place.home).as_posix()}" if file.is_relative_to(place.home) else str(file)
