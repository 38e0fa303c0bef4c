"""Public names of `mcpenv_client`, imported when the first of them is used."""

from __future__ import annotations

from .client import EnvClient, GenericEnvClient
from .context_manager import ContextManager, messages_at
from .conversation import Conversation, SyncConversation
from .errors import (
    CapacityReached,
    ConnectionFailed,
    EpisodeDone,
    ErrorCode,
    ExecutionError,
    FactoryError,
    InstanceFailed,
    InvalidJSON,
    InvalidMessage,
    ListingFailed,
    MalformedToolCall,
    McpenvError,
    NotSerializable,
    NotSupported,
    OperationCancelled,
    OperationTimeout,
    ProviderUnavailable,
    RateLimited,
    ReplyGone,
    SessionError,
    SessionLost,
    ToolCallFailed,
    ToolNotExpressible,
    Unauthorized,
    UnknownType,
    UnsupportedVersion,
    WireError,
)
from .formats.tool_formats import ProviderTools, ToolFormat, tools_for
from .scores import advantages, discounted_returns, ranks, score_of, worth_of
from .sync import SyncEnvClient
from .types.actions import Action, CallToolAction, ListToolsAction
from .types.observations import AnyObservation, CallToolObservation, ListToolsObservation, Observation
from .types.records import Fork, LogEntry, Plane, Reward, StepRecord, StepResult, ToolCall, ToolOutcome, Trajectory
from .types.server import ServerCapacityStatus, SessionInfo
from .types.snapshots import SnapshotRef
from .types.state import State
from .types.status import Stage, Status, StatusCode
from .types.tasks import OracleCall, Task, TaskLimits
from .types.tools import Mode, ServerMode, Tool, ToolErrorType, ToolFailure, ToolResult
from .types.turns import Ending, Opening, Turn
from .wire.protocol import EpisodeState
from .wire.version import PROTOCOL_VERSION

__all__ = [
    # Clients
    "EnvClient",
    "GenericEnvClient",
    "SyncEnvClient",
    "StepResult",
    "SnapshotRef",
    # Actions and observations
    "Action",
    "CallToolAction",
    "ListToolsAction",
    "Observation",
    "CallToolObservation",
    "ListToolsObservation",
    "AnyObservation",
    "State",
    # Tasks
    "Task",
    "TaskLimits",
    "OracleCall",
    # Tools
    "Mode",
    "ServerMode",
    "Tool",
    "ToolResult",
    "ToolFailure",
    "ToolErrorType",
    # Tools of models' APIs
    "tools_for",
    "ProviderTools",
    "ToolFormat",
    # Chats with episodes
    "Conversation",
    "SyncConversation",
    "Opening",
    "Turn",
    "Ending",
    "ContextManager",
    "messages_at",
    # Server
    "SessionInfo",
    "ServerCapacityStatus",
    # Records
    "Plane",
    "Reward",
    "ToolCall",
    "ToolOutcome",
    "StepRecord",
    "Trajectory",
    "Fork",
    "LogEntry",
    "Status",
    "StatusCode",
    "Stage",
    "EpisodeState",
    # Compare episodes
    "score_of",
    "worth_of",
    "advantages",
    "ranks",
    "discounted_returns",
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
    "RateLimited",
    "ReplyGone",
    "NotSupported",
    "UnsupportedVersion",
    "ConnectionFailed",
    "NotSerializable",
    "ListingFailed",
    "ToolCallFailed",
    "ToolNotExpressible",
    "MalformedToolCall",
    "ProviderUnavailable",
    "InstanceFailed",
    # Protocol
    "PROTOCOL_VERSION",
]
