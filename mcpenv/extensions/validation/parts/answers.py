"""Find answers that an agent can read before it acts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from mcpenv.extensions.contract.findings import ContractViolation
from mcpenv.extensions.validation.tasks.play import Call, Calls, play
from mcpenv_client.scores import reaches
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.tasks import Task

from .candidate import Candidate
from .judged import Judged
from .view import Leaf, leaves_of, of_listings, of_observation

MAX_TASKS = 10
"""Maximum number of tasks for which the first observation is searched."""
LEAST_CHARACTERS = 6
LEAST_OF_A_WORD = 12
LEAST_DIGITS = 4
"""Minimum digits of an answer; shorter answers are found by chance."""

_TELLING = re.compile(
    r"^(expected|answer|solution|correct|ground_truth|gold|oracle|verifier|secret)(_\w+)?$|_(answer|solution)$",
    re.IGNORECASE,
)
_OF_TASKS = ("oracle", "verifier", "reward_range")
"""Fields of tasks that agents never see."""

_REMEDY = "Keep it in the task's metadata or verifier, which agents never see, and out of what reset returns"


def judge_answers(candidate: Candidate, into: Judged) -> None:
    """Look for the expected values of tasks in the first observation, in tools, instructions and resources."""
    if not candidate.tasks:
        into.not_applicable("answers", "it has no tasks, so there is no answer to look for")
        return
    shared: list[Leaf] | None = None
    for task in candidate.tasks[:MAX_TASKS]:
        with candidate.episode(task) as env:
            own = of_observation(candidate.reset(env, task))
            if shared is None:
                shared = of_listings(env)
        _judge_task(candidate, task, own, shared, into)
        if any(finding.check == "answers" for finding in into.findings):
            return  # the other tasks are created in the same way
    into.ok("answers")


def _judge_task(candidate: Candidate, task: Task, own: list[Leaf], shared: list[Leaf], into: Judged) -> None:
    expected = {_text(value): where for where, value in expected_values(task)}
    for leaf in own:
        if leaf.key in _OF_TASKS:
            into.failed("answers", f"{leaf.where} shows a field that agents must not see", _REMEDY, task.id)
            return
        if _TELLING.search(leaf.key) and _text(leaf.value) in expected and isinstance(leaf.value, str | int | float):
            into.failed("answers", f"{leaf.where} is {leaf.value!r}, which is what is expected", _REMEDY, task.id)
            return
    prompt = task.prompt.casefold()
    for text, source in expected.items():
        if not is_rare(text) or text.casefold() in prompt:
            continue
        for leaf in (*own, *shared):
            if not re.search(rf"(?<!\w){re.escape(text)}(?!\w)", _text(leaf.value)):
                continue
            short = text if len(text) <= 60 else f"{text[:60]}…"
            problem = f"{leaf.where} has {short!r} before the agent acts, which is expected ({source})"
            if leaf in own and _last_call_is_enough(candidate, task):
                into.failed("answers", f"{problem}, and the oracle's last call alone scores full", _REMEDY, task.id)
            else:
                into.warning(
                    "answers", problem, f"If the agent is to find it out: {_REMEDY[0].lower()}{_REMEDY[1:]}", task.id
                )
            return


def expected_values(task: Task) -> Iterator[tuple[str, Any]]:
    """Yield the values by which a task is scored or solved, each with its source."""
    verifier = task.verifier or {}
    for field in ("changes", "require"):
        entries = verifier.get(field) or {}
        pairs = entries.items() if isinstance(entries, dict) else [entry for entry in entries if len(entry) == 2]
        for path, value in pairs:
            for leaf in leaves_of(value, f"verifier {path}"):
                if isinstance(leaf.value, str | int | float) and not leaf.key.startswith("$"):
                    yield leaf.where, leaf.value
    for value in _compared_in(verifier.get("code", "")):
        yield "verifier code", value
    for leaf in leaves_of(task.metadata, "metadata"):
        if _TELLING.search(leaf.key) or _TELLING.search(leaf.where.split(".")[1] if "." in leaf.where else ""):
            yield leaf.where, leaf.value
    for call in (task.oracle or [])[-1:]:
        for leaf in leaves_of(call.arguments, f"oracle {call.tool_name}"):
            yield leaf.where, leaf.value


def is_rare(text: str) -> bool:
    """Return True if a text is unlikely to occur by chance."""
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        return sum(character.isdigit() for character in text) >= LEAST_DIGITS
    bare = text.strip()
    return len(bare) >= (LEAST_OF_A_WORD if bare.isalpha() else LEAST_CHARACTERS)


def _compared_in(code: str) -> Iterator[Any]:
    """Yield the constants with which the code of a verifier compares."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):  # the check of tasks covers this
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                if isinstance(side, ast.Constant) and isinstance(side.value, str | int | float):
                    yield side.value


def _last_call_is_enough(candidate: Candidate, task: Task) -> bool:
    """Return True if the last of several calls of the oracle scores full without the others."""
    calls = task.oracle or []
    if len(calls) < 2:
        return False
    last: Call = (calls[-1].tool_name, calls[-1].arguments)

    def only_last(env: Any, observation: Observation) -> Calls:
        yield last

    with candidate.instance() as env:
        played = play(env, task, only_last)
    if played.error is not None:
        raise ContractViolation(f"the oracle's last call of {task.id} alone breaks the episode: {played.error}")
    return played.score is not None and reaches(played.score, task.reward_range[1])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
