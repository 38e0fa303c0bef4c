"""The client: episodes on one instance of a Fleet environment, and its tools, blocking and async."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from mcpenv_client.errors import EpisodeDone, InvalidMessage, SessionLost, ToolCallFailed
from mcpenv_client.portal import PORTAL
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.observations import CallToolObservation, ListToolsObservation, Observation
from mcpenv_client.types.records import TRANSPORT_LOST, StepResult
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.types.tools import Tool, ToolErrorType, ToolFailure, ToolResult
from mcpenv_client.types.values import decode

from .errors import CallNotDelivered, OutcomeUnknown, UnknownTool
from .options import FleetOptions
from .task import FleetTask

if TYPE_CHECKING:
    from .instance import Instance
    from .platform import Platform

logger = logging.getLogger("mcpenv_fleet")

_LOST = Status(StatusCode.TRANSPORT_LOST, Stage.TOOL, True)
"""The status of a step and its episode after a lost call."""


class FleetTools:
    """The tools of an instance, without episodes and rewards.

    Calls of several tasks or threads run concurrently.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def list_tools(self) -> list[Tool]:
        """Return the tools of both endpoints of the instance. Three tries.

        Raises:
            ListingFailed: no try found a tool. An empty list is a failure.
        """
        return PORTAL.call(self._list)

    async def list_tools_async(self) -> list[Tool]:
        """Return the tools. `list_tools` for coroutines."""
        return await PORTAL.run(self._list)

    def to_openai(self) -> list[dict[str, Any]]:
        """Return the tools that were listed last, in the format of OpenAI's ``tools=``."""
        return [tool.to_openai() for tool in self._instance.tools.tools]

    def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, raise_on_error: bool = True
    ) -> ToolResult:
        """Call a tool. A call that did not reach the environment is sent again, three tries in all.

        Args:
            name: the name in the listing.
            arguments: the arguments.
            raise_on_error: if False, an error of the tool is a result with ``is_error``.

        Returns:
            The result. If it is one text that is a JSON object or list, ``data`` is its value.

        Raises:
            ToolCallFailed: the tool answered with an error, or there is no tool of that name.
            CallNotDelivered: no try reached the environment.
            OutcomeUnknown: the tool may have run.
        """
        return PORTAL.call(partial(self._call, name, arguments, raise_on_error))

    async def call_tool_async(
        self, name: str, arguments: dict[str, Any] | None = None, *, raise_on_error: bool = True
    ) -> ToolResult:
        """Call a tool. `call_tool` for coroutines."""
        return await PORTAL.run(partial(self._call, name, arguments, raise_on_error))

    async def _list(self) -> list[Tool]:
        return list(await self._instance.tools.discover())

    async def _call(self, name: str, arguments: dict[str, Any] | None, raise_on_error: bool) -> ToolResult:
        try:
            result = with_data(await self._instance.tools.call(name, arguments or {}))
        except UnknownTool as error:
            raise ToolCallFailed(name, str(error)) from error
        if result.is_error and raise_on_error:
            raise ToolCallFailed(name, result.text)
        return result


class FleetEnv:
    """The orchestrator of one instance: reset, step, end, reward. `from_fleet` and `from_task` make it.

    Rewards: the platform scores no step, so that the reward of a step is None. At the end of a task's episode the
    platform runs the task's verifier, and its score is the reward. ``reward_fn`` overrides both: it computes the reward
    of each step and of the end, and no verifier runs. ``info["reward_by"]`` names the source.

    Every method has a blocking form, which also works while an event loop runs, and one for coroutines (``_async``).
    Calls of several threads run one after the other.

    Attributes:
        task: the task; None without one.
        tools: the tools handle.
    """

    def __init__(self, platform: Platform, instance: Instance, options: FleetOptions, task: FleetTask | None) -> None:
        self.task = task
        self.tools = FleetTools(instance)
        self._platform: Platform | None = platform
        self._instance = instance
        self._options = options
        self._lock = asyncio.Lock()
        self._steps = 0
        self._return: float | None = None
        self._last: StepResult[Observation] | None = None

    # -- making it

    @classmethod
    def from_fleet(cls, env_key: str, **options: Any) -> tuple[Self, FleetTools]:
        """Make an instance of an environment, list its tools, and return the orchestrator and the tools.

        Args:
            env_key: the environment, ``ENV`` or ``ENV:VERSION``.
            options: the fields of `FleetOptions`, by name.

        Raises:
            FleetFailure: there is no API key.
            PlatformFailed: no instance was made.
            ListingFailed: the instance has no tools, or they could not be listed. It is closed.
        """
        env = PORTAL.call(cls._maker(env_key, None, options))
        return env, env.tools

    @classmethod
    async def from_fleet_async(cls, env_key: str, **options: Any) -> tuple[Self, FleetTools]:
        """Make an instance. `from_fleet` for coroutines."""
        env = await PORTAL.run(cls._maker(env_key, None, options))
        return env, env.tools

    @classmethod
    def from_task(cls, task: FleetTask, **options: Any) -> tuple[Self, FleetTools]:
        """Make the instance of a task: its environment and data, in its versions.

        Args:
            task: the task, as `load_tasks` gives it.
            options: the fields of `FleetOptions`, by name.

        Raises:
            VerificationFailed: the code of the verifier cannot be used. No instance was made.
            FleetFailure, PlatformFailed, ListingFailed: as `from_fleet`.
        """
        env = PORTAL.call(cls._maker(task.env_key, task, options))
        return env, env.tools

    @classmethod
    async def from_task_async(cls, task: FleetTask, **options: Any) -> tuple[Self, FleetTools]:
        """Make the instance of a task. `from_task` for coroutines."""
        env = await PORTAL.run(cls._maker(task.env_key, task, options))
        return env, env.tools

    @classmethod
    def _maker(
        cls, env_key: str, task: FleetTask | None, given: dict[str, Any]
    ) -> Callable[[], Coroutine[Any, Any, Self]]:
        from .platform import Platform  # imports the SDK, which takes a second
        from .verifier import Verifier

        options = FleetOptions(**given)
        if task is not None and task.verifier_code is not None:
            Verifier.of(task)  # before an instance is paid for
        platform = Platform(
            options.api_key,
            options.base_url,
            http_timeout_s=options.http_timeout_s,
            create_timeout_s=options.create_timeout_s,
            of_creates=options.of_creates,
        )
        return partial(cls._make, platform, env_key, task, options)

    @classmethod
    async def _make(cls, platform: Platform, env_key: str, task: FleetTask | None, options: FleetOptions) -> Self:
        from .instance import Instance  # imports the SDK

        async with AsyncExitStack() as undo:
            undo.push_async_callback(platform.close)
            instance = await Instance.make(
                platform,
                options.spec(env_key, task),
                call_timeout_s=options.call_timeout_s,
                retries=options.of_calls,
            )
            undo.pop_all()
        return cls(platform, instance, options, task)

    # -- episodes

    def reset(self, seed: int | None = None) -> StepResult[Observation]:
        """Reset the instance's data, and begin an episode.

        Returns:
            An observation with the ``tools``. Its metadata has the task's ``prompt``, and for computer use the
            ``screenshot``: content blocks with a picture.

        Raises:
            PlatformFailed: the platform refused. No episode has begun.
        """
        return PORTAL.call(partial(self._reset, seed))

    async def reset_async(self, seed: int | None = None) -> StepResult[Observation]:
        """Begin an episode. `reset` for coroutines."""
        return await PORTAL.run(partial(self._reset, seed))

    def step(self, action: Action) -> StepResult[Observation]:
        """Take a step: call a tool, or list the tools, which is not counted.

        A tool's failure is data: ``error``, or a result with ``is_error``. If a call was lost in transit, the episode
        is truncated with the status ``transport_lost``.

        Raises:
            InvalidMessage: no episode has begun, or it is another action.
            EpisodeDone: the episode is over.
            VerificationFailed: the step ended the episode, and there is no score.
            ListingFailed: the tools could not be listed.
        """
        return PORTAL.call(partial(self._step, action))

    async def step_async(self, action: Action) -> StepResult[Observation]:
        """Take a step. `step` for coroutines."""
        return await PORTAL.run(partial(self._step, action))

    def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> StepResult[Observation]:
        """Call one tool, as a step."""
        return self.step(CallToolAction(tool_name=name, arguments=arguments or {}))

    async def call_tool_async(self, name: str, arguments: dict[str, Any] | None = None) -> StepResult[Observation]:
        """Call one tool, as a step. `call_tool` for coroutines."""
        return await self.step_async(CallToolAction(tool_name=name, arguments=arguments or {}))

    def end(self, final_answer: str | None = None) -> StepResult[Observation]:
        """End the episode because the agent has stopped. Return its score as the reward.

        Args:
            final_answer: the agent's answer, for verifiers with a parameter of that name.

        Raises:
            InvalidMessage: no episode has begun.
            VerificationFailed: there is no score. The episode is over.
        """
        return PORTAL.call(partial(self._end_episode, final_answer))

    async def end_async(self, final_answer: str | None = None) -> StepResult[Observation]:
        """End the episode. `end` for coroutines."""
        return await PORTAL.run(partial(self._end_episode, final_answer))

    def close(self) -> None:
        """Close the instance. Safe to call twice. Failures are logged."""
        PORTAL.call(self._close)

    async def close_async(self) -> None:
        """Close the instance. `close` for coroutines."""
        await PORTAL.run(self._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()

    # -- on the portal's loop

    async def _reset(self, seed: int | None) -> StepResult[Observation]:
        async with self._lock:
            self._refuse_closed()
            self._last = None
            await self._instance.reset(seed)
            metadata: dict[str, Any] = {"environment": self._instance.description}
            if self.task is not None:
                metadata |= {"prompt": self.task.prompt, "task_key": self.task.key}
            shown = await self._instance.screenshot()
            if shown is not None:
                metadata["screenshot"] = shown.content
            self._steps, self._return = 0, None
            observation = ListToolsObservation(tools=list(self._instance.tools.tools), metadata=metadata)
            self._last = StepResult(observation, info={"instance_id": self._instance.id})
            return self._last

    async def _step(self, action: Action) -> StepResult[Observation]:
        if isinstance(action, ListToolsAction):
            self._refuse_closed()
            return StepResult(ListToolsObservation(tools=list(await self._instance.tools.discover())))
        if not isinstance(action, CallToolAction):
            raise InvalidMessage(f"a Fleet environment takes no {type(action).__name__}; use CallToolAction")
        async with self._lock:
            self._refuse_ended()
            observation = await self._called(action)
            self._steps += 1
            if observation.truncated:
                return self._kept(observation, None, "nobody")
            if self._steps == self._options.max_steps:
                observation.truncated = True
                observation.info["reason"] = "max_steps"
                return await self._scored_end(observation, action, None)
            reward, by = self._reward(action, observation)
            return self._kept(observation, reward, by)

    async def _called(self, action: CallToolAction) -> CallToolObservation:
        name = action.tool_name
        try:
            result = with_data(await self._instance.tools.call(name, dict(action.arguments)))
        except UnknownTool as error:
            return _failure(name, ToolErrorType.TOOL_NOT_FOUND, str(error))
        except (CallNotDelivered, OutcomeUnknown) as error:
            logger.warning("the episode on instance %s is truncated: %s", self._instance.id, error)
            lost = _failure(name, ToolErrorType.TRANSPORT_ERROR, str(error))
            lost.truncated = True
            lost.info |= {"reason": TRANSPORT_LOST, "status": _LOST.to_plain(), "episode_status": _LOST.to_plain()}
            return lost
        return CallToolObservation(tool_name=name, result=result)

    async def _end_episode(self, final_answer: str | None) -> StepResult[Observation]:
        async with self._lock:
            if self._last is not None and self._last.done:
                return self._last
            self._refuse_ended()
            return await self._scored_end(Observation(terminated=True), None, final_answer)

    async def _scored_end(
        self, observation: Observation, action: CallToolAction | None, final_answer: str | None
    ) -> StepResult[Observation]:
        if self._options.reward_fn is not None or self.task is None or not self.task.has_verifier:
            return self._kept(observation, *self._reward(action, observation))
        self._kept(observation, None, "verifier")  # over, even without a score
        score = await self._instance.verify(self.task, final_answer)
        return self._kept(observation, score, "verifier")

    async def _close(self) -> None:
        async with self._lock:
            platform, self._platform = self._platform, None
            if platform is not None:
                await self._instance.close()
                await platform.close()

    # -- parts

    def _reward(self, action: CallToolAction | None, observation: Observation) -> tuple[float | None, str]:
        if self._options.reward_fn is None:
            return None, "nobody"
        return self._options.reward_fn(action, observation), "reward_fn"

    def _kept(self, observation: Observation, reward: float | None, by: str) -> StepResult[Observation]:
        observation.reward = reward
        if reward is not None:
            self._return = reward + (self._return or 0.0)
        info = {**observation.info, "reward_by": by, "return": self._return, "step_count": self._steps}
        self._last = StepResult(observation, reward, observation.terminated, observation.truncated, info=info)
        return self._last

    def _refuse_closed(self) -> None:
        if self._platform is None:
            raise SessionLost("the instance was closed; from_fleet or from_task makes another one")

    def _refuse_ended(self) -> None:
        self._refuse_closed()
        if self._last is None:
            raise InvalidMessage("no episode has begun; call reset() first")
        if self._last.done:
            raise EpisodeDone("the episode is over; reset() begins another one")


def with_data(result: ToolResult) -> ToolResult:
    """Return a result with ``data`` set to the JSON object or list in its only text, unless it has other data."""
    if result.data is not None or len(result.content) != 1 or result.content[0].get("type") != "text":
        return result
    try:
        data = decode(result.text)
    except ValueError:
        return result
    return result.model_copy(update={"data": data}) if isinstance(data, dict | list) else result


def _failure(name: str, kind: ToolErrorType, message: str) -> CallToolObservation:
    return CallToolObservation(tool_name=name, error=ToolFailure(error_type=kind, message=message))


__all__ = ["FleetEnv", "FleetTools", "with_data"]
