"""The calendars of all people, and the rooms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..company import id_list
from ..desk import Desk
from .arguments import Day, Hour, Id, Rows, Short, Words, clean, day_of, minutes_of

Minutes = Annotated[int, Field(ge=15, le=480)]
People = Annotated[list[int], Field(min_length=1, max_length=20, description="Ids of people")]


class CalendarTools:
    """Tools of the calendars. Times are UTC."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_events,
            self.get_event,
            self.find_free_times,
            self.create_event,
            self.move_event,
            self.set_attendees,
            self.book_room,
            self.cancel_event,
            self.list_rooms,
        )

    def list_events(self, words: Words = None, person: Id | None = None, day: Day | None = None) -> Rows:
        """List events by words of their titles, by a person who takes part, and by day."""
        found = self.desk.find("events", like=("title", words), day=day)
        return [each for each in found if person is None or str(person) in each["attendees"].split(",")]

    def get_event(self, event: Id) -> Row:
        """Show an event."""
        return self.desk.row("events", event)

    def find_free_times(self, people: People, day: Day, minutes: Minutes = 60) -> list[str]:
        """List the starts on a day, each half hour, at which all these people are free for so many minutes.

        Nothing is said about working hours: the people's utc_offset and the company's policy say those.
        """
        day_of(day)
        busy = []
        for person in people:
            self.desk.row("people", person)
            busy += [each for each in self.list_events(person=person, day=day) if each["status"] == "planned"]
        starts = range(0, 24 * 60 - minutes + 1, 30)
        return [
            f"{start // 60:02}:{start % 60:02}"
            for start in starts
            if not any(overlap(start, minutes, each) for each in busy)
        ]

    def create_event(
        self, title: Short, people: People, day: Day, start: Hour, minutes: Minutes, room: Id | None = None
    ) -> Row:
        """Plan an event. The user organizes it and takes part; name the others."""
        self._check(day, start)
        for person in people:
            self.desk.row("people", person)
        if room is not None:
            self._refuse_taken(room, day, start, minutes, None)
        user = self.desk.user["id"]
        return self.desk.insert(
            "events",
            title=clean(title, "title"),
            organizer=user,
            attendees=id_list([*people, user]),
            day=day,
            start=start,
            minutes=minutes,
            room=room,
            status="planned",
        )

    def move_event(self, event: Id, day: Day, start: Hour) -> Row:
        """Move an event to another day or time."""
        self._check(day, start)
        found = self._planned(event)
        if found["room"] is not None:
            self._refuse_taken(found["room"], day, start, found["minutes"], event)
        return self.desk.update("events", event, day=day, start=start)

    def cancel_event(self, event: Id) -> Row:
        """Cancel an event."""
        self._planned(event)
        return self.desk.update("events", event, status="cancelled")

    def set_attendees(self, event: Id, people: People) -> Row:
        """Say who takes part in an event: all of them, not only new ones."""
        self._planned(event)
        for person in people:
            self.desk.row("people", person)
        return self.desk.update("events", event, attendees=id_list(people))

    def book_room(self, event: Id, room: Id) -> Row:
        """Give an event a room, which must be free then."""
        found = self._planned(event)
        self._refuse_taken(room, found["day"], found["start"], found["minutes"], event)
        return self.desk.update("events", event, room=room)

    def list_rooms(self) -> Rows:
        """List the meeting rooms with their seats."""
        return self.desk.find("rooms")

    def _check(self, day: str, start: str) -> None:
        minutes_of(start)
        if day_of(day).isoformat() < self.desk.today:
            raise ToolError(f"{day} is over; today is {self.desk.today}.")

    def _planned(self, event: int) -> Row:
        found = self.desk.row("events", event)
        if found["status"] != "planned":
            raise ToolError(f"Event {event} is {found['status']}. Plan a new one with create_event.")
        return found

    def _refuse_taken(self, room: int, day: str, start: str, minutes: int, event: int | None) -> None:
        name = self.desk.row("rooms", room)["name"]
        for other in self.desk.find("events", room=room, day=day, status="planned"):
            if other["id"] != event and overlap(minutes_of(start), minutes, other):
                raise ToolError(f"{name} is taken by event {other['id']} from {other['start']}. Choose another room.")


def overlap(start: int, minutes: int, event: Row) -> bool:
    """Return True if an event lies in a stretch of minutes since midnight."""
    begins = minutes_of(event["start"])
    return begins < start + minutes and start < begins + int(event["minutes"])
