"""The conversation of a model with an episode, as chat messages: the common part of trainers and evaluations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .context_manager import ContextManager
from .errors import ConnectionFailed, EpisodeDone, InvalidMessage, MalformedToolCall, WireError
from .formats.images import image_parts, images_within
from .formats.model_calls import ModelCall, read_message
from .formats.prompts import fields_of, images_of, prompt_of
from .formats.text_calls import TextCalls
from .formats.tool_formats import ProviderTools, ToolFormat, tools_for
from .portal import PORTAL
from .rows import reset_options_of
from .types.actions import CallToolAction
from .types.observations import CallToolObservation
from .types.records import StepRecord, StepResult, summed
from .types.status import COMPLETED, Status, StatusCode
from .types.tasks import Task
from .types.tools import OUTPUT_META, Tool
from .types.turns import NOT_BEGUN, Ending, Message, Opening, Turn
from .types.users import USER_MESSAGE, user_tool_of

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_MALFORMED = 5
"""The number of consecutive turns without a readable call that ends a conversation."""

MAX_TURNS = "max_turns"
MALFORMED = "malformed_calls"
"""Limits of a conversation, as `Turn.limit` and the reason of the episode's end."""

ABANDONED = "abandoned"
"""The reason for the end of an episode after an exception left its conversation."""

FAILED_STEP = "failed_step"
"""The reason of an ending without a reward after a step that failed by no fault of the agent."""

OVER = "The episode is over; this call was not made."
"""The answer to calls after the end of the episode."""

_UNKNOWN = Status(StatusCode.ENV_ERROR, None, True)
"""The status after an error without a status of its own."""


class Playable(Protocol):
    """An episode's session as a conversation needs it: `EnvClient`, or an environment in the same process."""

    async def reset(self, seed: int | None = None, **options: Any) -> StepResult[Any]:
        """Begin an episode."""
        ...

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Any]:
        """Call one tool, as a step."""
        ...

    async def list_tools(self) -> list[Tool]:
        """Return the tools. Listing is not a step."""
        ...

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> StepResult[Any]:
        """End the episode, and return the reward of its end."""
        ...


class Conversation:
    """A model's conversation with successive episodes: `begin`, `act` until it is done, `end`.

    The calls of one message are made in order. A call that cannot be read, or that comes after the end, is answered for
    the model and is not a step. A message without calls goes to the episode's user, and the answer is the next message;
    without a user it ends the model's part. `end` runs the verifier: without it there may be no reward, so leaving
    ``async with`` ends an episode that was not ended.

    Not safe for concurrent calls. Cancelling `act` loses the session of an `EnvClient`.

    Attributes:
        messages: all messages of the episode.
        tools: the present tools, with the mapping from the model's names to the environment's.
        context: drops old messages at the model's request; None without ``context_tokens``.
        turns, steps, malformed_calls: as `Ending` has them.
        done: True if the model's turns are over.

    Args:
        env: the session. The conversation does not connect or close it.
        tool_format: the format of the tools.
        text_calls: how the model writes calls as text; None: its messages have ``tool_calls``.
        system: a system message before the prompt.
        max_turns: the maximum of the model's messages in an episode; None: no limit.
        max_malformed: the maximum of consecutive messages without a readable call; None: no limit.
        images: put images of observations and results into messages of a user. False: they are omitted.
        user_as_tool: True: the model speaks to the episode's user through a tool. False: through messages without
            calls, and the model does not get the tool.
        context_tokens: the tokens of the model's context. The model gets tools that drop old turns and find them again.
        step_timeout_s: the deadline of each call, in seconds; None: the environment's own.
        mask_failed_steps: True: a step that failed by no fault of the agent ends the conversation, and the ending has
            the status of that step and no reward, as training needs it. False: the episode goes on.

    Raises:
        ValueError: an argument cannot be used.
    """

    def __init__(
        self,
        env: Playable,
        *,
        tool_format: ToolFormat = "openai",
        text_calls: TextCalls | None = None,
        system: str | None = None,
        max_turns: int | None = 50,
        max_malformed: int | None = MAX_MALFORMED,
        images: bool = False,
        user_as_tool: bool = False,
        context_tokens: int | None = None,
        step_timeout_s: float | None = None,
        mask_failed_steps: bool = False,
    ) -> None:
        for name, value in (("max_turns", max_turns), ("max_malformed", max_malformed), ("context", context_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more, or None")
        if context_tokens is not None and text_calls is not None:
            raise ValueError("context_tokens needs messages with tool_calls; leave out text_calls")
        self.env = env
        self._format = tool_format
        self._text_calls = text_calls
        self._system = system
        self._max_turns = max_turns
        self._max_malformed = max_malformed
        self._images = images
        self._user_as_tool = user_as_tool
        self._context_tokens = context_tokens
        self._step_timeout_s = step_timeout_s
        self._mask_failed_steps = mask_failed_steps
        self._start(tools_for(tool_format, []))
        self._ending: Ending | None = NOT_BEGUN

    def _start(self, tools: ProviderTools) -> None:
        self.tools = tools
        self.context = None if self._context_tokens is None else ContextManager(self._context_tokens)
        self.messages: list[Message] = []
        self.turns = self.steps = self.malformed_calls = 0
        self.done = False
        self._read = self._unread_turns = 0
        self._user_tool: str | None = None
        self._listed: list[Tool] = []
        self._limit: str | None = None
        self._error: WireError | ConnectionFailed | None = None
        self._failed_step: Status | None = None
        self._ending = None
        self._parts: dict[str, list[float]] = {}

    @property
    def user_tool(self) -> str | None:
        """The model's name of the tool that speaks to the episode's user; None if the model has no such tool."""
        tool = user_tool_of(self._listed)
        own = None if tool is None else tool.name
        return next((name for name, each in self.tools.names.items() if each == own), None)

    @property
    def visible(self) -> Sequence[Mapping[str, Any]]:
        """The messages for the next request to the model: all except dropped ones."""
        return self.messages if self.context is None else self.context.visible

    async def begin(self, row: Task | str | Mapping[str, Any] | None = None, *, seed: int | None = None) -> Opening:
        """Begin an episode. An episode that was not ended is ended first.

        Args:
            row: the task: a `Task`, its id, or a row of a dataset with ``task`` (an id), or ``split`` and ``index``;
                the reset also takes ``seed`` and ``options`` from it; other columns are the trainer's own. None: an
                episode without a task.
            seed: the seed, instead of the row's.

        Raises:
            WireError: the environment refused; for a row that names no task of the environment, the error is
                `InvalidMessage`.
            ConnectionFailed: there is no connection.
            ToolNotExpressible: the format cannot express a tool.
            ValueError: the row has none of these columns.
        """
        options = reset_options_of(row)
        seed = options.pop("seed", None) if seed is None else seed
        options.pop("seed", None)
        await self.end()
        first = await (self.env.reset(**options) if seed is None else self.env.reset(seed=seed, **options))
        tools = await self.env.list_tools()
        opening = self.join(prompt_of(first), tools, images_of(first), info=first.info)
        self.done = first.done
        return Opening(opening.messages, opening.tools, first.done, opening.info, fields_of(first))

    def join(
        self,
        prompt: str,
        tools: Sequence[Tool],
        images: Sequence[Mapping[str, Any]] = (),
        *,
        info: Mapping[str, Any] | None = None,
    ) -> Opening:
        """Begin a conversation with an episode that was begun elsewhere.

        Args:
            prompt: the text for the agent.
            tools: the episode's tools.
            images: the images of the prompt, as blocks of MCP content.

        Raises:
            ToolNotExpressible: the format cannot express a tool.
            ValueError: two tools have one name.
        """
        speaks, offered = self._offered(tools)
        self._start(tools_for(self._format, offered))
        self._listed, self._user_tool = list(tools), speaks
        if self._system is not None:
            self._keep({"role": "system", "content": self._system})
        self._keep(_of_user(prompt, image_parts(images) if self._images else []))
        return Opening(list(self.messages), self.tools.listed, info=dict(info or {}))

    def follow(self, steps: Sequence[StepRecord]) -> None:
        """Add earlier steps of the episode, as calls of the model with their results. They count as no turns.

        Args:
            steps: the steps that were taken before the conversation, such as those of a `Start`.
        """
        names = {own: name for name, own in self.tools.names.items()}
        for step in steps:
            function = {"name": names.get(step.call.name, step.call.name), "arguments": json.dumps(step.call.arguments)}
            call_id, outcome = f"call_{step.call.step:04d}", step.outcome
            calls = [{"id": call_id, "type": "function", "function": function}]
            self._keep({"role": "assistant", "content": "", "tool_calls": calls})
            text = outcome.error.message if outcome.error is not None else outcome.result.text if outcome.result else ""
            self._keep({"role": "tool", "tool_call_id": call_id, "content": text})

    async def act(self, message: Mapping[str, Any] | str, *, timeout_s: float | None = None) -> Turn:
        """Make the calls of the model's message, or send it to the user, and return the messages that follow.

        Args:
            message: a message of chat completions, or its text.
            timeout_s: the deadline of all its calls together, in seconds; later calls are not made.

        Raises:
            ToolNotExpressible: the user's turn added a tool that the format cannot express.
            ValueError: the message has calls that are not in the format of chat completions.
        """
        kept, calls = read_message(message, self.tools, self.turns + 1, self._text_calls)
        self.turns += 1
        self._keep(kept)
        begin, read_before = len(self.messages), self._read
        if not calls:
            return await self._speak(kept["content"], timeout_s)
        reward, results = await self._make(calls, timeout_s)
        images = 0
        if not self.done:
            images = self._show_images(results)
            self._check_limits(unread=self._read == read_before)
        observations = [observation for _, observation in results]
        return Turn(self.messages[begin:], reward, self.done, calls, self._limit, self._error, images, observations)

    async def end(self, *, truncated: bool | None = None, reason: str | None = None) -> Ending:
        """End the episode, and return its return.

        Errors of the environment are not raised: `Ending.status` reports them.

        Args:
            truncated: True if a limit of the caller ended it. None: true if a limit of the conversation was reached.
            reason: for the record. None: the limit that was reached.
        """
        if self._ending is None:
            self.done = True
            cut = self._limit is not None if truncated is None else truncated
            self._ending = await self._end(cut, self._limit if reason is None else reason)
        return self._ending

    async def _end(self, truncated: bool, reason: str | None) -> Ending:
        if self._error is None:
            try:
                last = await self.env.end(truncated=truncated, reason=reason)
            except (WireError, ConnectionFailed) as error:
                self._error = error
            else:
                # The environment repeats the last observation if the episode was already over: its parts are already
                # counted.
                if last.status is None:
                    self._count(last)
                status = last.episode_status or COMPLETED
                if status.usable and self._failed_step is not None:
                    return self._summary(None, self._failed_step, last.truncated, FAILED_STEP)
                total = last.info.get("return") if status.usable else None
                return self._summary(total, status, last.truncated, last.info.get("reason"))
        return self._summary(None, self._error.status or _UNKNOWN, truncated, str(self._error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if exc[0] is None:
            await self.end()
        else:
            await self.end(truncated=True, reason=ABANDONED)

    def sync(self) -> SyncConversation:
        """Return the blocking form, for an `EnvClient` that only this conversation uses."""
        return SyncConversation(self)

    def _offered(self, tools: Sequence[Tool]) -> tuple[str | None, list[Tool]]:
        """Return the name of the tool that speaks to the user, and the tools for the model."""
        speaks = None if self._user_as_tool else user_tool_of(tools)
        offered = [tool for tool in tools if tool is not speaks]
        if self._context_tokens is not None:
            context = ContextManager(self._context_tokens)
            taken = next((tool.name for tool in offered if context.owns(tool.name)), None)
            if taken is not None:
                raise ValueError(
                    f"the environment has a tool {taken!r}, as context_tokens would add; rename it, or leave "
                    "context_tokens out"
                )
            offered += context.tools
        return None if speaks is None else speaks.name, offered

    # -- the parts of a turn

    async def _speak(self, text: Any, timeout_s: float | None) -> Turn:
        """Send a message without calls to the user; the answer is the next message. Without a user, stop.

        The user's next turn may change the tools.
        """
        if self._user_tool is None or self.done:
            self.done = True
            return Turn([], done=True)
        begin, limits = len(self.messages), [limit for limit in (timeout_s, self._step_timeout_s) if limit is not None]
        said = {USER_MESSAGE: text if isinstance(text, str) else ""}
        try:
            result = await self.env.call_tool(self._user_tool, said, timeout_s=min(limits, default=None))
            listed = self._listed if result.done else await self.env.list_tools()
        except EpisodeDone:
            self.done = True
            return Turn([], done=True)
        except (WireError, ConnectionFailed) as error:
            self.done, self._error = True, error
            return Turn([], done=True, error=error)
        self._took(result)
        self._keep(_of_user(result.text, []))
        if listed != self._listed:
            self._listed = listed
            self._user_tool, offered = self._offered(listed)
            self.tools = tools_for(self._format, offered)
        if not self.done:
            self._check_limits(unread=False)
        seen = [result.observation] if isinstance(result.observation, CallToolObservation) else []
        return Turn(self.messages[begin:], result.reward, self.done, limit=self._limit, observations=seen)

    async def _make(
        self, calls: Sequence[ModelCall], timeout_s: float | None
    ) -> tuple[float | None, list[tuple[ModelCall, CallToolObservation]]]:
        """Make calls in order and answer each; return the sum of their rewards, and the results."""
        rewards: list[float] = []
        results: list[tuple[ModelCall, CallToolObservation]] = []
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        for call in calls:
            if call.action is None:
                self._refuse(call, call.problem)
                continue
            if self.context is not None and self.context.owns(call.action.tool_name):
                self._ask_context(call, call.action, self.context)
                continue
            self._read += 1
            left_s = None if deadline is None else deadline - loop.time()
            if self.done or (left_s is not None and left_s <= 0.0):
                self._answer(call, OVER)
                continue
            given = [limit for limit in (left_s, self._step_timeout_s) if limit is not None]
            try:
                # The environment enforces the deadline: cancelling the call here would lose the session and its score.
                result = await self.env.call_tool(
                    call.action.tool_name, call.action.arguments, timeout_s=min(given, default=None)
                )
            except EpisodeDone:
                self.done = True
                self._answer(call, OVER)
            except InvalidMessage as error:
                self._refuse(call, error.message)
            except (WireError, ConnectionFailed) as error:
                self.done, self._error = True, error
                self._answer(call, OVER)
            else:
                self._took(result)
                if result.reward is not None:
                    rewards.append(result.reward)
                self._answer(call, result.text, _output_of(result.observation))
                if isinstance(result.observation, CallToolObservation):
                    results.append((call, result.observation))
        return summed(rewards) if rewards else None, results

    def _ask_context(self, call: ModelCall, action: CallToolAction, context: ContextManager) -> None:
        """Answer a call of a tool of the context. It is not a step of the environment."""
        try:
            answer = context.answer(action.tool_name, action.arguments)
        except MalformedToolCall as error:
            self._refuse(call, error.reason)
        else:
            self._read += 1
            self._answer(call, answer)

    def _show_images(self, results: Sequence[tuple[ModelCall, CallToolObservation]]) -> int:
        """Add the images of a turn's results, after all of its results; return how many images there are."""
        count = 0
        for call, observation in results:
            found = image_parts(images_within(observation.result.content) if observation.result else ())
            count += len(found)
            if found and self._images:
                self._keep(_of_user(f"The images of the result of {call.name} ({call.id}):", found))
        return count

    def _check_limits(self, *, unread: bool) -> None:
        self._unread_turns = self._unread_turns + 1 if unread else 0
        if self._unread_turns == self._max_malformed:
            self._limit = MALFORMED
        elif self.turns == self._max_turns:
            self._limit = MAX_TURNS
        self.done = self._limit is not None

    def _refuse(self, call: ModelCall, problem: str) -> None:
        self.malformed_calls += 1
        self._answer(call, f"Error: this call was not made. {problem}")

    def _answer(self, call: ModelCall, text: str, output: Mapping[str, Any] | None = None) -> None:
        self._keep({"role": "tool", "tool_call_id": call.id, "content": text}, output)

    def _keep(self, message: Message, output: Mapping[str, Any] | None = None) -> None:
        self.messages.append(message)
        if self.context is not None:
            self.context.add(message, output)

    def _took(self, result: StepResult[Any]) -> None:
        """Count a step."""
        self.steps += 1
        self.done = result.done
        self._count(result)
        if self._mask_failed_steps and result.status is not None and not result.status.usable:
            self.done, self._failed_step = True, result.status

    # -- the end

    def _count(self, result: StepResult[Any]) -> None:
        components = result.info.get("reward")
        for name, value in (components if isinstance(components, Mapping) else {}).items():
            self._parts.setdefault(name, []).append(value)

    def _summary(self, reward: float | None, status: Status, truncated: bool, reason: str | None) -> Ending:
        parts = {name: summed(values) for name, values in self._parts.items()}
        return Ending(reward, parts, status, truncated, reason, self.turns, self.steps, self.malformed_calls)


class SyncConversation:
    """`Conversation` with blocking methods, on the event loop that blocking clients share."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    def begin(self, row: Task | str | Mapping[str, Any] | None = None, *, seed: int | None = None) -> Opening:
        """Begin an episode."""
        return PORTAL.call(lambda: self.conversation.begin(row, seed=seed))

    def act(self, message: Mapping[str, Any] | str, *, timeout_s: float | None = None) -> Turn:
        """Make the calls of the model's message, and return the messages that follow."""
        return PORTAL.call(lambda: self.conversation.act(message, timeout_s=timeout_s))

    def end(self, *, truncated: bool | None = None, reason: str | None = None) -> Ending:
        """End the episode, and return its return."""
        return PORTAL.call(lambda: self.conversation.end(truncated=truncated, reason=reason))


def _of_user(text: str, images: list[dict[str, Any]]) -> Message:
    """Return a message of a user: a plain text if there is no image."""
    return {"role": "user", "content": [{"type": "text", "text": text}, *images] if images else text}


def _output_of(observation: Any) -> Mapping[str, Any] | None:
    """Return the environment's data about a long output that is shown to the model only in part, if there is any."""
    result = observation.result if isinstance(observation, CallToolObservation) else None
    about = None if result is None or result.meta is None else result.meta.get(OUTPUT_META)
    return about if isinstance(about, Mapping) else None
