"""Judge the class of durability: stop episodes, continue them in another process, and compare with undisturbed ones."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpenv.cli.output import number_of
from mcpenv.extensions.contract.findings import ContractViolation
from mcpenv.extensions.durable.journal import begin_journal
from mcpenv.extensions.durable.snapshots import way_of
from mcpenv.extensions.durable.sqlite_store import SqliteStore
from mcpenv.extensions.durable.store import SNAPSHOT
from mcpenv.extensions.records.replay import Difference
from mcpenv.rewards.verifiers import Changes
from mcpenv_client.fingerprint import first_difference
from mcpenv_client.types.actions import CallToolAction

from .candidate import Candidate
from .continued import Shown, finish
from .interleaved import REMEDY_OF_REPEAT, Script, scripts_of
from .judged import Judged

CHECK = "durability"

MAX_STOPS = 12
"""Maximum stops of an episode. Those of a longer one are evenly spread, and the last is after its last step."""
STOPPING_S = 15.0
"""Seconds after which no further stop is made."""
CONTINUING_S = 90.0
"""Seconds in which the other process must continue all of them, or `LONGER` times as many as they took here."""
LONGER = 10

_WAYS = {
    "export": (
        "loaded from its saved state",
        "Save in save_state all that later calls depend on, and put it back in load_state",
    ),
    "rerun": (
        "played again by its journal",
        "Keep all state in the instance or its world, and let reset begin anew; or define save_state and load_state",
    ),
}
"""For each class the words for what it does, and the remedy."""


@dataclass(frozen=True)
class _Stop:
    """A stopped episode: its id in the store, its script, and the number of steps that it had."""

    id: str
    script: Script
    step: int


def judge_durability(candidate: Candidate, given: Sequence[Any], into: Judged) -> None:
    """Judge that an episode which is stopped after a step goes on in another process as if it had not been.

    Args:
        given: the arguments with which the other process loads the environment.
    """
    if not candidate.stands(into):
        return
    with candidate.instance() as env:
        way = into.facts["class"] = way_of(env._execution)
    if way == "restart":
        into.not_applicable(CHECK, 'its DURABILITY is "restart": only a new episode is honest')
    elif not candidate.subject.deterministic:
        into.not_applicable(CHECK, "the world is live, so that no two episodes are equal")
    elif not given:
        into.not_applicable(CHECK, "it was not loaded from a target, and so another process cannot load it")
    else:
        _Stage(candidate, way, into).judge(given)


class _Stage:
    """Plays episodes undisturbed, stops them, and judges what the other process made of them."""

    def __init__(self, candidate: Candidate, way: str, into: Judged) -> None:
        self._candidate = candidate
        self._way = way
        self._into = into
        self._named = False

    def judge(self, given: Sequence[Any]) -> None:
        """Add the findings, and what was tried."""
        began = time.monotonic()
        undisturbed = [(script, self._undisturbed(script)) for script in scripts_of(self._candidate)]
        steps = sum(map(_steps, (shown for _, shown in undisturbed)))
        if not steps:
            self._into.not_applicable(CHECK, "its episodes have no step, because no tool could be called")
            return
        with tempfile.TemporaryDirectory(prefix="mcpenv-durability-") as place:
            stops = self._stopped(place, undisturbed)
            if not stops:
                self._into.not_applicable(
                    CHECK, "its first step is cut off, after which an episode ends with its server"
                )
                return
            self._candidate.on_check("another process")
            answers = _continued_elsewhere(given, place, stops, max(CONTINUING_S, LONGER * (time.monotonic() - began)))
        self._into.facts["stops"] = {
            script.name: [s.step for s in stops if s.script is script] for script, _ in undisturbed
        }
        self._into.summary = (
            f"{self._way}: stopped after {len(stops)} of {number_of(steps, 'step')}, and continued in another process"
        )
        for stop, answer in zip(stops, answers, strict=True):
            shown = next(shown for script, shown in undisturbed if script is stop.script)
            found = answer if isinstance(answer, str) else self._difference(stop.script, shown, answer)
            if found is not None:
                self._report(stop, shown, found)
                return
        self._into.ok(CHECK)

    def _undisturbed(self, script: Script) -> Shown:
        with self._candidate.instance() as env:
            self._candidate.reset(env, script.task)
            self._named = isinstance(env.world, Mapping)
            return finish(env, _calls(script))

    def _stopped(self, place: str, undisturbed: Sequence[tuple[Script, Shown]]) -> list[_Stop]:
        """Play each episode to its stops, and leave its journals in the store."""
        stops, until = list[_Stop](), time.monotonic() + STOPPING_S
        store = SqliteStore(place)
        try:
            for script, shown in undisturbed:
                for step in spread(_steps(shown)):
                    stop = _Stop(str(len(stops)), script, step)
                    if (stops and time.monotonic() > until) or not self._stop(stop, store):
                        break
                    stops.append(stop)
        finally:
            asyncio.run(store.close())
        return stops

    def _stop(self, stop: _Stop, store: SqliteStore) -> bool:
        """Play an episode to a stop. Return False if a step was cut off, after which nobody can continue it."""
        with self._candidate.instance() as env:
            run, observation = env._execution.blocking.run, self._candidate.reset(env, stop.script.task)
            journal = run(begin_journal(store, stop.id, env._execution, observation))
            for name, arguments in _calls(stop.script)[: stop.step]:
                env.call_tool(name, arguments)
            if not journal.snapshots.exports:
                self._way = self._into.facts["class"] = "rerun"
            elif not any(entry.number == SNAPSHOT for entry in run(store.entries(stop.id))):
                env.snapshot()  # raises, and names what cannot be saved
            return journal.goes_on

    def _difference(self, script: Script, undisturbed: Shown, other: Shown) -> str | None:
        """Return the first difference of an episode from the undisturbed one, as a clause; None if there is none."""
        verifier = (script.task.verifier if script.task is not None else None) or {}
        for (step, one), (_, two) in zip(undisturbed, other, strict=False):
            facts = {name: one[name] for name in two if name != "world"}  # without a look that only one of them had
            found = first_difference(facts, {name: two[name] for name in facts})
            if found is not None:
                return str(Difference(step, *found))
            if "world" in two:
                ignore = verifier.get("ignore", ())
                for change in Changes(one["world"], two["world"], ignore, named=self._named):
                    return str(Difference(step, f"world/{change.where}", change.before, change.after))
        return None

    def _report(self, stop: _Stop, undisturbed: Shown, found: str) -> None:
        """Add a difference. If the episode also differs when it is only played again, that is the reason."""
        where = "" if stop.script.task is None else stop.script.task.id
        words, remedy = _WAYS[self._way]
        problem = f"stopped after step {stop.step} and {words} in another process: {found}"
        differs = self._difference(stop.script, undisturbed, self._undisturbed(stop.script))
        if differs is not None:
            problem, remedy = f"played again, undisturbed: {differs}", REMEDY_OF_REPEAT
        # A saved state may be worth its name where episodes cannot be repeated. Nothing can be compared then.
        add = self._into.warning if differs is not None and self._way == "export" else self._into.failed
        add(CHECK, problem, f'{remedy}; or say DURABILITY = "restart"', where)


def _steps(shown: Shown) -> int:
    return len(shown) - 2  # without the reset and the end


def _calls(script: Script) -> list[tuple[str, dict[str, Any]]]:
    return [(each.tool_name, each.arguments) for each in script.actions if isinstance(each, CallToolAction)]


def spread(steps: int) -> list[int]:
    """Return the steps after which an episode is stopped."""
    number = min(steps, MAX_STOPS)
    return [-(-steps * stop // number) for stop in range(1, number + 1)]


def _continued_elsewhere(given: Sequence[Any], place: str, stops: Sequence[_Stop], limit_s: float) -> list[Shown | str]:
    """Continue all stopped episodes in another process.

    Raises:
        ContractViolation: it does not come to an end.
    """
    job = {"target": given, "store": place, "stops": [(s.id, _calls(s.script)[s.step :]) for s in stops]}
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "mcpenv.extensions.validation.parts.continued"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ContractViolation(f"another process did not continue its episodes within {limit_s:.0f} s") from None
    if ended.returncode:
        last = (ended.stderr.strip() or f"exit status {ended.returncode}").splitlines()[-1]
        raise ContractViolation(f"another process could not continue its episodes: {last}")
    answers: list[Shown | str] = json.loads(ended.stdout)
    return answers
