"""The environment that serves task directories of Harbor."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from fastmcp.exceptions import ToolError
from pydantic import Field
from typing_extensions import TypedDict

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.mcp_proxy.loop import UPSTREAMS
from mcpenv.rewards.verifiers import Evidence
from mcpenv.tasks import TaskSet
from mcpenv_client.errors import InvalidMessage, NotSupported
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Reward
from mcpenv_client.types.tasks import Task

from .box import MAX_FILE, Box
from .episode import Episode, StepFailed
from .provider import BaseImage, BoxesOf, Choice, NetworkOf, choose
from .task import FINISH_STEP, HarborTask, read_tasks, step_note

logger = logging.getLogger("mcpenv.harbor")

COMMAND_TIMEOUT_S = 120.0
STARTS_WITHIN_S = 120.0
"""Seconds of a reset in addition to the builds of its task's images."""

Encoding = Literal["utf-8", "base64"]


class Outcome(TypedDict):
    """The outcome of a command."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


_IN_TESTS = "Correct the task's tests: they write a reward for each state in which an agent can leave the box"


class HarborEnvironment(MCPEnvironment):
    """The container of a task, with tools to run commands and to read and write files.

    Description: an episode is a task directory of Harbor. `from_folder` makes the class for such directories.
    Tools: execute, read_file, write_file; finish_step if a task has several steps.
    Reward: at the end, from the files that the task's tests write to ``/logs/verifier``. Of several steps, the mean or
        the last one's, as the task says; each step's own are components.
    Start: a new box for each episode.
    End: by the orchestrator, by finish_step in the last step or in one below its ``min_reward``, or truncated at the
        time limit of the task's ``[agent]``.

    Attributes:
        sources: the task directories by task id.
        boxes: the makers of boxes by task id.
        network: "none" to run all tasks without a network.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    SURVIVES_TIMEOUT = True

    REMEDIES = {
        "reset": "Read why by --debug; a container engine, or --set base_image=host, must be able to run the task",
        "verify": _IN_TESTS,
        "episodes": f"If a reset fails, correct the task's image. {_IN_TESTS}",
        "calls": "Nothing has to be corrected if the tool is read_file: files of made-up names are not in a box",
        "determinism": "Pin in the task's image what differs. If it depends on time, chance or a network, use --live",
        "crashes": "Read the traceback by --debug: a command of the agent cannot be run in the task's box",
    }

    sources: ClassVar[Mapping[str, HarborTask]] = {}
    boxes: ClassVar[Mapping[str, BoxesOf]] = {}
    network: ClassVar[NetworkOf] = "task"

    def __init__(self) -> None:
        self._episode: Episode | None = None
        self.tool(self.execute)
        self.tool(self.read_file, annotations={"readOnlyHint": True})
        self.tool(self.write_file)
        if any(len(source.steps) > 1 for source in self.sources.values()):
            self.tool(self.finish_step)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        /,
        *,
        provider: Choice = "auto",
        base_image: BaseImage = "task",
        fresh: bool = True,
        network: NetworkOf = "task",
    ) -> type[Self]:
        """Return the class of the environment of a task directory, or of a folder of them: the target ``harbor:PATH``.

        Args:
            folder: the folder.
            provider: the program that runs containers.
            base_image: "host" to use the system folders of this machine instead of the images of tasks.
            fresh: False to run tests with all files of the agent, the system's too, so that an agent can change the
                programs that judge it.
            network: "none" to run all tasks without a network.

        Raises:
            ConfigurationError: a task cannot be read, or this machine lacks a requirement of it.
        """
        found = read_tasks(folder)
        boxes = choose(found, provider, base_image, fresh, network)
        tasks = [task for task in found if task.name in boxes]
        return type(
            cls.__name__,
            (cls,),
            {
                "__doc__": "A container, with tools to run commands and to read and write files.",
                "__module__": cls.__module__,
                "EXPOSED_NAME": folder.absolute().name,
                "RESET_TIMEOUT_S": STARTS_WITHIN_S + max(task.builds_within_s for task in tasks),
                "sources": {task.name: task for task in tasks},
                "boxes": boxes,
                "network": network,
                "tasks": TaskSet([task.task() for task in tasks]),
            },
        )

    async def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: Task | None = None
    ) -> Observation:
        """Begin an episode of a task in a new box. Without a task, the only task is used."""
        source = self._named(task)
        await self._end()
        self._episode = Episode(source, self.boxes[source.name], self.network)
        await UPSTREAMS.run(self._episode.begin())
        return Observation(metadata={"prompt": source.prompt})

    async def verify(self, evidence: Evidence) -> Reward:
        """Run the tests of the step in which the episode ends, and of those that follow. Return the task's reward."""
        assert self._episode is not None
        reward = await UPSTREAMS.run(self._episode.result())
        evidence.said.extend(self._episode.said)
        return reward

    async def close(self) -> None:
        """Delete the box."""
        await self._end()

    def save_state(self) -> Any:
        """Raise: a box cannot be saved.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("an episode of a Harbor task cannot be saved: its state is in the processes of a container")

    # -- tools

    async def execute(
        self,
        command: Annotated[str, Field(description="A script for bash, run in the working folder.")],
        timeout_s: Annotated[float, Field(gt=0, description="Maximum seconds; then it is killed.")] = COMMAND_TIMEOUT_S,
    ) -> Outcome:
        """Run a command. Processes that it leaves in the background go on. Of long output, the middle is left out."""
        box, left_s = self._live, self._running.left_s()
        limit_s = timeout_s if left_s is None else min(timeout_s, left_s)
        done = await UPSTREAMS.run(box.run(command, timeout_s=limit_s, user=self._user))
        return Outcome(
            exit_code=done.exit_code,
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
            timed_out=done.timed_out,
        )

    async def read_file(
        self,
        path: Annotated[str, Field(description="An absolute path, or one relative to the working folder.")],
        encoding: Annotated[Encoding, Field(description="base64 for files that are no text.")] = "utf-8",
    ) -> str:
        """Return the content of a file of at most 1 MiB."""
        try:
            content = await UPSTREAMS.run(self._live.read(path, user=self._user))
        except FileNotFoundError as error:
            raise ToolError(str(error)) from error
        if content is None:
            raise ToolError(f"{path} is longer than {MAX_FILE} bytes; read parts of it with execute")
        if encoding == "base64":
            return base64.b64encode(content).decode()
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is no UTF-8 text; read it with encoding base64") from error

    async def write_file(
        self,
        path: Annotated[str, Field(description="An absolute path, or one relative to the working folder.")],
        content: str,
        encoding: Annotated[Encoding, Field(description="base64 for files that are no text.")] = "utf-8",
    ) -> str:
        """Write a file, and make the folders that are missing."""
        try:
            data = content.encode() if encoding == "utf-8" else base64.b64decode(content, validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ToolError(f"the content is not {encoding}: {error}") from error
        try:
            await UPSTREAMS.run(self._live.write(path, data, user=self._user))
        except OSError as error:
            raise ToolError(str(error)) from error
        return f"{len(data)} bytes written to {path}"

    async def finish_step(self) -> str:
        """End the current step of the task: its tests run. Return the instruction of the next step, if there is one."""
        episode = self._running
        is_last = episode.is_last  # whose tests `verify` runs
        if not is_last:
            try:
                await UPSTREAMS.run(episode.end_step())
            except StepFailed as error:
                logger.warning("%s", error)  # `verify` raises it
        if is_last or episode.is_over:
            self.finish()
            return "The task has ended."
        return f"{episode.step.instruction}\n\n{step_note(episode.number, len(self._source.steps))}"

    @property
    def _running(self) -> Episode:
        assert self._episode is not None
        if self._episode.is_over:
            raise ToolError("the task has ended")
        return self._episode

    @property
    def _live(self) -> Box:
        if self._running.left_s() == 0:
            raise ToolError(f"the time of this step is over; call {FINISH_STEP}")
        return self._running.box

    @property
    def _user(self) -> str | None:
        return self._running.step.user

    @property
    def _source(self) -> HarborTask:
        return self._running.source

    def _named(self, task: Task | None) -> HarborTask:
        if task is None:
            if len(self.sources) > 1:
                raise InvalidMessage(f"there are {len(self.sources)} tasks; name one by task=, or by split= and index=")
            return next(iter(self.sources.values()))
        if task.id not in self.sources:
            raise InvalidMessage(f"task {task.id!r} is not one of the task directories")
        return self.sources[task.id]

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await UPSTREAMS.run(episode.close())
