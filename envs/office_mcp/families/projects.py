"""Goals about projects and their tasks."""

from __future__ import annotations

from mcpenv.extensions.generated_worlds import Row

from .. import names
from .goal import Case, Goal, NoCase, answered, asked, call, family, new, set_to, where


def task_of(c: Case, project: int, status: str = "todo", blocked_by: int | None = None) -> Row:
    """Add a task with a title of its own."""
    return c.plant(
        "tasks",
        project=project,
        title=f"{c.say(*names.STEPS)} {c.code()}",
        assignee=c.colleague()["id"],
        status=status,
        due=c.company.day(c.rng.randint(3, 40)),
        hours=c.rng.randint(1, 20),
        blocked_by=blocked_by,
    )


@family("projects", 1)
def enter_a_task(c: Case) -> Goal:
    """Add a task of which everything is said."""
    project, person = c.pick(c.rows("projects")), c.colleague()
    title, due, hours = f"{c.say(*names.STEPS)} {c.code()}", c.company.day(c.rng.randint(5, 50)), c.rng.randint(1, 30)
    return Goal(
        f'Add the task "{title}" to the project {project["name"]}: for {c.person(person)}, due on {due}, {hours} hours',
        [
            call("list_projects", words=project["name"]),
            c.find_person(person),
            call("create_task", project=project["id"], title=title, assignee=person["id"], due=due, hours=hours),
        ],
        [
            new(
                "tasks",
                project=project["id"],
                title=title,
                assignee=person["id"],
                status="todo",
                due=due,
                hours=hours,
                blocked_by=None,
            )
        ],
    )


@family("projects", 1)
def finish_a_task(c: Case) -> Goal:
    """Mark a task as done."""
    task = task_of(c, c.pick(c.rows("projects"))["id"], c.say("todo", "doing"))
    return Goal(
        c.say(f'The task "{task["title"]}" is done. Record it', f'Mark the task "{task["title"]}" as done'),
        [call("list_tasks", words=task["title"]), call("set_task_status", task=task["id"], status="done")],
        set_to("tasks", task["id"], status="done"),
    )


@family("projects", 1)
def lead_of_a_project(c: Case) -> Goal:
    """Give a project to another lead."""
    project = c.pick(c.rows("projects"))
    person = c.pick(p for p in c.rows("people") if p["id"] != project["lead"])
    return Goal(
        f"{c.person(person)} is the new lead of the project {project['name']}. Enter that",
        [
            call("list_projects", words=project["name"]),
            c.find_person(person),
            call("set_project_lead", project=project["id"], lead=person["id"]),
        ],
        set_to("projects", project["id"], lead=person["id"]),
    )


@family("projects", 1)
def pause_a_project(c: Case) -> Goal:
    """Put a project on hold."""
    project = c.pick(c.rows("projects", status="active"))
    return Goal(
        f"Put the project {project['name']} on hold",
        [
            call("list_projects", words=project["name"]),
            call("set_project_status", project=project["id"], status="on hold"),
        ],
        set_to("projects", project["id"], status="on hold"),
    )


@family("projects", 2, "many")
def tasks_of_somebody_to_the_lead(c: Case) -> Goal:
    """Give somebody's tasks in a project to the project's lead."""
    project = c.pick(c.rows("projects"))
    person = c.pick(p for p in c.rows("people") if p["id"] != project["lead"])
    for _ in range(c.rng.randint(1, 3)):
        task = task_of(c, project["id"])
        c.change("tasks", task["id"], assignee=person["id"])
    mine = [t for t in c.rows("tasks", project=project["id"], assignee=person["id"]) if t["status"] != "done"]
    return Goal(
        f"{c.person(person)} has no time for the project {project['name']}. Give those tasks of it that "
        f"{c.person(person)} has and that are not done to the lead of the project",
        [
            call("list_projects", words=project["name"]),
            c.find_person(person),
            call("list_tasks", project=project["id"], assignee=person["id"]),
            *(call("assign_task", task=t["id"], assignee=project["lead"]) for t in mine),
        ],
        [change for t in mine for change in set_to("tasks", t["id"], assignee=project["lead"])],
        reads=[where("projects", id=project["id"]), where("tasks", project=project["id"])],
    )


@family("projects", 2)
def due_with_the_project(c: Case) -> Goal:
    """Let a task be due when its project is."""
    project = c.pick(c.rows("projects"))
    task = task_of(c, project["id"])
    if task["due"] == project["due"]:
        raise NoCase
    return Goal(
        f'The task "{task["title"]}" shall be due on the day on which its project ends. Change that of the task',
        [
            call("list_tasks", words=task["title"]),
            call("get_project", project=project["id"]),
            call("set_task_due", task=task["id"], due=project["due"]),
        ],
        set_to("tasks", task["id"], due=project["due"]),
        reads=[where("projects", id=project["id"])],
    )


@family("projects", 1, "answer")
def hours_of_a_project(c: Case) -> Goal:
    """Say how many hours the tasks of a project take that are not done."""
    project = c.pick(c.rows("projects"))
    task_of(c, project["id"])
    left = sum(t["hours"] for t in c.rows("tasks", project=project["id"]) if t["status"] != "done")
    reply, change = answered(left)
    return Goal(
        f"How many hours do the tasks of the project {project['name']} take that are not done, all together? "
        "Answer with "
        "the number",
        [call("list_projects", words=project["name"]), call("list_tasks", project=project["id"]), reply],
        [change],
        reads=[where("tasks", project=project["id"])],
    )


@family("projects", 2, "many")
def start_what_was_blocked(c: Case) -> Goal:
    """Start the tasks that only wait for one that is done."""
    project = c.pick(c.rows("projects"))
    first = task_of(c, project["id"], "done")
    waiting = [task_of(c, project["id"], "todo", first["id"]) for _ in range(c.rng.randint(2, 3))]
    other = task_of(c, project["id"], "doing")
    task_of(c, project["id"], "todo", other["id"])
    return Goal(
        f'In the project {project["name"]} the task "{first["title"]}" is done. Set those tasks that it has blocked to '
        "doing, and no others",
        [
            call("list_projects", words=project["name"]),
            call("list_tasks", project=project["id"]),
            *(call("set_task_status", task=t["id"], status="doing") for t in waiting),
        ],
        [change for t in waiting for change in set_to("tasks", t["id"], status="doing")],
        reads=[where("tasks", project=project["id"])],
    )


@family("projects", 3)
def remind_of_the_largest_task(c: Case) -> Goal:
    """Write to whom has the largest open task of a project."""
    project = c.pick(c.rows("projects"))
    task = task_of(c, project["id"])
    task = c.change("tasks", task["id"], hours=c.rng.randint(40, 60))
    person, subject = c.row("people", task["assignee"]), f"Your task {c.code()}"
    text = task["title"]
    return Goal(
        f"Which task of the project {project['name']} that is not done has the most hours? Send a mail to the one who "
        f'has it, with the subject "{subject}" and the title of the task as the text',
        [
            call("list_projects", words=project["name"]),
            call("list_tasks", project=project["id"]),
            call("get_person", person=person["id"]),
            call("send_mail", to=person["email"], subject=subject, body=text),
        ],
        [c.sent(person["email"], subject, text)],
        reads=[where("tasks", project=project["id"])],
    )


@family("projects", 2, "text")
def delay_from_a_mail(c: Case) -> Goal:
    """Move the end of a project to the day that its lead has written."""
    project = c.pick(c.rows("projects"))
    lead, subject = c.row("people", project["lead"]), f"Delay {c.code()}"
    due = c.company.day(c.rng.randint(95, 140))
    mail = c.mail_from(lead["email"], subject, f"{project['name']} will end on {due}.\n{lead['name']}")
    return Goal(
        f'Enter the new end of the project that the mail "{subject}" is about',
        [
            call("search_mails", words=subject),
            call("read_mail", mail=mail["id"]),
            call("list_projects", words=project["name"]),
            call("set_project_due", project=project["id"], due=due),
        ],
        set_to("projects", project["id"], due=due),
        carriers=[("mails", mail["id"])],
    )


@family("projects", 1, "ask")
def task_without_a_day(c: Case) -> Goal:
    """Ask when a task is due, which the request leaves open."""
    project, person = c.pick(c.rows("projects")), c.colleague()
    title = f"{c.say(*names.STEPS)} {c.code()}"
    reply, change = asked("date", "When is the task due?")
    look = call("list_projects", words=project["name"])
    return Goal(
        f'Add the task "{title}" of 4 hours to the project {project["name"]}, for {c.person(person)}. It has a due day '
        "that differs from the project's",
        [look, reply],
        [change],
        breach=[
            look,
            c.find_person(person),
            call("create_task", project=project["id"], title=title, assignee=person["id"], due=project["due"], hours=4),
        ],
    )
