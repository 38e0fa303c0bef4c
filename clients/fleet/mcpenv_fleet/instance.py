"""One instance of a Fleet environment: its tools, heartbeats, verification and end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from mcpenv_client.types.tools import ToolResult

from .errors import PlatformFailed, VerificationFailed
from .options import CALL_TIMEOUT_S, COMPUTER_IMAGE, InstanceSpec
from .platform import OF_SDK, Platform, failed
from .retries import OF_CALLS, Retries
from .task import FleetTask
from .threads import started
from .toolset import ToolSet
from .verifier import Verifier

logger = logging.getLogger("mcpenv_fleet")

COMPUTER = "computer"
"""The tool of computer use."""

SCREENSHOT = {"action": "screenshot"}
"""The arguments with which it returns a picture of the screen and changes nothing."""

_BEATS = 3
"""Heartbeats in each interval; with several, one may be lost."""


class Instance:
    """An instance. `make` makes it and lists its tools. All coroutines run on one loop.

    Attributes:
        spec: the arguments with which it was made.
        tools: its tools.
    """

    def __init__(self, platform: Platform, spec: InstanceSpec, env: Any, tools: ToolSet) -> None:
        self.spec = spec
        self.tools = tools
        self._platform = platform
        self._env = env
        self._beating: asyncio.Task[None] | None = None

    @classmethod
    async def make(
        cls,
        platform: Platform,
        spec: InstanceSpec,
        *,
        call_timeout_s: float = CALL_TIMEOUT_S,
        retries: Retries = OF_CALLS,
    ) -> Instance:
        """Make an instance and list its tools. An instance with tools that cannot be listed is closed.

        Raises:
            PlatformFailed: no instance was made.
            ListingFailed: its tools could not be listed.
        """
        env = await platform.make(spec)
        tools = ToolSet(env.urls.root, platform.api_key, call_timeout_s, retries)
        instance = cls(platform, spec, env, tools)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(instance.close)
            instance._begin_beating()
            await tools.discover()
            undo.pop_all()
        return instance

    @property
    def id(self) -> str:
        """The platform's id of the instance."""
        return str(self._env.instance_id)

    @property
    def description(self) -> dict[str, Any]:
        """The environment and data, with the versions that the platform chose, as plain data."""
        env = self._env
        return {
            "env_key": env.env_key,
            "version": env.version,
            "data_key": env.data_key,
            "data_version": env.data_version,
        }

    async def reset(self, seed: int | None = None) -> None:
        """Reset the instance's data. The sessions with its endpoints start again.

        Raises:
            PlatformFailed: the platform refused.
        """
        await self.tools.disconnect()
        await self._platform.reset(self._env, seed)

    async def screenshot(self) -> ToolResult | None:
        """Return the tool result that shows the screen; None if the instance is not for computer use."""
        if self.spec.image_type != COMPUTER_IMAGE or all(tool.name != COMPUTER for tool in self.tools.tools):
            return None
        return await self.tools.call(COMPUTER, dict(SCREENSHOT))

    async def verify(self, task: FleetTask, final_answer: str | None = None) -> float:
        """Let the platform verify a task on the instance, and return the score.

        Raises:
            VerificationFailed: there is no score.
        """
        try:
            code = None
            if task.verifier_code is None and task.verifier_id is not None:
                code = await self._platform.verifier_code(task.verifier_id)
            return await started(partial(Verifier.of(task, code).run, self._env, final_answer))
        except PlatformFailed as error:
            raise VerificationFailed(task.key, str(error)) from error
        except OF_SDK as error:
            raise VerificationFailed(task.key, str(failed("the platform's verification", error))) from error

    async def close(self) -> None:
        """End the sessions and the instance. Failures are logged."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
            self._beating = None
        try:
            await self.tools.disconnect()
        except Exception:  # for any error, the instance must end
            logger.exception("a session with instance %s could not be ended", self.id)
        await self._platform.close_instance(self._env)

    def _begin_beating(self) -> None:
        interval = self.spec.heartbeat_interval
        if interval is not None:
            self._beating = asyncio.get_running_loop().create_task(self._beat(interval / _BEATS))

    async def _beat(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await started(self._env.heartbeat)
            except OF_SDK as error:
                logger.warning("instance %s did not take a heartbeat: %s", self.id, error)


__all__ = ["COMPUTER", "Instance"]
