"""What is changed most often: deployments, settings, flags, change freezes and approvals."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import AnyService, Id, Rows, ServiceName, Short


class DeploymentTools:
    """Tools of deployments, freezes and approvals."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_deployments,
            self.get_deployment,
            self.roll_back,
            self.deploy_version,
            self.list_freezes,
            self.request_approval,
        )

    def list_deployments(self, service: ServiceName) -> Rows:
        """List the deployments of a service, oldest first: version, time, summary, and whether each is live."""
        return self.desk.shown_of("deployments", service)

    def get_deployment(self, deployment: Id) -> Row:
        """Show a deployment. migration 1 means that it has changed the schema of a database."""
        return self.desk.public(self.desk.row("deployments", deployment))

    def roll_back(self, service: ServiceName) -> Row:
        """Replace the live version of a service by the one before. A schema that was migrated stays as it is."""
        row = self.desk.service(service)
        every = self.desk.find("deployments", service=row["id"])
        live = [each for each in every if each["status"] == "live"]
        before = [each for each in every if each["status"] == "previous"]
        if not live or not before:
            raise ToolError(f"{row['name']} has no version before the live one. See list_deployments.")
        return self._switch(row, live[-1], before[-1])

    def deploy_version(self, service: ServiceName, version: Short) -> Row:
        """Make another version of a service live that list_deployments has."""
        row = self.desk.service(service)
        wanted = self.desk.find("deployments", service=row["id"], version=version.strip())
        if not wanted or wanted[0]["status"] == "live":
            raise ToolError(f"{version[:40]!r} is no version that can be deployed. See list_deployments.")
        live = self.desk.find("deployments", service=row["id"], status="live")
        return self._switch(row, live[0], wanted[0])

    def _switch(self, service: Row, old: Row, new: Row) -> Row:
        back = new["id"] < old["id"]
        self.desk.update("deployments", old["id"], status="rolled back" if back else "previous")
        defect = "schema" if back and old["migration"] else new["defect"]
        found = self.desk.update("deployments", new["id"], status="live", defect=defect)
        self.desk.update("services", service["id"], started_at=self.desk.now)
        return self.desk.done(found)

    def list_freezes(self, service: AnyService = None) -> Rows:
        """List change freezes, past, present and future. The tool now has the time."""
        return self.desk.shown_of("freezes", service)

    def request_approval(
        self, service: ServiceName, action: Annotated[Literal["rollback", "failover"], Field(description="For what")]
    ) -> Row:
        """Ask the lead of the team that owns a service for an approval, and get it."""
        row = self.desk.service(service)
        lead = self.desk.row("teams", row["team"])["lead"]
        return self.desk.done(
            self.desk.insert("approvals", service=row["id"], action=action, approver=lead, at=self.desk.now)
        )


class SettingTools:
    """Tools of settings and feature flags."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.list_settings, self.set_setting, self.list_flags, self.set_flag)

    def list_settings(self, service: ServiceName) -> Rows:
        """List the settings of a service with their values, the values before, and who changed them when."""
        return self.desk.shown_of("settings", service)

    def set_setting(
        self,
        service: ServiceName,
        name: Annotated[str, Field(min_length=1, max_length=60, examples=["timeout_ms"])],
        value: Annotated[str, Field(min_length=1, max_length=200)],
    ) -> Row:
        """Change a setting of a service."""
        row = self.desk.service(service)
        found = self.desk.find("settings", service=row["id"], name=name.strip())
        if not found:
            known = ", ".join(each["name"] for each in self.desk.find("settings", service=row["id"]))
            raise ToolError(f"{row['name']} has no setting {name[:40]!r}. It has: {known or 'none'}.")
        old, new = found[0]["value"], value.strip()
        if old.isdecimal() and not (new.isascii() and new.isdecimal() and len(new) < 10):
            raise ToolError(f"{found[0]['name']} is a whole number now. Give a number, without a unit.")
        return self.desk.done(
            self.desk.update(
                "settings",
                found[0]["id"],
                value=new,
                previous=old,
                changed_at=self.desk.now,
                changed_by=self.desk.user,
            )
        )

    def list_flags(self, service: AnyService = None) -> Rows:
        """List the feature flags of a service, or of all: purpose, whether each is on, who changed it when."""
        return self.desk.shown_of("flags", service)

    def set_flag(self, flag: Id, enabled: bool) -> Row:
        """Turn a feature flag on or off."""
        return self.desk.done(
            self.desk.update("flags", flag, enabled=int(enabled), changed_at=self.desk.now, changed_by=self.desk.user)
        )
