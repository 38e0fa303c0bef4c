"""Make and close instances of an environment for one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import describe
from mcpenv.execution.lifespan import IN_PROCESS
from mcpenv.targets.target import Target
from mcpenv_client.errors import ExecutionError
from mcpenv_client.types.tools import Mode


@contextmanager
def own_instances() -> Iterator[None]:
    """Leave the lifespans of all classes after a block that makes and closes instances itself."""
    try:
        yield
    finally:
        IN_PROCESS.leave()


@contextmanager
def instance(target: Target, mode: Mode) -> Iterator[MCPEnvironment]:
    """Yield an instance as a client of ``mode`` sees it; then close it and leave its class's lifespan.

    Raises:
        TargetError: the instance cannot be made, or its manifest does not allow the mode.
        ExecutionError: the author's code failed. The text has details that clients may not read.
    """
    target.refuse_other(mode)
    try:
        env = target.make()
        try:
            execution = env._execution
            execution.mode = mode
            # Production has no episodes: no scoring and no end.
            execution.episode.orchestrated = mode is Mode.SIMULATION
            if env.DYNAMIC_TOOLS:
                env.reset()
            yield env
        finally:
            env.close()
    except ExecutionError as error:
        if error.__cause__ is None:
            raise
        stage, cause = error.data.get("stage", "code"), describe(error.__cause__, target.folder)
        raise ExecutionError(f"the environment's {stage} raised {cause}") from error.__cause__
    finally:
        IN_PROCESS.leave()
