"""Measure a card: all its figures, as plain JSON data."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mcpenv.cli.instance import own_instances
from mcpenv.cli.output import author_output, number_of
from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.findings import Verdict
from mcpenv.extensions.contract.walk import error_text
from mcpenv.extensions.evaluation.agent import Agent
from mcpenv.extensions.evaluation.evaluation import evaluate
from mcpenv.extensions.validation.parts import Validation
from mcpenv.extensions.validation.tasks import Report
from mcpenv.extensions.validation.tasks.play import oracle
from mcpenv.extensions.validation.tasks.validate import Bench
from mcpenv.extensions.validation.validate import Choice, class_of, judge
from mcpenv.targets.target import Target
from mcpenv.tasks import TaskSet
from mcpenv_client.errors import McpenvError
from mcpenv_client.types.tasks import Task

from .contamination import contamination_of, model_beside
from .counting import Counted, count
from .fingerprint import FORMAT, fingerprint_of
from .learner import learned
from .plays import IDLE, MODEL, SOLUTION, Stage, by_levels, outcomes, players

STARTS = 5
"""The number of instances whose start is timed."""
TIME_LIMIT_S = 900.0
"""Maximum seconds of each part of the validation."""
BY_HEART = 0.2
"""The share of solved variants above which a task set rewards memory."""


@dataclass(frozen=True)
class Extent:
    """The number of plays.

    Attributes:
        tasks: tasks that are played by each agent.
        validated: tasks that are validated.
        looked_at: tasks of each split of which those that are played are chosen.
        counted: tasks of each split that are counted; None for all.
        learning: episodes of the learner.
    """

    tasks: int = 50
    validated: int = 20
    looked_at: int = 200
    counted: int | None = None
    learning: int = 400


QUICK = Extent(tasks=10, validated=5, looked_at=50, counted=50, learning=100)


def measure(
    target: Target, name: str, extent: Extent, model: Agent | None, stage: Stage, settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the card of an environment as plain JSON data.

    Args:
        target: the environment. Its instances are made and closed here.
        name: the target as the user named it, for ``model``.
        extent: the number of plays.
        model: an agent to evaluate beside the scripted ones; None for none.
        stage: shows progress.
        settings: the settings with which the target was loaded, for ``model``.

    Raises:
        ConfigurationError: the environment cannot be judged, or the model cannot play.
    """
    with author_output():
        cls = class_of(target)
        tasks = cls.tasks
        looked_at = {} if tasks is None else _looked_at(tasks, extent.looked_at)
        counted = {} if tasks is None else _counted(tasks, looked_at, extent.counted, stage)
        number = None if tasks is None else extent.validated
        validation, report = judge(target, choice=Choice(time_limit=TIME_LIMIT_S), number=number)
        with own_instances(), Bench(target.make) as bench:
            main = next(iter(looked_at.values()), [])
            chosen = by_levels(main, extent.tasks)
            difficulty = _difficulty(bench, chosen, stage)
            of_model = None if model is None else functools.partial(_of_model, name, settings, model, stage)
            if of_model is not None and chosen:
                difficulty["agents"][MODEL] = of_model(chosen)
            with stage("learning", extent.learning) as step:
                learnability = learned(bench, main, extent.learning, step) if main else _no_tasks()
            contamination = (
                contamination_of(bench, looked_at, counted, extent.tasks, stage) if looked_at else _no_tasks()
            )
            if of_model is not None and chosen:
                contamination["beside"] += model_beside(looked_at, chosen, difficulty["agents"][MODEL], of_model)
            cost = _cost(target, bench, chosen, validation)
    card = {
        "format": FORMAT,
        "environment": _environment(target, cls),
        "fingerprint": None if target.folder is None else fingerprint_of(target.folder),
        "mcpenv": version("mcpenv"),
        "tasks": _no_tasks() if tasks is None else _tasks(tasks, counted),
        "soundness": _soundness(validation),
        "difficulty": difficulty,
        "learnability": learnability,
        "contamination": contamination,
        "determinism": _determinism(report),
        "cost": cost,
    }
    card["findings"] = [*_findings(card)]
    card = json.loads(json.dumps(card).replace(_quoted(f"{target.folder}/"), "")) if target.folder else card
    return {**card, "hash": hash_of(card)}


def hash_of(card: Mapping[str, Any]) -> str:
    """Return the hash of a card without its hash."""
    rest = {name: value for name, value in card.items() if name != "hash"}
    whole = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


def _quoted(text: str) -> str:
    return json.dumps(text)[1:-1]


def _no_tasks() -> dict[str, Any]:
    return {"not_measured": "the environment has no tasks"}


# -- the parts


def _environment(target: Target, cls: type[MCPEnvironment]) -> dict[str, Any]:
    lines = (cls.__doc__ or "").strip().splitlines()
    return {
        "name": cls.exposed_name() if target.manifest is None else target.manifest.name,
        "version": cls.VERSION if target.manifest is None else target.manifest.version,
        "description": lines[0] if lines else "",
    }


def _looked_at(tasks: TaskSet, most: int) -> dict[str, list[Task]]:
    return {split: tasks.range(split, 0, most) for split, size in tasks.sizes().items() if size}


def _counted(tasks: TaskSet, splits: Iterable[str], most: int | None, stage: Stage) -> dict[str, Counted]:
    with stage("tasks", sum(tasks.sizes().values())) as step:
        return {split: count(tasks, split, most, step) for split in splits}


def _tasks(tasks: TaskSet, counted: Mapping[str, Counted]) -> dict[str, Any]:
    return {
        "number": sum(tasks.sizes().values()),
        "licence": tasks.licence,
        "source": tasks.source,
        "version": tasks.version,
        "splits": [each.to_plain(split) for split, each in counted.items()],
    }


def _soundness(validation: Validation) -> dict[str, Any]:
    facts = validation["tasks"].facts
    return {
        "sound": validation.ok,
        "tasks_played": facts.get("played", 0),
        "tasks": facts.get("tasks", 0),
        "parts": [
            {
                "part": part.part,
                "verdict": part.verdict.value,
                "in_part": part.part in validation.run_in_part,
                "summary": part.summary,
                "findings": [
                    {"verdict": f.verdict.value, "check": f.check, "where": f.where, "reason": f.reason}
                    for verdict in (Verdict.FAILED, Verdict.WARNING, Verdict.SKIPPED)
                    for f in part.of(verdict)
                ],
            }
            for part in validation.parts
        ],
    }


def _difficulty(bench: Bench, tasks: Sequence[Task], stage: Stage) -> dict[str, Any]:
    if not tasks:
        return _no_tasks()
    agents: dict[str, Any] = {}
    for name, player_of in players().items():
        solvable = [task for task in tasks if name in (IDLE, "random") or task.oracle is not None]
        if solvable:
            with stage(f"agent: {name}", len(solvable)) as step:
                pairs = ((task, player_of(task, seed)) for seed, task in enumerate(solvable))
                agents[name] = outcomes(bench, pairs, step).to_plain()
    return {"split": tasks[0].split, "tasks": len(tasks), "agents": agents}


def _of_model(
    target: str, settings: Sequence[str], model: Agent, stage: Stage, tasks: Sequence[Task]
) -> dict[str, Any]:
    """Return the figures of an agent on tasks by `mcpenv.extensions.evaluation.evaluate`."""
    with stage(f"agent: model, {tasks[0].split}", len(tasks)) as step, tempfile.TemporaryDirectory() as out:
        file = Path(out) / "tasks.jsonl"
        file.write_text("".join(f"{task.model_dump_json(exclude_none=True)}\n" for task in tasks), encoding="utf-8")
        done = evaluate(
            target,
            model,
            out=Path(out) / "run",
            tasks=file,
            settings=settings,
            on_progress=lambda told: step() if told.result else None,
        )
    summary = done.summary
    first = summary.pass_at.get(1)
    return {
        "agent": model.described(),
        "tasks": 0 if first is None else first.tasks,
        "solved": None if first is None else first.value,
        "interval": None if first is None or first.interval is None else [*first.interval],
        "mean_score": None if summary.mean_return is None else summary.mean_return.value,
        "by_level": {
            each.label: each.pass_rate.value
            for each in summary.labels
            if each.kind == "level" and each.pass_rate is not None
        },
        "failures": summary.unscored,
    }


def _determinism(report: Report) -> dict[str, Any]:
    known = [task for task in report.tasks if task.repeats is not None]
    if not known:
        return {"not_measured": "no task was played twice"}
    whole = hashlib.sha256(json.dumps(sorted((task.task.id, task.digest) for task in known)).encode())
    differing = [task.task.id for task in known if not task.repeats]
    return {"tasks": len(known), "differing": differing, "digest": f"sha256:{whole.hexdigest()}"}


def _cost(target: Target, bench: Bench, tasks: Sequence[Task], validation: Validation) -> dict[str, Any]:
    """Return what an episode costs on this machine: of solutions, or of episodes without a call."""
    task = tasks[0] if tasks else None
    starts, resets = [], []
    try:
        for _ in range(STARTS):
            began = time.perf_counter()
            with target.make() as env:
                made = time.perf_counter()
                env.reset(task=task) if task is not None else env.reset(0)
                starts.append(made - began)
                resets.append(time.perf_counter() - made)
    except McpenvError as error:
        return {"not_measured": f"the environment failed: {error_text(error)}"}
    played, cpu, steps = [task for task in tasks if task.oracle is not None], time.process_time(), 0
    for task in played:
        steps += bench.play(task, oracle(task)).steps
    cpu = time.process_time() - cpu
    facts = validation["load"].facts
    return {
        "start_ms": round(statistics.median(starts) * 1e3, 1),
        "reset_ms": round(statistics.median(resets) * 1e3, 1),
        "episode_cpu_ms": round(cpu / len(played) * 1e3, 1) if played else None,
        "episode_steps": round(steps / len(played), 1) if played else None,
        "step_ms": facts.get("step_p50_ms"),
        "session_kib": facts.get("session_kib"),
        "sessions": facts.get("sessions"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def _findings(card: Mapping[str, Any]) -> Iterator[str]:
    """Yield what somebody who trains on the environment should know first."""
    for part in card["soundness"]["parts"]:
        for each in part["findings"]:
            if each["verdict"] == Verdict.FAILED:
                where = f"{each['where']}: " if each["where"] else ""
                yield f"{part['part']}: {where}{each['reason']}"
    agents = card["difficulty"].get("agents", {})
    for name, figures in agents.items():
        if figures["failures"]:
            yield f"difficulty: the environment failed in {number_of(figures['failures'], 'episode')} of {name!r}"
    idle, solution = agents.get(IDLE), agents.get(SOLUTION)
    if idle and idle["solved"]:
        yield f"difficulty: an agent that does nothing solves {idle['solved']:.0%} of the tasks"
    if solution and solution["solved"] is not None and solution["solved"] < 1:
        yield f"difficulty: the solutions solve {solution['solved']:.0%} of their tasks"
    differing = card["determinism"].get("differing")
    if differing:
        yield f"determinism: {number_of(len(differing), 'task')} played twice differ, such as {differing[0]}"
    for each in card["contamination"].get("by_heart", ()):
        if each["variants"] and (each["solved"] or 0) > BY_HEART:
            yield f"contamination: solutions of {each['known']} solve {each['solved']:.0%} of {each['played']}"
    for each in card["contamination"].get("shared", ()):
        one, other = each["splits"]
        yield f"contamination: {one} and {other} share {number_of(each['tasks'], 'task')}"


def levels_of(card: Mapping[str, Any]) -> list[str]:
    """Return the levels that were played, in their order."""
    found = {level for figures in card["difficulty"].get("agents", {}).values() for level in figures["by_level"]}
    return sorted(found, key=int)
