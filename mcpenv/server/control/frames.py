"""Frames of ``/ws`` as they arrive, and the answer to each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcpenv import tracing
from mcpenv.failures import wire_error
from mcpenv.server.sessions.idempotency import Answer, is_final
from mcpenv.server.sessions.operations import Operation
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import InvalidMessage, OperationCancelled, WireError
from mcpenv_client.types.status import Status, StatusCode
from mcpenv_client.wire.protocol import Frame, encode_reply

_A_FRAME = "a frame"

Text = str | Callable[[], str]
"""An answer, or what makes it: one that may be long is made when it can be sent."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A frame, or what is wrong with it.

    Attributes:
        frame: None if it could not be read.
        request_id: named in its answer.
        text: the frame as it came, if it has a request id.
        error: why it could not be read.
        answer: kept until the answers to the frames before it have been sent.
    """

    frame: Frame | None
    request_id: str | None
    text: str | None = None
    error: WireError | None = None
    answer: Text | None = None


def operation_of(session: Session, frame: Frame) -> Operation:
    """Return the operation that a frame asks for.

    Raises:
        InvalidMessage: the data does not fit, with locations in ``errors``; or this server has no such operation.
    """
    operation = session.operations.get(frame.type)
    if operation is None:
        raise InvalidMessage(f"this server answers no {frame.type.value} frames: no extension of it does")
    return operation.from_wire(frame.data, session, frame.timeout_s)


def answer_frame(session: Session, frame: Frame) -> Awaitable[Answer]:
    """Answer a frame that is not urgent, with a result or with an error."""
    return _traced(session, frame) if session.execution.traces else _answer(session, frame)


async def _answer(session: Session, frame: Frame) -> Answer:
    try:
        operation = operation_of(session, frame)
        data = operation.reply_data(await operation.run(session))
        return Answer(encode_reply(operation.reply, data, frame.request_id))
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        refused = wire_error(error, _A_FRAME)
        return Answer(error_text(refused, frame.request_id), final=is_final(refused), code=refused.code.value)


async def _traced(session: Session, frame: Frame) -> Answer:
    """Answer a frame in a span, a child of the one that the frame names."""
    with tracing.request(frame.type.value, frame.trace or {}) as span:
        span.set_attribute("mcpenv.session_id", session.label)
        answer = await _answer(session, frame)
        if answer.code is not None:
            tracing.failed(span, answer.code)
        span.set_attribute("mcpenv.episode_id", session.execution.episode.id or "")
        return answer


async def answer_urgent(session: Session, operation: Operation, request_id: str | None) -> Text:
    """Answer an urgent frame, with a result or with an error."""
    try:
        result = await operation.run(session)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return error_text(wire_error(error, _A_FRAME), request_id)
    answer = partial(_text_or_refusal, operation, result, request_id)
    return answer() if operation.brief else answer


def cancelled_answer(session: Session, frame: Frame) -> Answer:
    """Return the answer to a frame that a ``cancel`` ended."""
    status = Status(StatusCode.CANCELLED, session.operations[frame.type].stage, True).to_plain()
    refused = OperationCancelled(f"the {frame.type.value} was cancelled", status=status)
    return Answer(error_text(refused, frame.request_id))


def error_text(error: WireError, request_id: str | None) -> str:
    """Return the text of the frame that answers a request that was refused or failed."""
    return encode_reply("error", error.to_wire(), request_id)


def _text_or_refusal(operation: Operation, result: Any, request_id: str | None) -> str:
    try:
        return encode_reply(operation.reply, operation.reply_data(result), request_id)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return error_text(wire_error(error, _A_FRAME), request_id)
