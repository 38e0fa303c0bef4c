"""One tool's run: validate, run where its code belongs, convert, and score a sync tool where it ran."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Protocol

from fastmcp.exceptions import ToolError
from fastmcp.server.context import _current_context as around
from fastmcp.server.context import set_context
from fastmcp.server.dependencies import resolve_dependencies
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, InputRequiredResult
from pydantic import ValidationError

from mcpenv_client.errors import NotSerializable
from mcpenv_client.records import PLAIN_TYPES, Plane, Reward, ToolCall, ToolOutcome, outcome_made
from mcpenv_client.tools import Mode, ToolErrorType, ToolFailure
from mcpenv_client.wire import describe_faults

from .author import AuthorCode
from .context import AmbientContext, EnvironmentContext
from .failures import environment_failure, execution_failure, unusable_result
from .results import result_of
from .step import Place, Step
from .toolbox import BoundTool

SCORES = frozenset({type(None), bool, int, float, Reward})
"""Types of what `score` gives, mostly: what is none of them may be awaitable."""

NOT_SCORED: Any = object()
"""In place of a score that was not made where the tool ran."""


class InputRequired(Exception):
    """A tool asked its MCP client for input (2026-07-28): the answer of this leg, which is no step."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("input required")
        self.result = result


class TimedOut(Exception):
    """The tool passed its deadline."""

    def __init__(self, name: str, limit_s: float | None) -> None:
        super().__init__(f"{name}: no result within {limit_s:g} s")


class Site(Place, Protocol):
    """Where a tool of an environment runs."""

    author: AuthorCode
    mode: Mode


Score = Callable[[ToolCall, ToolOutcome], Any]


class ToolRun:
    """A call of an own tool. Await `run` once.

    Args:
        score: the score to make in the thread of a sync tool; None if there is none to make there.
    """

    __slots__ = ("_clock", "_given_up", "_limit", "_score", "_site", "_step", "_tool")

    def __init__(self, site: Site, tool: BoundTool, score: Score | None = None) -> None:
        self._site = site
        self._tool = tool
        self._score = score
        self._given_up = False

    async def run(self, step: Step, arguments: dict[str, Any]) -> tuple[ToolOutcome, Any]:
        """The outcome, and the score if it was made on the way.

        Raises:
            TimedOut: the deadline passed.
            InputRequired, MCPError: the call is no step; the MCP client must be asked.
        """
        tool, site = self._tool, self._site
        kind = tool.kind
        self._step = step
        self._clock = time.perf_counter()
        try:
            args, kwargs = kind.validate(arguments)
        except ValidationError as error:
            message = f"{kind.name}: invalid arguments: {describe_faults(error)}"
            return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.INVALID_ARGS, message=message)), NOT_SCORED
        except BaseException as error:  # a validator of the author's: pydantic lets all but ValueError pass
            if site.author.lets_through(error):
                raise
            return self._failed(error), NOT_SCORED
        self._limit = limit = site.author.limit(step.timeout_s, kind.timeout_s)
        token = None if kind.injected else around.set(AmbientContext(step))
        try:
            async with asyncio.timeout(limit):
                return await (self._run_injected(args, kwargs) if kind.injected else self._run(args, kwargs))
        except TimeoutError:
            self._given_up = True
            raise TimedOut(kind.name, limit) from None
        except asyncio.CancelledError:
            self._given_up = True
            raise
        finally:
            if token is not None:
                around.reset(token)

    async def _run_injected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ToolOutcome, Any]:
        twin = self._tool.kind.twin
        given = {**dict(zip(self._tool.kind.parameter_names, args, strict=False)), **kwargs}
        context = EnvironmentContext(self._step)
        try:
            with set_context(context):
                async with context, resolve_dependencies(twin, given) as resolved:
                    return await self._run((), resolved)
        except (InputRequired, MCPError):
            raise
        except BaseException as error:  # the dependencies' boundary: one of them failed, not the tool
            if self._site.author.lets_through(error):
                raise
            return self._failed(error), NOT_SCORED

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ToolOutcome, Any]:
        tool, awaited = self._tool, None
        if not tool.kind.is_async:
            outcome, scored = await self._site.author.hand_over(self._limit, self._run_sync, args, kwargs)
            if outcome is not None:
                return outcome, scored
            awaited = scored  # a sync function that gave an awaitable
        try:
            value = await _awaited(tool.fn(*args, **kwargs) if awaited is None else awaited)
        except BaseException as error:  # the tool's boundary: SystemExit of a tool ends no server
            if self._site.author.lets_through(error):
                raise
            return self._failed(error), NOT_SCORED
        return self._returned(value), NOT_SCORED

    def _run_sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ToolOutcome | None, Any]:
        """In the caller's thread, or in a worker: the sync tool, and a sync score after it."""
        site, tool = self._site, self._tool
        try:
            value = tool.fn(*args, **kwargs)
            if type(value) in PLAIN_TYPES:
                pass  # nearly always; to ask what it is otherwise takes as long as a small tool
            elif inspect.isgenerator(value):
                value = list(value)
        except (KeyboardInterrupt, GeneratorExit) as error:
            if site.author.runner.inline:
                raise
            outcome = self._failed(error)
        except BaseException as error:  # noqa: BLE001 - the tool's boundary
            outcome = self._failed(error)
        else:
            if type(value) not in PLAIN_TYPES and (inspect.isawaitable(value) or inspect.isasyncgen(value)):
                return None, value
            outcome = self._returned(value)
        if self._score is None or self._given_up:  # the step is over: what came of it too late is nobody's
            return outcome, NOT_SCORED
        try:
            return outcome, self._score(self._step.call, outcome)
        except BaseException as error:
            if site.author.runner.inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            # Not raised here: on its way it would pass the boundary that makes it a failure of the tool.
            failure = environment_failure("score", error)
            failure.__cause__ = error
            self._step.fault = self._step.fault or failure
            return outcome, None

    def _returned(self, value: Any) -> ToolOutcome:
        kind, duration_s = self._tool.kind, time.perf_counter() - self._clock
        if type(value) is not kind.plain_return and isinstance(value, InputRequiredResult):
            return asked_for_input(self._step, value)
        try:
            return outcome_made(result_of(kind, value), None, value, duration_s)
        except NotSerializable as error:
            failure = unusable_result(kind.name, str(error))
        except BaseException as error:  # the result's boundary: serializers are the author's code too
            if self._site.author.runner.inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            failure = execution_failure(kind.name, error, self._site.mode)
        return ToolOutcome(error=failure, duration_s=duration_s)

    def _failed(self, error: BaseException) -> ToolOutcome:
        if isinstance(error, MCPError) and error.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
            if self._step.call.plane is Plane.AGENT:
                raise error  # the MCP client must see it as it is: the request cannot be served at all
            error = ToolError(error.error.message)
        failure = execution_failure(self._tool.kind.name, error, self._site.mode)
        return ToolOutcome(error=failure, duration_s=time.perf_counter() - self._clock)


def asked_for_input(step: Step, asked: InputRequiredResult) -> ToolOutcome:
    """A tool asks its MCP client for input; without one that is a failure.

    Raises:
        InputRequired: there is a client.
    """
    if step.call.plane is Plane.AGENT:
        raise InputRequired(asked)
    message = "The tool asks its MCP client for input, but this call did not come from one."
    return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message))


async def _awaited(value: Any) -> Any:
    return [item async for item in value] if inspect.isasyncgen(value) else await value
