"""People and records: on-call, pages, incidents, tickets and runbooks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import AnyService, Id, Long, Rows, ServiceName, Short, Words

TeamName = Annotated[str, Field(min_length=1, max_length=60, description="list_teams has all")]
Level = Literal["primary", "secondary"]
Week = Literal["this", "next"]
Severity = Literal["sev1", "sev2", "sev3"]


class OnCallTools:
    """Tools of teams, people and who is on call."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.list_teams, self.search_people, self.who_is_on_call, self.set_on_call, self.page_on_call)

    def list_teams(self) -> Rows:
        """List the teams and their leads."""
        return self.desk.shown_of("teams")

    def search_people(self, words: Words = None, team: TeamName | None = None) -> Rows:
        """Find people by name and team."""
        key = None if team is None else self.desk.team_named(team)["id"]
        return [self.desk.public(row) for row in self.desk.find("people", like=("name", words), team=key)]

    def who_is_on_call(self, team: TeamName, week: Week = "this") -> Rows:
        """Tell who is on call for a team in this week or the next: first the primary, then the secondary."""
        key = self.desk.team_named(team)["id"]
        return [self.desk.public(row) for row in self.desk.find("oncall", team=key, week=week)]

    def set_on_call(self, team: TeamName, week: Week, level: Level, person: Id) -> Row:
        """Put a person of a team on call."""
        row = self.desk.team_named(team)
        if self.desk.row("people", person)["team"] != row["id"]:
            raise ToolError(f"Person {person} is not in {row['name']}. Find one with search_people.")
        turn = self.desk.on_call(row["id"], level, week)
        return self.desk.done(self.desk.update("oncall", turn["id"], person=person))

    def page_on_call(self, team: TeamName, message: Short, level: Level = "primary") -> Row:
        """Page whoever is on call for a team now. Say which service it is about."""
        key = self.desk.team_named(team)["id"]
        person = self.desk.on_call(key, level)["person"]
        return self.desk.done(
            self.desk.insert("pages", team=key, person=person, at=self.desk.now, message=message.strip())
        )


class IncidentTools:
    """Tools of incidents."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_incidents,
            self.get_incident,
            self.open_incident,
            self.set_incident_status,
            self.set_incident_severity,
            self.add_timeline_entry,
            self.write_post_mortem,
        )

    def list_incidents(self, service: AnyService = None) -> Rows:
        """List the incidents of a service, or all."""
        return self.desk.shown_of("incidents", service)

    def get_incident(self, incident: Id) -> Row:
        """Show an incident with its timeline and its post-mortem: cause, impact and lesson."""
        entries = self.desk.shown_of("timeline", incident=incident)
        return {**self.desk.public(self.desk.row("incidents", incident)), "timeline": entries}

    def open_incident(self, title: Short, service: ServiceName, severity: Severity) -> Row:
        """Open an incident for a service. The policy says which severity it has."""
        return self.desk.done(
            self.desk.insert(
                "incidents",
                title=title.strip(),
                service=self.desk.service(service)["id"],
                severity=severity,
                status="open",
                opened_at=self.desk.now,
                commander=self.desk.user,
                cause="",
                impact="",
                lesson="",
            )
        )

    def set_incident_status(self, incident: Id, status: Literal["open", "mitigated", "resolved"]) -> Row:
        """Change the status of an incident."""
        return self.desk.done(self.desk.update("incidents", incident, status=status))

    def set_incident_severity(self, incident: Id, severity: Severity) -> Row:
        """Change the severity of an incident."""
        return self.desk.done(self.desk.update("incidents", incident, severity=severity))

    def add_timeline_entry(self, incident: Id, body: Long) -> Row:
        """Add an entry to the timeline of an incident."""
        self.desk.row("incidents", incident)
        return self.desk.done(
            self.desk.insert("timeline", incident=incident, at=self.desk.now, author=self.desk.user, body=body.strip())
        )

    def write_post_mortem(self, incident: Id, field: Literal["cause", "impact", "lesson"], text: Long) -> Row:
        """Write one field of the post-mortem of an incident."""
        return self.desk.done(self.desk.update("incidents", incident, **{field: text.strip()}))


class KnowledgeTools:
    """Tools of runbooks and tickets."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.search_runbooks,
            self.read_runbook,
            self.search_tickets,
            self.get_ticket,
            self.comment_ticket,
            self.set_ticket_status,
        )

    def search_runbooks(self, words: Words = None, service: AnyService = None) -> Rows:
        """Find runbooks by words of title or text, and by service. Texts are left out."""
        key = None if service is None else self.desk.service(service)["id"]
        columns = "id, title, service, updated"
        return [
            self.desk.public(r) for r in self.desk.find("runbooks", columns, like=("title body", words), service=key)
        ]

    def read_runbook(self, runbook: Id) -> Row:
        """Read a runbook. The rules are the runbook "Operations policy"."""
        return self.desk.public(self.desk.row("runbooks", runbook))

    def search_tickets(self, words: Words = None, service: AnyService = None) -> Rows:
        """Find tickets by words of title or text, and by service. Texts are left out."""
        key = None if service is None else self.desk.service(service)["id"]
        columns = "id, service, title, status, requester"
        return [
            self.desk.public(r) for r in self.desk.find("tickets", columns, like=("title body", words), service=key)
        ]

    def get_ticket(self, ticket: Id) -> Row:
        """Show a ticket with its text and comments."""
        comments = self.desk.shown_of("comments", ticket=ticket)
        return {**self.desk.public(self.desk.row("tickets", ticket)), "comments": comments}

    def comment_ticket(self, ticket: Id, body: Long) -> Row:
        """Add a comment to a ticket."""
        self.desk.row("tickets", ticket)
        return self.desk.done(self.desk.insert("comments", ticket=ticket, author=self.desk.user, body=body.strip()))

    def set_ticket_status(self, ticket: Id, status: Literal["open", "closed"]) -> Row:
        """Open or close a ticket."""
        return self.desk.done(self.desk.update("tickets", ticket, status=status))
