"""NeMo Gym's wire: the routes of a resources server, whose sessions are those of this server.

    POST /seed_session        begin the episode of a row, under an id that the caller chose, or under a cookie
    POST /{tool}              call a tool
    POST /verify              end the episode, and answer its return
    POST /close_session       end the session
    POST /aggregate_metrics   the mean reward of verified episodes

It is control plane. Agents may use MCP at the episode's own URL instead of ``/{tool}``; the answer to a seed has it.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from statistics import fmean
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mcpenv.execution.mcp_server import OVER
from mcpenv.failures import wire_error
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import Handler, answered, kept_answer, plain_json
from mcpenv.server.extension import Access, Extension, ServerRoute
from mcpenv.server.sessions.operations import CallTool, End, Reset
from mcpenv.server.sessions.session import Origin, Session
from mcpenv.trajectories.summary import components_of
from mcpenv_client.errors import EpisodeDone, InvalidMessage, SessionLost, WireError
from mcpenv_client.rows import COLUMNS, reset_options_of
from mcpenv_client.scores import whole_status
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.types.tools import ToolErrorType
from mcpenv_client.types.values import encode
from mcpenv_client.wire.faults import describe_faults

COOKIE = "mcpenv_session"
"""The cookie of a seeded session, which calls and ``/verify`` bring."""

TOKEN_HEADER = "X-NeMo-Gym-Session-Token"
"""The header that agents of NeMo Gym send to a session's MCP server. Some of them refuse a server without one."""

MAX_CLOSED = 100_000
"""Ids of closed sessions that are remembered, so that a late seed does not open one again."""

TAKEN = frozenset(
    {"aggregate_metrics", "close_session", "end", "mcp", "reset", "seed_session", "sessions", "step", "verify"}
    | {
        "call",
        "create",
        "create_session",
        "delete",
        "delete_session",
        "num_tasks",
        "ping",
        "task",
        "task_range",
        "tasks",
    }
)
"""The names of other routes that take a POST, also of ORS: tools of these names cannot be called at ``/{tool}``."""

_TOOL_STATUS = {ToolErrorType.TOOL_NOT_FOUND: 404, ToolErrorType.INVALID_ARGS: 422}

_KINDS = {
    StatusCode.ENV_ERROR: "mcpenv:env_error",
    StatusCode.JUDGE_ERROR: "judge_failed",
    StatusCode.TRANSPORT_LOST: "session_lost",
    StatusCode.CANCELLED: "cancelled",
}
"""NeMo Gym's kind of failure for each status that is not about the agent."""


T = TypeVar("T", bound=BaseModel)


class SessionClosed(InvalidMessage):
    """The error for a seed of a session that was closed before."""

    http_status = 409


class _Rollout(BaseModel):
    rollout_id: str
    attempt: int = 0


class _TaskId(BaseModel):
    taskset: str
    task_id: str


class _Seed(BaseModel):
    resources_session_id: str = Field(min_length=1)
    episode_id: _Rollout
    task_id: _TaskId
    task_data: dict[str, Any]


class _Close(BaseModel):
    model_config = ConfigDict(extra="ignore")

    resources_session_id: str


class NemoGymWire(Extension):
    """The extension, with its handlers."""

    def __init__(self, server: EnvServer) -> None:
        self._pool = server.pool
        self._source = server.source
        self._control = server.control
        self._closed: OrderedDict[str, None] = OrderedDict()

    def routes(self) -> list[ServerRoute]:
        """Return the routes. ``/{tool}`` takes every name that no other route has."""
        table: list[tuple[str, Handler, str]] = [
            ("/seed_session", self.seed, "POST"),
            ("/verify", self.verify, "POST"),
            ("/close_session", self.close, "POST"),
            ("/aggregate_metrics", self.aggregate_metrics, "POST"),
            ("/reverify_mode", self.reverify_mode, "GET"),
            ("/{tool}", self.tool, "POST"),
        ]
        return [ServerRoute(path, handler, Access.CONTROLLED, (method,)) for path, handler, method in table]

    @answered
    async def seed(self, request: Request) -> Response:
        """Open a session and begin its episode; once for each ``resources_session_id``."""
        body = await self._control.body(request)
        if "resources_session_id" in body:
            return await self._seed(_validated(_Seed, body), body, request)
        session = await self._pool.open(Origin.HTTP)
        try:
            tools = await self._begin(session, _row_of(body), request)
        except BaseException:
            await self._pool.close(session)
            raise
        return _with_cookie(plain_json({"mcp": tools}), session)

    @answered
    async def close(self, request: Request) -> dict[str, Any]:
        """Close a session. One that never was, or was closed before, is closed too, and not opened later."""
        closed = _validated(_Close, await self._control.body(request)).resources_session_id
        self._closed[closed] = None
        if len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)
        session = self._pool.peek(_pool_id(closed))
        if session is None:
            self._pool.close_soon(_pool_id(closed))  # one that is being opened
        else:
            await self._pool.end(session)
        return {"resources_session_id": closed}

    @answered
    async def verify(self, request: Request) -> dict[str, Any]:
        """End the episode, and answer its reward; or mask the sample, if the status is not about the agent."""
        body = await self._control.body(request)
        session = self._session(request)
        if session is None:
            lost = Status(StatusCode.TRANSPORT_LOST, None, True)
            return {**body, **_masked(lost, "the session was closed, timed out, or never was")}
        response = body.get("response")
        cut = isinstance(response, Mapping) and response.get("incomplete_details") is not None
        reason, failed = None, None
        try:
            await End(truncated=cut, reason="incomplete" if cut else None).run(session)
        except WireError as error:
            reason, failed = error.message, error.status
        episode = session.execution.episode
        trajectory = episode.trajectory
        status = failed or (None if trajectory is None else trajectory.status)
        if trajectory is None or status is None:
            return {**body, **_masked(Status(StatusCode.ENV_ERROR, Stage.RESET, True), "there is no episode")}
        told = {
            "mcpenv": {"episode_id": trajectory.episode_id, "status": status.to_plain(), "steps": episode.step_count}
        }
        if not status.usable:
            return {**body, **_masked(status, reason or trajectory.reason), **told}
        failed_step = whole_status(trajectory)
        if failed_step is not None and not failed_step.usable and body.get("mask_failed_steps", True):
            return {**body, **_masked(failed_step, "a step failed by no fault of the agent"), **told}
        if episode.earned is None:
            # No reward is not a reward of 0.
            return {**body, **_masked(status, "nothing scored the episode", "verifier_error"), **told}
        parts = components_of(trajectory)
        return {
            **body,
            "reward": episode.earned,
            "mask_sample": False,
            **({"reward_components": parts} if parts else {}),
            **told,
        }

    @answered
    async def aggregate_metrics(self, request: Request) -> dict[str, Any]:
        """Answer the mean reward of samples that are not masked, of all and of each task."""
        body = await self._control.body(request)
        by_task: defaultdict[Any, list[float]] = defaultdict(list)
        for sample in body.get("verify_responses") or ():
            if not sample.get("mask_sample"):
                by_task[sample.get("_ng_task_index")].append(float(sample["reward"]))
        rewards = [reward for group in by_task.values() for reward in group]
        overall = {"mean/reward": fmean(rewards)} if rewards else {}
        groups = [{"_ng_task_index": index, "mean/reward": fmean(group)} for index, group in by_task.items()]
        return {"group_level_metrics": groups, "agent_metrics": overall, "key_metrics": overall}

    async def reverify_mode(self, request: Request) -> Response:
        """Answer that a stored rollout cannot be verified again, because its episode has ended."""
        return plain_json("unsupported")

    async def tool(self, request: Request) -> Response:
        """Call the tool that the path names, and answer the text for the model. No status is 5xx: it may be retried."""
        try:
            session = self._session(request)
            if session is None:
                raise SessionLost("there is no session; seed one first, and send its cookie")
            arguments = await self._control.body(request)
            called = await CallTool(request.path_params["tool"], arguments).run(session)
        except EpisodeDone:
            return PlainTextResponse(OVER, 409)
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            wire = wire_error(error, request.url.path)
            return PlainTextResponse(wire.message, min(wire.http_status, 499))
        outcome = called.record.outcome
        if outcome.error is not None:
            return PlainTextResponse(outcome.error.message, _TOOL_STATUS.get(outcome.error.error_type, 400))
        assert outcome.result is not None
        return PlainTextResponse(outcome.result.text, 400 if outcome.result.is_error else 200)

    # -- parts

    async def _seed(self, seed: _Seed, body: dict[str, Any], request: Request) -> Response:
        self._refuse_closed(seed.resources_session_id)
        session = await self._pool.get_or_open(_pool_id(seed.resources_session_id), Origin.HTTP)

        async def begin() -> dict[str, Any]:
            tools = await self._begin(session, _row_of(seed.task_data, seed.task_id.task_id), request)
            return {
                "resources_session_id": seed.resources_session_id,
                "resources_tools": tools,
                "sandbox_access": None,
            }

        answer = await session.replies.once("nemo-gym seed", encode(body), lambda: kept_answer(begin(), request))
        if answer.status != 200 or seed.resources_session_id in self._closed:
            await self._pool.close(session)
            self._refuse_closed(seed.resources_session_id)
        return _with_cookie(Response(answer.text, answer.status, media_type="application/json"), session)

    async def _begin(self, session: Session, row: dict[str, Any], request: Request) -> dict[str, Any]:
        """Reset for a row, and return the address of the episode's MCP server."""
        session.claimed = True
        session.base_url = self._control.base_url(request)
        if self._source.tasks is None:
            row.pop("task_id", None)
        elif not row.keys() & {"task", "split", "task_id"}:
            raise InvalidMessage("the row names no task: give it split and index, or task")
        options = {"task": row.pop("task_id")} if row.keys() == {"task_id"} else reset_options_of(row or None)
        await Reset.from_wire(options, session).run(session)
        unfit = sorted({tool.name for tool in await session.execution.list_tools()} & TAKEN)
        if unfit:
            raise InvalidMessage(
                f"the tool {unfit[0]!r} has the name of a route of this server, so that NeMo Gym cannot call it at "
                f"/{unfit[0]}; rename the tool"
            )
        assert session.handle is not None
        return {
            "server_name": re.sub(r"[^A-Za-z0-9._-]+", "-", self._source.name).strip("-") or "mcpenv",
            "url_path": f"/episodes/{session.handle.value}/mcp",
            "transport": "http",
            "headers": {TOKEN_HEADER: session.handle.value},
        }

    def _session(self, request: Request) -> Session | None:
        """Return the session of a request's cookie; None if there is none."""
        session = self._pool.find(request.cookies.get(COOKIE, ""))
        return session if session is not None and session.origin is Origin.HTTP else None

    def _refuse_closed(self, resources_session_id: str) -> None:
        if resources_session_id in self._closed:
            raise SessionClosed(f"the session {resources_session_id[:80]!r} was closed; seed another id")


def _validated(model: type[T], body: dict[str, Any]) -> T:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidMessage(describe_faults(error)) from error


def _pool_id(resources_session_id: str) -> str:
    """Return the id in the pool of a session whose id the caller chose, which may have any form."""
    return f"nemo-{hashlib.blake2b(resources_session_id.encode(), digest_size=16).hexdigest()}"


def _row_of(data: Mapping[str, Any], task_id: str | None = None) -> dict[str, Any]:
    """Return the columns of a row that name an episode; ``task_id`` if there are none."""
    row = {name: data[name] for name in COLUMNS if data.get(name) is not None}
    return row or ({} if task_id is None else {"task_id": task_id})


def _masked(status: Status, reason: str | None, kind: str | None = None) -> dict[str, Any]:
    """Return what ``/verify`` says of a sample without a reward that means something."""
    if kind is None:
        kind = "verifier_error" if status.stage is Stage.VERIFY else _KINDS.get(status.code, "mcpenv:unknown")
    return {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": kind,
        "failure_reason": reason or f"the status of the episode is {status.code.value}",
    }


def _with_cookie(response: Response, session: Session) -> Response:
    response.set_cookie(COOKIE, session.id, httponly=True, samesite="lax")
    return response
