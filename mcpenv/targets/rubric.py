"""Rubrics by name: load the rubric that ``MODULE:NAME`` or ``FILE.py:NAME`` on the command line names."""

from __future__ import annotations

from mcpenv.errors import TargetError
from mcpenv.rewards.rubrics import Rubric
from mcpenv.rewards.rubrics.episode_rubric import refuse_silent

from .named_object import load_object
from .user_error import describe


def load_rubric(target: str) -> Rubric:
    """Return the rubric that ``target`` names, or that the named class or function makes without arguments.

    Raises:
        TargetError: it is not found, its code does not load, it is not a rubric, or the rubric never scores.
    """
    found, folder = load_object(target)
    if isinstance(found, Rubric):
        return _scoring(target, found)
    if not callable(found):
        raise TargetError(target, f"it is a {type(found).__name__}, neither a rubric nor a callable that makes one")
    try:
        made = found()
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise TargetError(target, f"it raised {describe(error, folder)}") from error
    if not isinstance(made, Rubric):
        raise TargetError(target, f"it returned a {type(made).__name__}, not a Rubric")
    return _scoring(target, made)


def _scoring(target: str, rubric: Rubric) -> Rubric:
    try:
        refuse_silent(rubric)
    except TypeError as error:
        raise TargetError(target, str(error)) from error
    return rubric
