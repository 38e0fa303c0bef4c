"""The parts of a conversation with an episode: its opening, its turns, its ending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .status import Stage, Status, StatusCode

if TYPE_CHECKING:
    from mcpenv_client.errors import ConnectionFailed, WireError
    from mcpenv_client.formats.model_calls import ModelCall

    from .observations import CallToolObservation

Message = dict[str, Any]


@dataclass(frozen=True)
class Opening:
    """The beginning of a conversation.

    Attributes:
        messages: the system message, if there is one, and the prompt.
        tools: the tools in the conversation's format.
        done: True if the episode was over before the agent could act.
        info: the environment's data about the episode: ``episode_id``, ``mcp_url``, ``task``.
        fields: the fields of the reset's observation that are the environment's own, as plain data.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """The messages and results that followed a message of the model.

    Attributes:
        messages: the answers to its calls in their order, then the images of results as messages of a user. After a
            message without calls: the answer of the episode's user, if it has one.
        reward: the sum of the rewards of its calls; None if none was scored (None is not 0.0).
        done: True if the model's turns are over: the episode is over, the model stopped calling tools and there is no
            user, a limit was reached or the environment failed.
        calls: the calls in the message.
        limit: the limit that was reached (``max_turns``, ``malformed_calls``), or None.
        error: the error with which the environment failed, or None.
        images: the images in the results; they are in ``messages`` only if the conversation shows images.
        observations: the observations of the calls that were made, in order.
    """

    messages: list[Message]
    reward: float | None = None
    done: bool = False
    calls: Sequence[ModelCall] = ()
    limit: str | None = None
    error: WireError | ConnectionFailed | None = None
    images: int = 0
    observations: Sequence[CallToolObservation] = ()


@dataclass(frozen=True)
class Ending:
    """The end of a conversation.

    Attributes:
        reward: the return, the sum of all rewards including the reward of the end. None if nothing was scored, or if
            according to the status the rewards are not about the agent.
        parts: the sums of the named components of the rewards, such as ``verified``.
        status: the status of the episode; trainers mask or retry it unless it is `Status.usable`.
        truncated: True if a limit ended the episode.
        reason: the reason for the end, if known.
        turns, steps, malformed_calls: the numbers of the model's messages, of calls made, of calls that could not be
            read.
    """

    reward: float | None
    parts: Mapping[str, float]
    status: Status
    truncated: bool = False
    reason: str | None = None
    turns: int = 0
    steps: int = 0
    malformed_calls: int = 0


NOT_BEGUN = Ending(None, {}, Status(StatusCode.CANCELLED, Stage.RESET, True), reason="no episode has begun")
"""The ending of a conversation that has not begun."""
