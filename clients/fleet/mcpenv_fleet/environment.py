"""Environments of the Fleet platform as environments of mcpenv: the target ``fleet:ENV_KEY``.

This is the only module of the package that imports ``mcpenv``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fastmcp.tools.base import ToolResult as FastMCPResult

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, StartupError
from mcpenv.extensions.long_outputs import LongOutputs
from mcpenv.failures import LostFailure, SortedFailure
from mcpenv.rewards.verifiers import Evidence
from mcpenv.tasks import TaskSet
from mcpenv.tools.definition import ToolOptions
from mcpenv.tools.names import RESERVED_NAMES
from mcpenv.tools.registry import BOTH_MODES, BoundTool
from mcpenv.tools.results import to_fastmcp
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv_client.errors import McpenvError, NotSupported
from mcpenv_client.portal import PORTAL
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import TRANSPORT_LOST
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Tool, ToolErrorType, ToolFailure

from .errors import CallNotDelivered, InvalidTask, OutcomeUnknown, PlatformFailed, UnknownTool
from .instance import Instance
from .options import CALL_TIMEOUT_S, FleetOptions, InstanceSpec
from .platform import API_KEY, Platform
from .task import FleetTask, load_tasks
from .verifier import Verifier

logger = logging.getLogger("mcpenv_fleet")

SUBMIT = "submit_answer"
"""The tool by which agents submit the answer that a verifier requires."""

_GRACE_S = 10.0
"""Seconds that the connection's timeout exceeds the tool's own limit, which ends the call first."""

_GONE = frozenset({404, 410})
"""Statuses of the reset of an instance that has expired."""


class _Instances:
    """The instances of a process: the connection, and the instance that provided the list of tools.

    The first session gets that instance if its arguments fit. Otherwise it is closed, so that no unused instance stays
    open.
    """

    def __init__(self, options: FleetOptions, spec: InstanceSpec) -> None:
        self._options = options
        self._spec = spec
        self._platform: Platform | None = None
        self._spare: Instance | None = None
        self.tools: list[Tool] = []

    async def open(self) -> None:
        """Create the first instance, and list the tools."""
        options = self._options
        self._platform = Platform(
            options.api_key,
            options.base_url,
            http_timeout_s=options.http_timeout_s,
            create_timeout_s=options.create_timeout_s,
            of_creates=options.of_creates,
        )
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._platform.close)
            self._spare = await self._make(self._spec)
            undo.pop_all()
        self.tools = list(self._spare.tools.tools)

    async def take(self, spec: InstanceSpec) -> Instance:
        """Return an instance for a session; the session closes it."""
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.spec == spec:
                return spare
            await spare.close()
        made = await self._make(spec)
        names, known = {tool.name for tool in made.tools.tools}, {tool.name for tool in self.tools}
        if names != known:
            logger.warning(
                "instance %s of %s has other tools than the first instance, and agents see the first ones: %s",
                made.id,
                spec.env_key,
                ", ".join(sorted(names ^ known)),
            )
        return made

    async def close(self) -> None:
        """Close the instance that no session took, and the connection."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.close()
        if self._platform is not None:
            await self._platform.close()

    async def _make(self, spec: InstanceSpec) -> Instance:
        assert self._platform is not None
        limit_s = self._options.call_timeout_s + _GRACE_S
        return await Instance.make(self._platform, spec, call_timeout_s=limit_s, retries=self._options.of_calls)


class FleetEnvironment(MCPEnvironment):
    """An environment that Fleet hosts. `environment_class` makes the class of one.

    Rewards: the platform scores no step. At the end of a task's episode it runs the task's verifier, and the score is
    the reward. A subclass may override ``score`` and ``verify``, or set a rubric.

    Each session has an instance of its own. A reset resets the data of the instance, or makes another one if the task
    asks for another environment, or if the instance has expired.

    Attributes:
        env_key: the environment.
        options: the options of its instances.
        fleet_tasks: the platform's tasks by key.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    env_key: ClassVar[str]
    options: ClassVar[FleetOptions]
    fleet_tasks: ClassVar[Mapping[str, FleetTask]] = {}

    def __init__(self) -> None:
        self._instance: Instance | None = None
        self._answer: str | None = None
        self._lost = False
        if self.options.max_steps is not None:
            self.max_steps = self.options.max_steps
        tools: list[Tool] = self.shared.tools
        for tool in tools:
            self._add(tool)
        if any(task.has_verifier for task in self.fleet_tasks.values()) and SUBMIT not in {tool.name for tool in tools}:
            self.tool(self.submit_answer, mode="simulation", terminal=True)

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncIterator[Any]:
        """Create the first instance at the server's start, and close unused instances at its end."""
        first = next(iter(cls.fleet_tasks.values()), None)
        instances = _Instances(cls.options, cls.options.spec(cls.env_key, first))
        try:
            await PORTAL.run(instances.open)
        except McpenvError as error:
            raise StartupError(f"fleet:{cls.env_key} has no instance to begin with: {error}") from error
        try:
            yield instances
        finally:
            await PORTAL.run(instances.close)

    async def reset(
        self, seed: int | None = None, episode_id: str | None = None, *, task: Task | None = None
    ) -> Observation:
        """Reset the instance's data. The metadata has the environment and its data, with versions.

        For computer use it has the ``screenshot`` too: content blocks with a picture.
        """
        self._answer, self._lost = None, False
        return await PORTAL.run(partial(self._begin, seed, self._fleet_task(task)))

    async def verify(self, evidence: Evidence) -> float | None:
        """Let the platform verify the task. None without a verifier, or if the connection was lost."""
        task = self._fleet_task(evidence.task)
        if task is None or not task.has_verifier or self._lost or self._instance is None:
            return None
        return await PORTAL.run(partial(self._instance.verify, task, self._answer))

    def submit_answer(self, final_answer: str) -> str:
        """Submit the final answer, and end the episode.

        Args:
            final_answer: the answer to the task, complete.
        """
        self._answer = final_answer
        return "The answer was submitted."

    def save_state(self) -> Any:
        """Refuse: the state is on the platform.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("a Fleet instance cannot be saved in a snapshot; reset begins its episode again")

    async def close(self) -> None:
        """Close the instance. Failures are logged."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await PORTAL.run(instance.close)

    def _fleet_task(self, task: Task | None) -> FleetTask | None:
        return None if task is None else self.fleet_tasks.get(task.id)

    async def _begin(self, seed: int | None, task: FleetTask | None) -> Observation:
        if task is not None and task.verifier_code is not None:
            Verifier.of(task)  # before an episode is played to no avail
        spec = self.options.spec(self.env_key, task)
        if self._instance is not None and self._instance.spec != spec:
            await self._end_instance()
        if self._instance is not None:
            try:
                await self._instance.reset(seed)
            except PlatformFailed as error:
                if error.http_status not in _GONE:
                    raise
                logger.warning("%s; another instance is made", error)
                await self._end_instance()
        if self._instance is None:
            self._instance = await self.shared.take(spec)
            await self._instance.reset(seed)
        metadata: dict[str, Any] = {"environment": self._instance.description}
        shown = await self._instance.screenshot()
        if shown is not None:
            metadata["screenshot"] = shown.content
        return Observation(metadata=metadata)

    async def _end_instance(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.close()

    def _add(self, tool: Tool) -> None:
        shown = tool
        if tool.name in RESERVED_NAMES:
            shown = tool.model_copy(update={"name": f"fleet_{tool.name}"})
            logger.warning("tool %r is called %r: the name is an orchestrator's", tool.name, shown.name)
        kind = SchemaTool(shown, ToolOptions(timeout_s=self.options.call_timeout_s))
        self._execution.tools.add(BoundTool(kind, partial(self._call, tool.name)), BOTH_MODES)

    async def _call(self, name: str, arguments: dict[str, Any]) -> FastMCPResult:
        assert self._instance is not None  # a first step resets
        try:
            return to_fastmcp(await PORTAL.run(partial(self._instance.tools.call, name, arguments)))
        except UnknownTool as error:
            raise SortedFailure(ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=str(error))) from error
        except (CallNotDelivered, OutcomeUnknown) as error:
            self._lost = True
            self.finish(truncated=True, reason=TRANSPORT_LOST)
            failure = LostFailure(error_type=ToolErrorType.TRANSPORT_ERROR, message=str(error))
            raise SortedFailure(failure) from error


def environment_class(
    env_key: str,
    /,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    data_key: str | None = None,
    env_variables: dict[str, Any] | None = None,
    image_type: str | None = None,
    region: str | None = None,
    ttl_seconds: int | None = None,
    heartbeat_interval: int | None = None,
    run_id: str | None = None,
    task_file: Path | None = None,
    max_steps: int | None = None,
    call_timeout_s: float = CALL_TIMEOUT_S,
    max_output_characters: int | None = None,
) -> type[FleetEnvironment]:
    """Return the class of the environment of a target ``fleet:ENV_KEY``. Nothing is made on the platform.

    Args:
        env_key: the environment, ``ENV`` or ``ENV:VERSION``.
        task_file: a file of tasks that the platform exported. Tasks of other environments are omitted.
        max_output_characters: maximum characters of an answer's text; a longer text is cut. The tools
            ``search_tool_output`` and ``view_tool_output`` read the rest. None: answers are passed on unchanged.
        api_key, base_url, data_key, env_variables, image_type, region, ttl_seconds, heartbeat_interval, run_id,
            max_steps, call_timeout_s: as in `FleetOptions`.

    Raises:
        ConfigurationError: there is no environment key or no API key, or the task file cannot be used.
    """
    if not env_key:
        raise ConfigurationError("the key of an environment is missing: write fleet:ENV_KEY")
    if not (api_key or os.environ.get(API_KEY)):
        raise ConfigurationError(f"there is no API key of Fleet: set {API_KEY}")
    options = FleetOptions(
        api_key=api_key,
        base_url=base_url,
        data_key=data_key,
        env_variables=env_variables or {},
        image_type=image_type,
        region=region,
        ttl_seconds=ttl_seconds,
        heartbeat_interval=heartbeat_interval,
        run_id=run_id,
        max_steps=max_steps,
        call_timeout_s=call_timeout_s,
    )
    name = env_key.partition(":")[0]
    members: dict[str, Any] = {
        "__doc__": f"The environment {env_key} of the Fleet platform.",
        "__module__": __name__,
        "EXPOSED_NAME": name,
        "env_key": env_key,
        "options": options,
    }
    if max_output_characters is not None:
        members["long_outputs"] = LongOutputs(max_output_characters)
    if task_file is not None:
        tasks = _tasks_of(name, task_file)
        members |= {"fleet_tasks": tasks, "tasks": TaskSet(map(_as_task, tasks.values()))}
    return type("FleetEnvironment", (FleetEnvironment,), members)


def _tasks_of(env_id: str, task_file: Path) -> dict[str, FleetTask]:
    try:
        loaded = load_tasks(task_file)
    except InvalidTask as error:
        raise ConfigurationError(str(error)) from error
    tasks = {task.key: task for task in loaded if task.env_id.partition(":")[0] == env_id}
    if not tasks:
        others = ", ".join(sorted({task.env_id for task in loaded}))
        raise ConfigurationError(f"{task_file}: there are no tasks of {env_id}; its tasks are of: {others}")
    if len(tasks) < len(loaded):
        logger.warning("%s: %d tasks of other environments are left out", task_file, len(loaded) - len(tasks))
    return tasks


def _as_task(task: FleetTask) -> Task:
    """Return the task as orchestrators see it. Its version changes with any change to it."""
    return Task(
        id=task.key,
        prompt=task.prompt,
        metadata={**task.metadata, "env_key": task.env_key, "data_key": task.data_key, "modality": task.modality},
        version=hashlib.sha256(task.model_dump_json().encode()).hexdigest()[:12],
    )


__all__ = ["FleetEnvironment", "environment_class"]
