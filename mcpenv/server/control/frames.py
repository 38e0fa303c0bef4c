"""Frames of ``/ws`` as they arrive, and the answer to each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mcpenv.execution.execution import Execution
from mcpenv.extensions.wires.openenv import answer_on_socket
from mcpenv.failures import wire_error
from mcpenv.server.sessions.idempotency import Answer, is_final
from mcpenv.server.sessions.operations import Cancelled, Result, Wait, decode
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import OperationCancelled, WireError
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.wire.protocol import Frame, FrameType, encode_reply

from .codec import error_text, result_text
from .traced import traced_frame

logger = logging.getLogger("mcpenv")

_A_FRAME = "a frame"

_CANCELLED_AT = {FrameType.RESET: Stage.RESET, FrameType.STEP: Stage.TOOL, FrameType.END: Stage.SCORE}


Text = str | Callable[[], str]
"""An answer, or what makes it: one that may be long is made when it can be sent."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A frame, or what is wrong with it.

    Attributes:
        frame: None if it could not be read.
        error: why it could not.
        request_id: named in its answer.
        answer: kept until the answers to the frames before it have been sent.
    """

    frame: Frame | None
    request_id: str | None
    error: WireError | None = None
    answer: Text | None = None


async def answer_frame(session: Session, frame: Frame) -> Answer:
    """Answer a frame that is not urgent, with a result or with an error."""
    if session.execution.traces:
        return await traced_frame(session, frame, partial(_answer_frame, session, frame))
    return await _answer_frame(session, frame)


async def _answer_frame(
    session: Session, frame: Frame, on_error: Callable[[WireError], None] = lambda error: None
) -> Answer:
    try:
        if frame.type is FrameType.MCP:
            data = await answer_on_socket(session, frame.data, frame.timeout_s)
            return Answer(encode_reply("mcp", data, frame.request_id))
        operation = decode(frame.type, frame.data, session.accepted, frame.timeout_s)
        return Answer(result_text(await session.run(operation), frame.request_id))
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        refused = wire_error(error, _A_FRAME)
        on_error(refused)
        return Answer(error_text(refused, frame.request_id), final=is_final(refused))


async def answer_at_once(session: Session, frame: Frame, execution: Execution, episode_id: str | None) -> Text:
    """Answer an urgent frame, with a result or with an error.

    Args:
        execution: the session's instance when the frame arrived.
        episode_id: the episode of that instance at that time.
    """
    try:
        if frame.type is FrameType.WAIT:
            result = await session.run(Wait.from_wire(frame.data, execution, episode_id))
        else:
            result = await session.run(decode(frame.type, frame.data, session.accepted))
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return error_text(wire_error(error, _A_FRAME), frame.request_id)
    answer = partial(_text_or_refusal, result, frame.request_id)
    return answer() if isinstance(result, Cancelled) else answer


def cancelled_answer(frame: Frame) -> Answer:
    """Return the answer to a frame that a ``cancel`` ended."""
    status = Status(StatusCode.CANCELLED, _CANCELLED_AT.get(frame.type), True).to_plain()
    refused = OperationCancelled(f"the {frame.type.value} was cancelled", status=status)
    return Answer(error_text(refused, frame.request_id))


def _text_or_refusal(result: Result, request_id: str | None) -> str:
    try:
        return result_text(result, request_id)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return error_text(wire_error(error, _A_FRAME), request_id)
