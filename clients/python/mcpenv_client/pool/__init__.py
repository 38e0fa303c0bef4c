"""Pools: many concurrent environments in this process, in worker processes, in Ray actors, or on servers."""

from mcpenv_client.types.starts import Start

from .assignment import Assignment, Limits, Played
from .backend import PoolError
from .blocking import BlockingStream, SyncEnvPool, SyncPool
from .env_pool import EnvPool
from .episode import BlockingEpisode, Episode, OutOfTime, Policy, PolicyFailed
from .mixed import MixedPool
from .sampler import TaskSampler
from .stream import PolicyErrors, Stream

__all__ = [
    "Assignment",
    "BlockingEpisode",
    "BlockingStream",
    "EnvPool",
    "Episode",
    "Limits",
    "MixedPool",
    "OutOfTime",
    "Played",
    "Policy",
    "PolicyErrors",
    "PolicyFailed",
    "PoolError",
    "Start",
    "Stream",
    "SyncEnvPool",
    "SyncPool",
    "TaskSampler",
]
