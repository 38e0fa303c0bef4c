"""Check that the oracle scores full, idle play the minimum, random play less than full, and that two runs agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from mcpenv.environment import MCPEnvironment
from mcpenv.rewards.verifiers import Changes
from mcpenv_client.errors import McpenvError
from mcpenv_client.types.tasks import Task

from .play import Play, Player, at_random, malformed, oracle, play
from .report import Report, TaskReport

RANDOM_SEEDS = 3
MAX_STEPS = 30

_CLOSE = 1e-9
_REMEDY_OF_MALFORMED = "Score nothing for a call whose outcome is an error: outcome.error, or result.is_error"
_REMEDY_OF_ORACLE = "Correct the oracle or the verifier; mcpenv play prints the calls of an episode as an oracle"
_REMEDY_OF_FULL = "Let the verifier require what the task asks for, such as expect_exactly instead of expect_only"
_REMEDY_OF_ERROR = "Correct the environment or the task's options; --debug shows the traceback"
_REMEDY_OF_FLOOR = "State the value of doing nothing as the first number of the task's reward_range"
_REMEDY_OF_RETURN = "Pay less for single steps, so that the full solution pays most"
_REMEDY_OF_REPEAT = "Draw from random.Random(seed) in reset, never from the clock, and share nothing between instances"


def validate(
    make: Callable[[], MCPEnvironment],
    tasks: Iterable[Task],
    *,
    random_seeds: int = RANDOM_SEEDS,
    max_steps: int = MAX_STEPS,
    on_report: Callable[[TaskReport], None] | None = None,
) -> Report:
    """Try tasks and report their problems.

    Args:
        make: returns an instance of the environment. Two are used, so that repeated plays run after different episodes.
        tasks: the tasks.
        random_seeds: the number of random plays of each task.
        max_steps: maximum calls of a random play.
        on_report: called after each task.
    """
    report = Report()
    with _Bench(make) as first, _Bench(make) as second:
        for task in tasks:
            of_task = _Trial(task, first, second, random_seeds, max_steps).report()
            report.tasks.append(of_task)
            if on_report is not None:
                on_report(of_task)
    return report


class _Bench:
    """An instance that is replaced after an error."""

    def __init__(self, make: Callable[[], MCPEnvironment]) -> None:
        self._make = make
        self._env: MCPEnvironment | None = None

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._env is not None:
            self._env.close()

    @property
    def has_named_worlds(self) -> bool:
        """True if the environment has several worlds, by name."""
        return self._env is not None and isinstance(self._env.world, Mapping)

    def play(self, task: Task, player: Player | None = None) -> Play:
        if self._env is None:
            self._env = self._make()
        played = play(self._env, task, player)
        if played.error is not None:
            env, self._env = self._env, None
            try:
                env.close()
            except McpenvError as error:
                played.error += f"; and close failed: {error}"
        return played


class _Trial:
    """The trials of one task."""

    def __init__(self, task: Task, first: _Bench, second: _Bench, random_seeds: int, max_steps: int) -> None:
        self._task = task
        self._first = first
        self._second = second
        self._random_seeds = random_seeds
        self._max_steps = max_steps if task.limits.max_steps is None else min(max_steps, task.limits.max_steps)
        self._report = TaskReport(task)
        self._floor, self._full = task.reward_range
        self._earned_by_oracle: float | None = None

    def report(self) -> TaskReport:
        """Run all trials."""
        solved = self._try_oracle() if self._report.has_oracle else None
        idle = self._try_nothing()
        if idle.error is not None and not idle.seen:
            return self._report  # the reset failed, which is already reported
        first_random = self._try_random()
        if idle.error is None:
            self._try_malformed(idle)
        # Repeat on the other instance, which has run different episodes.
        again: list[tuple[str, Play, Player | None]] = [("doing nothing", idle, None)]
        if solved is not None:
            again.append(("the oracle", solved, oracle(self._task)))
        elif first_random is not None:
            again.append(("random play", first_random, self._player(0)))
        for what, played, player in again:
            if played.error is None and self._report.repeats is not False:
                self._report.repeats = self._agrees(what, played, self._second.play(self._task, player))
                self._report.digest = played.digest
        return self._report

    def _try_oracle(self) -> Play:
        played = self._first.play(self._task, oracle(self._task))
        self._report.oracle = played.score
        why = "".join(f"; {reason}" for reason in (*played.failed[:3], *played.reasons[:3]))
        if played.error is not None:
            self._problem(f"the oracle cannot be played: {played.error}{why}", _REMEDY_OF_ORACLE)
        elif not _is(played.score, self._full):
            self._problem(f"the oracle scores {_shown(played.score)} instead of {self._full:g}{why}", _REMEDY_OF_ORACLE)
        else:
            self._earned_by_oracle = played.earned
        left = len(self._task.oracle or ()) - played.steps
        if left and played.error is None:
            self._problem(f"the episode ends before the last call of the oracle; calls left: {left}", _REMEDY_OF_ORACLE)
        return played

    def _try_nothing(self) -> Play:
        played = self._first.play(self._task)
        self._report.nothing = played.score
        if played.error is not None:
            self._problem(f"doing nothing fails: {played.error}", _REMEDY_OF_ERROR)
        elif _reaches(played.score, self._full):
            self._problem(f"doing nothing scores {_shown(played.score)}, which is full", _REMEDY_OF_FULL)
        elif not _is(played.score, self._floor):
            self._problem(f"doing nothing scores {_shown(played.score)} instead of {self._floor:g}", _REMEDY_OF_FLOOR)
        self._compare_earned("doing nothing", played)
        return played

    def _try_random(self) -> Play | None:
        first: Play | None = None
        for seed in range(self._random_seeds):
            played = self._first.play(self._task, self._player(seed))
            first = played if first is None else first
            self._report.at_random.append(played.score)
            if played.error is not None:
                self._problem(f"random play (seed {seed}) fails: {played.error}", _REMEDY_OF_ERROR)
            elif _reaches(played.score, self._full):
                self._problem(
                    f"random play (seed {seed}) scores {_shown(played.score)} in {played.steps} step(s)",
                    _REMEDY_OF_FULL,
                )
            self._compare_earned(f"random play (seed {seed})", played)
        return first

    def _try_malformed(self, idle: Play) -> None:
        played = self._first.play(self._task, malformed(self._task, self._max_steps))
        self._report.malformed = played.score
        if played.error is not None:
            self._problem(
                f"malformed calls fail: {played.error}", "Let no wrong argument reach code that cannot stand it"
            )
        elif played.score is not None and played.score > (idle.score or self._floor) + _CLOSE:
            self._problem(
                f"malformed calls score {_shown(played.score)}, more than doing nothing", _REMEDY_OF_MALFORMED
            )
        elif played.earned is not None and played.earned > max(0.0, idle.earned or 0.0) + _CLOSE:
            self._problem(
                f"malformed calls return {_shown(played.earned)}, more than doing nothing", _REMEDY_OF_MALFORMED
            )

    def _compare_earned(self, what: str, played: Play) -> None:
        """Report an end of lower value with a return as high as the oracle's: training would exploit it."""
        best = self._earned_by_oracle
        if best is None or played.error is not None or _reaches(played.score, self._full):
            return
        if _reaches(played.earned, best):
            self._problem(
                f"{what} returns {_shown(played.earned)}, not less than the oracle ({best:g})", _REMEDY_OF_RETURN
            )

    def _player(self, seed: int) -> Player:
        return at_random(self._task, seed, self._max_steps)

    def _agrees(self, what: str, one: Play, other: Play) -> bool:
        """Return True if two plays of the same calls agree. Report their first difference."""
        if other.error is not None:
            self._problem(f"{what} works once, but fails the second time: {other.error}", _REMEDY_OF_REPEAT)
            return False
        ignore = (self._task.verifier or {}).get("ignore", ())
        worlds = Changes(one.world, other.world, ignore, named=self._first.has_named_worlds)
        difference = next(iter(worlds), None)
        if difference is not None:
            self._problem(f"two resets leave different worlds: {difference}", _REMEDY_OF_REPEAT)
            return False
        for seen, again in zip(one.seen, other.seen, strict=False):
            difference = next(iter(Changes(seen.data, again.data)), None)
            if difference is not None:
                self._problem(f"two runs of {what} differ at {seen.label}: {difference}", _REMEDY_OF_REPEAT)
                return False
        if len(one.seen) != len(other.seen):
            self._problem(
                f"of two runs of {what} one has {one.steps} step(s) and the other {other.steps}", _REMEDY_OF_REPEAT
            )
            return False
        if one.digest != other.digest:  # equal numbers of different types
            self._problem(f"two runs of {what} differ in the type of a number", _REMEDY_OF_REPEAT)
            return False
        return True

    def _problem(self, text: str, remedy: str) -> None:
        if text not in self._report.problems:
            self._report.problems.append(text)
            self._report.remedies.append(remedy)


def _is(score: float | None, wanted: float) -> bool:
    return score is not None and math.isclose(score, wanted, rel_tol=1e-9, abs_tol=1e-9)


def _reaches(score: float | None, full: float) -> bool:
    return score is not None and (score > full or _is(score, full))


def _shown(score: float | None) -> str:
    return "nothing (it is not scored)" if score is None else f"{score:g}"
