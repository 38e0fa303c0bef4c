"""The contract: one method per check. Each raises what is wrong with a text that says what to do."""

from __future__ import annotations

import json
import unittest
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from mcpenv_client.actions import CallToolAction
from mcpenv_client.errors import EpisodeDone, ExecutionError, McpenvError, NotSerializable, SessionLost, WireError
from mcpenv_client.observations import CallToolObservation, Observation
from mcpenv_client.tools import Mode, Tool, ToolErrorType, ToolFailure
from mcpenv_client.values import to_plain
from mcpenv_client.wire import EpisodeState

from ..environment import MCPEnvironment
from ..handed_in import HandedIn
from ..kinds import RESERVED_NAMES
from ..signatures import docstring_of
from .findings import ContractViolation, ContractWarning, Finding, Verdict
from .sample_arguments import wrong_arguments
from .subject import Subject, run
from .walks import Served, Trace, said

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
    "determinism",
    "threads",
    "event_loop",
    "sharing",
)
"""The checks, in the order in which they run; each is a method of `Contract`."""

GROUND = ("constructor", "reset")
"""Checks without which no other one makes sense."""

_UNKNOWN_TOOL = "mcpenv_no_such_tool"


class Contract:
    """The checks on one environment. A method returns where all is well.

    Raises (all checks):
        ContractViolation: the environment breaks it.
        ContractWarning: it does not, but its author should know.
        unittest.SkipTest: the check does not apply.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def find(self, check: str) -> Finding:
        """Run one of `CHECKS`."""
        try:
            getattr(self, check)()
        except ContractViolation as violation:
            return Finding(check, Verdict.FAILED, str(violation))
        except ContractWarning as warned:
            return Finding(check, Verdict.WARNING, str(warned))
        except unittest.SkipTest as skipped:
            return Finding(check, Verdict.SKIPPED, str(skipped))
        except McpenvError as error:  # of code that this check needs and another one is about
            return Finding(check, Verdict.FAILED, said(error))
        return Finding(check, Verdict.OK)

    # -- the life of an instance, in process

    def constructor(self) -> None:
        """It can be made without arguments, as often as there are sessions."""
        with self._subject.instance() as first, self._subject.instance() as second:
            if first is second:
                raise ContractViolation(
                    f"{self._subject.name} gave the same instance twice, and every session needs one of its own: "
                    "return a new instance"
                )

    def reset(self) -> None:
        """Each reset begins an episode, also after another one."""
        with self._subject.instance() as env:
            seen: set[Any] = set()
            for which in ("the first", "the second"):
                try:
                    observation = self._subject.reset(env)
                except WireError as error:
                    raise ContractViolation(f"{which} reset failed: {said(error)}") from error
                if not isinstance(observation, Observation):
                    raise ContractViolation(
                        f"reset gave a {type(observation).__name__}: override `reset`, not the way to it, and return "
                        "an Observation or None"
                    )
                _expect_plain(observation, "what reset returned")
                episode = observation.info.get("episode_id")
                if not episode or episode in seen:
                    raise ContractViolation(f"{which} reset has episode id {episode!r}; each episode needs a new one")
                seen.add(episode)
                if env.step_count != 0:
                    raise ContractViolation(f"after {which} reset the step count is {env.step_count}, not 0")
                _step_once(env)
        if Mode.PRODUCTION not in self._subject.modes:
            raise ContractWarning(
                "reset has options without a default, so that the environment cannot serve production or plain /mcp, "
                "where nobody chooses them: give them defaults"
            )

    def state(self) -> None:
        """A `State` that says which episode runs and how many steps it has."""
        with self._subject.instance() as env:
            for _ in range(2):
                episode = self._subject.reset(env).info["episode_id"]
                _expect_state(env, episode, 0)
                if _step_once(env):
                    _expect_state(env, episode, 1)

    def close(self) -> None:
        """It works before any reset, and twice; there are no steps after it."""
        try:
            self._subject.make().close()
        except WireError as error:
            raise ContractViolation(
                f"close of an instance that was never reset failed: {said(error)}. Set in __init__ what close needs"
            ) from error
        env = self._subject.make()
        self._subject.reset(env)
        for which in ("close", "a second close"):
            try:
                env.close()
            except WireError as error:
                raise ContractViolation(
                    f"{which} failed: {said(error)}. It releases what is there, and raises nothing"
                ) from error
        try:
            env.step(CallToolAction(tool_name=_UNKNOWN_TOOL))
        except SessionLost:
            return
        raise ContractViolation("a step after close raised no SessionLost; do not override step: own actions go to act")

    def end(self) -> None:
        """After the end a step raises `EpisodeDone`, until a reset."""
        episode = next((steps for steps in _episodes(self._subject.walk) if _ends_by_itself(steps)), None)
        if episode is None:
            raise unittest.SkipTest("no call ended an episode; if there is an end, give an example that reaches it")
        actions, label = [trace.action for trace in episode if trace.action is not None], episode[-1].label
        with self._subject.instance() as env:
            self._subject.reset(env)
            env._execution.user_code.deadline_s = None  # with one, sync tools change threads, which is another check
            if not [env.step(action) for action in actions][-1].done:
                raise unittest.SkipTest(f"{label} ended the episode in one run and not in another")
            with suppress(EpisodeDone):
                env.step(actions[-1])
                raise ContractViolation(
                    f"a step after {label} had ended the episode was taken; do not override step: own actions go to act"
                )
            if self._subject.reset(env).done:
                raise ContractViolation("a reset after the end gives done at once; begin a new episode in reset")

    # -- what agents see

    def names(self) -> None:
        """No tool has one of the orchestrator's names, also none that a handed-in server mounts or proxies."""
        with self._subject.instance() as env:
            execution = env._execution
            if execution.handed_in is None:
                return  # registration refuses them
            taken = sorted(RESERVED_NAMES & execution.home.drive(_names_of(execution.handed_in)))
        if taken:
            raise ContractViolation(
                f"the FastMCP server that is handed in has tools named {', '.join(map(repr, taken))}. These names are "
                "reserved for the orchestrator, and agents do not see such tools: rename them, or mount with a "
                "namespace"
            )

    def schemas(self) -> None:
        """Input and output schemas are JSON Schema for objects."""
        for tool in self._subject.all_tools:
            for what, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
                if schema is None:
                    continue
                try:
                    jsonschema.Draft202012Validator.check_schema(schema)
                except jsonschema.SchemaError as error:
                    raise ContractViolation(
                        f"the {what} schema of {tool.name!r} is no JSON Schema: {error.message}. Correct it, or leave "
                        "it to the type hints"
                    ) from error
                if schema.get("type") != "object":
                    raise ContractViolation(
                        f"the {what} schema of {tool.name!r} has type {schema.get('type')!r}, and MCP wants 'object': "
                        "wrap it in one"
                    )

    def descriptions(self) -> None:
        """Every tool says what it does, in the author's words."""
        without: list[str] = []
        with self._subject.instance() as env:
            own = {bound.kind.name: bound for mode in Mode for bound in env._execution.tools.listed(mode)}
            for tool in self._subject.all_tools:
                bound, written = own.get(tool.name), tool.description
                if bound is not None:  # its description may be made up from its name
                    written = bound.kind.options.description or docstring_of(bound.fn) or ""
                if not written.strip():
                    without.append(tool.name)
        if without:
            raise ContractViolation(
                f"no description: {', '.join(dict.fromkeys(without))}. An agent knows only what the docstring (or "
                "description=) says"
            )

    def calls(self) -> None:
        """Every tool can be called, and what comes back is JSON that fits its output schema."""
        subject = self._subject
        tools = {tool.name: tool for tool in subject.all_tools}
        unknown = [name for name in subject.examples if name not in tools]
        if unknown:
            known = ", ".join(tools) or "none"
            raise ContractViolation(f"examples for {', '.join(unknown)}, but the tools are: {known}")
        untried = [f"{name} (no arguments made)" for name, tool in tools.items() if subject.arguments(tool) is None]
        for trace in (*subject.walk, *subject.production_walk):
            if isinstance(trace.action, CallToolAction):
                untried += self._check_call(trace, tools[trace.action.tool_name])
        if untried:
            raise ContractWarning(
                f"not seen working: {'; '.join(dict.fromkeys(untried))}. Give examples={{tool: arguments}} that work"
            )

    def bad_calls(self) -> None:
        """Wrong arguments are ``invalid_args``, unknown tools ``tool_not_found``; neither is an ``execution_error``."""
        for mode in self._subject.modes:
            run(self._make_bad_calls(mode))

    def rewards(self) -> None:
        """Rewards are finite numbers or None, and scoring raises nothing."""
        advice = "Give a finite number, or None for 'not scored'"
        for trace in self._subject.walk:
            if trace.action is not None and isinstance(trace.error, ExecutionError):
                raise ContractViolation(f"{trace.label}: {said(trace.error)}. {advice}")
            reward = None if trace.observation is None else trace.observation.reward
            if reward is not None and (type(reward) is not float or reward - reward != 0.0):
                raise ContractViolation(f"{trace.label}: the reward is {reward!r}. {advice}")

    # -- how it behaves on a server

    def determinism(self) -> None:
        """The same seed and the same calls give the same observations and rewards."""
        subject = self._subject
        if not subject.deterministic:
            raise unittest.SkipTest("said not to be deterministic")
        for one, other in zip(subject.walk, subject.walk_anew(Mode.SIMULATION), strict=False):
            mine, theirs = one.plain(), other.plain()
            if mine != theirs:
                raise ContractViolation(
                    f"two instances with seed {subject.seed} and the same calls differ at {one.label}: "
                    f"{_difference(mine, theirs)}. Draw from a random.Random(seed) made in reset; if the world cannot "
                    "be repeated, say deterministic=False"
                )

    def threads(self) -> None:
        """Sync code works from whichever thread calls it, or the class says ``THREAD_AFFINE``."""
        subject = self._subject
        with subject.instance() as env:
            if env.THREAD_AFFINE:
                raise unittest.SkipTest("THREAD_AFFINE = True: everything of an instance runs in one thread")
        for mode in subject.modes:
            alone = subject.walk if mode is Mode.SIMULATION else subject.production_walk
            for one, changed in zip(alone, subject.walk_anew(mode, threads=3), strict=False):
                if one.problem is None and changed.problem is not None:
                    raise ContractViolation(
                        f"{changed.label} works in one thread and fails when threads change: {said(changed.problem)}. "
                        "Say THREAD_AFFINE = True in the class, and everything of an instance runs in one thread of "
                        "its own"
                    )

    def event_loop(self) -> None:
        """Async code gives the event loop back: every other session waits for it meanwhile."""
        for trace in (*self._subject.walk, *self._subject.production_walk):
            if trace.blocked_at is not None:
                raise ContractViolation(
                    f"{trace.label} kept the event loop for more than {self._subject.block_limit_s:g} s "
                    f"({trace.blocked_at}), and every other session with it. Await something that does not block, or "
                    "make it a plain def, which runs in a thread"
                )

    def sharing(self) -> None:
        """What FastMCP parses is parsed once for the class, not once per instance."""
        with self._subject.instance() as one, self._subject.instance() as other:
            mine, theirs = one._execution, other._execution
            if mine.server is not None and mine.server is not theirs.server:
                raise ContractWarning(
                    "every instance hands in a FastMCP server of its own, which FastMCP's caches never let go (20 KiB "
                    "each): build one per class or module, or register tools with self.tool"
                )
            anew = [
                bound.kind.name
                for mode in Mode
                for bound in mine.tools.listed(mode)
                if (same := theirs.tools.get(mode, bound.kind.name)) is not None and same.kind is not bound.kind
            ]
        if anew:
            raise ContractWarning(
                f"FastMCP parses {', '.join(dict.fromkeys(anew))} anew for every instance (1 ms each, and memory that "
                "its caches never let go): a default, a type or a dependency of the signature is made in the "
                "constructor. Define it at module level"
            )

    # -- parts of checks

    def _check_call(self, trace: Trace, tool: Tool) -> list[str]:
        """What is to be said of a call that was not seen working although nothing is broken."""
        name, given, problem = tool.name, tool.name in self._subject.examples, trace.problem
        if isinstance(trace.error, ExecutionError):
            return []  # scoring, which another check is about
        if isinstance(problem, ToolFailure) and problem.error_type is ToolErrorType.EXECUTION_ERROR and not given:
            return [f"{name} ({problem.message})"]
        if problem is not None:
            how = "the example" if given else "arguments made from its schema"
            advice = (
                "Give an example that works"
                if given
                else "Raise ToolError with words for the agent, or give an example"
            )
            raise ContractViolation(f"{name} with {how} failed: {said(problem)}. {advice}")
        observation = trace.observation
        assert isinstance(observation, CallToolObservation) and observation.result is not None
        _expect_plain(observation, f"what {name} returned")
        if tool.output_schema is not None:
            try:
                jsonschema.validate(observation.result.structured_content, tool.output_schema)
            except jsonschema.SchemaError:
                return []  # the check of schemas is about that
            except jsonschema.ValidationError as error:
                raise ContractViolation(
                    f"what {name} returned does not fit its output schema: {error.message}. Correct the return type, "
                    "or output_schema"
                ) from error
        return []

    async def _make_bad_calls(self, mode: Mode) -> None:
        served = self._subject.served(mode)
        try:
            await served.open(self._subject.make)
            await served.reset()
            await _expect_failure(served, _UNKNOWN_TOOL, {}, ToolErrorType.TOOL_NOT_FOUND)
            for tool in self._subject.tools[mode]:
                for arguments in wrong_arguments(tool.input_schema, self._subject.arguments(tool) or {}):
                    await _expect_failure(served, tool.name, arguments, ToolErrorType.INVALID_ARGS)
            await served.close()
        finally:
            served.end_threads()


def _step_once(env: MCPEnvironment) -> bool:
    """Take some step, whatever comes of it; whether the episode takes steps."""
    try:
        env.step(CallToolAction(tool_name=_UNKNOWN_TOOL))
    except EpisodeDone:
        return False
    except ExecutionError:  # scoring, which another check is about
        pass
    return True


def _expect_state(env: MCPEnvironment, episode: str, steps: int) -> None:
    execution, wanted = env._execution, env.state_type
    state = execution.home.drive(execution.read_state())
    if not isinstance(state, wanted):
        raise ContractViolation(
            f"state is a {type(state).__name__} and state_type says {wanted.__name__}: name in state_type what state "
            "returns"
        )
    if state.episode_id != episode or state.step_count != steps:
        raise ContractViolation(
            f"state says episode {state.episode_id!r} and step {state.step_count}; it is episode {episode!r} and step "
            f"{steps}. Leave both out of the state that you return: the framework fills them in"
        )
    _expect_plain(state, "state")


def _expect_plain(value: Any, what: str) -> None:
    try:
        to_plain(value, what)
    except NotSerializable as error:
        raise ContractViolation(
            f"no JSON form: {error}. Use finite numbers, strings, lists, dicts or pydantic models"
        ) from error


async def _names_of(handed_in: HandedIn) -> set[str]:
    await handed_in.enter()
    return {tool.name for tool in await handed_in.server.list_tools()}


async def _expect_failure(served: Served, name: str, arguments: dict[str, Any], wanted: ToolErrorType) -> None:
    if served.execution.episode.state is EpisodeState.DONE:
        await served.reset()
    trace = await served.step(CallToolAction(tool_name=name, arguments=arguments), name)
    if isinstance(trace.error, ExecutionError):
        return  # scoring, which another check is about
    failure = trace.observation.error if trace.observation is not None else None
    if failure is not None and failure.error_type is wanted:
        return
    advice = (
        "Middleware must let FastMCP's NotFoundError pass"
        if wanted is ToolErrorType.TOOL_NOT_FOUND
        else "Validators raise ValueError and nothing else; middleware must let pydantic's ValidationError pass"
    )
    got = "a result" if trace.problem is None else said(trace.problem)
    call = f"{name}({json.dumps(arguments, default=str)})"
    raise ContractViolation(f"{call} gave {got}, where {wanted.value} is due. {advice}")


def _episodes(walk: list[Trace]) -> Iterator[list[Trace]]:
    """The steps of each episode of a walk."""
    steps: list[Trace] = []
    for trace in walk:
        if trace.action is not None:
            steps.append(trace)
        elif steps:
            yield steps
            steps = []


def _ends_by_itself(steps: list[Trace]) -> bool:
    """Whether the last step ended the episode, and none did so by taking too long (in process it would never end)."""
    last = steps[-1].observation
    return last is not None and last.done and not any(step.timed_out for step in steps)


def _difference(one: Any, other: Any, path: str = "") -> str:
    """Where two values of plain data differ first."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        key = next(key for key in one if one[key] != other[key])
        return _difference(one[key], other[key], f"{path}.{key}" if path else str(key))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        index = next(n for n, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        return _difference(one[index], other[index], f"{path}[{index}]")
    return f"{path or 'it'} is {str(one)[:200]!r} and {str(other)[:200]!r}"
