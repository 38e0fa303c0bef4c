"""Judge the ways to a reward that was not earned."""

from __future__ import annotations

from .answers import judge_answers
from .candidate import Candidate
from .judged import Judged
from .scored_files import judge_scored_files
from .scoring import judge_hidden_names, judge_scoring_tools


def judge_cheats(candidate: Candidate, into: Judged) -> None:
    """Judge answers in sight, tools that score, names that answer unlisted, and files by which it is scored.

    Idle, random and malformed play are tried with the tasks.
    """
    if not candidate.stands(into):
        return
    judge_answers(candidate, into)
    judge_scoring_tools(candidate, into)
    judge_hidden_names(candidate, into)
    judge_scored_files(candidate, into)
    into.summary = f"{len(candidate.tools)} tools tried"


__all__ = ["judge_cheats"]
