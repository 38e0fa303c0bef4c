"""The app of ``mcpenv eval``: evaluate an agent on a target, or compare two evaluations."""

from __future__ import annotations

from cyclopts import App

from .command import evaluate_command

evaluations = App(name="eval")
evaluations.default(evaluate_command)
evaluations.command(
    "mcpenv.extensions.evaluation.compare_evaluations:compare_command",
    name="compare",
    help="Compare two evaluations.",
    help_epilogue="",
)

__all__ = ["evaluations"]
