"""Play two sessions with alternating calls, and compare each with the same calls made alone.

The sessions make different calls, so that one reads after the other has written: two oracles of tasks, or an oracle and
a session that calls each tool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.findings import Verdict
from mcpenv.extensions.contract.walk import error_text
from mcpenv.extensions.validation.tasks.play import difference_of, failure_of, plain_of
from mcpenv.worlds import capture
from mcpenv_client.errors import McpenvError, WireError
from mcpenv_client.types.actions import Action, CallToolAction
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode, Tool
from mcpenv_client.types.values import to_plain

from .candidate import Candidate
from .judged import Judged

REMEDY = "Keep state in the instance (self), not in the class, the module or a shared file"
REMEDY_OF_REPEAT = "Draw from random.Random(seed) in reset, never from the clock, and share nothing between instances"

Step = Callable[[], None]

MAX_TASKS = 3
"""Maximum number of tasks with an oracle that is played."""
MAX_READS = 20
"""Maximum calls of a session that calls each tool."""
REPEATED = 2
"""Times that a script with differing outcomes is replayed alone, to rule out causes other than sharing."""
INTERLEAVING_S = 10.0
"""Maximum seconds for making calls, once a pair was compared."""
FIRST_PAIR_S = 30.0
"""Maximum seconds for making the calls of the first pair: a slow world is compared once."""


def judge_interleaved(candidate: Candidate, into: Judged) -> str:
    """Judge pairs of sessions. Return the parts omitted for lack of time, for the summary; empty if there are none."""
    pairs = list(_pairs(candidate))
    trials = [
        (scripts, order)
        for swapped in (False, True)
        for order in (_in_turns, _second_within_first)
        for scripts in (pair[::-1] if swapped else pair for pair in pairs)
    ]
    into.facts["interleaved"] = 0
    began = time.monotonic()
    stage = _Stage(candidate)
    try:
        for scripts, order in trials:
            stage.deadline = began + (INTERLEAVING_S if into.facts["interleaved"] else FIRST_PAIR_S)
            for script in scripts:
                stage.play_alone(script, into)
            if any(stage.is_unlike_itself(script) for script in scripts):
                continue
            stage.compare(stage.play(scripts, order), into)
            if any(finding.check == "isolation" for finding in into.of(Verdict.FAILED)):
                break
            into.facts["interleaved"] += 1
    except _NoTimeLeft:
        seconds = time.monotonic() - began
        return f"{into.facts['interleaved']} of {len(trials)} pairs of sessions compared in {seconds:.0f} s"
    return ""


class _NoTimeLeft(Exception):
    """Raised instead of a call after the deadline."""


@dataclass(frozen=True)
class Script:
    """The calls of a session.

    Attributes:
        name: its name for a reader, as the subject of a sentence. It is unique together with the task.
        task: the task to play; None without tasks.
        actions: its calls.
        again: True if it resets and continues after a call has ended its episode.
    """

    name: str
    task: Task | None
    actions: tuple[Action, ...]
    again: bool = False

    @property
    def task_id(self) -> str:
        """The id of the task; empty without one."""
        return "" if self.task is None else self.task.id


@dataclass
class _Shown:
    """The outcome of a reset, a call or the end; ``data`` is None if it was not made."""

    label: str
    data: Any = None
    ignore: tuple[str, ...] = ()
    named: bool = False

    def difference(self, other: _Shown) -> str | None:
        """Return the first difference between two outcomes; None if they are equal."""
        return difference_of(self.data, other.data, self.ignore, named=self.named) or None


@dataclass(frozen=True)
class _Difference:
    """The first difference of two sessions: after how many outcomes, at which, and the difference itself."""

    number: int
    label: str
    text: str


@dataclass
class Session:
    """An instance, its script, and its outcomes so far.

    Attributes:
        deadline: the end of the time for calls, on the monotonic clock.
        catches: True if an error of the author's code is an outcome; False to raise it.
        seconds: the duration of each call, by its name.
        succeeded: the number of calls that did not fail.
        failure: the error of the author's code that ended it, with file and line.
    """

    candidate: Candidate
    script: Script
    deadline: float = math.inf
    catches: bool = True
    shown: list[_Shown] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    succeeded: int = 0
    failure: str | None = None

    def steps(self) -> Iterator[Step]:
        """Yield its actions, one after the other."""
        yield self.reset
        for number in range(len(self.script.actions)):
            yield partial(self.call, number)
        yield self._look
        yield self.end

    def make(self) -> None:
        """Make the instance."""
        self._expect_time()
        self.env: MCPEnvironment = self.candidate.subject.make()

    def reset(self) -> None:
        """Begin the episode."""
        self._show("the reset", lambda: plain_of(self.candidate.reset(self.env, self.script.task)))

    def call(self, number: int) -> None:
        """Make the call of this index."""
        action = self.script.actions[number]
        name = action.tool_name if isinstance(action, CallToolAction) else type(action).__name__
        label = f"call {number + 1} ({name})"
        self._show(label, partial(self._outcome_of, action, label))

    def end(self) -> None:
        """End the episode."""
        self._show("the end", lambda: plain_of(self.env.end()))

    def close(self) -> None:
        """Close the instance."""
        with suppress(*((WireError,) if self.catches else ())):  # the check of close covers this
            self.env.close()

    def difference(self, other: Session) -> _Difference | None:
        """Return the first difference between the outcomes of two sessions; None if there is none."""
        for number, (mine, theirs) in enumerate(zip(self.shown, other.shown, strict=False)):
            text = mine.difference(theirs)
            if text is not None:
                return _Difference(number, mine.label, text)
        return None

    def _outcome_of(self, action: Action, label: str) -> Any:
        if self._is_done() and self.script.again:
            self.candidate.reset(self.env, self.script.task)
        if self._is_done():
            return None
        began = time.perf_counter()
        observation = self.env.step(action)
        self.seconds[label] = time.perf_counter() - began
        self.succeeded += failure_of(observation) is None
        return plain_of(observation)

    def _look(self) -> None:
        """Read the state and the world."""
        self._show("the state before the end", lambda: state_of(self.env))
        self._show("the world before the end", lambda: None if self.env.world is None else capture(self.env.world))
        task = self.script.task
        self.shown[-1].ignore = tuple((task.verifier or {}).get("ignore", ())) if task is not None else ()
        self.shown[-1].named = isinstance(self.env.world, Mapping)

    def _show(self, label: str, outcome: Callable[[], Any]) -> None:
        self._expect_time()
        if self.failure is not None:
            self.shown.append(_Shown(label))
            return
        try:
            self.shown.append(_Shown(label, outcome()))
        except McpenvError as error:  # of the author's code, which may fail because of the other session
            if not self.catches:
                raise
            self.failure = f"at {label}, {error_text(error)}"
            cause = "" if error.__cause__ is None else type(error.__cause__).__name__
            self.shown.append(_Shown(label, {"raised": type(error).__name__, "cause": cause}))

    def _is_done(self) -> bool:
        return self.env.trajectory is not None and self.env.trajectory.done

    def _expect_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise _NoTimeLeft


def state_of(env: MCPEnvironment) -> dict[str, Any]:
    """Return the state of an instance as plain JSON data, without the id of its episode."""
    state = to_plain(env._execution.blocking.run(env._execution.read_state()), "state")
    return {key: value for key, value in state.items() if key != "episode_id"}


def scripts_of(candidate: Candidate) -> list[Script]:
    """Return the oracles of the first tasks; without them, a session that calls each tool once."""
    tasks = [task for task in candidate.tasks if task.oracle][:MAX_TASKS]
    oracles = [
        Script(
            f"the oracle of {task.id}",
            task,
            tuple(CallToolAction(tool_name=call.tool_name, arguments=call.arguments) for call in task.oracle or ()),
        )
        for task in tasks
    ]
    if not oracles:
        task = candidate.tasks[0] if candidate.tasks else None
        calls = candidate.subject.actions_of(Mode.SIMULATION)[:MAX_READS]
        oracles = [Script("a session that calls each tool once", task, tuple(calls))]
    return oracles


def _pairs(candidate: Candidate) -> Iterator[tuple[Script, Script]]:
    """Yield a script with the script of the next task, and with one that calls each tool."""
    oracles = scripts_of(candidate)
    tasks = [script.task for script in oracles if script.task is not None and script.task.oracle]
    reads = _reads(candidate, {call.tool_name for task in tasks for call in task.oracle or ()})
    for number, script in enumerate(oracles):
        others = [Script("a session that calls each tool", script.task, reads, again=True)]
        if tasks:  # oracles have fewer calls; an oracle beside itself shows least
            others.insert(len(oracles) == 1, oracles[(number + 1) % len(oracles)])
        yield from ((script, other) for other in others)


def _reads(candidate: Candidate, by_oracles: set[str]) -> tuple[Action, ...]:
    """Return calls of each tool: first tools that are probably read-only, last tools that oracles call."""

    def rank(tool: Tool) -> tuple[bool, bool]:
        return not (tool.annotations or {}).get("readOnlyHint"), tool.name in by_oracles

    # Reversed, so that it does not make the same call at the same time as a session that calls each tool in order.
    tools = list(reversed(candidate.tools))
    tools.sort(key=rank)
    calls = [
        CallToolAction(tool_name=tool.name, arguments=arguments)
        for tool in tools
        for arguments in candidate.examples(tool)
    ]
    return tuple(calls[:MAX_READS])


Order = Callable[[list[Session]], Iterator[Step]]


class _Stage:
    """Plays sessions, and keeps the outcomes of each script played alone. No call is made after the deadline."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self.deadline = math.inf
        self._alone: dict[tuple[str, str], Session] = {}
        self._unlike: set[tuple[str, str]] = set()

    def play_alone(self, script: Script, into: Judged) -> None:
        """Play a script alone, unless that was done before. Add its failure, if it has one."""
        if (script.name, script.task_id) in self._alone:
            return
        (alone,) = self.play((script,), _in_turns)
        self._alone[script.name, script.task_id] = alone
        if alone.failure is not None:
            into.failed("plays", f"{script.name} fails also alone: {alone.failure}", "Correct it", script.task_id)

    def play(self, scripts: tuple[Script, ...], order: Order) -> list[Session]:
        """Play scripts to their ends, each on its own instance; all instances exist from the beginning."""
        sessions = [Session(self._candidate, script, self.deadline) for script in scripts]
        made: list[Session] = []
        try:
            for session in sessions:
                session.make()
                made.append(session)
            for step in order(sessions):
                step()
        finally:
            for session in made:
                session.close()
        return sessions

    def is_unlike_itself(self, script: Script) -> bool:
        """Return True if a script had other outcomes when it was played alone again."""
        return (script.name, script.task_id) in self._unlike

    def compare(self, both: list[Session], into: Judged) -> None:
        """Compare each of two sessions with the same session alone, and add the earliest difference."""
        found = []
        for session, other in (both, reversed(both)):
            alone = self._alone[session.script.name, session.script.task_id]
            difference = alone.difference(session)
            if difference is not None:
                if session.failure is not None and alone.failure is None:
                    difference = replace(difference, text=f"it failed {session.failure}")
                found.append((difference, session.script, other.script))
        if not found:
            return
        difference, script, other_script = min(found, key=lambda each: each[0].number)
        if self._repeats(script, into):
            into.failed(
                "isolation",
                f"{script.name} saw something else at {difference.label} than alone, while {other_script.name} was "
                f"played by another session: {difference.text}",
                REMEDY,
                script.task_id,
            )

    def _repeats(self, script: Script, into: Judged) -> bool:
        """Return True if a script has the same outcomes when played alone again.

        Otherwise add a warning: the clock may be the cause.
        """
        for _ in range(REPEATED):
            (again,) = self.play((script,), _in_turns)
            difference = self._alone[script.name, script.task_id].difference(again)
            if difference is not None:
                self._unlike.add((script.name, script.task_id))
                into.warning(
                    "isolation",
                    f"{script.name} cannot be compared: played alone again, it differs at {difference.label}: "
                    f"{difference.text}",
                    REMEDY_OF_REPEAT,
                    script.task_id,
                )
                return False
        return True


def _in_turns(sessions: list[Session]) -> Iterator[Step]:
    """Yield the steps of all sessions, alternating between them."""
    for steps in zip_longest(*(session.steps() for session in sessions)):
        yield from (step for step in steps if step is not None)


def _second_within_first(sessions: list[Session]) -> Iterator[Step]:
    """Yield all of the second session, from its reset to its end, between the calls of the first and its end."""
    first, second = sessions
    *calls, look, end = first.steps()
    yield from (*calls, *second.steps(), look, end)
