"""mcpenv_fleet: environments of the Fleet platform, as a client and as environments of mcpenv.

The client stands on ``mcpenv_client``. `mcpenv_fleet.environment` alone imports ``mcpenv``. Fleet's SDK is imported on
use.
"""

from __future__ import annotations

from .errors import CallNotDelivered, FleetFailure, InvalidTask, OutcomeUnknown, PlatformFailed, VerificationFailed
from .options import FleetOptions, InstanceSpec
from .orchestrator import FleetEnv, FleetTools
from .retries import Retries
from .task import FleetTask, load_tasks

__all__ = [
    # Episodes
    "FleetEnv",
    "FleetTools",
    "FleetOptions",
    "InstanceSpec",
    "Retries",
    # Tasks
    "FleetTask",
    "load_tasks",
    # Errors
    "FleetFailure",
    "PlatformFailed",
    "InvalidTask",
    "VerificationFailed",
    "CallNotDelivered",
    "OutcomeUnknown",
]
