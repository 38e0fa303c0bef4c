"""The verdict of a comparison in words, and its caveats."""

from __future__ import annotations

from collections.abc import Iterator

from .comparison import MEAN_RETURN, Comparison
from .comparison_tables import p_text
from .paired import ENOUGH_TASKS
from .settings import Difference


def verdict_of(found: Comparison) -> str:
    """Return whether the candidate is better, in one line."""
    primary = found.primary
    if not primary.difference.significant:
        return f"no significant change of {primary.name}"
    better = "better" if primary.better else "worse"
    return f"the candidate is {better}: {primary.name} {primary.difference.value:+.3f}"


def notes_on(found: Comparison) -> Iterator[str]:
    """Yield the caveats of the figures."""
    world = [difference.name for difference in found.settings if _of_world(difference)]
    if world:
        yield f"The evaluations differ in {', '.join(world)}: the change may come from that, and not from the agent."
    for run in (found.baseline, found.candidate):
        if run.planned is None or run.planned > len(run.results):
            yield f"{run.directory} has not come to its end: its finished episodes are compared."
    earned = found.figures[MEAN_RETURN]
    if earned.difference.significant and not found.primary.difference.significant:
        change, p = "better" if earned.better else "worse", p_text(earned.difference.p)
        yield f"The {MEAN_RETURN} is significantly {change} (p {p}). With --metric return it decides."
    count = found.primary.difference.changed
    if found.primary.difference.interval is not None and 0 < count < ENOUGH_TASKS:
        yield (
            f"{count} of {found.primary.difference.tasks} tasks differ: too few for a significant change, which "
            f"needs at least {ENOUGH_TASKS} that differ."
        )
    if found.primary.difference.interval is None:
        count = found.primary.difference.tasks
        tasks = f"{count} task{'' if count == 1 else 's'}"
        yield f"{tasks}: too few for an interval and for a significant change, which need at least {ENOUGH_TASKS}."


def _of_world(difference: Difference) -> bool:
    return difference.name.startswith("environment.") or difference.name in ("set", "timeout_s")
