"""What `mcpenv` offers by its own name; loaded when the first of it is asked for."""

from __future__ import annotations

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
    State,
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
from .recording import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from .rubrics import (
    Discounted,
    FunctionRubric,
    Gate,
    Judge,
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
from .snapshots import Snapshot
from .tasks import NoSuchTask, TaskSet
from .verify import ANY, REMOVED, Changes, Evidence, Verdict
from .worlds import FilesWorld, ObjectWorld, SQLiteWorld, World

__all__ = [
    # Write an environment
    "MCPEnvironment",
    "Context",
    "ToolError",
    "Mode",
    "Reward",
    "ToolCall",
    "ToolOutcome",
    # Say what is good
    "Rubric",
    "FunctionRubric",
    "WeightedSum",
    "Gate",
    "Sequence",
    "OverSteps",
    "Discounted",
    "Judge",
    "JudgeFailed",
    "Scored",
    "rubric_from_config",
    "InvalidRubric",
    # Give it something to do, and verify the end
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
    # Step it
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
    # Hold its state
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
