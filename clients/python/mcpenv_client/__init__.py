"""mcpenv_client: the contract of mcpenv, and a light client for its control plane.

Needs pydantic, websockets and httpx only; imports neither ``mcpenv`` nor ``mcp``. The MCP client is
`mcpenv_client.mcp` (``pip install "mcpenv-client[mcp]"``).
"""

from __future__ import annotations

from importlib.metadata import version as _version

from .actions import Action, CallToolAction, ListToolsAction
from .client import EnvClient, GenericEnvClient
from .errors import (
    CapacityReached,
    ConnectionFailed,
    EpisodeDone,
    ErrorCode,
    ExecutionError,
    FactoryError,
    InvalidJSON,
    InvalidMessage,
    ListingFailed,
    McpenvError,
    NotSerializable,
    OperationCancelled,
    OperationTimeout,
    SessionError,
    SessionLost,
    ToolCallFailed,
    Unauthorized,
    UnknownType,
    UnsupportedVersion,
    WireError,
)
from .observations import AnyObservation, CallToolObservation, ListToolsObservation, Observation
from .records import LogEntry, Plane, Reward, StepRecord, StepResult, ToolCall, ToolOutcome, Trajectory
from .state import State
from .sync import SyncEnvClient
from .tools import Mode, Tool, ToolErrorType, ToolFailure, ToolResult
from .wire import PROTOCOL_VERSION, EpisodeState

__version__ = _version("mcpenv-client")

__all__ = [
    # Clients
    "EnvClient",
    "GenericEnvClient",
    "SyncEnvClient",
    "StepResult",
    # Actions and observations
    "Action",
    "CallToolAction",
    "ListToolsAction",
    "Observation",
    "CallToolObservation",
    "ListToolsObservation",
    "AnyObservation",
    "State",
    # Tools
    "Mode",
    "Tool",
    "ToolResult",
    "ToolFailure",
    "ToolErrorType",
    # Records
    "Plane",
    "Reward",
    "ToolCall",
    "ToolOutcome",
    "StepRecord",
    "Trajectory",
    "LogEntry",
    "EpisodeState",
    # Errors
    "McpenvError",
    "WireError",
    "ErrorCode",
    "InvalidJSON",
    "UnknownType",
    "InvalidMessage",
    "ExecutionError",
    "CapacityReached",
    "FactoryError",
    "SessionError",
    "EpisodeDone",
    "OperationTimeout",
    "OperationCancelled",
    "SessionLost",
    "Unauthorized",
    "UnsupportedVersion",
    "ConnectionFailed",
    "NotSerializable",
    "ListingFailed",
    "ToolCallFailed",
    # Protocol
    "PROTOCOL_VERSION",
    "__version__",
]
