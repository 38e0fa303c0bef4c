"""The model of a server, in a few lines and without a wire: slots, queues, and what an episode has seen.

Every verb says what the server must answer: a wire code where it refuses, None where it does as asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

CONTROL, AGENT = "control", "agent"


@dataclass(frozen=True)
class Call:
    """The call of a tool, and its outcome.

    Attributes:
        adds: to the world's count.
        reward: of the step; None if it has none.
        failure: the tool's ``error_type``.
        refusal: the wire code with which the whole step fails; it is a step all the same.
        ending: "terminated" or "truncated", if it ends the episode.
        sticks: its code cannot be stopped.
    """

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    adds: int = 0
    reward: float | None = 1.0
    failure: str | None = None
    refusal: str | None = None
    ending: str | None = None
    sticks: bool = False

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For hypothesis."""
        printer.text(f"<{self.tool} {self.arguments}>")

    @property
    def action(self) -> dict[str, Any]:
        """The data of a step frame."""
        return {"type": "call_tool", "tool_name": self.tool, "arguments": self.arguments}

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of MCP's ``tools/call``."""
        return {"name": self.tool, "arguments": self.arguments}


class Admission(Enum):
    """The outcome of a request for a session."""

    OPEN = "open"
    BROKEN = "broken"
    """The constructor raised."""
    FULL = "full"
    WAITS = "waits"


@dataclass(eq=False)
class Session:
    """The session, or a client that waits for one.

    Attributes:
        id: None as long as only the server knows it.
        stays: False for a throw-away one, which ends with its only step.
        resumable: its client chose a secret with which to come back.
        held: by an open socket.
        claimed: somebody came back with its id, or an agent came by its handle.
        used: an agent came by the handle of this episode.
        log: plane, tool and reward of each step of this episode.
        stuck: code runs in its instance that could not be stopped, or did.
        returned: that code has returned meanwhile.
    """

    origin: str
    id: str | None = None
    stays: bool = True
    resumable: bool = False
    held: bool = False
    claimed: bool = True
    state: str = "new"
    steps: int = 0
    count: int = 0
    total: float = 0.0
    ending: str | None = None
    handle: str | None = None
    used: bool = False
    log: list[tuple[str, str, float | None]] = field(default_factory=list)
    stuck: bool = False
    returned: bool = False

    def __post_init__(self) -> None:
        if not self.orchestrated:
            self.state = "running"

    @property
    def orchestrated(self) -> bool:
        """Return True if the session has episodes."""
        return self.origin in ("socket", "http")

    @property
    def acting(self) -> bool:
        """Return True if a step may begin."""
        return self.state in ("new", "running") and not self.stuck

    @property
    def earned(self) -> float | None:
        """Return the sum of its rewards; None if there was none."""
        return self.total if any(reward is not None for *_, reward in self.log) else None

    def begin(self, state: str = "running") -> None:
        """Begin an episode without steps."""
        self.state, self.steps, self.count, self.total, self.ending = state, 0, 0, 0.0, None
        self.log = []

    def take(self, call: Call, plane: str, max_steps: int) -> None:
        """Take one step."""
        if self.state == "new":
            self.begin()
        self.steps += 1
        self.count += call.adds
        if not self.orchestrated:
            return
        self.total += call.reward or 0.0
        self.log.append((plane, call.tool, call.reward))
        self.ending = call.ending or ("truncated" if self.steps >= max_steps else None)
        if self.ending is not None:
            self.state = "done"


class Model:
    """The model of a server.

    Args:
        limit: sessions at a time.
        patient: whoever finds it full waits, instead of being refused.
        resumable: lost sockets may come back.

    Attributes:
        sessions, waiting: in the order in which they came.
        served: those who waited and are to be told what came of it.
        breaks: how many of the next constructors raise.
        quarantined: instances with code that could not be stopped and has not returned.
        left: those of them that have no session any more.
        most: how many instances there were at one moment.
    """

    def __init__(self, limit: int, patient: bool, resumable: bool, *, max_steps: int, max_quarantined: int) -> None:
        self.limit, self.patient, self.resumable = limit, patient, resumable
        self.max_steps, self.max_quarantined = max_steps, max_quarantined
        self.sessions: list[Session] = []
        self.waiting: list[Session] = []
        self.served: list[tuple[Session, Admission]] = []
        self.past_handles: list[str] = []
        self.breaks = 0
        self.quarantined = 0
        self.left = 0
        self.most = 1  # that of which clients learn the tools before there is a session

    @property
    def ready(self) -> bool:
        """Return True if new sessions are accepted."""
        return self.quarantined <= self.max_quarantined

    @property
    def instances(self) -> int:
        """Return the number of instances that are not closed."""
        return len(self.sessions) + self.left

    # -- slots

    def come(self, session: Session) -> Admission:
        """Ask for a session."""
        if not self.ready:
            return Admission.FULL
        if not self.waiting and len(self.sessions) >= self.limit:
            victim = next((other for other in self.sessions if self._gives_way(other, session)), None)
            if victim is not None:
                self.end(victim)
        if not self.waiting and len(self.sessions) < self.limit:
            return self._construct(session)
        if not self.patient:
            return Admission.FULL
        self.waiting.append(session)
        return Admission.WAITS

    def _gives_way(self, other: Session, to: Session) -> bool:
        if self.limit == 1 and to.orchestrated and not other.orchestrated:
            return True
        return other.origin == "http" and not other.claimed

    def end(self, session: Session) -> None:
        """End a session. Its slot goes to the client that waits longest, which is noted in ``served``."""
        self.sessions.remove(session)
        self._leave_instance(session)
        self._retire_handle(session)
        self._serve()

    def _serve(self) -> None:
        while self.waiting and self.ready and len(self.sessions) < self.limit:
            first = self.waiting.pop(0)
            self.served.append((first, self._construct(first)))

    def throw_away(self, session: Session) -> None:
        """End a session with its only step. It had a slot meanwhile, which no client saw."""
        self._leave_instance(session)
        # If its code could not be stopped, it was there still when those behind it in the queue were made.
        self.most = max(self.most, self.instances)

    def _construct(self, session: Session) -> Admission:
        self.most = max(self.most, self.instances + 1)
        if self.breaks:
            self.breaks -= 1
            return Admission.BROKEN
        if session.stays:
            self.sessions.append(session)
        return Admission.OPEN

    # -- code that cannot be stopped

    def stick(self, session: Session) -> None:
        """Code of the session's instance was given up."""
        session.stuck, session.returned = True, False
        self.quarantined += 1

    def release(self) -> None:
        """Let all such code return."""
        self.quarantined = 0
        for session in self.sessions:
            session.returned = True
        self._serve()  # while what was left behind may not be closed yet
        self.left = 0

    def _leave_instance(self, session: Session) -> None:
        if session.stuck and not session.returned:
            self.left += 1

    def _replace(self, session: Session) -> str | None:
        """Make a new instance for a session whose own is stuck."""
        if not self.ready:
            return "CAPACITY_REACHED"
        self.most = max(self.most, self.instances + 1)
        if self.breaks:
            self.breaks -= 1
            return "FACTORY_ERROR"
        self._leave_instance(session)
        session.stuck = False
        session.begin("new")
        return None

    # -- episodes

    def reset(self, session: Session, how: str) -> str | None:
        """``how``: "well", "badly" (it raises), "never" (it does not return) or "wrongly" (it is no reset)."""
        if how == "wrongly":
            return "VALIDATION_ERROR"
        refusal = self._replace(session) if session.stuck else None
        if refusal is not None:
            return refusal
        self._retire_handle(session)
        if how == "well":
            session.begin()
            return None
        session.begin("new")
        if how == "badly":
            return "EXECUTION_ERROR"
        self.stick(session)
        return "TIMEOUT"

    def step(self, session: Session, call: Call, plane: str = CONTROL) -> str | None:
        """Call a tool."""
        refusal = self.renew(session)
        if refusal is not None:
            return refusal
        if session.state == "done":
            return "EPISODE_DONE"
        session.take(call, plane, self.max_steps)
        if call.sticks:
            self.stick(session)
        return call.refusal

    def read(self, session: Session) -> str | None:
        """Read the state."""
        refusal = self.renew(session)
        if refusal is None and session.stuck:
            refusal = "EPISODE_DONE"
        return refusal

    def renew(self, session: Session) -> str | None:
        """Use a new instance after a reset that could not be stopped."""
        return self._replace(session) if session.stuck and session.state == "new" else None

    def _retire_handle(self, session: Session) -> None:
        if session.handle is not None:
            self.past_handles.append(session.handle)
        session.handle, session.used = None, False
