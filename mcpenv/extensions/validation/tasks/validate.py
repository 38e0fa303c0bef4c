"""Check that the oracle scores full, all of it, idle play the minimum, random play less, and that two runs agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.walk import error_text
from mcpenv_client.errors import McpenvError
from mcpenv_client.scores import equal, reaches
from mcpenv_client.types.tasks import Task

from .play import Play, Player, at_random, difference_of, malformed, oracle, play
from .report import SOURCE_PAYS, Report, TaskReport

RANDOM_SEEDS = 3
MAX_STEPS = 30
MAX_SHORTENED = 8
"""Maximum calls of an oracle that are left out, one at a time."""

_REMEDY_OF_MALFORMED = "Score nothing for a call whose outcome is an error: outcome.error, or result.is_error"
_REMEDY_OF_ORACLE = "Correct the oracle or the verifier; mcpenv play prints the calls of an episode as an oracle"
_REMEDY_OF_FULL = "Let the verifier require what the task asks for, such as expect_exactly instead of expect_only"
_REMEDY_OF_NOTHING = (
    f"{_REMEDY_OF_FULL}. If the right thing is to change nothing, give the task an empty oracle (oracle: [])"
)
_REMEDY_OF_REFUSAL = "Let the verifier refuse every change: expect_exactly without changes"
_REMEDY_OF_OPTIONS = "Correct the task's options; mcpenv inspect shows those of reset"
_REMEDY_OF_ERROR = "Correct the environment; --debug shows the traceback"
REMEDY_OF_TOOL = "Correct the tool; where the call is the agent's error, raise ToolError with a text for the agent"
_REMEDIES = {
    "reset": "Correct reset, or the task's options: each task and seed must begin an episode",
    "verify": "Correct verify, or the task's verifier: each end must have a worth, also if the agent did nothing",
    "score": "Correct score: it is asked about each call, also about one that failed",
    "rubric": "Correct the rubric: it is asked about each call and each end",
}
"""The remedies of errors in the author's code, by the stage that raised them."""
_REMEDY_OF_SHORTENED = "Let the verifier require what that call changes, or take the call out of the oracle"
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
    with Bench(make) as first, Bench(make) as second:
        for task in tasks:
            of_task = _Trial(task, first, second, random_seeds, max_steps).report()
            report.tasks.append(of_task)
            if on_report is not None:
                on_report(of_task)
    return report


class Bench:
    """An instance that is replaced after an error."""

    def __init__(self, make: Callable[[], MCPEnvironment]) -> None:
        self._make = make
        self._env: MCPEnvironment | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._env is not None:
            self._env.close()

    @property
    def has_named_worlds(self) -> bool:
        """True if the environment has several worlds, by name."""
        return self._env is not None and isinstance(self._env.world, Mapping)

    def read_only_tools(self) -> set[str]:
        """Return the names of the tools that are declared as read-only."""
        tools = () if self._env is None else self._env.list_tools()
        return {tool.name for tool in tools if (tool.annotations or {}).get("readOnlyHint")}

    def play(self, task: Task, player: Player | None = None, seed: int | None = None) -> Play:
        """Play one episode (`play`)."""
        if self._env is None:
            self._env = self._make()
        played = play(self._env, task, player, seed)
        if played.error is not None:
            env, self._env = self._env, None
            try:
                env.close()
            except McpenvError as error:
                played.error += f"; and close failed: {error_text(error)}"
        return played


class _Trial:
    """The trials of one task."""

    def __init__(self, task: Task, first: Bench, second: Bench, random_seeds: int, max_steps: int) -> None:
        self._task = task
        self._first = first
        self._second = second
        self._random_seeds = random_seeds
        self._max_steps = max_steps if task.limits.max_steps is None else min(max_steps, task.limits.max_steps)
        self._report = TaskReport(task)
        self._floor, self._full = task.reward_range
        self._earned_by_oracle: float | None = None
        verifier = task.verifier or {}
        # A task whose solution is to change nothing: doing nothing is worth full, and a change is not.
        self._refuses = task.oracle == [] or (verifier.get("kind") == "expect_exactly" and not verifier.get("changes"))

    def report(self) -> TaskReport:
        """Run all trials."""
        solved = self._try_oracle() if self._report.has_oracle else None
        if solved is not None and not solved.seen:
            return self._report  # the reset failed, which is already reported
        idle = self._try_nothing()
        if not idle.seen:
            return self._report
        first_random = self._try_random()
        if idle.error is None:
            self._try_malformed(idle)
        # Repeat on the other instance, which has run different episodes.
        again: list[tuple[str, Play, Player | None, int | None]] = [("doing nothing", idle, None, None)]
        if solved is not None:
            again.append(("the oracle", solved, oracle(self._task), None))
        elif first_random is not None:
            again.append(("random play", first_random, *self._at_random(0)))
        for what, played, player, seed in again:
            if played.error is None and self._report.repeats is not False:
                other = self._second.play(self._task, player, seed)
                self._report.repeats = self._agrees(what, played, other)
                self._report.digest = played.digest
                if played is solved and self._report.repeats and self._earned_by_oracle is not None:
                    self._try_shortened(solved, other)
        return self._report

    def _try_oracle(self) -> Play:
        played = self._play(oracle(self._task))
        self._report.oracle = played.score
        why = "".join(f"; {reason}" for reason in (*played.failed[:3], *played.reasons[:3]))
        if played.error is not None:
            self._failure("the oracle cannot be played" if played.seen else "no episode begins", played, why)
        elif not _is(played.score, self._full):
            remedy = REMEDY_OF_TOOL if played.crashes else _REMEDY_OF_ORACLE
            self._problem(f"the oracle scores {_shown(played.score)} instead of {self._full:g}{why}", remedy)
        else:
            self._earned_by_oracle = played.earned
        left = len(self._task.oracle or ()) - played.steps
        if left and played.error is None:
            self._problem(f"the episode ends before the last call of the oracle; calls left: {left}", _REMEDY_OF_ORACLE)
        return played

    def _try_nothing(self) -> Play:
        played = self._play()
        self._report.nothing = played.score
        if played.error is not None:
            self._failure("doing nothing fails" if played.seen else "no episode begins", played)
        elif self._refuses:
            if not _is(played.score, self._full):
                what = f"doing nothing scores {_shown(played.score)} instead of {self._full:g}"
                self._problem(f"{what}, although the task's oracle is empty", _REMEDY_OF_ORACLE)
        elif _reaches(played.score, self._full):
            self._problem(f"doing nothing scores {_shown(played.score)}, which is full", _REMEDY_OF_NOTHING)
        elif not _is(played.score, self._floor):
            self._problem(f"doing nothing scores {_shown(played.score)} instead of {self._floor:g}", _REMEDY_OF_FLOOR)
        self._compare_earned("doing nothing", played)
        return played

    def _try_random(self) -> Play | None:
        first: Play | None = None
        for seed in range(self._random_seeds):
            played = self._play(*self._at_random(seed))
            first = played if first is None else first
            self._report.at_random.append(played.score)
            if played.error is not None:
                self._failure(f"random play (seed {seed}) fails", played)
            elif _reaches(played.score, self._full) and (played.changed or not self._refuses):
                self._problem(
                    f"random play (seed {seed}) scores {_shown(played.score)} in {played.steps} step(s)",
                    _REMEDY_OF_REFUSAL if self._refuses else _REMEDY_OF_FULL,
                )
            self._compare_earned(f"random play (seed {seed})", played)
        return first

    def _try_malformed(self, idle: Play) -> None:
        played = self._play(malformed(self._task, self._max_steps))
        self._report.malformed = played.score
        if played.error is not None:
            self._failure("malformed calls fail", played)
        elif played.score is not None and not reaches(idle.score or self._floor, played.score):
            self._problem(
                f"malformed calls score {_shown(played.score)}, more than doing nothing", _REMEDY_OF_MALFORMED
            )
        elif played.earned is not None and not reaches(max(0.0, idle.earned or 0.0), played.earned):
            self._problem(
                f"malformed calls return {_shown(played.earned)}, more than doing nothing", _REMEDY_OF_MALFORMED
            )

    def _try_shortened(self, solved: Play, again: Play) -> None:
        """Play the oracle without one of its calls, which must cost something if it changes the world.

        What a call changes is seen at the end: without a call that only looks, the world is left as with it.
        """
        calls = self._task.oracle or ()
        if solved.left is None or len(calls) < 2 or self._refuses or self._left(solved, again):
            return  # there is no world, or two equal plays leave different ones
        looks = self._first.read_only_tools()
        changing = [number for number, call in enumerate(calls) if call.tool_name not in looks]
        for number in changing if len(changing) <= MAX_SHORTENED else _spread(changing):
            played = self._play(oracle(self._task, number))
            self._report.shortened.append(played.score)
            what = f"the oracle without call {number + 1} ({calls[number].tool_name})"
            if played.error is not None:
                self._failure(f"{what} fails", played)
            elif _reaches(played.score, self._full) and (difference := self._left(solved, played)):
                self._problem(
                    f"{what} scores {_shown(played.score)}, which is full, and leaves another world, {difference}",
                    _REMEDY_OF_SHORTENED,
                )

    def _left(self, one: Play, other: Play) -> str:
        """Return the first difference of the worlds that two plays leave; empty if there is none."""
        ignore = (self._task.verifier or {}).get("ignore", ())
        return difference_of(one.left, other.left, ignore, named=self._first.has_named_worlds)

    def _compare_earned(self, what: str, played: Play) -> None:
        """Report an end of lower value with a return as high as the oracle's: training would exploit it."""
        best = self._earned_by_oracle
        if best is None or played.error is not None or _reaches(played.score, self._full):
            return
        if _reaches(played.earned, best):
            self._problem(
                f"{what} returns {_shown(played.earned)}, not less than the oracle ({best:g})", _REMEDY_OF_RETURN
            )

    def _play(self, player: Player | None = None, seed: int | None = None) -> Play:
        """Play the task on the first instance."""
        played = self._first.play(self._task, player, seed)
        for tool, text in played.crashes.items():
            self._report.crashes.setdefault(tool, text)
        return played

    def _at_random(self, seed: int) -> tuple[Player, int | None]:
        """Return a random player, and the seed of its reset. A task without a seed must stand any."""
        return at_random(self._task, seed, self._max_steps), seed if self._task.seed is None else None

    def _failure(self, what: str, played: Play, why: str = "") -> None:
        """Report a play that the author's code, or the task's options, have ended."""
        if any(problem.endswith(played.error or "") for problem in self._report.problems):
            return  # the same failure of another play
        remedy = _REMEDIES.get(played.stage or "", _REMEDY_OF_ERROR if played.seen else _REMEDY_OF_OPTIONS)
        self._problem(f"{what}{why}: {played.error}", remedy)

    def _agrees(self, what: str, one: Play, other: Play) -> bool:
        """Return True if two plays of the same calls agree. Report their first difference."""
        if other.error is not None:
            self._problem(f"{what} works once, but fails the second time: {other.error}", _REMEDY_OF_REPEAT)
            return False
        ignore = (self._task.verifier or {}).get("ignore", ())
        difference = difference_of(one.world, other.world, ignore, named=self._first.has_named_worlds)
        if difference:
            self._problem(f"two resets leave different worlds, the second {difference}", _REMEDY_OF_REPEAT)
            return False
        for seen, again in zip(one.seen, other.seen, strict=False):
            if difference := difference_of(seen.data, again.data):
                self._problem(f"two runs of {what} differ at {seen.label}, the second {difference}", _REMEDY_OF_REPEAT)
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
        why = self._task.metadata.get(SOURCE_PAYS)
        if why is not None and remedy in (_REMEDY_OF_NOTHING, _REMEDY_OF_FULL, _REMEDY_OF_SHORTENED):
            self._report.known.append(text)
            return
        if text not in self._report.problems:
            self._report.problems.append(text)
            self._report.remedies.append(remedy)


def _spread(numbers: Sequence[int]) -> list[int]:
    """Return `MAX_SHORTENED` of the numbers, evenly, with the first and the last."""
    return [numbers[at * (len(numbers) - 1) // (MAX_SHORTENED - 1)] for at in range(MAX_SHORTENED)]


def _is(score: float | None, wanted: float) -> bool:
    return score is not None and equal(score, wanted)


def _reaches(score: float | None, full: float) -> bool:
    return score is not None and reaches(score, full)


def _shown(score: float | None) -> str:
    return "nothing (it is not scored)" if score is None else f"{score:g}"
