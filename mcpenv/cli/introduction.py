"""The introductions: texts printed once a server accepts connections, with its URLs and their use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from mcpenv.server.config import ServerConfig
from mcpenv.server.extension import installed
from mcpenv.server.security.host_check import is_loopback
from mcpenv.server.serve import address_of, is_wildcard
from mcpenv.targets.target import Target
from mcpenv_client.types.tools import Mode

from .output import Page
from .ready_file import write_ready_file
from .run_options import LOOPBACK, Addresses
from .tokens import AGENT_TOKEN


@dataclass(frozen=True)
class Introduction:
    """The text to print once a server accepts connections.

    Attributes:
        reloaded: True if it serves again after a change of its code.
        watched: the folder or file that is watched for changes; None without reload. A user with reload uses the server
            alone, and needs no advice about sharing it.
    """

    target: Target
    config: ServerConfig
    addresses: Addresses
    reloaded: bool = False
    watched: Path | None = None
    agents_need_token: bool = False

    @property
    def title(self) -> str:
        """The environment's name."""
        cls = self.target.environment_class
        return self.target.name if cls is None else cls.exposed_name()

    def urls(self, port: int, control_port: int) -> dict[str, str]:
        """Return URLs by purpose, for programs."""
        control = self._control(port, control_port)
        urls = {"url": f"http://{control}", "mcp": f"http://{self._here(self.addresses.host, port)}/mcp"}
        pages = {"docs": "api-docs" in installed(), "console": self.config.console}
        return urls | {name: f"http://{control}/{name}" for name, served in pages.items() if served}

    def show(
        self, stream: TextIO, ready_file: Path | None, port: int, control_port: int, agents_need_token: bool
    ) -> None:
        """Write the ready file, if it was requested, and print the text to ``stream``."""
        if ready_file is not None:
            public = self.config.public_url or f"http://{self._here(self.addresses.host, port)}"
            write_ready_file(ready_file, url=f"http://{self._control(port, control_port)}", mcp_url=f"{public}/mcp")
        replace(self, agents_need_token=agents_need_token)._show(stream, port, control_port)

    def _show(self, stream: TextIO, port: int, control_port: int) -> None:
        page, config = Page(stream), self.config
        here, control = self._here(self.addresses.host, port), self._control(port, control_port)
        title = (self.title, "bold")
        if self.reloaded:
            page.line(title, f" reloaded, {config.mode.value} mode, http://{here}")
            return
        public = config.public_url or f"http://{here}"
        page.line(title, f" in {config.mode.value} mode")
        page.line()
        mcp = "episodes/HANDLE/mcp" if config.require_handle else "mcp"
        if config.console:
            page.line("console  ", (f"http://{control}/console", "cyan"), indent=2)
        page.line("MCP      ", (f"http://{here}/{mcp}", "cyan"), indent=2)
        if config.public_url is not None:
            page.line("public   ", (f"{public}/{mcp}", "cyan"), indent=2)
        if self._controlled:
            page.line("control  ", (f"ws://{control}/ws", "cyan"), indent=2)
        if "api-docs" in installed():
            page.line("docs     ", (f"http://{control}/docs", "cyan"), indent=2)
        if config.record is not None:
            page.line("record   ", (str(config.record), "cyan"), indent=2)
        page.line()
        if config.require_handle:
            page.line("Agents are served only at an episode's own URL, info.mcp_url of a reset.")
        else:
            bearer = " --bearer" if self.agents_need_token else ""
            page.line("agents   ", (f"mcpenv connect claude-code {public}/mcp{bearer}", "cyan"), indent=2)
            page.line("         ", ("or another host: mcpenv connect --help", "dim"), indent=2)
        if self._controlled:
            token = ', token="..."' if config.control_token is not None else ""
            page.line("Python   ", (f'EnvClient("http://{control}"{token}).sync()', "cyan"), indent=2)
        page.line()
        for line in self._notes():
            page.line(line)
        watching = "" if self.watched is None else f"{_relative(self.watched)} is watched for changes. "
        page.line((f"{watching}Ctrl-C stops the server.", "dim"))

    def _notes(self) -> list[str | tuple[str, str]]:
        config = self.config
        notes: list[str | tuple[str, str]] = []
        if self.agents_need_token:
            notes.append(f"Agents need a token ({AGENT_TOKEN}); mcpenv connect --bearer shows where it goes.")
        elif not config.require_handle and self.watched is None:
            notes.append("Anonymous stateless MCP clients share one instance of the environment.")
        if config.mode is Mode.SIMULATION and config.control_token is None and self.watched is None:
            notes.append("Without a control token, an agent on this machine can reach the control plane.")
        if self._exposed:
            notes.append((f"Other machines reach {' and '.join(self._exposed)} without credentials.", "bold yellow"))
        return notes

    @property
    def _controlled(self) -> bool:
        return self.config.mode is Mode.SIMULATION or self.config.control_token is not None

    @property
    def _exposed(self) -> list[str]:
        """The parts of the server that ``--insecure`` opens to other machines."""
        apart = self.addresses.control_port is not None
        control_host = (self.addresses.control_host or LOOPBACK) if apart else self.addresses.host
        exposed = []
        if not self.agents_need_token and not is_loopback(self.addresses.host):
            exposed.append("the tools")
        if self._controlled and self.config.control_token is None and not is_loopback(control_host):
            exposed.append("the control plane")
        return exposed

    def _control(self, port: int, control_port: int) -> str:
        if self.addresses.control_port is None:
            return self._here(self.addresses.host, port)
        return self._here(self.addresses.control_host or LOOPBACK, control_port)

    def _here(self, host: str, port: int) -> str:
        """Return the address with which a client on this machine connects."""
        if is_wildcard(host):
            host = "::1" if ":" in host else LOOPBACK
        return address_of(host, port)


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
