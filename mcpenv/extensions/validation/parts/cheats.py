"""Judge ways to an unearned reward: visible answers, tools that score, unlisted names, and files that decide."""

from __future__ import annotations

import re
import sys
from types import CodeType, FrameType
from typing import Any

from mcpenv.cli.output import number_of
from mcpenv.environment import MCPEnvironment
from mcpenv_client.types.tools import Mode, Tool, ToolErrorType

from .answers import MAX_TASKS, judge_answers
from .candidate import Candidate
from .judged import Judged, some_of
from .scored_files import judge_scored_files

_SCORING = ("verify", "score")
"""Methods of an author that score."""

_LIKE_SCORING = re.compile(
    r"(^|_)(verify|verifier|score|scores|reward|rewards|grade|grader|oracle|solution|check_answer|expected)(_|$)",
    re.IGNORECASE,
)
_OTHER_NAMES = ("end", "finish", "reward", "snapshot", "restore", "fork", "act", "save_state", "load_state", "oracle")
MAX_NAMES = 60


def judge_cheats(candidate: Candidate, into: Judged) -> None:
    """Judge visible answers, tools that score, unlisted names that answer, and writable files that decide the score.

    Idle, random and malformed play belong to the tasks part.
    """
    if not candidate.stands(into):
        return
    candidate.on_check("answers")
    judge_answers(candidate, into)
    candidate.on_check("scoring tools")
    judge_scoring_tools(candidate, into)
    candidate.on_check("hidden names")
    judge_hidden_names(candidate, into)
    candidate.on_check("files that decide")
    judge_scored_files(candidate, into)
    searched = min(len(candidate.tasks), MAX_TASKS)
    if searched < candidate.size:
        into.summary += f", answers of {searched} of {candidate.size} tasks searched"


def judge_scoring_tools(candidate: Candidate, into: Judged) -> None:
    """Look for tools that run ``verify`` or ``score``, and for tools with similar names."""
    if not candidate.tools:
        into.summary = "no tools"
        into.not_applicable("scoring tools", "it has no tools")
        return
    scoring, untried = _scoring_code(candidate), list[str]()
    for tool in candidate.tools:
        called = None
        if scoring and not candidate.examples(tool, 1):
            untried.append(tool.name)
        elif scoring:
            with candidate.episode(candidate.tasks[0] if candidate.tasks else None) as env:
                called = _called_by(env, tool, candidate, scoring)
        if called is not None:
            into.failed(
                "scoring tools",
                f"the tool runs the environment's {called}, so that an agent can try answers until one is right",
                "Remove the tool, or make it terminal=True, so that it ends the episode",
                tool.name,
            )
        elif is_like_scoring(tool.name):
            into.warning(
                "scoring tools",
                "the tool is named like one that scores, and agents may call it",
                'Register it with mode="production" or not at all, if it shows how an episode is scored',
                tool.name,
            )
    number = number_of(len(candidate.tools) - len(untried), "tool")
    into.summary = f"{number} tried" if scoring else f"names of {number} read, because no method of the class scores"
    into.not_tried("scoring tools", untried, "no arguments could be made")
    into.ok_unless_found("scoring tools")


def judge_hidden_names(candidate: Candidate, into: Judged) -> None:
    """Check that methods of the environment and operations of the orchestrator cannot be called as tools."""
    with candidate.episode() as env:
        listed = {tool.name for tool in env.list_tools()}
        own = [name for name in vars(type(env)) if not name.startswith("_") and callable(getattr(type(env), name))]
        names = [name for name in dict.fromkeys((*_SCORING, *_OTHER_NAMES, *own)) if name not in listed][:MAX_NAMES]
        answered = []
        for name in names:
            observation = env.call_tool(name)
            if observation.error is None or observation.error.error_type is not ToolErrorType.TOOL_NOT_FOUND:
                answered.append(name)
            if observation.done:
                candidate.reset(env)
    if answered:
        into.failed(
            "hidden names",
            f"not listed, and yet answered as tools: {some_of(answered)}",
            "Let the server's own dispatch answer only to the tools that it lists",
        )
    into.ok_unless_found("hidden names")


def is_like_scoring(name: str) -> bool:
    """Return True if a tool's name resembles a scoring method."""
    return _LIKE_SCORING.search(name) is not None


def _scoring_code(candidate: Candidate) -> dict[CodeType, str]:
    """Return the code of the author's scoring methods, with their names."""
    with candidate.instance() as env:
        cls = type(env)
    found = {name: getattr(cls, name) for name in _SCORING}
    return {
        method.__code__: name
        for name, method in found.items()
        if method is not getattr(MCPEnvironment, name) and hasattr(method, "__code__")
    }


def _called_by(env: MCPEnvironment, tool: Tool, candidate: Candidate, scoring: dict[CodeType, str]) -> str | None:
    """Return the name of the scoring method that runs within a tool that does not end the episode."""
    bound = next((own for own in env._execution.tools.listed(Mode.SIMULATION) if own.kind.name == tool.name), None)
    if bound is None:
        return None
    body = getattr(bound.fn, "__func__", bound.fn)
    code = getattr(body, "__code__", None)
    if code is None:
        return None
    if code in scoring:
        return scoring[code]
    for arguments in candidate.examples(tool, 1):
        calls = _Calls(code, scoring)
        sys.setprofile(calls)
        try:
            observation = env.call_tool(tool.name, arguments)
        finally:
            sys.setprofile(None)
        if calls.found is not None and not observation.done:
            return calls.found
    return None


class _Calls:
    """A profile function that records a scoring method called from the body of a tool."""

    def __init__(self, body: CodeType, scoring: dict[CodeType, str]) -> None:
        self._body = body
        self._scoring = scoring
        self.found: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code not in self._scoring:
            return
        outer = frame.f_back
        while outer is not None:
            if outer.f_code is self._body:
                self.found = self._scoring[frame.f_code]
                return
            outer = outer.f_back
