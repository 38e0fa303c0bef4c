"""Host the instances of one OpenEnv environment, in the Python that has OpenEnv: the counterpart of `process`.

Run as a program. It imports OpenEnv and nothing of mcpenv, which that Python may not have. Requests and replies are
JSON objects, one a line, on the original standard streams. Output of the environment goes to stderr.

Every instance has a thread for sync code and a thread with an event loop for async code, so that instances do not block
each other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
import threading
import traceback
import types
import typing
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
# A program's folder is first on the path. The environment must not import mcpenv's modules from it.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HERE]
# The web interface is not used here.
os.environ["ENABLE_WEB_INTERFACE"] = "false"
WEB_INTERFACE = "openenv.core.env_server.web_interface"


class _WebInterface(types.ModuleType):
    """OpenEnv's web interface, imported when a function of it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: getattr(importlib.import_module(WEB_INTERFACE), name)(*args, **kwargs)


# OpenEnv imports it with itself, and its Gradio takes more than half of the time of that.
sys.modules[WEB_INTERFACE] = _WebInterface(WEB_INTERFACE)

import jsonschema  # type: ignore[import-untyped]  # noqa: E402
import openenv  # noqa: E402
import yaml  # type: ignore[import-untyped]  # noqa: E402
from fastmcp.tools import FunctionTool  # noqa: E402
from openenv.core.env_server.http_server import HTTPEnvServer  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.mcp_environment import MCPEnvironment  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction  # noqa: E402
from openenv.core.env_server.serialization import deserialize_action  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402
from pydantic import ValidationError  # noqa: E402
from pydantic_core import to_jsonable_python  # noqa: E402

del sys.modules[WEB_INTERFACE]

NO_LIMIT_S = 86_400.0
"""Replaces OpenEnv's own deadline of 30 seconds, because the server enforces the deadline of a step."""

MAX_FAULTS = 20
"""Maximum faults of an action that are reported."""

MAX_FAULT_TEXT = 500
"""Maximum characters of the text of a fault, and of a name in its location."""

MODES = ("simulation", "production")
TASK_METHODS = ("list_splits", "list_tasks", "num_tasks", "get_task", "get_task_range")


class Refusal(Exception):
    """The error that a request cannot be served, without a failure of user code."""

    def __init__(self, kind: str, message: str, errors: list[Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.errors = errors


# -- the environment


@dataclasses.dataclass
class Hosted:
    """The environment that this process hosts.

    Attributes:
        factory: makes an instance.
        cls: the class of the instances.
        action_cls: the class of actions.
        observation_cls: the class of observations.
        state_cls: the class of the state.
        name: the author's name for the environment, if there is one.
        manifest: the content of openenv.yaml.
    """

    factory: Callable[..., Any]
    cls: type[Any]
    action_cls: Any
    observation_cls: Any
    state_cls: Any
    name: str | None = None
    manifest: dict[str, Any] = dataclasses.field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return the description that mcpenv needs before there is an instance."""
        manifest = self.manifest
        return {
            "class": self.cls.__name__,
            "name": str(manifest.get("name") or self.name or self.cls.__name__),
            "version": str(manifest.get("version") or "0.1.0"),
            "description": inspect.cleandoc(self.cls.__dict__.get("__doc__") or manifest.get("description") or ""),
            "concurrent": bool(self.cls.SUPPORTS_CONCURRENT_SESSIONS),
            "action": self._action(),
            "observation": schema_of(self.observation_cls),
            "state": schema_of(self.state_cls),
            "reset": self._reset(),
            "settings": sorted(inspect.signature(self.factory).parameters),
            "tasks": [name for name in TASK_METHODS if callable(getattr(self.cls, name, None))],
            "openenv": openenv.__version__,
        }

    @property
    def has_tools(self) -> bool:
        """True if agents act through tools."""
        return issubclass(self.cls, MCPEnvironment) or self.action_cls in (CallToolAction, ListToolsAction)

    def _action(self) -> dict[str, Any] | None:
        """Return a description of the environment's own actions, or None if it accepts none."""
        if self.action_cls in (CallToolAction, ListToolsAction) or (self.has_tools and self.action_cls is Action):
            return None
        schema = schema_of(self.action_cls)
        kind = schema.get("properties", {}).get("type", {})
        given = [kind[key] for key in ("const", "default") if key in kind] + list(kind.get("enum", ()))
        types = list(dict.fromkeys(name for name in given if isinstance(name, str)))
        return {"name": self.action_cls.__name__, "schema": schema, "types": types}

    def _reset(self) -> dict[str, Any]:
        is_async = overrides(self.cls, "reset_async", "reset")
        parameters = list(inspect.signature(self.cls.reset_async if is_async else self.cls.reset).parameters.values())
        named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return {
            "options": {p.name: p.default is p.empty for p in named},
            "any": any(p.kind is p.VAR_KEYWORD for p in parameters),
        }


def hosted(place: dict[str, Any]) -> Hosted:
    """Load an environment: a ``folder`` with openenv.yaml, or an ``attribute`` of a ``module`` or ``file``."""
    servers = record_servers()
    if "folder" in place:
        return hosted_folder(place["folder"], place.get("attribute"), servers)
    if "file" in place:
        sys.path.insert(0, os.path.dirname(place["file"]))
        name = os.path.splitext(os.path.basename(place["file"]))[0]
        spec = importlib.util.spec_from_file_location(name, place["file"])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(place["module"])
    made = getattr(module, place["attribute"], None)
    for server in servers:
        if made is not None and made is server.cls:
            return server
    if made is None:
        raise Refusal("target", f"there is no {place['attribute']!r} in {place.get('module') or place['file']}")
    if not callable(made) or (isinstance(made, type) and not issubclass(made, Environment)):
        raise Refusal("target", f"{place['attribute']} is neither an OpenEnv environment nor a factory of one")
    return of_factory(made)


def hosted_folder(folder: str, attribute: str | None, servers: list[Hosted]) -> Hosted:
    """Return the environment that the application of an OpenEnv folder serves, which may have no openenv.yaml."""
    manifest = {}
    if os.path.exists(described := os.path.join(folder, "openenv.yaml")):
        with open(described, encoding="utf-8") as file:
            manifest = yaml.safe_load(file)
    if not isinstance(manifest, dict):
        raise Refusal("target", "openenv.yaml is not a mapping")
    app = str(manifest.get("app") or "server.app:app").partition(":")[0]
    # Some name it from the root of the repository: envs.mine.server.app
    app = app.rpartition(f".{os.path.basename(folder)}.")[2]
    sys.path.insert(0, folder)
    sys.path.append(os.path.dirname(folder))
    try:
        importlib.import_module(app)
    except ImportError:
        # The folder may be a package with modules that import each other relatively.
        if not os.path.exists(os.path.join(folder, "__init__.py")):
            raise
        importlib.import_module(f"{os.path.basename(folder)}.{app}")
    found = [server for server in servers if attribute is None or server.cls.__name__ == attribute]
    if not found:
        known = ", ".join(server.cls.__name__ for server in servers)
        advice = f"it has: {known}" if known else "only environments that create_app of OpenEnv serves are known"
        raise Refusal("target", f"{app} creates no server of {attribute or 'an OpenEnv environment'} ({advice})")
    return dataclasses.replace(found[-1], manifest=manifest)


def record_servers() -> list[Hosted]:
    """Patch OpenEnv's server class to record the environments of servers made later, and return the list of them."""
    servers: list[Hosted] = []
    make = HTTPEnvServer.__init__

    @functools.wraps(make)
    def recording(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        bound = inspect.signature(make).bind(self, *args, **kwargs).arguments
        known = of_factory(bound["env"])
        servers.append(
            dataclasses.replace(
                known,
                action_cls=bound["action_cls"],
                observation_cls=bound["observation_cls"],
                state_cls=bound.get("state_cls", known.state_cls),
                name=bound.get("env_name"),
            )
        )

    HTTPEnvServer.__init__ = recording
    return servers


def of_factory(factory: Callable[..., Any]) -> Hosted:
    """Describe an environment by its class or factory; its actions and observations by type hints."""
    made: Any = factory
    while isinstance(made, functools.partial):
        made = made.func
    if not isinstance(made, type):
        first = factory()
        made = type(first)
        first.close()
    action, observation, state = type_arguments(made)
    if issubclass(made, MCPEnvironment) and action is Action:
        action = CallToolAction
    return Hosted(factory, made, action, observation, state)


def type_arguments(cls: type[Any]) -> tuple[Any, Any, Any]:
    """Return the classes of action, observation and state, from ``Environment[A, O, S]`` or the hints of ``step``."""
    for base in [base for each in cls.__mro__ for base in vars(each).get("__orig_bases__", ())]:
        given = typing.get_args(base)
        if len(given) == 3 and all(isinstance(argument, type) for argument in given):
            return given
    try:
        hints = typing.get_type_hints(cls.step)
    except (NameError, TypeError):
        hints = {}
    action, observation = hints.get("action", Action), hints.get("return", Observation)
    return (
        action if isinstance(action, type) and issubclass(action, Action) else Action,
        observation if isinstance(observation, type) and issubclass(observation, Observation) else Observation,
        State,
    )


def overrides(cls: type[Any], asynchronous: str, synchronous: str) -> bool:
    """Return True if the most derived override is the async method; in one class the async method wins.

    OpenEnv calls the async method whenever there is one. So it bypasses a ``step`` that counts or scores in a subclass
    of its MCPEnvironment.
    """
    for each in cls.__mro__:
        if each is Environment:
            return False
        if asynchronous in vars(each):
            return True
        if synchronous in vars(each):
            return False
    return False


def schema_of(model: Any) -> dict[str, Any]:
    """Return the JSON Schema of a model, or an open object if it has none."""
    try:
        schema: dict[str, Any] = model.model_json_schema()
        json.dumps(schema)
        return schema
    except Exception:  # noqa: BLE001 - pydantic and user code may raise anything
        traceback.print_exc()  # to the server's log
        return {"title": getattr(model, "__name__", "object"), "type": "object"}


# -- an instance


class Instance:
    """An environment, its two threads, and its running calls."""

    def __init__(self, environment: Hosted, settings: dict[str, Any]) -> None:
        self._hosted = environment
        self._settings = settings
        self._env: Any = None
        self._sync = ThreadPoolExecutor(max_workers=1)
        self._last: Future[Any] | None = None
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._left: asyncio.Event | None = None
        self._holding: asyncio.Task[None] | None = None
        self._scored = 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def make(self) -> dict[str, Any]:
        """Construct the environment and return the tools of both modes."""
        await self._construct()
        self._known = {mode: await self._tools(mode) for mode in MODES}
        return {"tools": self._known}

    @property
    def stuck(self) -> bool:
        """True if sync code still runs although its call was cancelled."""
        return self._last is not None and not self._last.done()

    async def reset(self, options: dict[str, Any], mode: str) -> dict[str, Any]:
        """Start an episode; in a new instance if a cancelled step still runs."""
        if self.stuck:
            self._sync = ThreadPoolExecutor(max_workers=1)
            await self._let_go()
            await self._construct()
        self._env._mode = mode
        return observation_data(await self._run("reset_async", "reset", options=options))

    async def call(self, name: str, arguments: dict[str, Any], mode: str) -> dict[str, Any]:
        """Call a tool: a step with OpenEnv's action for it."""
        self._env._mode = mode
        tool = next((tool for tool in self._known[mode] if tool["name"] == name), None)
        if tool is None:
            return failure("tool_not_found", f"Unknown tool: {name!r}")
        misfit = misfit_of(arguments, tool["inputSchema"])
        if misfit is not None and name in self._mode_tools():
            # OpenEnv would call the function with unchecked arguments.
            return failure("invalid_args", f"{name}: invalid arguments: {misfit}")
        action = CallToolAction(tool_name=name, arguments=arguments)
        observation = await self._step(action, {"timeout_s": NO_LIMIT_S})
        scored = {"reward": to_plain(observation.reward), "done": bool(observation.done)}
        error = getattr(observation, "error", None)
        if error is not None:
            # Classify by the arguments, not by the text of the message as OpenEnv does.
            kind = "timeout" if error.error_type.value == "timeout" else "execution_error"
            return {**failure("invalid_args" if misfit is not None else kind, error.message), **scored}
        return {"result": result_data(observation), **scored}

    async def act(self, data: dict[str, Any], mode: str) -> dict[str, Any]:
        """Take one of the environment's own actions."""
        try:
            action = deserialize_action(data, self._hosted.action_cls)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FAULTS]
            cut = [
                {
                    "loc": [part[:MAX_FAULT_TEXT] if isinstance(part, str) else part for part in fault["loc"]],
                    "msg": fault["msg"][:MAX_FAULT_TEXT],
                    "type": fault["type"],
                }
                for fault in faults
            ]
            raise Refusal("invalid", "the action does not fit", cut) from error
        self._env._mode = mode
        return observation_data(await self._step(action, {}))

    async def state(self) -> dict[str, Any]:
        """Return the environment's state."""
        state = await self._in_thread(lambda: self._env.state)
        return dict(to_plain(state.model_dump() if hasattr(state, "model_dump") else dict(state or {})))

    async def task(self, method: str, arguments: list[Any]) -> Any:
        """Return one answer of the Task API."""
        try:
            answer = await self._in_thread(functools.partial(getattr(self._env, method), *arguments))
            return to_plain(await answer if inspect.isawaitable(answer) else answer)
        except NotImplementedError as error:
            raise Refusal("unsupported", f"{method} is not supported by this environment") from error
        except (IndexError, KeyError) as error:
            raise Refusal("index", f"{method}: there is no such task") from error

    async def close(self) -> None:
        """Close the environment and end its threads."""
        try:
            if not self.stuck:
                await self._let_go()
                if self._env is not None:
                    await self._in_thread(self._env.close)
        finally:
            self._env = None
            self._sync.shutdown(wait=False)
            self.loop.call_soon(self.loop.stop)

    async def _construct(self) -> None:
        self._env = await self._in_thread(functools.partial(self._hosted.factory, **self._settings))
        rubric: Any = getattr(self._env, "rubric", None)
        if hasattr(rubric, "register_forward_hook"):
            rubric.register_forward_hook(self._count_score)
        session = getattr(self._env, "mcp_session", None)
        if callable(session) and overrides(type(self._env), "step_async", "step"):
            # Keep it open as OpenEnv's server does. Sync code uses a loop of its own, and opens it for each call.
            started = self.loop.create_future()
            self._left = asyncio.Event()
            self._holding = asyncio.ensure_future(hold(session, started, self._left))
            await started

    async def _let_go(self) -> None:
        if self._holding is not None and self._left is not None:
            self._left.set()
            await asyncio.wait({self._holding}, timeout=5)
            self._holding = None

    async def _step(self, action: Any, options: dict[str, Any]) -> Any:
        scored = self._scored
        observation = await self._run("step_async", "step", action, options=options)
        rubric = getattr(self._env, "rubric", None)
        if rubric is not None and observation.reward is None and self._scored == scored:
            # OpenEnv never calls the rubric for tool calls. Call it here, once.
            reward = await self._in_thread(functools.partial(rubric, action, observation))
            observation = observation.model_copy(
                update={"reward": await reward if inspect.isawaitable(reward) else reward}
            )
        return observation

    async def _run(self, asynchronous: str, synchronous: str, *args: Any, options: dict[str, Any]) -> Any:
        """Call the method that `overrides` selects, with the options that it accepts. They may have any name."""
        is_async = overrides(type(self._env), asynchronous, synchronous)
        method = getattr(self._env, asynchronous if is_async else synchronous)
        parameters = inspect.signature(method).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        fit = {name: value for name, value in options.items() if takes_any or name in parameters}
        if is_async:
            return await method(*args, **fit)
        return await self._in_thread(functools.partial(method, *args, **fit))

    async def _in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run sync code in its thread. As it cannot be stopped, the reset after a cancellation makes a new instance."""
        self._last = self._sync.submit(fn)
        return await asyncio.wrap_future(self._last)

    async def _tools(self, mode: str) -> list[dict[str, Any]]:
        """Return the tools of a mode, with MCP's field names."""
        if not self._hosted.has_tools:
            return []
        if getattr(self._env, "mcp_client", None) is None:
            listed = await self._run("step_async", "step", ListToolsAction(), options={})
            return [
                {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
                for tool in listed.tools
            ]
        async with self._env.mcp_session() as client:
            tools = await client.list_tools()
        for name, functions in self._mode_tools().items():
            if mode in functions:
                tools.append(FunctionTool.from_function(functions[mode], name=name).to_mcp_tool())
        return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]

    def _mode_tools(self) -> dict[str, dict[str, Any]]:
        """Return functions by name and mode, of tools that OpenEnv stores separately because they have a mode."""
        kept: dict[str, dict[str, Any]] = getattr(self._env, "_mode_tools", {})
        return {name: functions for name, functions in kept.items() if None not in functions}

    def _count_score(self, *_: Any) -> None:
        self._scored += 1


async def hold(session: Callable[[], Any], started: asyncio.Future[None], left: asyncio.Event) -> None:
    """Keep an environment's MCP session open; it is entered and exited in the same task."""
    try:
        async with session():
            started.set_result(None)
            await left.wait()
    except Exception as error:
        if started.done():
            raise
        started.set_exception(error)


# -- values


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON data."""
    return to_jsonable_python(value, fallback=listed, inf_nan_mode="constants")


def listed(value: Any) -> Any:
    """Return arrays and tensors as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def observation_data(observation: Any) -> dict[str, Any]:
    """Return the fields of an observation, with reward and done separate."""
    return {
        "fields": to_plain(observation.model_dump(exclude={"reward", "done"})),
        "reward": to_plain(observation.reward),
        "done": bool(observation.done),
    }


def result_data(observation: Any) -> dict[str, Any]:
    """Return the MCP content and structured content of a tool call."""
    if hasattr(observation, "result"):
        result = observation.result
    else:
        result = observation.model_dump(exclude={"reward", "done"})
    if hasattr(result, "content") and hasattr(result, "structured_content"):
        structured, meta = to_plain(result.structured_content), to_plain(result.meta) or {}
        if structured == {"result": to_plain(result.data)}:
            meta = {**meta, "fastmcp": {"wrap_result": True}}
        return {
            "content": [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content],
            "structured_content": structured,
            "meta": meta or None,
        }
    value = to_plain(result)
    text = value if isinstance(value, str) else json.dumps(value)
    wrapped = not isinstance(value, dict)
    return {
        "content": [{"type": "text", "text": text}],
        "structured_content": {"result": value} if wrapped else value,
        "meta": {"fastmcp": {"wrap_result": True}} if wrapped else None,
    }


def failure(kind: str, message: str) -> dict[str, Any]:
    """Return the data of a failed tool call."""
    return {"error": {"error_type": kind, "message": message}, "reward": None, "done": False}


def misfit_of(arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Return why arguments do not fit a tool's schema, or None."""
    fault = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(arguments)), None)
    if fault is None:
        return None
    where = ".".join(map(str, fault.absolute_path))
    return f"{where}: {fault.message}" if where else str(fault.message)


# -- requests


class Host:
    """Answer requests: one JSON object per line in, one per line out."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._writing = threading.Lock()
        self._hosted: Hosted | None = None
        self._described: dict[str, Any] | None = None
        self._instances: dict[str, Instance] = {}
        self._running: dict[int, tuple[Instance, asyncio.Task[Any]]] = {}

    def serve(self, lines: Any) -> None:
        """Serve until the requests end, then close every environment."""
        for line in lines:
            request = json.loads(line)
            number, op = request.pop("id"), request.pop("op")
            if op == "cancel":
                self._cancel(request["number"])
            elif op == "describe":
                self._describe(number, request["place"])
            else:
                self._begin(number, op, request)
        closing = [
            asyncio.run_coroutine_threadsafe(instance.close(), instance.loop) for instance in self._instances.values()
        ]
        for each in closing:
            try:
                each.result(10)
            except Exception:  # noqa: BLE001 - close the other instances regardless
                traceback.print_exc()

    def _describe(self, number: int, place: dict[str, Any]) -> None:
        if self._described is None:
            try:
                self._hosted = hosted(place)
                self._described = {"ok": self._hosted.describe()}
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                self._described = {"error": error_data(error)}
        self._reply(number, **self._described)

    def _begin(self, number: int, op: str, request: dict[str, Any]) -> None:
        name = request.pop("instance")
        if self._hosted is None:
            self._reply(number, **(self._described or {}))
            return
        if op == "make":
            self._instances[name] = Instance(self._hosted, request.pop("settings"))
        instance = self._instances.get(name)
        if instance is None:
            self._reply(number, error={"kind": "lost", "message": "there is no such instance (any more)"})
            return
        if op == "close":
            del self._instances[name]
        instance.loop.call_soon_threadsafe(self._start, number, instance, op, request)

    def _start(self, number: int, instance: Instance, op: str, request: dict[str, Any]) -> None:
        work: Awaitable[Any] = getattr(instance, op)(**request)
        task = asyncio.ensure_future(work, loop=instance.loop)
        self._running[number] = instance, task
        task.add_done_callback(functools.partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[Any]) -> None:
        self._running.pop(number, None)
        if task.cancelled():
            self._reply(number, error={"kind": "cancelled", "message": "cancelled"})
            return
        error = task.exception()
        if error is not None:
            self._reply(number, error=error_data(error))
            return
        self._reply(number, ok=task.result())

    def _cancel(self, number: int) -> None:
        running = self._running.get(number)
        if running is not None:
            instance, task = running
            instance.loop.call_soon_threadsafe(task.cancel)

    def _reply(self, number: int, **answer: Any) -> None:
        try:
            text = json.dumps({"id": number, **answer}, allow_nan=False)
        except (ValueError, TypeError) as error:
            text = json.dumps({"id": number, "error": error_data(error)})
        with self._writing:
            self._out.write(text.encode() + b"\n")
            self._out.flush()


def error_data(error: BaseException) -> dict[str, Any]:
    """Return the data from which `process.error_of` makes the exception again."""
    if isinstance(error, Refusal):
        return {"kind": error.kind, "message": str(error), "errors": error.errors}
    return {
        "kind": "raised",
        "type": type(error).__name__,
        "message": str(error) + after_missing(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    }


def after_missing(error: BaseException) -> str:
    """Return the package whose absence led to a failed import: an environment may import something else instead."""
    earlier = error.__context__
    while type(error) is ImportError and earlier is not None:
        if isinstance(earlier, ModuleNotFoundError):
            return f", after: {earlier}"
        earlier = earlier.__context__
    return ""


def main() -> None:
    """Serve until stdin ends."""
    lines, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The environment and its child processes must not read or write the streams of the protocol.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    Host(out).serve(lines)
    sys.stderr.flush()
    os._exit(0)  # a user thread that never returns must not keep the process alive


if __name__ == "__main__":
    main()
