"""The user of an episode: the marks of the tool that reaches the user, and the user's turns in a record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .records import LogEntry, Trajectory
from .tools import Tool

USER_META = "mcpenv/user"
"""The key in the metadata of the tool that speaks to the user. Chat rollouts call it with the model's text."""

USER_MESSAGE = "message"
"""The argument of that tool: the agent's message."""

USER_LOG = "user"
"""The level of the log entry with a user's turn, as JSON. Records have it; agents do not see it."""


@dataclass(frozen=True)
class UserCall:
    """A call that a user made of a tool of its own.

    Attributes:
        name, arguments: the call.
        result: the tool's answer as text.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True)
class UserTurn:
    """The turn of a user after a message of the agent.

    Attributes:
        text: the text of the user.
        done: True if the user has left, which ends the episode.
        calls: the calls that the user made of tools of its own, in order.
        model, seed: of the requests; None for a user without a model.
        requests: the number of requests to the model, including those that failed.
        prompt_tokens, completion_tokens: as counted by the model's endpoint.
        error: the reason why the user gave no answer; None if there is one.
    """

    text: str
    done: bool = False
    calls: Sequence[UserCall] = ()
    model: str | None = None
    seed: int | None = None
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None

    def to_log(self) -> LogEntry:
        """Return the turn as an entry of its step's logs."""
        return LogEntry(USER_LOG, json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def from_log(cls, entry: LogEntry) -> UserTurn:
        """Return the turn of an entry that `to_log` returned. Fields of newer versions are ignored.

        Raises:
            ValueError: the entry is not a user's turn.
        """
        try:
            plain = json.loads(entry.message or "")
            known = {field.name for field in fields(cls)}
            calls = [UserCall(**call) for call in plain.get("calls", ())]
            return cls(**{name: value for name, value in plain.items() if name in known} | {"calls": calls})
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"a log entry of the level {USER_LOG!r} is no user's turn: {error}") from error


def user_turns(trajectory: Trajectory) -> list[UserTurn]:
    """Return the turns of the user in an episode, in order; empty without a user.

    Raises:
        ValueError: an entry of the record is not a user's turn.
    """
    return [UserTurn.from_log(entry) for step in trajectory.steps for entry in step.logs if entry.level == USER_LOG]


def user_tool_of(tools: Sequence[Tool]) -> Tool | None:
    """Return the tool that speaks to the user; None if the episode has no user."""
    return next((tool for tool in tools if tool.meta and tool.meta.get(USER_META)), None)
