"""Try a verification on another instance of the environment, in which no agent has done anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mcpenv.tasks.assignment import Assignment
from mcpenv_client.errors import WireError

from .concurrency.threads import OwnThread

if TYPE_CHECKING:
    from mcpenv.environment import MCPEnvironment

logger = logging.getLogger("mcpenv")


async def works_after_reset(env: MCPEnvironment, assigned: Assignment) -> bool:
    """Return True if another instance, made and reset in the same way, is verified without failing.

    False where this is unknown: the class does not allow a second instance (``SUPPORTS_CONCURRENT_SESSIONS``), or its
    constructor or reset fails. The instance is closed, and leaves no record.
    """
    if not env.SUPPORTS_CONCURRENT_SESSIONS:
        return False
    own = env._execution
    runner = OwnThread() if isinstance(own.user_code.runner, OwnThread) else own.user_code.runner
    try:
        other = (await own.user_code.stage("verify", lambda: runner.run(env._another)))._execution
        other.user_code.runner, other.user_code.deadline_s = runner, own.user_code.deadline_s
        other.sink = None
        try:
            await other.begin(assigned)
            return other.scoring is not None and (await other.scoring.attempt()).error is None
        finally:
            await other.close()
    except WireError as error:
        logger.info("a verification could not be tried on another instance: %s", error)
        return False
    finally:
        if runner is not own.user_code.runner:
            runner.close()
