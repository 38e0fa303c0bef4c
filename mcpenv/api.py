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
    State,
    Status,
    Task,
    TaskLimits,
    ToolCall,
    ToolOutcome,
    Trajectory,
)

from .environment import MCPEnvironment
from .errors import (
    ConfigurationError,
    InvalidRubric,
    InvalidTasks,
    InvalidTool,
    JudgeFailed,
    Misuse,
    StartupError,
    TargetError,
)
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
    ranks,
    rubric_from_config,
    score_of,
)
from .rewards.verifiers import ANY, REMOVED, Changes, Evidence, Verdict
from .targets.target import load
from .tasks import TaskSet
from .trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from .worlds import ObjectWorld, World

if TYPE_CHECKING:
    from .worlds import FilesWorld, SQLiteWorld

__all__ = [
    # Write an environment
    "MCPEnvironment",
    "Context",
    "ToolError",
    "Mode",
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
    "World",
    "SQLiteWorld",
    "FilesWorld",
    "ObjectWorld",
    "InvalidTasks",
    # Record episodes
    "Recorder",
    "RecordedEpisode",
    "RecordedEnvironment",
    "read_episodes",
    # Compare episodes
    "score_of",
    "advantages",
    "ranks",
    # Step an environment
    "Action",
    "CallToolAction",
    "ListToolsAction",
    "Observation",
    "CallToolObservation",
    "ListToolsObservation",
    "State",
    "Trajectory",
    "Status",
    # Load it
    "load",
    # Errors
    "NotSupported",
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
