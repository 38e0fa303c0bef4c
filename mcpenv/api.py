"""Public names of `mcpenv`, imported when the first of them is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastmcp import Context
from fastmcp.exceptions import ToolError

from mcpenv_client import (
    Action,
    CallToolAction,
    CallToolObservation,
    EpisodeDone,
    ExecutionError,
    ListToolsAction,
    ListToolsObservation,
    McpenvError,
    Mode,
    NotSupported,
    Observation,
    OracleCall,
    Reward,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
    Stage,
    State,
    Status,
    StatusCode,
    StepRecord,
    Task,
    TaskLimits,
    Tool,
    ToolCall,
    ToolErrorType,
    ToolFailure,
    ToolOutcome,
    ToolResult,
    Trajectory,
)

from .environment import MCPEnvironment
from .errors import (
    ConfigurationError,
    DamagedRecord,
    InvalidRubric,
    InvalidTasks,
    InvalidTool,
    InvalidVerifier,
    JudgeFailed,
    Misuse,
    StartupError,
    TargetError,
    VerifierFailed,
)
from .execution.components import CompletingProvider
from .execution.snapshots import Snapshot
from .moved import moved_name
from .rewards.rubrics import (
    Discounted,
    FunctionRubric,
    Gate,
    OverSteps,
    Rubric,
    Scored,
    Sequence,
    Verified,
    WeightedSum,
    advantages,
    discounted_returns,
    ranks,
    rubric_from_config,
    score_of,
    worth_of,
)
from .rewards.verifiers import ANY, REMOVED, Changes, Evidence, Verdict
from .server.config import ConcurrencyConfig
from .targets.target import load
from .tasks import NoSuchTask, TaskSet
from .trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from .worlds import ObjectWorld, World

if TYPE_CHECKING:
    from .worlds import FilesWorld, SQLiteWorld

__all__ = [
    # Write an environment
    "CompletingProvider",
    "MCPEnvironment",
    "Context",
    "ToolError",
    "Mode",
    "ServerMode",
    "Reward",
    "ToolCall",
    "ToolOutcome",
    # Rubrics
    "Rubric",
    "FunctionRubric",
    "WeightedSum",
    "Gate",
    "Sequence",
    "OverSteps",
    "Discounted",
    "JudgeFailed",
    "Scored",
    "rubric_from_config",
    "InvalidRubric",
    # Tasks, verifiers and worlds
    "TaskSet",
    "Task",
    "TaskLimits",
    "OracleCall",
    "Verified",
    "Evidence",
    "Changes",
    "Verdict",
    "ANY",
    "REMOVED",
    "InvalidVerifier",
    "VerifierFailed",
    "World",
    "SQLiteWorld",
    "FilesWorld",
    "ObjectWorld",
    "InvalidTasks",
    "NoSuchTask",
    # Record episodes
    "Recorder",
    "RecordedEpisode",
    "RecordedEnvironment",
    "read_episodes",
    "DamagedRecord",
    # Compare episodes
    "score_of",
    "worth_of",
    "advantages",
    "ranks",
    "discounted_returns",
    # Step an environment
    "Action",
    "CallToolAction",
    "ListToolsAction",
    "Observation",
    "CallToolObservation",
    "ListToolsObservation",
    "State",
    "Tool",
    "ToolResult",
    "ToolFailure",
    "ToolErrorType",
    "StepRecord",
    "Trajectory",
    "Status",
    "StatusCode",
    "Stage",
    # Load, serve it
    "load",
    "ConcurrencyConfig",
    "ServerCapacityStatus",
    "SessionInfo",
    # Snapshots
    "Snapshot",
    "NotSupported",
    # Errors
    "McpenvError",
    "EpisodeDone",
    "ExecutionError",
    "InvalidTool",
    "Misuse",
    "StartupError",
    "TargetError",
    "ConfigurationError",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
