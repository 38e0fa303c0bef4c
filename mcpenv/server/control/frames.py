"""Frames of ``/ws`` as they arrive, and the answer to each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from mcpenv.execution.execution import Execution
from mcpenv.execution.observations import latest, reply_of
from mcpenv.failures import wire_error
from mcpenv.server.sessions.idempotency import Answer, is_final
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import InvalidMessage, OperationCancelled, WireError
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import Frame, FrameType, encode_reply, observation_data, timeout_of

from .openenv import answer_on_socket

logger = logging.getLogger("mcpenv")

_A_FRAME = "a frame"


Text = str | Callable[[], str]
"""An answer, or what makes it: one that may be long is made when it can be sent."""


class Arrival:
    """A frame, or what is wrong with it.

    Attributes:
        frame: None if it could not be read.
        error: why it could not.
        request_id: named in its answer.
        answer: kept until the answers to the frames before it have been sent.
    """

    __slots__ = ("answer", "error", "frame", "request_id")

    def __init__(self, frame: Frame | None, request_id: str | None, error: WireError | None = None) -> None:
        self.frame = frame
        self.request_id = request_id
        self.error = error
        self.answer: Text | None = None


async def answer_frame(session: Session, frame: Frame) -> Answer:
    """Do what a frame asks that is not urgent; a refusal is an answer too."""
    try:
        if frame.type is FrameType.STEP:
            call = session.call_of(frame.data, frame.timeout_s)
            if call is not None:
                return Answer(reply_of(session.execution, await call, frame.request_id))
            data = await session.step(frame.data, frame.timeout_s)
            return Answer(encode_reply("observation", data, frame.request_id))
        if frame.type is FrameType.RESET:
            data = observation_data(await session.reset(frame.data, frame.timeout_s))
            return Answer(encode_reply("observation", data, frame.request_id))
        if frame.type is FrameType.END:
            data = observation_data(await session.end(frame.data))
            return Answer(encode_reply("observation", data, frame.request_id))
        if frame.type in _OF_SNAPSHOTS:
            return await _answer_of_snapshots(session, frame)
        if frame.type is FrameType.MCP:
            data = await answer_on_socket(session, frame.data, frame.timeout_s)
            return Answer(encode_reply("mcp", data, frame.request_id))
        state = to_plain(await session.state(frame.timeout_s), "state")
        return Answer(encode_reply("state", state, frame.request_id))
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        refused = wire_error(error, _A_FRAME)
        return Answer(encode_reply("error", refused.to_wire(), frame.request_id), final=is_final(refused))


async def answer_at_once(session: Session, frame: Frame, execution: Execution, episode_id: str | None) -> Text:
    """Do what an urgent frame asks; a refusal is an answer too.

    Args:
        execution: what ran when the frame came.
        episode_id: its episode then.
    """
    try:
        if frame.type is FrameType.WAIT:
            await execution.wait(timeout_of(frame.data.get("timeout_s")), episode_id=episode_id)
            return partial(_observation_text, latest(execution), frame)
        if frame.type is FrameType.TRAJECTORY:
            return partial(_trajectory_text, _trajectory(session), frame)
        return encode_reply("cancel", {"cancelled": _cancel(session, frame)}, frame.request_id)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return encode_reply("error", wire_error(error, _A_FRAME).to_wire(), frame.request_id)


def cancelled_answer(frame: Frame) -> Answer:
    """The answer to a frame that a ``cancel`` ended."""
    error = OperationCancelled(f"the {frame.type.value} was cancelled")
    return Answer(encode_reply("error", error.to_wire(), frame.request_id))


_OF_SNAPSHOTS = (FrameType.SNAPSHOT, FrameType.RESTORE, FrameType.FORK, FrameType.DROP_SNAPSHOT)


async def _answer_of_snapshots(session: Session, frame: Frame) -> Answer:
    """Do what a frame about snapshots asks.

    Raises:
        WireError: refused.
    """
    if frame.type is FrameType.SNAPSHOT:
        data = await session.snapshot(frame.data, frame.timeout_s)
    elif frame.type is FrameType.FORK:
        data = await session.fork(frame.data, frame.timeout_s)
    elif frame.type is FrameType.RESTORE:
        data = observation_data(await session.restore(frame.data, frame.timeout_s))
        return Answer(encode_reply("observation", data, frame.request_id))
    else:
        data = {"dropped": session.drop_snapshot(frame.data)}
    return Answer(encode_reply(frame.type.value, data, frame.request_id))


def _cancel(session: Session, frame: Frame) -> bool:
    target = frame.data.get("request_id")
    if not isinstance(target, str):
        raise InvalidMessage(
            "cancel needs data.request_id",
            errors=[{"loc": ["data", "request_id"], "msg": "not a string", "type": "str"}],
        )
    running = session.replies.running(target)
    return running is not None and running.cancel()


def _trajectory(session: Session) -> Trajectory:
    trajectory = session.execution.episode.trajectory
    if trajectory is None:
        raise InvalidMessage("there is no episode yet; reset first")
    return trajectory


def _trajectory_text(trajectory: Trajectory, frame: Frame) -> str:
    try:
        return encode_reply("trajectory", trajectory.to_plain(), frame.request_id)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return encode_reply("error", wire_error(error, _A_FRAME).to_wire(), frame.request_id)


def _observation_text(observation: Observation, frame: Frame) -> str:
    try:
        return encode_reply("observation", observation_data(observation), frame.request_id)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return encode_reply("error", wire_error(error, _A_FRAME).to_wire(), frame.request_id)
