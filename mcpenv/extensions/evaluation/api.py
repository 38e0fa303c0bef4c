"""Public names of `mcpenv.extensions.evaluation`, imported when the first of them is used."""

from __future__ import annotations

from .agent import Acted, Agent, Play
from .comparison import Comparison, Figure, LeftOut, compare
from .evaluation import Evaluated, Progress, evaluate, evaluate_async
from .flip import Flip
from .model_agent import ModelAgent
from .paired import PairedDifference
from .plan import Key
from .program_agent import ProgramAgent
from .results import EpisodeResult, Failure, read_results
from .stored_run import StoredRun
from .summary import Estimate, Summary, TaskSummary, summarize

__all__ = [
    # Evaluate
    "evaluate",
    "evaluate_async",
    "Progress",
    # Agents
    "ModelAgent",
    "ProgramAgent",
    "Agent",
    "Play",
    "Acted",
    # Results
    "Evaluated",
    "EpisodeResult",
    "Failure",
    "Key",
    "read_results",
    # Figures
    "Summary",
    "TaskSummary",
    "Estimate",
    "summarize",
    # Compare
    "compare",
    "Comparison",
    "Figure",
    "Flip",
    "LeftOut",
    "PairedDifference",
    "StoredRun",
]
