"""ORS's wire: the routes that clients of the Open Reward Standard call, whose sessions are those of this server.

    POST /create_session            answers an id, as an event stream
    POST /create                    begins the episode of a task, in a new session of that id
    GET  /{name}/task_tools         the tools of the session; /{name}/tools: those of the environment
    GET  /{name}/prompt             the task's prompt, as blocks
    POST /{name}/call               calls a tool; answers an event stream, which can be resumed by its task_id
    POST /ping, /delete, /delete_session
    GET  /version

Requests name their session in ``X-Session-ID``. The path may be without ``/{name}``. It is control plane, with the
token in ``X-API-Key`` or as a bearer token. The wire has no end of an episode: a harness calls the terminal tool once
the model has stopped calling tools, and that ends it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import Response

from mcpenv.execution.mcp_server import OVER
from mcpenv.failures import wire_error
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import PING, PING_S, Handler, kept_answer, plain_json, streaming
from mcpenv.server.extension import Access, Extension, ServerRoute
from mcpenv.server.sessions.credential import SESSION_ID
from mcpenv.server.sessions.idempotency import Answer
from mcpenv.server.sessions.operations import CallTool, End, Reset
from mcpenv.server.sessions.session import Origin, Session
from mcpenv_client.errors import CapacityReached, EpisodeDone, ExecutionError, InvalidMessage, SessionLost, WireError
from mcpenv_client.formats.prompts import images_of, prompt_of
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepResult
from mcpenv_client.types.tools import Tool, ToolErrorType, ToolResult
from mcpenv_client.types.values import encode
from mcpenv_client.wire.faults import describe_faults
from mcpenv_client.wire.protocol import EpisodeState

END_TOOL = "end_episode"
"""The name of the terminal tool, with more underscores if the environment has a tool of that name."""

CHUNK = 2048
"""Maximum characters of an event. Clients refuse lines above some size."""

_REASONS = {ToolErrorType.TOOL_NOT_FOUND: "not_found", ToolErrorType.INVALID_ARGS: "input_validation"}

Blocks = list[dict[str, Any]]

T = TypeVar("T", bound=BaseModel)


class _Create(BaseModel):
    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    toolset_name: None = None

    @model_validator(mode="after")
    def _one_task(self) -> _Create:
        if (self.task_spec is None) == (self.split is None or self.index is None):
            raise ValueError("give either task_spec, or split and index")
        return self


class _Call(BaseModel):
    name: str
    input: dict[str, Any] = {}
    task_id: str | None = None


class OrsWire(Extension):
    """The extension, with its handlers. A refusal is ``{"detail": ...}``, as ORS's clients expect."""

    def __init__(self, server: EnvServer) -> None:
        self._pool = server.pool
        self._source = server.source
        self._control = server.control
        self._tasks = server.tasks

    def routes(self) -> list[ServerRoute]:
        """Return the routes. Those of tasks are the kernel's, for clients that send the token as an API key."""
        tasks = self._tasks
        table: list[tuple[str, Handler, str]] = [
            ("/create_session", self.create_session, "POST"),
            ("/create", self.create, "POST"),
            ("/ping", self.ping, "POST"),
            ("/delete", self.delete, "POST"),
            ("/delete_session", self.delete, "POST"),
            ("/version", self.version, "GET"),
            ("/list_environments", tasks.environments, "GET"),
        ]
        for prefix in ("", "/{name}"):
            table += [
                (f"{prefix}/tools", self.tools, "GET"),
                (f"{prefix}/task_tools", self.task_tools, "GET"),
                (f"{prefix}/prompt", self.prompt, "GET"),
                (f"{prefix}/call", self.call, "POST"),
                (f"{prefix}/splits", tasks.splits, "GET"),
                (f"{prefix}/tasks", tasks.tasks, "POST"),
                (f"{prefix}/num_tasks", tasks.num_tasks, "POST"),
                (f"{prefix}/task", tasks.task, "POST"),
                (f"{prefix}/task_range", tasks.task_range, "POST"),
            ]
        return [ServerRoute(path, handler, Access.KEYED, (method,)) for path, handler, method in table]

    async def version(self, request: Request) -> Response:
        """Answer the version of this server."""
        return plain_json({"version": version("mcpenv"), "build_sha": None})

    async def create_session(self, request: Request) -> Response:
        """Answer an id for a session. There is none before ``/create``, since clients take an id to list tasks, too."""

        async def events() -> AsyncIterator[bytes]:
            yield _event("task_id", secrets.token_urlsafe(16)) + _event("end", "")

        return streaming(events())

    async def create(self, request: Request) -> Response:
        """Open the session and begin its episode, once."""
        try:
            body = await self._control.body(request)
            asked = _validated(_Create, body)
            self._check_name(asked.env_name)
            session_id = _session_id(request)
            session = await self._pool.get_or_open(session_id, Origin.HTTP)
            if session.origin is not Origin.HTTP:
                raise InvalidMessage("there is another session of that id")
            session.claimed, session.base_url = True, self._control.base_url(request)
            answer = await session.replies.once(
                "ors create", encode(body), lambda: kept_answer(_begin(session, asked), request)
            )
            if answer.status != 200:
                await self._pool.close(session)
                return plain_json({"detail": json.loads(answer.text)["message"]}, answer.status)
            return Response(answer.text, media_type="application/json")
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)

    async def tools(self, request: Request) -> Response:
        """Answer the environment's tools."""
        try:
            self._check_name(request.path_params.get("name"))
            if self._source.prototype is not None:
                return plain_json(_listing(self._source.prototype.tools))
            session = await self._pool.open(Origin.HTTP)
            try:
                return plain_json(_listing(await session.execution.list_tools()))
            finally:
                await self._pool.close(session)
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)

    async def task_tools(self, request: Request) -> Response:
        """Answer the session's tools."""
        try:
            return plain_json(_listing(await self._session(request).execution.list_tools()))
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)

    async def prompt(self, request: Request) -> Response:
        """Answer the prompt of the episode, as blocks."""
        try:
            first = StepResult(self._session(request).execution.episode.first or Observation())
            text = prompt_of(first)
            return plain_json(_blocks([*([{"type": "text", "text": text}] if text else []), *images_of(first)]))
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)

    async def ping(self, request: Request) -> Response:
        """Keep the session."""
        try:
            self._session(request)
            return plain_json({"status": "ok"})
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)

    async def delete(self, request: Request) -> Response:
        """End the session, if there is one."""
        try:
            session_id = _session_id(request)
            session = self._pool.peek(session_id)
            if session is not None and session.origin is Origin.HTTP:
                await self._pool.end(session)
            return plain_json({"sid": session_id})
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)

    async def call(self, request: Request) -> Response:
        """Call a tool; or go on with the answer to a call whose stream was lost."""
        try:
            session = self._session(request)
            asked = _validated(_Call, await self._control.body(request))
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return _refusal(error, request)
        return streaming(_called(session, asked))

    def _session(self, request: Request) -> Session:
        self._check_name(request.path_params.get("name"))
        session = self._pool.joinable(_session_id(request))
        if session.execution.episode.state is EpisodeState.NEW:
            raise SessionLost("the session has no episode; it was reset in vain, or /create is still running")
        return session

    def _check_name(self, name: str | None) -> None:
        if name is not None and name.lower() != self._source.name.lower():
            raise _UnknownEnvironment(f"unknown environment {name!r}; this is {self._source.name}")


class _UnknownEnvironment(InvalidMessage):
    http_status = 404


async def _begin(session: Session, asked: _Create) -> dict[str, Any]:
    options = {"split": asked.split, "index": asked.index} if asked.task_spec is None else {"task": asked.task_spec}
    await Reset.from_wire(options, session).run(session)
    return {"sid": session.id}


async def _called(session: Session, asked: _Call) -> AsyncIterator[bytes]:
    """Yield the events of a call. It runs to its end also if the client goes away."""
    task_id = asked.task_id
    if task_id is None:
        task_id = secrets.token_urlsafe(16)
    elif not session.replies.known(f"ors {task_id}"):
        yield _event("error", "unknown task_id")
        return
    yield _event("task_id", task_id)
    body = encode([asked.name, asked.input])
    answering = asyncio.ensure_future(
        session.replies.once(f"ors {task_id}", body, lambda: _answer(session, asked.name, asked.input))
    )
    try:
        while not (await asyncio.wait({answering}, timeout=PING_S))[0]:
            yield PING
        try:
            answer = answering.result()
        except WireError as error:
            yield _event("error", error.message)
            return
    finally:
        answering.cancel()
    if answer.status != 200:
        yield _event("error", answer.text)
        return
    # Clients strip blanks from the beginning of each event. In compact ASCII JSON a blank is within a string.
    chunks = [re.sub(r"\A ", r"\\u0020", answer.text[at : at + CHUNK]) for at in range(0, len(answer.text), CHUNK)]
    for chunk in chunks[:-1]:
        yield _event("chunk", chunk)
    yield _event("end", chunks[-1])


async def _answer(session: Session, name: str, arguments: dict[str, Any]) -> Answer:
    """Return the output of a call, or its refusal. Status 500: nothing can be said of the agent, who must stop."""
    try:
        output = await _output(session, name, arguments)
    except EpisodeDone:
        output = _refused(OVER, "episode_finished")
    except InvalidMessage as error:
        output = _refused(error.message, "input_validation")
    except Exception as error:  # noqa: BLE001 - the wire's boundary
        wire = wire_error(error, "ORS call")
        return Answer(f"{wire.status.code.value if wire.status else 'env_error'}: {wire.message}", 500)
    return Answer(json.dumps(output, separators=(",", ":")))  # only ASCII


async def _output(session: Session, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == _end_tool(await session.execution.list_tools()):
        return await _ended(session)
    called = await CallTool(name, arguments).run(session)
    _raise_if_failed(session)
    record = called.record
    failure, result = record.outcome.error, record.outcome.result
    reward = None if record.reward is None else record.reward.value
    # A refusal has no field for a reward or for the end.
    if failure is not None and failure.error_type in _REASONS and not reward and not record.done:
        return _refused(failure.message, _REASONS[failure.error_type])
    content = [{"type": "text", "text": failure.message}] if failure is not None else result.content if result else []
    wrong = failure is not None or bool(result and result.is_error)
    metadata = {**called.info, "truncated": record.truncated, "is_error": wrong}
    return _success(_blocks(content), metadata, reward, record.done)


async def _ended(session: Session) -> dict[str, Any]:
    if session.execution.episode.state is EpisodeState.DONE:
        raise EpisodeDone(OVER)
    last = await End().run(session)
    _raise_if_failed(session)
    return _success(
        _blocks([{"type": "text", "text": OVER}]), {**last.info, "truncated": last.truncated}, last.reward, True
    )


def _raise_if_failed(session: Session) -> None:
    """Raise if rewards of the episode say nothing of the agent.

    Raises:
        ExecutionError: that is so.
    """
    trajectory = session.execution.episode.trajectory
    status = None if trajectory is None else trajectory.status
    if status is not None and not status.usable:
        raise ExecutionError(f"the episode has no reward, its status is {status.code.value}")


def _success(blocks: Blocks, metadata: dict[str, Any], reward: float | None, finished: bool) -> dict[str, Any]:
    output = {"blocks": blocks, "metadata": metadata, "reward": reward, "finished": finished}
    return {"ok": True, "output": output}


def _refused(message: str, reason: str) -> dict[str, Any]:
    return {"ok": False, "error": message, "reason": reason}


def _listing(tools: list[Tool]) -> dict[str, Any]:
    return {
        "tools": [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in tools
        ],
        "terminal_tool": {"name": _end_tool(tools), "arg": None, "description": "End the episode."},
        "supports_score_group": False,
        "message_block_types": ["text", "image"],
    }


def _end_tool(tools: list[Tool]) -> str:
    name, taken = END_TOOL, {tool.name for tool in tools}
    while name in taken:
        name += "_"
    return name


def _blocks(content: Blocks) -> Blocks:
    """Return blocks of MCP content as ORS has them: texts and images, with a text in place of any other."""
    return [
        {"type": "image", "data": block["data"], "mimeType": block["mimeType"], "detail": None}
        if block.get("type") == "image" and "data" in block and "mimeType" in block
        else {"type": "text", "text": ToolResult.model_construct(content=[block]).text, "detail": None}
        for block in content
    ]


def _session_id(request: Request) -> str:
    session_id = request.headers.get("x-session-id", "").strip()
    if not SESSION_ID.fullmatch(session_id):
        raise InvalidMessage("X-Session-ID is needed: the id that /create_session returned")
    return session_id


def _validated(model: type[T], body: dict[str, Any]) -> T:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidMessage(describe_faults(error)) from error


def _refusal(error: Exception, request: Request) -> Response:
    wire = wire_error(error, request.url.path)
    # Gone, because for 404 clients look for the route of an older version.
    status = 410 if isinstance(wire, SessionLost) else wire.http_status
    retry_after_s = wire.retry_after_s if isinstance(wire, CapacityReached) else None
    headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:.0f}"}
    return plain_json({"detail": wire.message, "code": wire.code.value}, status, headers)


def _event(name: str, text: str) -> bytes:
    lines = (f"data: {line}\n" for line in text.splitlines() or [""])
    return "".join([f"event: {name}\n", *lines, "\n"]).encode()
