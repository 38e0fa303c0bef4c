"""Rubrics by name: what ``MODULE:NAME`` or ``FILE.py:NAME`` on the command line means."""

from __future__ import annotations

from .errors import TargetError
from .rubrics import Rubric
from .rubrics.scoring import refuse_silent
from .targets import describe, load_object


def load_rubric(target: str) -> Rubric:
    """The rubric of that name: one that stands there, or what a class or function without arguments makes.

    Raises:
        TargetError: it is not there, its code does not load, or it is no rubric.
    """
    found, folder = load_object(target)
    if isinstance(found, Rubric):
        return _scoring(target, found)
    if not callable(found):
        raise TargetError(target, f"it is a {type(found).__name__}, no rubric and nothing that makes one")
    try:
        made = found()
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        raise TargetError(target, f"it raised {describe(error, folder)}") from error
    if not isinstance(made, Rubric):
        raise TargetError(target, f"it gave a {type(made).__name__}, not a Rubric")
    return _scoring(target, made)


def _scoring(target: str, rubric: Rubric) -> Rubric:
    try:
        refuse_silent(rubric)
    except TypeError as error:
        raise TargetError(target, str(error)) from error
    return rubric
