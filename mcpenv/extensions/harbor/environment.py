"""The environment that serves task directories of Harbor."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from fastmcp.exceptions import ToolError
from pydantic import Field
from typing_extensions import TypedDict

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import VerifierFailed
from mcpenv.extensions.mcp_proxy.loop import UPSTREAMS
from mcpenv.rewards.verifiers import Evidence
from mcpenv.tasks import TaskSet
from mcpenv_client.errors import InvalidMessage, NotSupported
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Reward
from mcpenv_client.types.tasks import Task

from .box import MAX_FILE, TESTS, VERIFIER_LOGS, Box, BoxFailed
from .provider import BaseImage, Boxes, Choice, choose, networks
from .task import HarborTask, read_tasks

COMMAND_TIMEOUT_S = 120.0

Encoding = Literal["utf-8", "base64"]


class Outcome(TypedDict):
    """The outcome of a command."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


class HarborEnvironment(MCPEnvironment):
    """The container of a task, with tools to run commands and to read and write files.

    Description: an episode is a task directory of Harbor. `from_folder` makes the class for such directories.
    Tools: execute, read_file, write_file.
    Reward: at the end, from the files that the task's tests write to ``/logs/verifier``.
    Start: a new box for each episode.
    End: by the orchestrator, or truncated at the time limit of the task's ``[agent]``.

    Attributes:
        sources: the task directories by task id.
        boxes: the makers of boxes by task id.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    SURVIVES_TIMEOUT = True

    sources: ClassVar[Mapping[str, HarborTask]] = {}
    boxes: ClassVar[Mapping[str, Boxes]] = {}

    def __init__(self) -> None:
        self._box: Box | None = None
        self._source: HarborTask | None = None
        self.tool(self.execute)
        self.tool(self.read_file, annotations={"readOnlyHint": True})
        self.tool(self.write_file)

    @classmethod
    def from_folder(cls, folder: Path, *, provider: Choice = "auto", base_image: BaseImage = "task") -> type[Self]:
        """Return the class of the environment of a task directory, or of a folder of them.

        Raises:
            ConfigurationError: a task cannot be read, or this machine lacks a requirement of it.
        """
        tasks = read_tasks(folder)
        return type(
            cls.__name__,
            (cls,),
            {
                "__doc__": "A container, with tools to run commands and to read and write files.",
                "__module__": cls.__module__,
                "EXPOSED_NAME": folder.absolute().name,
                "sources": {task.name: task for task in tasks},
                "boxes": choose(tasks, provider, base_image),
                "tasks": TaskSet([task.task() for task in tasks]),
            },
        )

    async def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: Task | None = None
    ) -> Observation:
        """Begin an episode of a task in a new box. Without a task, the only task is used."""
        source = self._named(task)
        await UPSTREAMS.run(self._end())
        self._source = source
        self._box = await UPSTREAMS.run(self.boxes[source.name].box(networks(source)))
        return Observation(metadata={"prompt": source.instruction})

    async def verify(self, evidence: Evidence) -> Reward:
        """Run the tests of the task in its box after ending all processes of the agent."""
        assert self._box is not None and self._source is not None
        return await UPSTREAMS.run(_verified(self._box, self._source))

    async def close(self) -> None:
        """Delete the box."""
        await UPSTREAMS.run(self._end())

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
        done = await UPSTREAMS.run(self._live.run(command, timeout_s=timeout_s, user=self._user))
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

    @property
    def _live(self) -> Box:
        assert self._box is not None
        return self._box

    @property
    def _user(self) -> str | None:
        assert self._source is not None
        user = self._source.config.agent.user
        return None if user is None else str(user)

    def _named(self, task: Task | None) -> HarborTask:
        if task is None:
            if len(self.sources) > 1:
                raise InvalidMessage(f"there are {len(self.sources)} tasks; name one by task=, or by split= and index=")
            return next(iter(self.sources.values()))
        if task.id not in self.sources:
            raise InvalidMessage(f"task {task.id!r} is not one of the task directories")
        return self.sources[task.id]

    async def _end(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            await box.close()


async def _verified(box: Box, source: HarborTask) -> Reward:
    """Run the tests of a task, and return the reward that they wrote.

    Raises:
        VerifierFailed: the tests wrote no reward, or it is not a finite number.
    """
    verifier = source.config.verifier
    user = None if verifier.user is None else str(verifier.user)
    script = f"(exec {TESTS}/test.sh) > {VERIFIER_LOGS}/test-stdout.txt 2>&1"
    try:
        await box.begin_verification(source.tests)
        await box.run(f"chmod +x {TESTS}/test.sh", timeout_s=verifier.timeout_sec)
        done = await box.run(script, timeout_s=verifier.timeout_sec, env=source.verifier_env, user=user)
        if done.timed_out:
            raise VerifierFailed(f"the tests took more than {verifier.timeout_sec:g} s")
        for name, read in (("reward.json", _of_json), ("reward.txt", _of_text)):
            try:
                content = await box.read(str(VERIFIER_LOGS / name))
            except FileNotFoundError:
                continue
            return read(b"" if content is None else content)
    except BoxFailed as error:
        raise VerifierFailed(f"the tests could not be run: {error}") from error
    raise VerifierFailed(f"the tests wrote neither {VERIFIER_LOGS}/reward.json nor {VERIFIER_LOGS}/reward.txt")


def _of_text(content: bytes) -> Reward:
    try:
        return Reward(float(content))
    except ValueError as error:
        raise VerifierFailed(f"reward.txt has no finite number: {content[:80]!r}") from error


def _of_json(content: bytes) -> Reward:
    """Return the reward in ``reward.json``: the value of ``reward``, or of the only key. All keys are components."""
    try:
        rewards = json.loads(content)
    except ValueError as error:
        raise VerifierFailed(f"reward.json is no JSON: {content[:80]!r}") from error
    if not isinstance(rewards, dict):
        rewards = {"reward": rewards}
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise VerifierFailed(f"reward.json: {key} is {value!r}, not a finite number")
    if "reward" not in rewards and len(rewards) != 1:
        keys = ", ".join(rewards) or "none"
        raise VerifierFailed(f"reward.json has no key 'reward' and not exactly one key (it has: {keys})")
    return Reward(rewards.get("reward", next(iter(rewards.values()))), rewards)
