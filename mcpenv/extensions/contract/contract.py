"""Define the contract as one method per check. A failed check raises an error with the remedy in its text."""

from __future__ import annotations

import json
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from fastmcp.tools.function_tool import FunctionTool

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.mounted.mounted_server import MountedServer
from mcpenv.failures import AFFINITY
from mcpenv.rewards.verifiers import missing_here
from mcpenv.tasks import TaskSet
from mcpenv.tasks.assignment import Wanted
from mcpenv.tools.names import RESERVED_NAMES
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv.tools.signatures import docstring_of
from mcpenv_client.errors import EpisodeDone, ExecutionError, McpenvError, NotSerializable, SessionLost, WireError
from mcpenv_client.types.actions import Action, CallToolAction
from mcpenv_client.types.observations import CallToolObservation, Observation
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode, Tool, ToolErrorType, ToolFailure
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import EpisodeState

from .arguments import wrong_arguments
from .findings import ContractViolation, ContractWarning, Finding, Verdict
from .subject import Subject, run
from .walk import Crashes, Served, Trace, cause_of, error_text, place_of

CHECKS = (
    "constructor",
    "reset",
    "state",
    "close",
    "end",
    "names",
    "schemas",
    "descriptions",
    "calls",
    "bad_calls",
    "rewards",
    "tasks",
    "verify",
    "determinism",
    "threads",
    "event_loop",
    "sharing",
    "episodes",
)
"""The names of the checks, in the order in which they run; each is a method of `Contract`."""

SET_LIVE = "set deterministic=False"
"""The remedy of a world that cannot be repeated; a caller with other options replaces it."""

GROUND = ("constructor", "reset")
"""Checks that all others depend on."""

MAX_TASKS = 1000
"""Maximum tasks of a split that are checked. A generator may have millions."""

MAX_VERIFIED = 3
"""Maximum tasks of a split for which an episode is verified."""

SEEDS = 16
"""Maximum number of seeds that are played, counted from the subject's own."""

LEAST_SEEDS = 3
"""Number of seeds that are played however long they take."""

SEEDS_S = 5.0
"""Seconds after which no further seed is played."""

_UNKNOWN_TOOL = "mcpenv_no_such_tool"


class Contract:
    """The checks on one environment, the ``subject``. A method returns if the check passes.

    Raises (all checks):
        ContractViolation: if the environment violates the contract.
        ContractWarning: if the environment fulfils the contract, but its author should know something.
        unittest.SkipTest: if the check does not apply.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._told: list[str] = []
        """The problems that checks have reported."""
        self._left_to_others: list[tuple[str, WireError]] = []
        """The failures that checks came across, and that concern another check."""

    def find(self, check: str) -> Finding:
        """Run one of `CHECKS` and return its finding."""
        finding = self._find(check)
        self._told.append(finding.text)
        return finding

    def _find(self, check: str) -> Finding:
        try:
            getattr(self, check)()
        except ContractViolation as violation:
            return Finding(check, Verdict.FAILED, violation.problem, remedy=violation.remedy)
        except ContractWarning as warned:
            return Finding(check, Verdict.WARNING, warned.problem, remedy=warned.remedy)
        except unittest.SkipTest as skipped:
            return Finding(check, Verdict.SKIPPED, str(skipped))
        except McpenvError as error:  # from code that another check covers
            return Finding(check, Verdict.FAILED, error_text(error))
        return Finding(check, Verdict.OK)

    # -- the lifecycle of an instance, in process

    def constructor(self) -> None:
        """Check that instances can be made without arguments, one for each session."""
        with self.subject.instance() as first, self.subject.instance() as second:
            if first is second:
                raise ContractViolation(
                    f"{self.subject.name} returned the same instance twice, and every session needs its own",
                    "Return a new instance",
                )

    def reset(self) -> None:
        """Check that each reset starts a new episode."""
        with self.subject.instance() as env:
            seen: set[Any] = set()
            for which in ("the first", "the second"):
                try:
                    observation = self.subject.reset(env)
                except WireError as error:
                    raise ContractViolation(f"{which} reset failed: {error_text(error)}") from error
                if not isinstance(observation, Observation):
                    raise ContractViolation(
                        f"reset returned a {type(observation).__name__}",
                        "Override only `reset`, and return an Observation or None",
                    )
                _expect_plain(observation, "the result of reset")
                if observation.done:
                    raise ContractViolation("reset returns done=True", "Begin an episode that agents can act in")
                episode = observation.info.get("episode_id")
                if not episode or episode in seen:
                    raise ContractViolation(f"{which} reset has episode id {episode!r}", "Each episode needs a new id")
                seen.add(episode)
                if env.step_count != 0:
                    raise ContractViolation(f"after {which} reset the step count is {env.step_count}, not 0")
                _step_once(env)
        if Mode.PRODUCTION not in self.subject.modes:
            raise ContractWarning(
                "reset has options without a default, so the environment cannot serve production or plain /mcp, "
                "where no client sets them",
                "Give them defaults",
            )

    def state(self) -> None:
        """Check that `State` has the current episode and step count."""
        with self.subject.instance() as env:
            for _ in range(2):
                episode = self.subject.reset(env).info["episode_id"]
                _expect_state(env, episode, 0)
                if _step_once(env):
                    _expect_state(env, episode, 1)

    def close(self) -> None:
        """Check that close works before any reset and twice, and that later steps are refused."""
        try:
            self.subject.make().close()
        except WireError as error:
            raise ContractViolation(
                f"close of an instance that was never reset failed: {error_text(error)}",
                "Set what close uses in __init__",
            ) from error
        env = self.subject.make()
        self.subject.reset(env)
        for which in ("close", "a second close"):
            try:
                env.close()
            except WireError as error:
                raise ContractViolation(
                    f"{which} failed: {error_text(error)}", "Release only resources that exist, and raise nothing"
                ) from error
        try:
            env.step(CallToolAction(tool_name=_UNKNOWN_TOOL))
        except SessionLost:
            return
        raise ContractViolation(
            "a step after close did not raise SessionLost", "Do not override step; handle own actions in act"
        )

    def end(self) -> None:
        """Check that steps after the end raise `EpisodeDone` until a reset."""
        episode = next((steps for steps in _episodes(self.subject.walk) if _ends_by_itself(steps)), None)
        if episode is None:
            raise unittest.SkipTest("no call ended an episode. If there is an end, give an example that reaches it")
        actions, label = [trace.action for trace in episode if trace.action is not None], episode[-1].label
        with self.subject.instance() as env:
            self.subject.reset(env)
            # A deadline makes sync tools change threads, which is another check.
            env._execution.user_code.deadline_s = None
            if not [env.step(action) for action in actions][-1].done:
                raise unittest.SkipTest(f"{label} ended the episode in one run and not in another")
            with suppress(EpisodeDone):
                env.step(actions[-1])
                raise ContractViolation(
                    f"a step after {label} had ended the episode was accepted",
                    "Do not override step; handle own actions in act",
                )
            if self.subject.reset(env).done:
                raise ContractViolation("a reset after the end returns done=True", "Start a new episode in reset")

    # -- the view of agents

    def names(self) -> None:
        """Check that no tool has a reserved name, including tools that a mounted server mounts or proxies."""
        with self.subject.instance() as env:
            execution = env._execution
            if execution.mounted is None:
                return  # registration refuses reserved names
            taken = sorted(RESERVED_NAMES & execution.blocking.run(_names_of(execution.mounted)))
        if taken:
            raise ContractViolation(
                f"the mounted FastMCP server has tools named {', '.join(map(repr, taken))}. These names are reserved "
                "for the orchestrator, and agents do not see such tools",
                "Rename them, or mount with a namespace",
            )

    def schemas(self) -> None:
        """Check that input and output schemas are JSON Schema for objects."""
        for tool in self.subject.all_tools:
            fault = schema_fault(tool)
            if fault is not None:
                raise ContractViolation(*fault)

    def descriptions(self) -> None:
        """Check that the author has described every tool."""
        without: list[str] = []
        with self.subject.instance() as env:
            own = {bound.kind.name: bound for mode in Mode for bound in env._execution.tools.listed(mode)}
            for tool in self.subject.all_tools:
                bound, written = own.get(tool.name), tool.description
                # The listed description of a function may be derived from its name.
                if bound is not None and not isinstance(bound.kind, SchemaTool):
                    written = bound.kind.options.description or docstring_of(bound.fn) or ""
                if not written.strip():
                    without.append(tool.name)
        if without:
            raise ContractViolation(
                f"no description: {', '.join(dict.fromkeys(without))}",
                "Add a docstring or description=, as it is all that an agent knows of a tool",
            )

    def calls(self) -> None:
        """Check that every tool can be called, and that results are JSON that fits the output schema."""
        subject = self.subject
        tools = {tool.name: tool for tool in subject.all_tools}
        unknown = [name for name in subject.examples if name not in tools]
        if unknown:
            known = ", ".join(tools) or "none"
            raise ContractViolation(f"examples for {', '.join(unknown)}, but the tools are: {known}")
        untried = {name: "no arguments made" for name, tool in tools.items() if subject.arguments(tool) is None}
        for trace in (*subject.walk, *subject.production_walk):
            if isinstance(trace.action, CallToolAction):
                name = trace.action.tool_name
                note = self._check_call(trace, tools[name])
                if note is not None:
                    untried.setdefault(name, note)
        self.not_called = untried
        if untried:
            named = "; ".join(f"{name} ({note})" for name, note in untried.items())
            raise ContractWarning(f"no successful call: {named}", "Give examples={tool: arguments} that work")

    def bad_calls(self) -> None:
        """Check that wrong arguments give ``invalid_args``, and unknown tools ``tool_not_found``."""
        lenient = [name for mode in self.subject.modes for name in run(self._make_bad_calls(mode))]
        if lenient:
            named = ", ".join(dict.fromkeys(lenient))
            raise ContractWarning(
                f"wrong arguments are accepted, against the schema: {named}",
                "Refuse them where they are checked, or let the schema say what is accepted",
            )

    def rewards(self) -> None:
        """Check that rewards are finite numbers or None, and that scoring raises nothing."""
        advice = "Give a finite number, or None for 'not scored'"
        for trace in self.subject.walk:
            if trace.action is not None and isinstance(trace.error, ExecutionError):
                raise ContractViolation(f"{trace.label}: {error_text(trace.error)}", advice)
            reward = None if trace.observation is None else trace.observation.reward
            if reward is not None and (type(reward) is not float or reward - reward != 0.0):
                raise ContractViolation(f"{trace.label}: the reward is {reward!r}", advice)

    # -- tasks

    def tasks(self) -> None:
        """Check that the tasks can be read, and that options and verifier of each can be used."""
        with self.subject.instance() as env:
            cls = type(env)
        unjudged: dict[str, str] = {}
        try:
            for task in _first_of_splits(cls.tasks, MAX_TASKS):
                if (lacking := missing_here(task.verifier)) is not None:
                    unjudged[task.id] = lacking
                    continue
                Wanted({**self.subject.reset_options, "task": task}, cls.author_hooks.options, cls.tasks).found(None)
        except Exception as error:
            advice = "Correct the tasks; mcpenv tasks lists them"
            raise ContractViolation(f"tasks: {error_text(error)}", advice) from error
        if unjudged:
            first, lacking = next(iter(unjudged.items()))
            raise ContractWarning(
                f"{len(unjudged)} of the tasks cannot be judged here: the verifier of {first} {lacking}"
            )

    def verify(self) -> None:
        """Check that the end of an episode can be verified: untouched, and after one call of each tool."""
        with self.subject.instance() as env:
            self.verified = self._verified_tasks(env)
            for task in self.verified:
                for actions in ([], self.subject.actions_of(Mode.SIMULATION)):
                    self._verify_end(env, task, actions)

    # -- behaviour on a server

    def determinism(self) -> None:
        """Check that the same seed and the same calls give the same observations and rewards."""
        subject = self.subject
        if not subject.deterministic:
            raise unittest.SkipTest("deterministic=False")
        for one, other in zip(subject.walk, subject.walk_anew(Mode.SIMULATION), strict=False):
            mine, theirs = one.plain(), other.plain()
            if mine != theirs:
                raise ContractViolation(
                    f"two instances with seed {subject.seed} and the same calls differ at {one.label}: "
                    f"{_difference(mine, theirs)}",
                    f"Draw from a random.Random(seed) made in reset. If the world cannot be repeated, {SET_LIVE}",
                )

    def threads(self) -> None:
        """Check that sync code works from any thread, or that the class sets ``THREAD_AFFINE``."""
        subject = self.subject
        with subject.instance() as env:
            if env.THREAD_AFFINE:
                raise unittest.SkipTest("THREAD_AFFINE = True: all code of an instance runs in one thread")
        for mode in subject.modes:
            alone = subject.walk if mode is Mode.SIMULATION else subject.production_walk
            for one, changed in zip(alone, subject.walk_anew(mode, threads=3), strict=False):
                if one.problem is None and changed.problem is not None:
                    raise ContractViolation(
                        f"{changed.label} works in one thread and fails when threads change: "
                        f"{error_text(changed.problem)}",
                        "Set THREAD_AFFINE = True in the class, which runs all code of an instance in one thread",
                    )

    def event_loop(self) -> None:
        """Check that async code does not block the event loop, which all sessions share."""
        for trace in (*self.subject.walk, *self.subject.production_walk):
            if trace.blocked_at is not None:
                raise ContractViolation(
                    f"{trace.label} blocked the event loop, and so every other session, for more than "
                    f"{self.subject.block_limit_s:g} s ({trace.blocked_at})",
                    "Await something that does not block, or make it a plain def, which runs in a thread",
                )

    def sharing(self) -> None:
        """Check that FastMCP parses tools and servers once for the class, not once per instance."""
        with self.subject.instance() as one, self.subject.instance() as other:
            mine, theirs = one._execution, other._execution
            functions = [
                set() if each.mounted is None else each.blocking.run(_functions_of(each.mounted))
                for each in (mine, theirs)
            ]
            if functions[0] - functions[1]:
                raise ContractWarning(
                    "every instance mounts a FastMCP server with functions of its own, which FastMCP parses again and "
                    "keeps in its caches (20 KiB each)",
                    "Build one per class or module, or register tools with self.tool",
                )
            anew = [
                bound.kind.name
                for mode in Mode
                for bound in mine.tools.listed(mode)
                if (same := theirs.tools.by_mode[mode].get(bound.kind.name)) is not None and same.kind is not bound.kind
            ]
        if anew:
            raise ContractWarning(
                f"FastMCP parses {', '.join(dict.fromkeys(anew))} again for every instance (1 ms each, and memory that "
                "its caches never release), because the constructor makes a default, a type or a dependency of the "
                "signature",
                "Define it at module level",
            )

    # -- failures that no other check has found

    def episodes(self) -> None:
        """Check that episodes of several seeds, one after the other on one instance, run to their ends.

        Each has a call of each tool. A tool that raises with some seeds only is a warning. Failures of the author's
        code that other checks came across and did not report fail this check.
        """
        for mode, walk in ((Mode.SIMULATION, self.subject.walk), (Mode.PRODUCTION, self.subject.production_walk)):
            for number, trace in enumerate(walk):
                if trace.error is None or (trace.action is not None and not isinstance(trace.error, ExecutionError)):
                    continue
                after = f" after {walk[number - 1].label}" if number else ""
                failed = f"{trace.label}{after} failed in {mode.value}"
                if mode is Mode.PRODUCTION and trace.label == "reset" and "task" in self.subject.reset_options:
                    raise ContractWarning(
                        f"{failed}: {error_text(trace.error)}. No client chooses a task there: begin an episode "
                        "without one"
                    )
                self._expect_told(failed, trace.error)
        for failed, error in self._left_to_others:
            self._expect_told(failed, error)
        known = {trace.label for trace in self.subject.walk if trace.crash is not None}
        raised: dict[str, str] = {}
        env, began, first = self.subject.make(), time.monotonic(), self.subject.seed
        env._execution.user_code.deadline_s = self.subject.call_timeout_s
        try:
            for seed in range(first, first + SEEDS):
                if seed - first >= LEAST_SEEDS and time.monotonic() - began > SEEDS_S:
                    break
                what = f"episode {seed - first + 1} of an instance, with seed {seed},"
                for label, crash in self._play_episode(env, seed):
                    if label not in known:
                        raised.setdefault(label, f"{label} with seed {seed} raised {error_text(crash)}")
            what = "close after these episodes"
            env.close()
        except WireError as error:
            with suppress(WireError):  # it is the first error that counts
                env.close()
            self._expect_told(f"{what} failed", error)
        if raised:
            raise ContractWarning(
                f"{'; '.join(raised.values())}, and not with seed {first}",
                "Raise ToolError with a text for the agent if it is the agent's fault",
            )

    # -- parts of checks

    def _expect_told(self, failed: str, error: WireError) -> None:
        """Raise if no check has reported the cause of an error: an exception of this type at this place."""
        text, cause = error_text(error), cause_of(error)
        kind, known_by = type(cause).__name__, [place_of(cause) or text]
        if AFFINITY in getattr(cause, "__notes__", ()):  # wherever it was raised, it may be for the check of threads
            known_by.append("THREAD_AFFINE")
        if not any(kind in told and any(by in told for by in known_by) for told in self._told):
            raise ContractViolation(f"{failed}: {text}. Each seed and mode must give an episode, and each end a worth")

    def _play_episode(self, env: MCPEnvironment, seed: int) -> Iterator[tuple[str, BaseException]]:
        """Play an episode with one call of each tool. Yield the names of tools with the exceptions that they raise."""
        done = env.reset(seed, **self.subject.reset_options).done
        for action in self.subject.actions_of(Mode.SIMULATION):
            if done:
                return
            with Crashes() as crashes:
                done = env.step(action).done
            if crashes.first is not None:
                yield action.tool_name if isinstance(action, CallToolAction) else type(action).__name__, crashes.first
        if not done:
            env.end()

    def _check_call(self, trace: Trace, tool: Tool) -> str | None:
        """Return a note on a call that did not succeed although no contract is violated; None if it did."""
        name, given, problem = tool.name, tool.name in self.subject.examples, trace.problem
        if isinstance(trace.error, ExecutionError):
            return None  # scoring, which the check of rewards covers
        if isinstance(problem, ToolFailure) and problem.error_type is ToolErrorType.EXECUTION_ERROR and not given:
            return problem.message
        if problem is not None:
            how = "the example" if given else "arguments made from its schema"
            advice = (
                "Give an example that works"
                if given
                else "Raise ToolError with a text for the agent, or give an example"
            )
            raise ContractViolation(f"{name} with {how} failed: {error_text(problem)}", advice)
        observation = trace.observation
        assert isinstance(observation, CallToolObservation) and observation.result is not None
        _expect_plain(observation, f"the result of {name}")
        if observation.result.is_error:  # an error that a proxied server answered; MCP wants no structured content then
            return observation.text
        return None

    def _verified_tasks(self, env: MCPEnvironment) -> list[Task | None]:
        """Return some tasks with a verified end; None stands for an episode without a task."""
        cls = type(env)
        try:
            tasks = list(_first_of_splits(cls.tasks, MAX_VERIFIED))
        except Exception:  # noqa: BLE001 - the check of tasks covers this
            return []
        tasks = [task for task in tasks if missing_here(task.verifier) is None]
        verified: list[Task | None] = [task for task in tasks if cls.author_hooks.verifies or task.verifier is not None]
        return verified or ([None] if cls.author_hooks.verifies else [])

    def _verify_end(self, env: MCPEnvironment, task: Task | None, actions: list[Action]) -> None:
        named = "" if task is None else f" of task {task.id!r}"
        options = {} if task is None else {"task": task}
        try:
            env.reset(self.subject.seed, **{**self.subject.reset_options, **options})
            for action in actions:
                env.step(action)
            env.end()
        except EpisodeDone:
            return  # an action has ended the episode, which was verified then
        except WireError as error:
            if isinstance(error, ExecutionError) and error.data.get("stage") not in ("verify", None):
                self._left_to_others.append((f"the end{named} failed", error))
                return
            raise ContractViolation(
                f"the end{named} could not be verified: {error_text(error)}",
                "Return a number, a bool, a Verdict or None, also if the agent did nothing",
            ) from error

    async def _make_bad_calls(self, mode: Mode) -> list[str]:
        """Make wrong calls. Return the tools for which another process checks the arguments, and accepted them."""
        served = self.subject.served(mode)
        lenient: list[str] = []
        try:
            await served.open(self.subject.make)
            await served.reset()
            await self._expect_failure(served, _UNKNOWN_TOOL, {}, ToolErrorType.TOOL_NOT_FOUND)
            for tool in self.subject.tools[mode]:
                for arguments in wrong_arguments(tool.input_schema, self.subject.arguments(tool) or {}):
                    elsewhere = _is_checked_elsewhere(served, mode, tool)
                    wanted = ToolErrorType.INVALID_ARGS
                    if not await self._expect_failure(served, tool.name, arguments, wanted, may_be_accepted=elsewhere):
                        lenient.append(tool.name)
            await served.close()
            return lenient
        finally:
            served.end_threads()

    async def _expect_failure(
        self,
        served: Served,
        name: str,
        arguments: dict[str, Any],
        wanted: ToolErrorType,
        *,
        may_be_accepted: bool = False,
    ) -> bool:
        """Raise if a wrong call does not fail as required. Return False if it was accepted, and may be."""
        if served.execution.episode.state is EpisodeState.DONE:
            await served.reset()
        trace = await served.step(CallToolAction(tool_name=name, arguments=arguments), name)
        if isinstance(trace.error, ExecutionError):
            call = f"{name}({json.dumps(arguments, default=str)})"
            self._left_to_others.append((f"the wrong call {call} failed in the environment", trace.error))
            return True
        failure = trace.observation.error if trace.observation is not None else None
        if failure is not None and failure.error_type is wanted:
            return True
        answered = trace.observation.result if isinstance(trace.observation, CallToolObservation) else None
        if wanted is ToolErrorType.INVALID_ARGS and answered is not None and (answered.is_error or may_be_accepted):
            return answered.is_error  # a proxied server checks arguments itself
        advice = (
            "Middleware must not catch FastMCP's NotFoundError"
            if wanted is ToolErrorType.TOOL_NOT_FOUND
            else "Validators must raise only ValueError, and middleware must not catch pydantic's ValidationError"
        )
        got = "a result" if trace.problem is None else error_text(trace.problem)
        call = f"{name}({json.dumps(arguments, default=str)})"
        raise ContractViolation(f"{call} gave {got} instead of {wanted.value}", advice)


def schema_fault(tool: Tool) -> tuple[str, str] | None:
    """Return the fault of a tool's schemas, and the remedy; None if they have none."""
    for what, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
        if schema is None:
            continue
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            return (
                f"the {what} schema of {tool.name!r} is not valid JSON Schema: {error.message}",
                "Correct it, or let the type hints define it",
            )
        if schema.get("type") != "object":
            return (
                f"the {what} schema of {tool.name!r} has type {schema.get('type')!r}, but MCP requires 'object'",
                "Wrap the value in an object",
            )
    return None


def _first_of_splits(tasks: TaskSet | None, number: int) -> Iterator[Task]:
    """Yield the first tasks of each split."""
    if tasks is None:
        return
    for split in tasks.splits():
        for index in range(min(number, tasks.size(split))):
            yield tasks.get(split, index)


def _step_once(env: MCPEnvironment) -> bool:
    """Take a step, ignoring its outcome. Return True if the episode accepts steps."""
    try:
        env.step(CallToolAction(tool_name=_UNKNOWN_TOOL))
    except EpisodeDone:
        return False
    except ExecutionError:  # scoring, which the check of bad calls covers
        pass
    return True


def _expect_state(env: MCPEnvironment, episode: str, steps: int) -> None:
    execution, wanted = env._execution, env.state_type
    state = execution.blocking.run(execution.read_state())
    if not isinstance(state, wanted):
        raise ContractViolation(
            f"state returns a {type(state).__name__}, but state_type is {wanted.__name__}. Set state_type to the type "
            "that state returns"
        )
    if state.episode_id != episode or state.step_count != steps:
        raise ContractViolation(
            f"state has episode {state.episode_id!r} and step {state.step_count}, instead of episode {episode!r} and "
            f"step {steps}",
            "Leave both out of the state that you return: the framework fills them in",
        )
    _expect_plain(state, "state")


def _expect_plain(value: Any, what: str) -> None:
    try:
        to_plain(value, what)
    except NotSerializable as error:
        raise ContractViolation(
            f"no JSON form: {error}", "Use finite numbers, strings, lists, dicts or pydantic models"
        ) from error


async def _names_of(mounted: MountedServer) -> set[str]:
    await mounted.enter()
    return {tool.name for tool in await mounted.server.list_tools()}


async def _functions_of(mounted: MountedServer) -> set[Callable[..., Any]]:
    await mounted.enter()
    return {tool.fn for tool in await mounted.server.list_tools() if isinstance(tool, FunctionTool)}


def _is_checked_elsewhere(served: Served, mode: Mode, tool: Tool) -> bool:
    """Return True if the arguments of a tool are checked by another process."""
    bound = served.execution.tools.by_mode[mode].get(tool.name)
    return bound is not None and isinstance(bound.kind, SchemaTool)


def _episodes(walk: list[Trace]) -> Iterator[list[Trace]]:
    """Yield the steps of each episode of a walk."""
    steps: list[Trace] = []
    for trace in walk:
        if trace.action is not None:
            steps.append(trace)
        elif steps:
            yield steps
            steps = []


def _ends_by_itself(steps: list[Trace]) -> bool:
    """Return True if the last step ended the episode without any timeout (in process, a timeout would never happen)."""
    last = steps[-1].observation
    return last is not None and last.done and not any(step.timed_out for step in steps)


def _difference(one: Any, other: Any, path: str = "") -> str:
    """Describe the first difference between two values of plain data."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        key = next(key for key in one if one[key] != other[key])
        return _difference(one[key], other[key], f"{path}.{key}" if path else str(key))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        index = next(n for n, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        return _difference(one[index], other[index], f"{path}[{index}]")
    return f"{path or 'it'} is {str(one)[:200]!r} and {str(other)[:200]!r}"
