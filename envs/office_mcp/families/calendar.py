"""Goals in the calendars."""

from __future__ import annotations

from mcpenv.extensions.generated_worlds import Row

from .. import names
from ..company import id_list
from ..tools.calendar import overlap
from .goal import (
    READ_POLICY,
    Call,
    Case,
    Changes,
    Goal,
    NoCase,
    answered,
    call,
    declined,
    family,
    new,
    set_to,
    unique,
    where,
)


def hours_of(c: Case, people: list[Row]) -> tuple[int, int]:
    """Return the hours, in UTC, in which all of some people work.

    Raises:
        NoCase: there are fewer than two.
    """
    first = max(c.policy.first_hour - p["utc_offset"] for p in people)
    last = min(c.policy.last_hour - p["utc_offset"] for p in people)
    if last - first < 2:
        raise NoCase
    return first, last


def title(c: Case) -> str:
    """Return a title that stands nowhere else."""
    return f"{c.say(*names.TOPICS).capitalize()} {c.code()}"


def planned(c: Case, name: str, people: list[Row], day: str, start: str, minutes: int, room: int | None = None) -> Row:
    """Add an event, which the first of the people organizes."""
    return c.plant(
        "events",
        title=name,
        organizer=people[0]["id"],
        attendees=id_list(p["id"] for p in people),
        day=day,
        start=start,
        minutes=minutes,
        room=room,
        status="planned",
    )


def made(
    c: Case, name: str, people: list[Row], day: str, start: str, minutes: int, room: int | None = None
) -> tuple[list[Call], Changes]:
    """Return the call that plans an event with the user, and its change."""
    arguments = {"room": room} if room else {}
    attendees = [p["id"] for p in people]
    planning = call("create_event", title=name, people=attendees, day=day, start=start, minutes=minutes, **arguments)
    return [planning], [
        new(
            "events",
            title=name,
            organizer=c.user["id"],
            attendees=id_list([*attendees, c.user["id"]]),
            day=day,
            start=start,
            minutes=minutes,
            room=room,
            status="planned",
        )
    ]


@family("calendar", 1)
def plan_a_meeting(c: Case) -> Goal:
    """Plan a meeting of which everything is said."""
    person = c.colleague()
    first, last = hours_of(c, [person, c.user])
    day, start, minutes = (
        c.company.workday(c.rng.randint(2, 15)),
        f"{c.rng.randrange(first, last):02}:00",
        c.rng.choice([30, 60]),
    )
    name = title(c)
    calls, changes = made(c, name, [person], day, start, minutes)
    return Goal(
        c.say(
            f'Plan a meeting "{name}" with {c.person(person)} on {day} at {start} UTC, for {minutes} minutes, '
            "without a room",
            f'Put "{name}" into the calendar: with {c.person(person)}, {day}, {start} UTC, {minutes} minutes, no room',
        ),
        [c.find_person(person), *calls],
        changes,
    )


@family("calendar", 1)
def move_a_meeting(c: Case) -> Goal:
    """Move a meeting to another day and time."""
    people = c.some(c.rows("people", city=c.user["city"]), 2, 3)
    first, last = hours_of(c, people)
    name, day = title(c), c.company.workday(c.rng.randint(2, 8))
    event = planned(c, name, people, day, f"{first:02}:00", 60)
    then, start = c.company.workday(c.rng.randint(12, 20)), f"{c.rng.randrange(first, last):02}:30"
    if int(start[:2]) + 1.5 > last:
        start = f"{last - 1:02}:00"
    return Goal(
        f'Move the event "{name}" to {then}, {start} UTC',
        [call("list_events", words=name), call("move_event", event=event["id"], day=then, start=start)],
        [
            change
            for change in set_to("events", event["id"], day=then, start=start)
            if change[1] != event[change[0].rsplit("/")[-1]]
        ],
    )


@family("calendar", 1)
def cancel_a_meeting(c: Case) -> Goal:
    """Cancel a meeting by its title."""
    event = c.pick(unique(c.rows("events", status="planned"), "title"))
    return Goal(
        c.say(f'Cancel the event "{event["title"]}"', f'The event "{event["title"]}" does not take place: cancel it'),
        [call("list_events", words=event["title"]), call("cancel_event", event=event["id"])],
        set_to("events", event["id"], status="cancelled"),
    )


@family("calendar", 2)
def add_the_lead_to_a_meeting(c: Case) -> Goal:
    """Invite the lead of a project to a meeting."""
    project = c.pick(c.rows("projects"))
    people = [p for p in c.some(c.rows("people"), 3, 4) if p["id"] != project["lead"]]
    name = title(c)
    event = planned(c, name, people, c.company.workday(c.rng.randint(2, 9)), "13:00", 60)
    everybody = [*(p["id"] for p in people), project["lead"]]
    return Goal(
        f'Let the lead of the project {project["name"]} take part in the event "{name}", beside those who do already',
        [
            call("list_projects", words=project["name"]),
            call("list_events", words=name),
            call("set_attendees", event=event["id"], people=everybody),
        ],
        set_to("events", event["id"], attendees=id_list(everybody)),
        reads=[where("projects", id=project["id"])],
    )


@family("calendar", 3)
def first_free_time(c: Case) -> Goal:
    """Plan a meeting at the first time at which all are free, within working hours."""
    city = [p for p in c.rows("people", city=c.user["city"]) if p["id"] != c.user["id"]]
    people = c.some(city, 2, 2)
    first, last = hours_of(c, [*people, c.user])
    day, name = c.company.workday(c.rng.randint(21, 30)), title(c)
    planned(c, title(c), [people[0]], day, f"{first:02}:00", 60)
    planned(c, title(c), [people[1]], day, f"{first + c.rng.randint(1, 2):02}:00", 60)
    members = [*people, c.user]
    busy = [
        e
        for e in c.rows("events", day=day, status="planned")
        if {str(p["id"]) for p in members} & {*e["attendees"].split(",")}
    ]
    start = next(
        (at for at in range(first * 60, last * 60 - 59, 30) if not any(overlap(at, 60, e) for e in busy)), None
    )
    if start is None:
        raise NoCase
    ids = [p["id"] for p in people]
    calls, changes = made(c, name, people, day, f"{start // 60:02}:{start % 60:02}", 60)
    return Goal(
        f'Plan a meeting "{name}" of 60 minutes on {day} with {c.person(people[0])} and {c.person(people[1])}, '
        "without a "
        "room. Take the first full or half hour at which they and I are free and which lies in everybody's "
        "working hours",
        [
            *READ_POLICY,
            *map(c.find_person, people),
            *(call("get_person", person=p["id"]) for p in members),
            call("find_free_times", people=[*ids, c.user["id"]], day=day, minutes=60),
            *calls,
        ],
        changes,
        reads=[where("events", day=day)],
    )


@family("calendar", 2)
def smallest_room(c: Case) -> Goal:
    """Give a meeting the smallest room that is large enough."""
    seats = c.rng.randint(4, 15)
    rooms = sorted((r for r in c.rows("rooms") if r["seats"] >= seats), key=lambda r: int(r["seats"]))
    if not rooms:
        raise NoCase
    name = title(c)
    event = planned(c, name, c.some(c.rows("people"), 2, 4), c.company.workday(c.rng.randint(31, 60)), "14:00", 60)
    return Goal(
        f'{seats} people will be in the meeting "{name}". Book the smallest room in which they have a seat',
        [
            call("list_rooms"),
            call("list_events", words=name),
            call("book_room", event=event["id"], room=rooms[0]["id"]),
        ],
        set_to("events", event["id"], room=rooms[0]["id"]),
        reads=[where("events", day=event["day"])],
    )


@family("calendar", 1, "answer")
def minutes_of_a_day(c: Case) -> Goal:
    """Say how long a colleague is in meetings on a day."""
    person, day = c.colleague(), c.company.workday(c.rng.randint(3, 15))
    for hour in c.rng.sample(range(9, 16), c.rng.randint(1, 3)):
        planned(c, title(c), [person, c.colleague()], day, f"{hour:02}:00", c.rng.choice([30, 45, 60]))
    mine = [e for e in c.rows("events", day=day, status="planned") if str(person["id"]) in e["attendees"].split(",")]
    reply, change = answered(sum(e["minutes"] for e in mine))
    return Goal(
        f"How many minutes do the events last in which {c.person(person)} takes part on {day}, all together? "
        "Answer with "
        "the number",
        [c.find_person(person), call("list_events", person=person["id"], day=day), reply],
        [change],
        reads=[where("events", day=day)],
    )


@family("calendar", 2, "many")
def cancel_meetings_during_leave(c: Case) -> Goal:
    """Cancel the meetings that somebody organizes during a leave."""
    leave = c.pick(leave for leave in c.rows("leaves", status="approved") if leave["person"] != c.user["id"])
    person = c.row("people", leave["person"])
    for n in range(c.rng.randint(1, 2)):
        planned(c, title(c), [person, c.colleague()], leave["first_day"], f"{10 + n * 2}:00", 30)
    planned(c, title(c), [person, c.colleague()], c.company.workday(2), "11:00", 30)
    leaves = c.rows("leaves", person=person["id"], status="approved")
    if len(leaves) != 1:
        raise NoCase
    events = [
        e
        for e in c.rows("events", organizer=person["id"], status="planned")
        if leave["first_day"] <= e["day"] <= leave["last_day"]
    ]
    return Goal(
        f"{c.person(person)} has approved leave. Cancel the events that {c.person(person)} organizes in those "
        "days, and "
        "no others",
        [
            c.find_person(person),
            call("list_leave", person=person["id"], status="approved"),
            call("list_events", person=person["id"]),
            *(call("cancel_event", event=e["id"]) for e in events),
        ],
        [change for e in events for change in set_to("events", e["id"], status="cancelled")],
        reads=[where("leaves", person=person["id"]), where("events", organizer=person["id"])],
    )


@family("calendar", 3, "trap")
def meeting_outside_of_working_hours(c: Case) -> Goal:
    """Decline to plan a meeting in somebody's night."""
    person = c.colleague()
    start = c.policy.last_hour - person["utc_offset"] + c.rng.randint(1, 3)
    if not 0 <= start < 23:
        raise NoCase
    day, name = c.company.workday(c.rng.randint(2, 15)), title(c)
    calls, _ = made(c, name, [person], day, f"{start:02}:00", 60)
    reply, change = declined("R11", "It is outside of working hours.")
    find = c.find_person(person)
    return Goal(
        f'Plan a meeting "{name}" with {c.person(person)} on {day} at {start:02}:00 UTC, for 60 minutes, '
        "without a room",
        [find, call("get_person", person=person["id"]), *READ_POLICY, reply],
        [change],
        breach=[find, *calls],
    )
