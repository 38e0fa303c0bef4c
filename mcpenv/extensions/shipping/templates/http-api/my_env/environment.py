"""Book rooms through an HTTP API: tools that call it with httpx, with a token from a secret."""

from __future__ import annotations

import os
import random
import uuid
from typing import Annotated, Any

import httpx
from mcpenv import MCPEnvironment, Observation, ToolCall, ToolError, ToolOutcome
from pydantic import Field

from . import stand_in

TOKEN = "ROOMS_API_TOKEN"
"""The environment variable with the API's token: a secret of mcpenv.yaml."""

TIMEOUT_S = 10.0


class MyEnv(MCPEnvironment):
    """Look up and book rooms through an HTTP API.

    Description:
        The agent books a room for a meeting. Every session has a sandbox of its own at the API.

    Tools:
        list_rooms(): rooms with their seats.
        list_bookings(): the bookings so far.
        book_room(room, hour, who): book a room for one hour.

    Observation:
        Of a reset: ``metadata.prompt``, the meeting. Of a step: the tool's.

    Reward:
        1.0 for a booking that suits the meeting: its hour, its host, a room with enough seats. 0.0 for other calls.

    Start:
        An empty sandbox. The meeting's size (1 to 12), hour (8 to 17) and host are drawn from the seed.

    End:
        Terminated by the first booking. Truncated after 10 steps.

    Arguments:
        base_url: the API; None for the stand-in of this package.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"
    max_steps = 10

    def __init__(self, base_url: str | None = None) -> None:
        self.people, self.hour, self.who = 1, 8, "Ana"
        self.sandbox = f"/sandboxes/{uuid.uuid4().hex}"
        self.api = httpx.Client(
            base_url=base_url or stand_in.url(),
            headers={"Authorization": f"Bearer {os.environ.get(TOKEN, 'none')}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )

        @self.tool
        def list_rooms() -> list[dict[str, Any]]:
            """List the rooms and their seats."""
            rooms: list[dict[str, Any]] = self._call("GET", "/rooms")
            return rooms

        @self.tool
        def list_bookings() -> list[dict[str, Any]]:
            """List the bookings so far."""
            bookings: list[dict[str, Any]] = self._call("GET", "/bookings")
            return bookings

        @self.tool
        def book_room(
            room: Annotated[str, Field(description="A name that list_rooms gives")],
            hour: Annotated[int, Field(ge=8, le=17, description="The hour at which it begins, from 8 to 17")],
            who: Annotated[str, Field(min_length=1, max_length=60, description="The host of the meeting")],
        ) -> str:
            """Book a room for one hour."""
            self._call("POST", "/bookings", {"room": room, "hour": hour, "who": who})
            return f"{room} is booked for {who} at {hour}"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Empty the sandbox, and draw the meeting."""
        drawn = random.Random(seed)
        self.people, self.hour = drawn.randint(1, 12), drawn.randint(8, 17)
        self.who = drawn.choice(["Ana", "Bo", "Chidi"])
        self._call("PUT", "")
        return Observation(
            metadata={"prompt": f"Book a room with seats for {self.people} people at {self.hour}, for {self.who}."}
        )

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        """Return 1.0 for a booking that suits the meeting. Any booking ends the episode."""
        if call.name != "book_room" or outcome.error is not None:
            return 0.0
        self.finish(reason="booked")
        seats = {room["name"]: room["seats"] for room in self._call("GET", "/rooms")}
        booked = call.arguments
        suits = booked["hour"] == self.hour and booked["who"] == self.who and seats[booked["room"]] >= self.people
        return float(suits)

    def close(self) -> None:
        """Delete the sandbox."""
        if not self.api.is_closed:
            self._call("DELETE", "")
            self.api.close()

    def _call(self, method: str, path: str, sent: Any = None) -> Any:
        """Return the API's answer. The agent reads refusals; any other failure is an error of the environment.

        Raises:
            ToolError: the API refused with a reason.
            httpx.HTTPError: it could not be reached, failed, or does not accept the token.
        """
        response = self.api.request(method, self.sandbox + path, json=sent)
        if response.status_code in (400, 404, 409, 422):
            raise ToolError(str(response.json()["error"]))
        response.raise_for_status()
        return response.json()
