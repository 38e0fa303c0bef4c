"""The lines to paste into the configuration of MCP hosts, which ``mcpenv run`` prints on a terminal."""

from __future__ import annotations

from pathlib import Path

from mcpenv.cli.output import Page
from mcpenv_client.types.tools import Mode

from .hosts import PASTED, Machine, Server


def print_pasted(page: Page, name: str, spec: str, mode: Mode) -> None:
    """Print, for each host, the lines by which it starts an environment over stdio.

    Args:
        name: the name of the server in the host.
        spec: the TARGET of the environment.
    """
    server = Server.over_stdio(name, spec, ("--mode", mode.value))
    machine = Machine.here()
    page.line("To use it from an MCP host, paste (or see: mcpenv connect --help)")
    page.line()
    for host in PASTED:
        file = host.file(machine)
        page.line((host.title, "bold"), (f"  {_shown(file, machine)}" if file is not None else "", "dim"), indent=2)
        page.block(host.snippet(server), indent=4)
        page.line()


def _shown(file: Path, machine: Machine) -> str:
    if file.is_relative_to(machine.folder):
        return str(file.relative_to(machine.folder))
    return f"~/{file.relative_to(machine.home).as_posix()}" if file.is_relative_to(machine.home) else str(file)
