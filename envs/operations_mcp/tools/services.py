"""Services, what they need, and their nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Id, Rows, ServiceName


class ServiceTools:
    """Tools of services and their nodes."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_services,
            self.get_service,
            self.list_dependencies,
            self.list_dependents,
            self.restart_service,
            self.stop_service,
            self.start_service,
            self.scale_service,
            self.set_memory,
            self.list_nodes,
            self.drain_node,
            self.return_node,
        )

    def list_services(self) -> Rows:
        """List all services with their teams, tiers and present health: ok, degraded or down."""
        states = {row["id"]: row["state"] for row in self.desk.find("health")}
        columns = "id, name, team, tier, kind"
        rows = self.desk.find("services", columns)
        return [{**self.desk.public(row), "health": states[row["id"]]} for row in rows]

    def get_service(self, service: ServiceName) -> Row:
        """Show a service: owner, tier, replicas, memory, health, and more.

        Traffic, and the capacity of one replica, are in requests a second; warm_up is minutes after a start until it is
        fast.
        """
        row = self.desk.service(service)
        return {**self.desk.public(row), "health": self.desk.row("health", row["id"])["state"]}

    def list_dependencies(self, service: ServiceName) -> Rows:
        """List the services that a service calls. Where one has a fallback, fallback is the id of the flag for it."""
        return self.desk.shown_of("links", service)

    def list_dependents(self, service: ServiceName) -> Rows:
        """List the services that call a service, and therefore suffer if it fails."""
        return self.desk.shown_of("links", needs=self.desk.service(service)["id"])

    def restart_service(self, service: ServiceName) -> Row:
        """Stop and start all replicas. It helps those that hang; a cold service is slow for its warm_up."""
        row = self._ours(service)
        changes = {"state": "running", "stuck": 0, "restarts": row["restarts"] + 1, "started_at": self.desk.now}
        return self.desk.done(self.desk.update("services", row["id"], **changes))

    def stop_service(self, service: ServiceName) -> Row:
        """Stop a service. Whatever calls it fails until it is started."""
        return self.desk.done(self.desk.update("services", self._ours(service)["id"], state="stopped"))

    def start_service(self, service: ServiceName) -> Row:
        """Start a service that is stopped."""
        row = self._ours(service)
        if row["state"] == "running":
            raise ToolError(f"{row['name']} runs already. Use restart_service to start it anew.")
        return self.desk.done(self.desk.update("services", row["id"], state="running", started_at=self.desk.now))

    def scale_service(self, service: ServiceName, replicas: Annotated[int, Field(ge=1, le=500)]) -> Row:
        """Set the number of replicas. Each opens as many database connections as the setting pool_size says."""
        row = self._ours(service)
        if replicas > row["max_replicas"]:
            raise ToolError(f"{row['name']} may have at most {row['max_replicas']} replicas. Ask for fewer.")
        return self.desk.done(self.desk.update("services", row["id"], replicas=replicas))

    def set_memory(self, service: ServiceName, memory_mb: Annotated[int, Field(ge=64, le=65_536)]) -> Row:
        """Set the limit of memory of each replica, in MB."""
        return self.desk.done(self.desk.update("services", self._ours(service)["id"], memory_mb=memory_mb))

    def list_nodes(self, service: ServiceName) -> Rows:
        """List the nodes of a service. The log of a service names nodes that fail."""
        return self.desk.shown_of("nodes", service)

    def drain_node(self, node: Id) -> Row:
        """Take a node out of service. The others take its requests."""
        row = self.desk.row("nodes", node)
        if sum(each["serving"] for each in self.desk.find("nodes", service=row["service"])) <= row["serving"]:
            raise ToolError(f"Node {node} is the last one that serves. Return another one before.")
        return self.desk.done(self.desk.update("nodes", node, serving=0))

    def return_node(self, node: Id) -> Row:
        """Put a node that was drained back into service."""
        return self.desk.done(self.desk.update("nodes", node, serving=1))

    def _ours(self, name: str) -> Row:
        row = self.desk.service(name)
        if row["kind"] == "provider":
            raise ToolError(f"{row['name']} is run by another company. It cannot be changed from here.")
        return row
