"""Sessions, planes, faults and limits against a simple model: thousands of random steps over real sockets.

After every step the server's own account (``/sessions``, ``/capacity``, ``/ready``, the census of instances) has to
agree with the model; at the end of each history nothing may be left. The same histories in every run; for others,
``MCPENV_MODEL_SEED`` (an integer) and ``MCPENV_MODEL_HISTORIES`` (how many, each of `HISTORY` steps). With
``MCPENV_MODEL_SHRINK=1`` a history that fails is made as short as can be, which takes some minutes.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fault_bench import busy_threads, open_sockets
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from model import AGENT, CONTROL, Admission, Call, Model, Session
from model_peer import (
    Answer,
    Bookkeeper,
    Handshake,
    Request,
    agent_asks,
    ask,
    cut,
    ending,
    eventually,
    hear,
    open_socket,
    send,
    told,
)
from model_world import ADD, CALLS, DEADLINE_S, FINE, HOLD, HOLD_SYNC, MAX_STEPS, SUBMIT, TOOLS, World
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

HISTORIES, FEW, HISTORY = 24, 3, 150
GRACE_S, PATIENT_S, IMPATIENT_S = 600.0, 600.0, 0.01
MAX_QUARANTINED = 1
OVER = "The episode is over."

NONSENSE = [
    "{",
    "[]",
    '{"type":"dance"}',
    '{"type":"step"}',
    '{"type":"step","data":{"type":"fly"}}',
    '{"type":"cancel"}',
]

HEAPED = ["step", "named", "again", "list", "state", "wait", "?"]

Frame = dict[str, Any]
Reply = dict[str, Any]

INDEX = st.integers(0, 99)
SELDOM = st.sampled_from([False] * 7 + [True])


def on(test: Callable[[Machine, Session], bool], **drawn: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule about a session of which that is true. Where there is none, something is done about that instead."""

    def decorate(act: Callable[..., None]) -> Callable[..., None]:
        def act_or_prepare(machine: Machine, index: int, **drawn: Any) -> None:
            having = [session for session in machine.model.sessions if test(machine, session)]
            if having:
                act(machine, having[index % len(having)], **drawn)
            else:
                machine.prepare()

        act_or_prepare.__name__ = act.__name__
        decorated: Any = rule(index=INDEX, **drawn)
        ruled: Callable[..., None] = decorated(act_or_prepare)
        return ruled

    return decorate


def anybody(machine: Machine, session: Session) -> bool:
    return True


def reachable(machine: Machine, session: Session) -> bool:
    """Its orchestrator can ask it something."""
    return session.origin == "http" or session in machine.sockets


def with_answers(machine: Machine, session: Session) -> bool:
    return reachable(machine, session) and bool(machine.answers[session])


def on_socket(machine: Machine, session: Session) -> bool:
    return session in machine.sockets


def over(machine: Machine, session: Session) -> bool:
    """Nothing but a reset helps."""
    return reachable(machine, session) and session.state == "done"


def acting_on_socket(machine: Machine, session: Session) -> bool:
    return session in machine.sockets and session.acting


def running_on_socket(machine: Machine, session: Session) -> bool:
    return session in machine.sockets and session.state == "running"


def acting_over_http(machine: Machine, session: Session) -> bool:
    return session.origin == "http" and session.acting


def lost(machine: Machine, session: Session) -> bool:
    """Its client may come back."""
    return session.origin == "socket" and not session.held


def with_handle(machine: Machine, session: Session) -> bool:
    return session.handle is not None


def acting_with_handle(machine: Machine, session: Session) -> bool:
    return session.handle is not None and session.acting


def running_on_socket_with_handle(machine: Machine, session: Session) -> bool:
    return session.handle is not None and running_on_socket(machine, session)


def in_an_episode(machine: Machine, session: Session) -> bool:
    return session in machine.sockets and session.state in ("running", "done") and not session.stuck


def cancelled(call: Call) -> Call:
    """The step of a call that was under way."""
    sync = call is HOLD_SYNC
    return replace(call, reward=None, refusal="CANCELLED", ending="truncated" if sync else None, sticks=sync)


class Machine(RuleBasedStateMachine):
    """The rules. Each does something to the server and to the model, and compares what is answered."""

    steps = 0
    happened: Counter[str] = Counter()
    worlds: list[type[World]] = []
    failures: list[Exception] = []

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.sockets: dict[Session, ClientConnection] = {}
        self.requests: dict[Session, Request] = {}
        self.first_calls: dict[Session, Call] = {}
        self.answers: dict[Session, dict[str, tuple[Frame, Reply]]] = {}
        self.sessionless: list[tuple[str, Frame, dict[str, str], Answer]] = []
        self.handshakes: list[tuple[Handshake, str | None]] = []
        self.numbers = 0

    @initialize(
        limit=st.integers(1, 4),
        patient=st.booleans(),
        resumable=st.booleans(),
        dynamic=st.booleans(),
        sockets=st.integers(0, 4),
        worlds=st.booleans(),
    )
    def start(self, limit: int, patient: bool, resumable: bool, dynamic: bool, sockets: int, worlds: bool) -> None:
        class Own(World):
            """A census and a gate of its own."""

            DYNAMIC_TOOLS = dynamic

        self.world = Own
        self.model = Model(limit, patient, resumable, max_steps=MAX_STEPS, max_quarantined=MAX_QUARANTINED)
        self.before = busy_threads(), open_sockets()
        config = ServerConfig(
            max_concurrent_envs=limit,
            queue_timeout_s=PATIENT_S if patient else IMPATIENT_S,
            resume_grace_s=GRACE_S if resumable else 0.0,
            max_quarantined=MAX_QUARANTINED,
        )
        self.url = self.stack.enter_context(serving(Own, config))
        self.account_of = self.stack.enter_context(closing(Bookkeeper(self.url)))
        if worlds:
            self.act_without_a_session("service", 1, ADD, False)
            self.act_by_handshake(0, "call", ADD)
        for _ in range(min(sockets, limit - len(self.model.sessions))):
            self.open_a_socket(chosen=True)
        for session in filter(partial(reachable, self), self.model.sessions):
            self.begin(session)

    def teardown(self) -> None:
        error = sys.exception()
        failed = error is not None  # then that is what is to be seen
        if isinstance(error, Exception) and not self.failures:
            traceback.print_exception(error, limit=-4)  # hypothesis shows it only if it fails each time
            self.failures.append(error)
        if not hasattr(self, "world"):
            return
        try:
            self.stack.close()  # the server ends, with whatever is stuck or waits
            if not failed:
                self.told_of_the_end()
        finally:
            self.world.gate.open()
            for control in self.sockets.values():
                control.close()
            for request in self.requests.values():
                request.leave()
        if not failed:
            self.nothing_is_left()

    def told_of_the_end(self) -> None:
        for session in self.model.sessions:
            if session in self.sockets:
                assert ending(self.sockets[session]) == 1012
        for session in self.model.waiting:
            if session.origin == "socket":
                self.check_refusal(hear(self.sockets[session])["data"], "CAPACITY_REACHED")
            elif session.orchestrated:
                self.check_refusal(self.requests[session].answer().data, "CAPACITY_REACHED")
            else:
                assert told(self.requests[session].answer())["result"]["isError"] is True
            self.note("the server ended while somebody waited")

    def nothing_is_left(self) -> None:
        census = self.world.census
        eventually(lambda: census.in_use == 0, lambda: f"{census.in_use} instances were not closed")
        assert census.closed_twice == 0
        assert census.most <= self.model.most
        assert self.world.closed_on_the_loop == 0
        type(self).worlds.append(self.world)
        eventually(lambda: busy_threads() <= self.before[0], lambda: f"threads: {threading.enumerate()}")
        eventually(lambda: open_sockets() <= self.before[1], lambda: f"sockets: {open_sockets()} of {self.before[1]}")

    # -- small things

    def note(self, what: str) -> None:
        type(self).happened[what] += 1

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def named(self, session: Session, frame: Frame, named: bool) -> Frame:
        """Ids are the same in all sessions, and mean another request in each."""
        return {**frame, "request_id": f"request-{len(self.answers[session])}"} if named else frame

    def keep(self, session: Session, frame: Frame, reply: Reply) -> None:
        if "request_id" in frame and reply["data"].get("code") != "CAPACITY_REACHED":
            self.answers[session][frame["request_id"]] = (frame, reply)

    def ask(self, session: Session, frame: Frame) -> Reply:
        """Say it where the session listens; the answer as a frame has it."""
        if session.origin == "socket":
            control = self.sockets[session]
            send(control, frame)
            return hear(control)
        return self.request(session, frame).answer().reply

    def request(self, session: Session, frame: Frame) -> Request:
        """The frame as an HTTP request."""
        session.claimed = True
        kind, data, limit = frame["type"], frame.get("data", {}), frame.get("timeout_s")
        if kind == "state":
            return Request(f"{self.url}/state?session_id={session.id}", "GET")
        body = {"action": data} if kind == "step" else dict(data)
        body |= {"session_id": session.id} | ({} if limit is None else {"timeout_s": limit})
        key = frame.get("request_id")
        return Request(f"{self.url}/{kind}", "POST", body, {} if key is None else {"Idempotency-Key": key})

    @contextmanager
    def gate_open(self) -> Iterator[None]:
        """Open the gate: waiting calls continue, and all abandoned code returns."""
        self.model.release()
        self.world.gate.open()
        yield
        capacity = f"{self.url}/capacity"
        eventually(lambda: ask(capacity).data["quarantined"] == 0, lambda: ask(capacity).data)
        eventually(lambda: self.world.gate.inside == 0, lambda: self.world.gate.inside)
        self.world.gate.shut()

    def inside(self) -> None:
        """One more is at the gate than those that were given up there."""
        many = self.model.quarantined + 1
        eventually(lambda: self.world.gate.inside == many, lambda: self.world.gate.inside)

    # -- sessions begin

    @rule(kind=st.sampled_from(["socket", "chosen socket", "reset", "session"]), broken=SELDOM)
    def open_a_session(self, kind: str, broken: bool) -> None:
        if len(self.model.waiting) > 2:
            self.leave_the_queue(0)
        self.break_a_constructor(broken)
        if kind in ("socket", "chosen socket"):
            self.open_a_socket(chosen=kind == "chosen socket")
            return
        session = Session("http", claimed=kind == "session")
        self.requests[session] = Request(self.url + ("/reset" if kind == "reset" else "/sessions"), "POST", {})
        self.come(session)

    def open_a_socket(self, chosen: bool) -> None:
        session = Session("socket", f"socket-number-{self.number():06}" if chosen else None, resumable=chosen)
        self.sockets[session] = open_socket(self.url, session.id)
        with suppress(ConnectionClosed):  # refused at once; it is told so
            send(self.sockets[session], {"type": "state"})
        self.come(session)

    def break_a_constructor(self, broken: bool) -> None:
        """Whichever comes next."""
        if broken and not (
            self.world.DYNAMIC_TOOLS and any(not session.orchestrated for session in self.model.waiting)
        ):
            with self.world.mutex:
                self.world.breaks += 1
            self.model.breaks += 1

    @rule(
        kind=st.sampled_from(["step", "named step", "service", "handle", "http", "socket", "stranger's socket"]),
        index=INDEX,
        call=st.sampled_from(CALLS),
        broken=SELDOM,
    )
    def act_without_a_session(self, kind: str, index: int, call: Call, broken: bool) -> None:
        if self.model.quarantined and index % 4 == 0:
            self.open_the_gate()
            return
        if kind in ("handle", "http", "socket", "stranger's socket"):
            self.come_for_what_is_not_theirs(index, kind)
            return
        if len(self.model.waiting) > 2:
            self.prepare()
            return
        self.break_a_constructor(broken)
        if kind == "service":
            # Those who wait share one place.
            if not any(session.id == "service" for session in self.model.waiting) and not self.would_try_twice():
                self.call_world("service", agent_asks(f"{self.url}/mcp", "tools/call", call.params), call)
            return
        session = Session("http", stays=False)
        headers = {"Idempotency-Key": f"once-{self.number()}"} if kind == "named step" else {}
        body = {"action": call.action}
        self.requests[session] = Request(f"{self.url}/step", "POST", body, headers)
        answer = self.come(session, call)
        if headers and answer is not None and answer.status != 503:
            self.sessionless.append(("/step", body, headers, answer))

    @rule(index=INDEX, changed=st.booleans())
    def retry_without_a_session(self, index: int, changed: bool) -> None:
        if not self.sessionless:
            self.act_without_a_session("named step", index, ADD, False)
            return
        path, body, headers, first = self.sessionless[index % len(self.sessionless)]
        answer = ask(self.url + path, "POST", body | ({"timeout_s": 9} if changed else {}), headers)
        if changed:
            assert answer.data["code"] == "VALIDATION_ERROR"
        else:
            assert (answer.status, answer.text) == (first.status, first.text)
            self.note("a throw-away step was not run again")

    @rule(index=INDEX, what=st.sampled_from(["call", "call", "call", "end", "other"]), call=st.sampled_from(CALLS))
    def act_by_handshake(self, index: int, what: str, call: Call) -> None:
        if not self.handshakes or (what == "other" and len(self.handshakes) < 3):
            handles = [session.handle for session in self.model.sessions]
            handle = handles[index % len(handles)] if handles and index % 2 else None
            self.handshakes.append((Handshake(handle or f"{self.url}/mcp"), handle))
        client, handle = self.handshakes[index % len(self.handshakes)]
        session_id = f"mcp:{client.id}"
        if any(session.id == session_id for session in self.model.waiting):
            self.prepare()  # its first call is still waiting
        elif what == "end":
            assert client.end() == 200
            self.handshakes.remove((client, handle))
            for session in [session for session in self.model.sessions if session.id == session_id]:
                self.model.end(session)
                self.note("a handshake ended its session")
        elif handle is not None:
            self.act(handle, client.begin("tools/call", call.params), call)
        elif len(self.model.waiting) > 2 or self.would_try_twice():
            self.prepare()
        else:
            self.call_world(session_id, client.begin("tools/call", call.params), call)

    def would_try_twice(self) -> bool:
        """List the tools first where only instances know them; the call makes the world if the listing could not."""
        return self.world.DYNAMIC_TOOLS and self.model.breaks > 0

    def call_world(self, session_id: str, request: Request, call: Call) -> None:
        """An agent without an orchestrator calls a tool of its world, which is made at its first call."""
        session = next((session for session in self.model.sessions if session.id == session_id), None)
        if session is not None and session.stuck:
            self.model.end(session)
            self.note("a stuck world was left for a new one")
            session = None
        if session is not None:
            self.answered_of_world(session, request.answer(), call)
            return
        session = Session("service" if session_id == "service" else "connection", session_id)
        self.requests[session] = request
        self.come(session, call)

    def answered_of_world(self, session: Session, answer: Answer, call: Call) -> None:
        session.take(call, AGENT, MAX_STEPS)
        if call.sticks:
            self.model.stick(session)
        self.check_agent(session, told(answer), call if call.refusal is None else HOLD)

    def come(self, session: Session, call: Call = ADD) -> Answer | None:
        """Somebody has asked for a session; the answer, if there is one already."""
        admission = self.model.come(session)
        self.note(f"{session.origin}: {admission.value}")
        self.first_calls[session] = call
        return None if admission is Admission.WAITS else self.admitted(session, admission)

    def admitted(self, session: Session, admission: Admission) -> Answer | None:
        """Return the answer to a request for a session."""
        call = self.first_calls.pop(session)
        code = {Admission.OPEN: None, Admission.BROKEN: "FACTORY_ERROR", Admission.FULL: "CAPACITY_REACHED"}[admission]
        self.answers[session] = {}
        if session.origin == "socket":
            reply = hear(self.sockets[session])
            if code is None:
                assert (reply["type"], reply["data"]["step_count"]) == ("state", 0), reply
                session.held = True
                session.id = session.id or self.unknown_id()
            else:
                self.check_refusal(reply["data"], code)
                assert ending(self.sockets[session]) == (1011 if admission is Admission.BROKEN else 1013)
                self.sockets.pop(session).close()
            return None
        answer = self.requests.pop(session).answer()
        if not session.orchestrated:
            if code is None:
                self.answered_of_world(session, answer, call)
            else:
                assert told(answer)["result"]["isError"] is True
        elif code is not None:
            self.check_refusal(answer.data, code)
            assert answer.status == (500 if admission is Admission.BROKEN else 503)
        elif not session.stays:
            refusal = self.model.step(session, call)
            self.check_step(session, answer.reply, call, refusal)
            self.model.throw_away(session)
        else:
            session.id = answer.data["session_id"]
            if not session.claimed:
                session.begin()
                session.handle = answer.data["info"]["mcp_url"]
        return answer

    def unknown_id(self) -> str:
        known = {session.id for session in self.model.sessions}
        ids = {session["session_id"] for session in ask(f"{self.url}/sessions").data["sessions"]} - known
        assert len(ids) == 1
        found: str = ids.pop()
        return found

    def check_refusal(self, data: Any, code: str) -> None:
        assert data["code"] == code, data
        if code == "CAPACITY_REACHED":
            assert data["max_sessions"] == self.model.limit
            assert 0 <= data["active_sessions"] <= self.model.limit
            assert data["retry_after_s"] > 0

    @rule(index=INDEX)
    def leave_the_queue(self, index: int) -> None:
        waiting = [session for session in self.model.waiting if session.origin == "socket"]
        if not waiting:
            self.prepare()
            return
        session = waiting[index % len(waiting)]
        cut(self.sockets.pop(session))
        self.model.waiting.remove(session)
        self.note("left the queue")

    def prepare(self) -> None:
        """Make something possible."""
        idle = [session for session in self.model.sessions if reachable(self, session) and session.state != "running"]
        if not self.model.ready:
            self.open_the_gate()
        elif idle:
            self.begin(idle[0])
        elif len(self.model.sessions) < self.model.limit:
            self.open_a_socket(chosen=self.number() % 3 > 0)
        else:
            session = self.model.sessions[self.number() % len(self.model.sessions)]
            if reachable(self, session):
                reply = self.ask(session, {"type": "step", "data": ADD.action})
                self.check_step(session, reply, ADD, self.model.step(session, ADD))
            else:
                self.delete(session)

    # -- episodes

    @on(
        reachable,
        how=st.sampled_from(["well", "well", "well", "well", "badly", "never", "wrongly"]),
        named=st.booleans(),
    )
    def reset(self, session: Session, how: str, named: bool) -> None:
        data = {"speed": 9} if how == "wrongly" else {"seed": self.number(), "how": how}
        frame = {"type": "reset", "data": data} | ({"timeout_s": DEADLINE_S} if how == "never" else {})
        self.answered_reset(session, self.named(session, frame, named), how)

    def begin(self, session: Session) -> None:
        self.answered_reset(session, {"type": "reset", "data": {"seed": self.number(), "how": "well"}}, "well")

    def answered_reset(self, session: Session, frame: Frame, how: str) -> None:
        was_stuck, past = session.stuck, session.handle
        reply = self.ask(session, frame)
        self.keep(session, frame, reply)
        refusal = self.model.reset(session, how)
        assert reply["data"].get("code") == refusal, reply
        if refusal is not None:
            return
        assert reply["data"]["observation"]["metadata"] == {"seed": frame["data"]["seed"]}
        session.handle = reply["data"]["info"]["mcp_url"]
        if was_stuck:
            self.note("a reset replaced a stuck instance")
            if past is not None:
                self.list_by(past)

    @on(over)
    def begin_anew(self, session: Session) -> None:
        self.begin(session)

    @on(reachable, call=st.sampled_from(CALLS), named=st.booleans())
    def step(self, session: Session, call: Call, named: bool) -> None:
        frame = self.named(session, {"type": "step", "data": call.action}, named)
        reply = self.ask(session, frame)
        self.keep(session, frame, reply)
        self.check_step(session, reply, call, self.model.step(session, call))

    def check_step(self, session: Session, reply: Reply, call: Call, refusal: str | None) -> None:
        """The answer to a step that the model has taken."""
        data = reply["data"]
        assert data.get("code") == refusal, reply
        if refusal is not None:
            return
        error, result = data["observation"]["error"], data["observation"]["result"]
        assert (error and error["error_type"]) == call.failure, reply
        if call.adds:
            assert result["data"] == session.count, reply
        assert data["reward"] == call.reward
        assert data["done"] is (session.state == "done"), reply
        for ended in ("terminated", "truncated"):
            assert data.get(ended, False) is (session.ending == ended), reply
        assert data["info"]["return"] == session.earned
        if call.ending is None and session.ending is not None:
            assert data["info"]["reason"] == "max_steps"
            self.note("max_steps")

    @on(reachable, at=st.sampled_from(["tools", "state", "trajectory", "nonsense", "another socket"]))
    def look(self, session: Session, at: str) -> None:
        if at == "tools":
            reply = self.ask(session, {"type": "step", "data": {"type": "list_tools"}})
            refusal = self.model.renew(session)
            assert reply["data"].get("code") == refusal
            assert refusal is not None or len(reply["data"]["observation"]["tools"]) == TOOLS
        elif at == "state" or session not in self.sockets:
            reply = self.ask(session, {"type": "state"})
            refusal = self.model.read(session)
            assert reply["data"].get("code") == refusal
            assert refusal is not None or reply["data"]["step_count"] == session.steps
        elif at == "trajectory":
            self.read_the_trajectory(session)
        elif at == "nonsense":
            self.sockets[session].send(NONSENSE[self.number() % len(NONSENSE)])
            assert hear(self.sockets[session])["data"]["code"] in ("INVALID_JSON", "VALIDATION_ERROR", "UNKNOWN_TYPE")
        elif session.resumable:
            self.resume(session)

    @on(with_answers, which=INDEX, changed=st.booleans())
    def retry(self, session: Session, which: int, changed: bool) -> None:
        answers = self.answers[session]
        frame, first = answers[list(answers)[which % len(answers)]]
        if changed:
            frame = {**frame, "data": {**frame["data"], "seed" if frame["type"] == "reset" else "metadata": 99}}
            assert self.ask(session, frame)["data"]["code"] == "VALIDATION_ERROR"
        else:
            assert self.ask(session, frame) == first
            self.note("a retry was not run again")

    def read_the_trajectory(self, session: Session) -> None:
        waited = self.ask(session, {"type": "wait", "data": {"timeout_s": 0.001}})["data"]
        assert waited["done"] is (session.state == "done")
        if session.log:
            info = waited["info"]
            # A last step that could not be scored leaves nobody to say what the episode is worth.
            assert waited["done"] if "fault" in info else info["return"] == session.earned
        self.check_trajectory(session, self.ask(session, {"type": "trajectory"}))

    def check_trajectory(self, session: Session, reply: Reply) -> None:
        if reply["type"] == "error":  # there was no episode yet
            assert (session.state, session.steps, reply["data"]["code"]) == ("new", 0, "VALIDATION_ERROR")
            return
        steps = reply["data"]["steps"]
        seen = [(s["call"]["plane"], s["call"]["name"], s["reward"] and s["reward"]["value"]) for s in steps]
        assert seen == session.log
        assert [step["call"]["step"] for step in steps] == list(range(1, session.steps + 1))
        assert reply["data"]["total_reward"] == session.total
        for ended in ("terminated", "truncated"):
            assert reply["data"][ended] is (session.ending == ended)

    @on(running_on_socket, how=st.sampled_from(["step", "agent", "reset", "delete"]))
    def wait_for_the_end(self, session: Session, how: str) -> None:
        if how == "agent" and session.handle is None:
            how = "step"
        control = self.sockets[session]
        end = f"end-{self.number()}"
        send(control, {"type": "wait", "request_id": "wait"})
        if how == "delete":
            self.delete(session)
            return
        if how == "reset":
            send(control, {"type": "reset", "data": {}, "request_id": end})
        elif how == "step":
            send(control, {"type": "step", "data": SUBMIT.action, "request_id": end})
        else:
            assert session.handle is not None
            self.act(session.handle, agent_asks(session.handle, "tools/call", SUBMIT.params), SUBMIT)
        replies = {reply["request_id"]: reply for reply in [hear(control) for _ in range(1 if how == "agent" else 2)]}
        if how == "reset":
            assert self.model.reset(session, "well") is None
            session.handle = replies[end]["data"]["info"]["mcp_url"]
            assert replies["wait"]["data"]["code"] == "SESSION_LOST"
            return
        if how == "step":
            self.check_step(session, replies[end], SUBMIT, self.model.step(session, SUBMIT))
        self.check_step(session, replies["wait"], SUBMIT, None)
        self.note(f"a wait ended by {how}")

    # -- agents

    @on(with_handle, call=st.sampled_from(CALLS))
    def act_by_a_handle(self, session: Session, call: Call) -> None:
        assert session.handle is not None
        self.act(session.handle, agent_asks(session.handle, "tools/call", call.params), call)

    def act(self, handle: str, request: Request, call: Call) -> None:
        """An agent calls a tool of an episode, past or not."""
        data = told(request.answer())
        session = next((session for session in self.model.sessions if session.handle == handle), None)
        if session is not None:
            session.used = session.claimed = True
            if self.model.step(session, call, AGENT) != "EPISODE_DONE":
                self.check_agent(session, data, call)
                return
        assert (data["result"]["isError"], data["result"]["content"][0]["text"]) == (True, OVER), data
        self.note("an agent came after the end")

    def check_agent(self, session: Session, data: Any, call: Call) -> None:
        """Return the answer to an agent for a step that the model has taken."""
        if call.failure == "tool_not_found":
            assert data["error"]["code"] == -32602, data
            return
        result = data["result"]
        assert result["isError"] is (call.failure is not None or call.refusal is not None), data
        if call.adds:
            assert result["structuredContent"] == {"result": session.count}, data

    @rule(index=INDEX, call=st.sampled_from([*FINE, None]))
    def come_by_an_old_handle(self, index: int, call: Call | None) -> None:
        if not self.model.past_handles:
            self.prepare()
            return
        handle = self.model.past_handles[index % len(self.model.past_handles)]
        if call is not None:
            self.act(handle, agent_asks(handle, "tools/call", call.params), call)
        else:
            self.list_by(handle)

    def list_by(self, handle: str) -> None:
        assert len(told(agent_asks(handle, "tools/list").answer())["result"]["tools"]) == TOOLS

    def come_for_what_is_not_theirs(self, index: int, way: str) -> None:
        if way == "handle":
            guess = ["guessed", "service", "x" * 32, "socket-number-000001"][index % 4]
            url = f"{self.url}/episodes/{guess}/mcp"
            assert agent_asks(url, "tools/call", ADD.params).answer().status == 404
        elif way == "http":
            ids = [session.id for session in self.model.sessions if session.origin != "http"] + ["no-such-session"]
            body = {"session_id": ids[index % len(ids)], "action": ADD.action}
            answer = ask(f"{self.url}/step", "POST", body)
            assert (answer.status, answer.data["code"]) == (404, "SESSION_LOST")
        else:
            theirs = [session.id for session in self.model.sessions if session.resumable]
            taken = way == "stranger's socket" and bool(theirs)
            session_id = theirs[index % len(theirs)] if taken else "there-is-no-such-session"
            control = open_socket(self.url, session_id, token="not-the-right-secret", resume=True)
            assert hear(control)["data"]["code"] == ("UNAUTHORIZED" if taken else "SESSION_LOST")
            assert ending(control) == (4401 if taken else 1011)
            control.close()

    @on(running_on_socket_with_handle, own=st.integers(1, 6), agents=st.integers(1, 4))
    def act_together(self, session: Session, own: int, agents: int) -> None:
        """The orchestrator's frames and agents' calls at the same time: only their order is open."""
        control, handle = self.sockets[session], session.handle
        assert handle is not None
        requests = [agent_asks(handle, "tools/call", ADD.params) for _ in range(agents)]
        for _ in range(own):
            send(control, {"type": "step", "data": ADD.action})
        replies = [hear(control) for _ in range(own)]
        results = [told(request.answer())["result"] for request in requests]
        counts = [reply["data"]["observation"]["result"]["data"] for reply in replies if reply["type"] != "error"]
        counts_of_agents = [result["structuredContent"]["result"] for result in results if not result["isError"]]
        together = min(own + agents, MAX_STEPS - session.steps)
        assert sorted(counts + counts_of_agents) == [session.count + n + 1 for n in range(together)]
        session.used = session.claimed = True
        first = session.count + 1
        for count in range(first, first + together):
            assert self.model.step(session, ADD, CONTROL if count in counts else AGENT) is None
        self.check_trajectory(session, self.ask(session, {"type": "trajectory"}))

    # -- frames in heaps

    @on(in_an_episode, kinds=st.lists(st.sampled_from(HEAPED), min_size=2))
    def send_a_heap_of_frames(self, session: Session, kinds: list[str]) -> None:
        """Those with an id are answered under it, in whatever order; the others in theirs."""
        control = self.sockets[session]
        frames: list[Frame] = []
        named: list[Frame] = []
        for kind in kinds:
            frame: Frame = {"type": kind}
            if kind == "again" and named:
                frame = named[self.number() % len(named)]
            elif kind in ("step", "named", "again"):
                frame = {"type": "step", "data": ADD.action}
                if kind != "step":
                    frame["request_id"] = f"request-{len(self.answers[session]) + len(named)}"
                    named.append(frame)
            elif kind == "list":
                frame = {"type": "step", "data": {"type": "list_tools"}}
            elif kind == "wait":
                frame["data"] = {"timeout_s": 0.001}
            frames.append(frame)
        for frame in frames:
            send(control, frame)
        replies = [hear(control) for _ in frames]
        in_order = [reply for reply in replies if "request_id" not in reply]
        by_id = {frame["request_id"]: frame for frame in named}
        again = {name: [reply for reply in replies if reply.get("request_id") == name] for name in by_id}
        for frame in frames:
            name = frame.get("request_id")
            if name is None:
                self.check_one_of_a_heap(session, frame, in_order.pop(0))
            elif name not in self.answers[session]:
                self.check_one_of_a_heap(session, frame, again[name][0])
                self.keep(session, frame, again[name][0])
            else:
                assert again[name].pop(1) == again[name][0]
                self.note("a frame that came twice in a heap")
        assert in_order == []

    def check_one_of_a_heap(self, session: Session, frame: Frame, reply: Reply) -> None:
        if frame["type"] == "step" and frame["data"] == ADD.action:
            self.check_step(session, reply, ADD, self.model.step(session, ADD))
        elif frame["type"] == "step":
            assert len(reply["data"]["observation"]["tools"]) == TOOLS
        elif frame["type"] == "state":
            assert reply["data"]["step_count"] == session.steps
        elif frame["type"] == "wait":
            assert reply["type"] == "observation"
        else:
            assert reply["data"]["code"] == "UNKNOWN_TYPE"

    # -- sockets are lost and come back

    def survives_a_cut(self, session: Session) -> bool:
        return session.resumable and self.model.resumable

    def cut(self, session: Session) -> None:
        cut(self.sockets.pop(session))
        session.held = False
        if not self.survives_a_cut(session):
            self.model.end(session)
            self.note("a lost socket ended its session")

    @on(lost)
    def come_again(self, session: Session) -> None:
        self.resume(session)

    def resume(self, session: Session) -> None:
        """With a socket still open, that one is evicted."""
        before = self.sockets.get(session)
        control = open_socket(self.url, session.id, resume=True)
        send(control, {"type": "trajectory"})
        self.check_trajectory(session, hear(control))
        self.sockets[session], session.held = control, True
        if before is not None:
            assert ending(before) == 4409
        self.note("resumed" if before is None else "evicted")

    # -- sessions end

    @on(anybody, how=st.sampled_from(["delete", "close", "cut", "cut"]))
    def end(self, session: Session, how: str) -> None:
        if session in self.sockets and how == "cut":
            self.cut(session)
        elif session in self.sockets and how == "close":
            send(self.sockets[session], {"type": "close"})
            assert ending(self.sockets[session]) == 1000
            self.sockets.pop(session).close()
            self.model.end(session)
        else:
            self.delete(session)
            if session.origin == "http":
                answer = self.request(session, {"type": "state"}).answer()
                assert (answer.status, answer.data["code"]) == (404, "SESSION_LOST")

    def delete(self, session: Session) -> None:
        answer = ask(f"{self.url}/sessions/{session.id}", "DELETE")
        assert (answer.status, answer.data) == (200, {"session_id": session.id, "closed": True})
        self.model.end(session)
        if session in self.sockets:
            assert ending(self.sockets[session]) == 4409
            self.sockets.pop(session).close()
        for client, handle in list(self.handshakes):
            if session.id == f"mcp:{client.id}":  # its client must not slide into a new world
                assert client.begin("tools/call", ADD.params).answer().status == 404
                self.handshakes.remove((client, handle))

    # -- in the middle of a step

    @on(
        acting_on_socket,
        call=st.sampled_from([HOLD, HOLD_SYNC]),
        event=st.sampled_from(["nothing", "cancel", "cut", "evict", "delete", "repeat", "close", "reset"]),
        named=st.booleans(),
    )
    def interrupt_a_step(self, session: Session, call: Call, event: str, named: bool) -> None:
        control = self.sockets[session]
        named = named or event in ("cancel", "repeat")
        frame = self.named(session, {"type": "step", "data": call.action}, named)
        send(control, frame)
        self.inside()
        self.note(f"{event} in the middle of a step: {call.tool}")
        if event == "cancel":
            send(control, {"type": "cancel", "data": {"request_id": frame["request_id"]}, "request_id": "cancel"})
            replies = {reply["request_id"]: reply for reply in (hear(control), hear(control))}
            assert replies["cancel"]["data"] == {"cancelled": True}
            reply = replies[frame["request_id"]]
            self.keep(session, frame, reply)
            self.check_step(session, reply, call, self.model.step(session, cancelled(call)))
            return
        if event == "delete" or (event == "cut" and not self.survives_a_cut(session)):
            self.model.step(session, cancelled(call))
            self.delete(session) if event == "delete" else self.cut(session)
            return
        if event == "cut":
            cut(self.sockets.pop(session))
        if event == "cut" or (event == "evict" and session.resumable):
            self.resume(session)
            control = self.sockets[session]
            if not named:  # it goes on all the same; nobody can ask for its answer
                with self.gate_open():
                    assert self.model.step(session, call) is None
                    return
            send(control, frame)
        elif event == "repeat":
            send(control, frame)
            send(control, frame)
            self.check_trajectory(session, self.ask(session, {"type": "trajectory", "request_id": "trajectory"}))
        elif event == "close":
            send(control, {"type": "close"})
        elif event == "reset":
            send(control, {"type": "reset", "request_id": f"reset-{self.number()}"})
        with self.gate_open():
            reply = hear(control)
            self.keep(session, frame, reply)
            self.check_step(session, reply, call, self.model.step(session, call))
            if event == "repeat":
                assert [hear(control), hear(control)] == [reply, reply]
            elif event == "close":
                assert ending(control) == 1000
                self.sockets.pop(session).close()
                self.model.end(session)
            elif event == "reset":
                assert self.model.reset(session, "well") is None
                session.handle = hear(control)["data"]["info"]["mcp_url"]

    @on(
        acting_over_http,
        call=st.sampled_from([HOLD, HOLD_SYNC]),
        event=st.sampled_from(["nothing", "delete", "repeat"]),
        named=st.booleans(),
    )
    def interrupt_a_request(self, session: Session, call: Call, event: str, named: bool) -> None:
        frame = self.named(session, {"type": "step", "data": call.action}, named)
        request = self.request(session, frame)
        self.inside()
        self.note(f"{event} in the middle of a request: {call.tool}")
        if event == "delete":
            self.model.step(session, cancelled(call))
            self.delete(session)
            assert request.answer().data["code"] == ("CANCELLED" if named else "SESSION_LOST")
            return
        again = [self.request(session, frame), self.request(session, frame)] if event == "repeat" and named else []
        with self.gate_open():
            reply = request.answer().reply
            self.keep(session, frame, reply)
            self.check_step(session, reply, call, self.model.step(session, call))
            assert [request.answer().reply for request in again] == [reply for _ in again]

    @on(
        acting_with_handle,
        call=st.sampled_from([HOLD, HOLD_SYNC]),
        event=st.sampled_from(["nothing", "delete", "leave", "cut"]),
    )
    def interrupt_an_agent(self, session: Session, call: Call, event: str) -> None:
        assert session.handle is not None
        request = agent_asks(session.handle, "tools/call", call.params)
        session.used = session.claimed = True
        self.inside()
        self.note(f"{event} in the middle of an agent's call: {call.tool}")
        if event == "leave" and call is HOLD_SYNC:
            request.leave()
            with self.gate_open():  # what cannot be stopped runs to its end
                assert self.model.step(session, call, AGENT) is None
                expected = self.expected()
                eventually(lambda: self.account() == expected, self.account)
        elif event == "leave":
            request.leave()
            self.model.step(session, cancelled(call), AGENT)
        elif event == "delete":
            self.model.step(session, cancelled(call), AGENT)
            self.delete(session)
            assert told(request.answer())["result"]["isError"] is True
        elif event == "cut" and session in self.sockets and not self.survives_a_cut(session):
            self.model.step(session, cancelled(call), AGENT)
            self.cut(session)
            assert told(request.answer())["result"]["isError"] is True
        else:
            if event == "cut" and session in self.sockets:
                self.cut(session)
            with self.gate_open():
                data = told(request.answer())
                assert self.model.step(session, call, AGENT) is None
                self.check_agent(session, data, call)

    def open_the_gate(self) -> None:
        with self.gate_open():
            self.note("the gate was opened")

    # -- the server's account

    @invariant()
    def the_server_agrees(self) -> None:
        type(self).steps += 1
        while self.model.served:
            session, admission = self.model.served.pop(0)
            self.note(f"{session.origin}, after it waited: {admission.value}")
            self.admitted(session, admission)
        expected = self.expected()
        eventually(lambda: self.account() == expected, lambda: f"{self.account()}\nis not as expected:\n{expected}")

    def expected(self) -> Any:
        """The account that the model gives."""
        model = self.model
        sessions = {
            session.id: (session.origin, session.state, session.steps, planes(session), False)
            for session in model.sessions
        }
        capacity = {
            "active_sessions": len(model.sessions),
            "max_sessions": model.limit,
            "available_slots": model.limit - len(model.sessions) if model.ready else 0,
            "waiting": len(model.waiting),
            "quarantined": model.quarantined,
            "ready": model.ready,
            "reason": None if model.ready else "too many environments are stuck in code that cannot be stopped",
        }
        return sessions, capacity, 200 if model.ready else 503, model.instances

    def account(self) -> Any:
        """The account that the server gives."""
        told = self.account_of.get("/sessions").data["sessions"]
        sessions = {
            each["session_id"]: tuple(each[name] for name in ("origin", "state", "step_count", "planes", "busy"))
            for each in told
        }
        assert len(sessions) <= self.model.limit
        capacity = self.account_of.get("/capacity").data
        return sessions, capacity, self.account_of.get("/ready").status, self.world.census.in_use


def planes(session: Session) -> list[str]:
    """Return who is attached."""
    if not session.orchestrated:
        return [AGENT]
    attached = [CONTROL] if session.held or session.origin == "http" else []
    return [*attached, AGENT] if session.used else attached


SITUATIONS = {
    "socket: open",
    "http: open",
    "http: waits",
    "http, after it waited: open",
    "service: open",
    "max_steps",
    "evicted",
    "a lost socket ended its session",
    "a retry was not run again",
    "a frame that came twice in a heap",
    "a reset replaced a stuck instance",
    "a wait ended by step",
    "an agent came after the end",
}
"""What every run must have seen; a test that avoids what is difficult shows nothing."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("histories", [FEW, pytest.param(HISTORIES, marks=pytest.mark.slow)])
def test_sessions_planes_faults_and_limits_follow_the_model(
    histories: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("mcpenv", "fastmcp", "mcp", "uvicorn.error"):
        caplog.set_level("CRITICAL", name)  # tools fail on purpose, and a traceback holds an instance
    histories = int(os.environ.get("MCPENV_MODEL_HISTORIES", histories))
    chosen = int(os.environ.get("MCPENV_MODEL_SEED", 0))
    print(f"MCPENV_MODEL_SEED={chosen} MCPENV_MODEL_HISTORIES={histories}")
    Machine.steps, Machine.happened, Machine.worlds, Machine.failures = 0, Counter(), [], []
    run_machine(
        seed(chosen)(Machine),
        settings=settings(
            max_examples=histories,
            stateful_step_count=HISTORY,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink] if "MCPENV_MODEL_SHRINK" in os.environ else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    gc.collect()
    assert not any(world.census.alive for world in Machine.worlds)
    assert Machine.steps > 80 * histories
    if histories >= HISTORIES:
        assert set(Machine.happened) >= SITUATIONS
    with capsys.disabled():
        print(f"\n{Machine.steps} steps, MCPENV_MODEL_SEED={chosen} ", end="")
