"""The options of instances, and of the connection to the platform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.types.actions import CallToolAction
from mcpenv_client.types.observations import Observation

from .retries import OF_CALLS, OF_CREATES, Retries
from .task import FleetTask, keyed

HTTP_TIMEOUT_S = 60.0
"""Seconds of every request to the platform, except requests that create an instance."""

CREATE_TIMEOUT_S = 900.0
"""Seconds to make an instance: the platform may have to start a machine for it."""

CALL_TIMEOUT_S = 60.0
"""Seconds of a tool call, operations of the tool ``computer`` among them."""

COMPUTER_IMAGE = "mcp"
"""The image type with the tool ``computer``."""

RewardFunction = Callable[[CallToolAction | None, Observation], float | None]
"""Computes the reward of a step, from the action and its observation. The action is None at the end of an episode."""


@dataclass(frozen=True)
class InstanceSpec:
    """The arguments of an instance. Two episodes with equal ones may use one instance after another.

    Attributes:
        env_key: the environment, ``ENV`` or ``ENV:VERSION``.
        data_key: the data that it begins with, ``DATA`` or ``DATA:VERSION``; None: its default.
        env_variables: variables for the environment.
        image_type: the kind of image; None: the default, "mcp": with the tool ``computer``, for computer use.
        region: the region of the instance; None: the platform's choice.
        ttl_seconds: seconds after which the platform ends it; None: the platform's default.
        heartbeat_interval: seconds without a heartbeat after which the platform ends it; None: never. Heartbeats are
            sent while the instance is open.
        run_id: the prefix of the instance's run id. Each instance has its own, by which an instance left behind by a
            failed create is found.
    """

    env_key: str
    data_key: str | None = None
    env_variables: dict[str, Any] = field(default_factory=dict)
    image_type: str | None = None
    region: str | None = None
    ttl_seconds: int | None = None
    heartbeat_interval: int | None = None
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options of `FleetEnv.from_fleet` and `FleetEnv.from_task`.

    Attributes:
        api_key: the API key; None: from the environment variable ``FLEET_API_KEY``.
        base_url: the address of the platform's API; None: from ``FLEET_BASE_URL``, or else the SDK's default.
        data_key: the data that the environment begins with, ``DATA`` or ``DATA:VERSION``; None: its default.
        data_version: the version, if ``data_key`` has none.
        env_variables: variables for the environment.
        image_type: the kind of image; None, the default, is the environment's own. "mcp" is for computer use.
        region, ttl_seconds, heartbeat_interval, run_id: as in `InstanceSpec`.
        reward_fn: computes the rewards instead of the platform's verifier; None: see `FleetEnv`.
        max_steps: steps after which an episode is truncated; None: no limit.
        http_timeout_s: seconds of a request to the platform.
        create_timeout_s: seconds to make an instance.
        call_timeout_s: seconds of a tool call.
        of_creates: the tries to make an instance.
        of_calls: the tries of listings, and of calls that were not delivered.
    """

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    data_key: str | None = None
    data_version: str | None = None
    env_variables: dict[str, Any] = field(default_factory=dict, repr=False)
    image_type: str | None = None
    region: str | None = None
    ttl_seconds: int | None = None
    heartbeat_interval: int | None = None
    run_id: str | None = None
    reward_fn: RewardFunction | None = None
    max_steps: int | None = None
    http_timeout_s: float = HTTP_TIMEOUT_S
    create_timeout_s: float = CREATE_TIMEOUT_S
    call_timeout_s: float = CALL_TIMEOUT_S
    of_creates: Retries = OF_CREATES
    of_calls: Retries = OF_CALLS

    def spec(self, env_key: str, task: FleetTask | None = None) -> InstanceSpec:
        """Return the arguments of an instance. A task's arguments take precedence over the options."""
        data_key = None if self.data_key is None else keyed(self.data_key, self.data_version)
        variables, image_type = self.env_variables, self.image_type
        if task is not None:
            env_key = task.env_key if task.version is not None else env_key
            data_key = task.data_key or data_key
            variables = {**variables, **task.env_variables}
            if task.computer_use and image_type is None:
                image_type = COMPUTER_IMAGE
        return InstanceSpec(
            env_key=env_key,
            data_key=data_key,
            env_variables=variables,
            image_type=image_type,
            region=self.region,
            ttl_seconds=self.ttl_seconds,
            heartbeat_interval=self.heartbeat_interval,
            run_id=self.run_id,
        )


__all__ = [
    "CALL_TIMEOUT_S",
    "COMPUTER_IMAGE",
    "CREATE_TIMEOUT_S",
    "HTTP_TIMEOUT_S",
    "FleetOptions",
    "InstanceSpec",
    "RewardFunction",
]
