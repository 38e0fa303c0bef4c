"""The tools of operations, in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mcpenv.extensions.generated_worlds import Replies

from ..desk import Desk
from ..policy import RULES, TITLE
from .changes import DeploymentTools, SettingTools
from .people import IncidentTools, KnowledgeTools, OnCallTools
from .resources import DatabaseTools, DiskTools, NetworkTools, QueueTools, SecurityTools
from .services import ServiceTools
from .watching import WatchTools


class Group(Protocol):
    """A group of tools."""

    @property
    def tools(self) -> tuple[Callable[..., Any], ...]:
        """The functions."""
        ...


class ReplyTools(Replies):
    """Tools by which the agent replies."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, TITLE, RULES)
        self.tools = (self.answer, self.decline)


GROUPS: dict[str, Callable[[Desk], Group]] = {
    "services": ServiceTools,
    "deployments": DeploymentTools,
    "settings and flags": SettingTools,
    "queues": QueueTools,
    "disks and jobs": DiskTools,
    "databases": DatabaseTools,
    "certificates and credentials": SecurityTools,
    "network": NetworkTools,
    "alerts, metrics and logs": WatchTools,
    "on-call": OnCallTools,
    "incidents": IncidentTools,
    "runbooks and tickets": KnowledgeTools,
    "replies": ReplyTools,
}


def tools_of(desk: Desk) -> dict[str, Callable[..., Any]]:
    """Return all tools by name."""
    return {tool.__name__: tool for group in GROUPS.values() for tool in group(desk).tools}
