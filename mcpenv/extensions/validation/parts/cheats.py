"""Judge ways to an unearned reward."""

from __future__ import annotations

from .answers import judge_answers
from .candidate import Candidate
from .judged import Judged
from .scored_files import judge_scored_files
from .scoring import judge_hidden_names, judge_scoring_tools


def judge_cheats(candidate: Candidate, into: Judged) -> None:
    """Judge visible answers, tools that score, unlisted names that answer, and writable files that decide the score.

    Idle, random and malformed play belong to the tasks part.
    """
    if not candidate.stands(into):
        return
    judge_answers(candidate, into)
    judge_scoring_tools(candidate, into)
    judge_hidden_names(candidate, into)
    judge_scored_files(candidate, into)
    into.summary = f"{len(candidate.tools)} tools tried"
