"""The projects and their tasks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Day, Id, Rows, Short, Words, clean, day_of

Status = Literal["todo", "doing", "done"]


class ProjectTools:
    """Tools of projects and tasks."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_projects,
            self.get_project,
            self.set_project_lead,
            self.set_project_due,
            self.set_project_status,
            self.list_tasks,
            self.create_task,
            self.assign_task,
            self.set_task_status,
            self.set_task_due,
        )

    def list_projects(self, words: Words = None) -> Rows:
        """List projects, by words of their names."""
        return self.desk.find("projects", like=("name", words))

    def get_project(self, project: Id) -> Row:
        """Show a project; lead is a colleague's id."""
        return self.desk.row("projects", project)

    def set_project_lead(self, project: Id, lead: Id) -> Row:
        """Give a project to another lead."""
        self.desk.row("people", lead)
        return self.desk.update("projects", project, lead=lead)

    def set_project_due(self, project: Id, due: Day) -> Row:
        """Change the day on which a project ends."""
        return self.desk.update("projects", project, due=day_of(due).isoformat())

    def set_project_status(self, project: Id, status: Literal["active", "on hold", "done"]) -> Row:
        """Change the status of a project."""
        return self.desk.update("projects", project, status=status)

    def list_tasks(
        self,
        project: Id | None = None,
        assignee: Id | None = None,
        status: Status | None = None,
        words: Words = None,
    ) -> Rows:
        """List tasks of projects. blocked_by is the task that must be done first."""
        return self.desk.find("tasks", like=("title", words), project=project, assignee=assignee, status=status)

    def create_task(
        self,
        project: Id,
        title: Short,
        assignee: Id,
        due: Day,
        hours: Annotated[int, Field(ge=1, le=200, description="The estimate")],
    ) -> Row:
        """Add a task to a project."""
        self.desk.row("projects", project)
        self.desk.row("people", assignee)
        return self.desk.insert(
            "tasks",
            project=project,
            title=clean(title, "title"),
            assignee=assignee,
            status="todo",
            due=day_of(due).isoformat(),
            hours=hours,
            blocked_by=None,
        )

    def assign_task(self, task: Id, assignee: Id) -> Row:
        """Give a task to a colleague."""
        self.desk.row("people", assignee)
        return self.desk.update("tasks", task, assignee=assignee)

    def set_task_status(self, task: Id, status: Status) -> Row:
        """Change the status of a task."""
        return self.desk.update("tasks", task, status=status)

    def set_task_due(self, task: Id, due: Day) -> Row:
        """Change the day on which a task is due."""
        return self.desk.update("tasks", task, due=day_of(due).isoformat())
