"""The command ``mcpenv branch``: go on from a step of a recorded episode, by hand or with a policy."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.instance import instance, own_instances
from mcpenv.cli.output import (
    Page,
    author_output,
    note,
    note_lost,
    note_torn,
    number_of,
    print_json,
    print_table,
    printable,
    quiet_logs,
    report,
)
from mcpenv.errors import ConfigurationError, describe
from mcpenv.extensions.play.command import play_on
from mcpenv.extensions.records.replay import CannotBranch, acts_outside, as_recorded
from mcpenv.extensions.records.replay import branch as open_branch
from mcpenv.extensions.records.rescoring import named_object
from mcpenv.extensions.records.selection import Selection
from mcpenv.targets.target import Target, load_target
from mcpenv.trajectories import RecordedEpisode, Recorder, ToolLists, read_episodes
from mcpenv_client.errors import NotSupported
from mcpenv_client.pool import EnvPool, Played, PolicyFailed, PoolError, Start
from mcpenv_client.scores import advantages_of_scores
from mcpenv_client.types.tools import Mode

DIFFERENT = 1

AT_ONCE = 8
"""Maximum branches that are played at once."""


def branch(
    record: Path,
    episode: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    at: int,
    target: str,
    number: Annotated[int, Parameter(name=("--number", "-n"))] = 1,
    policy: str | None = None,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Open a recorded episode at a step, and go on from there: by hand as mcpenv play, or with a policy.

    The recorded calls up to the step run again, and every result is compared with the record. Calls of tools that act
    on the outside (openWorldHint) act there again; a note says which ones.

    Exit status 0: played. 1: a result differs from the record, so that nothing was played. 2: no such episode or
    step, or the policy raised.

    Args:
        record: Folder that was given as --record, or one of its files.
        episode: Id of the episode, or its beginning.
        at: Step to go on from; 0 is the reset.
        target: The environment, as for run.
        number: Number of branches, with --policy. The recorded calls run once if the environment can be saved, and
            once for each branch if it cannot.
        policy: Policy that plays each branch, as MODULE:NAME or FILE.py:NAME: a function of an episode, as for EnvPool.
            Default: play one branch by hand, with lines from the terminal or stdin.
        out: Folder to record the branches to.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    if number < 1 or (policy is None and number > 1):
        raise ConfigurationError("-n needs a number of branches from 1 on, and more than one need --policy")
    found = _episode(record, episode)
    try:
        start = Start(found, at)
    except ValueError as error:
        raise ConfigurationError(f"--at {at}: {error}") from error
    own_folder = out is not None and not out.exists()
    recorder = None if out is None else Recorder(out)
    page = Page(sys.stderr if as_json else sys.stdout)
    _note_outside(record, start, found.tools)
    try:
        with author_output():
            loaded = load_target(target, settings or ())
            if policy is None:
                document = _by_hand(loaded, start, recorder, page)
            else:
                with own_instances():
                    document = _by_policy(loaded, start, number, policy, recorder)
                if not as_json:
                    _show(page, document)
    except CannotBranch as refused:
        report(printable(str(refused)))
        difference = None if refused.difference is None else refused.errors[0]
        document = {"parent": found.id, "step": at, "error": str(refused), "difference": difference}
    finally:
        if recorder is not None:
            recorder.close()
        if own_folder and out is not None:
            with contextlib.suppress(OSError):  # branches are in it
                out.rmdir()
    if as_json:
        print_json(document)
    return DIFFERENT if "error" in document else 0


def _episode(record: Path, name: str) -> RecordedEpisode:
    found = list(Selection(id=name).of(read_episodes(record, on_torn=note_torn, on_lost=note_lost)))
    if len(found) != 1:
        which = "no episode" if not found else f"{len(found)} episodes"
        raise ConfigurationError(f"{record}: there is {which} with the id {name!r}")
    return found[0]


def _note_outside(record: Path, start: Start, tools: str | None) -> None:
    """Say which calls to the outside are made again."""
    listed = ToolLists(record if record.is_dir() else record.parent).read(tools)
    outside = {tool.name for tool in listed if acts_outside(tool)}
    made = Counter(step.call.name for step in start.trajectory.steps if step.call.name in outside)
    if made:
        calls = ", ".join(f"{printable(name)} ({number_of(times, 'call')})" for name, times in made.items())
        note(f"made again, though they act on the outside: {calls}")


def _by_hand(target: Target, start: Start, recorder: Recorder | None, page: Page) -> dict[str, Any]:
    with instance(target, Mode.SIMULATION) as env:
        if recorder is not None:
            recorder.attach(env)
        begun = open_branch(env, start, start.step)
        for step in start.trajectory.steps:
            page.line((f"{step.call.step}. {step.call.name} {step.call.arguments}", "dim"))
        game = play_on(env, begun.model_copy(update={"metadata": {"prompt": start.prompt}}), page)
        branched = env.trajectory
        assert branched is not None
        about = {"parent": start.trajectory.episode_id, "step": start.step, "id": branched.episode_id}
        return {**about, **game.document()}


def _by_policy(target: Target, start: Start, number: int, policy: str, recorder: Recorder | None) -> dict[str, Any]:
    target.refuse_other(Mode.SIMULATION)
    plays: Any = named_object(policy)[0]
    if not callable(plays):
        raise ConfigurationError(f"--policy {policy}: it is a {type(plays).__name__}, no function of an episode")

    try:
        played = asyncio.run(_played(target.make, plays, start, number))
    except PolicyFailed as failed:
        raise ConfigurationError(f"--policy {policy} raised {describe(failed.__cause__ or failed)}") from failed
    except PoolError as error:
        if isinstance(error.__cause__, CannotBranch):
            raise error.__cause__ from None
        raise
    if recorder is not None:
        with target.make() as env:
            about: dict[str, Any] = {"tools": recorder.tools.keep(env.list_tools()), "agent": {"name": policy}}
            for trajectory in (each.trajectory for each in played):
                if trajectory is not None:
                    recorder.write(as_recorded(trajectory, env, **about))
    values = advantages_of_scores([each.reward for each in played])
    rows = []
    for each, advantage in zip(played, values, strict=True):
        trajectory = each.trajectory
        steps = None if trajectory is None else len(trajectory.steps) - start.step
        ending = {"status": each.status.code.value, "reason": None if trajectory is None else trajectory.reason}
        name = None if trajectory is None else trajectory.episode_id
        rows.append({"id": name, "steps": steps, "return": each.reward, "advantage": advantage, **ending})
    return {"parent": start.trajectory.episode_id, "step": start.step, "branches": rows}


async def _played(make: Callable[[], Any], policy: Any, start: Start, number: int) -> list[Played]:
    """Play branches: as forks of one snapshot where the environment can be saved, else each with the recorded calls."""
    for forks in (True, False) if number > 1 else (False,):
        async with EnvPool(make, min(number, AT_ONCE)) as pool:
            try:
                return await pool.rollout(policy, starts=[start], group=number, forks=forks)
            except PoolError as error:
                if not (forks and isinstance(error.__cause__, PoolError | NotSupported)):
                    raise
    raise AssertionError("the last way raises")


def _show(page: Page, document: dict[str, Any]) -> None:
    rows = document["branches"]
    table = [
        [each["id"] or "", str(each["steps"]), _number(each["return"]), _number(each["advantage"]), _ending(each)]
        for each in rows
    ]
    page.line((f"{len(rows)} from step {document['step']} of {printable(document['parent'])}", "bold"))
    numbers = ("steps", "return", "advantage")
    print_table(page, ("branch", *numbers, "end"), table, right=numbers)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _ending(row: dict[str, Any]) -> str:
    return row["status"] if row["reason"] is None else f"{row['status']} ({printable(row['reason'])})"
