"""Draw the curves that an example wrote by ``--json``.

Needs ``pip install matplotlib``. Run it::

    python examples/plot_curves.py docs/images/train-ppo/seed-*.json --out curves.png
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

WINDOW = 5
"""The updates whose episodes make one point."""


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file: one, or those of several seeds.

    Raises:
        ValueError: it has no run of ``train_ppo.py`` or ``train_grpo.py``, or one is too short.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        return [kept(path, run) for run in written.get("runs", [written])]
    except (OSError, json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file that train_ppo.py or train_grpo.py wrote: {error!r}") from error


def kept(path: Path, run: dict[str, Any]) -> dict[str, Any]:
    """Return what is drawn and printed of a run."""
    curve = [{name: at[name] for name in ("steps", "episodes", "reward", "verified")} for at in run["curve"]]
    if len(curve) < WINDOW:
        raise ValueError(f"{path} has {len(curve)} updates, and a curve needs {WINDOW}; train for more")
    told = {name: run[name] for name in ("seed", "cheat", "reward", "verified", "lost", "seconds")}
    more = {"sampler": run.get("sampler"), "held_out": run.get("held_out"), "unit": run.get("unit", "updates")}
    return {**told, "curve": curve, **more}


def smooth(curve: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return the mean over the episodes that ended in the last `WINDOW` updates, at each update.

    One update can be a single episode, and those that end early are the ones that escaped.
    """
    points = []
    for end in range(WINDOW, len(curve) + 1):
        ended = [at for at in curve[end - WINDOW : end] if at["episodes"]]
        if ended:
            total = sum(at[name] * at["episodes"] for at in ended)
            points.append((curve[end - 1]["steps"], total / sum(at["episodes"] for at in ended)))
    return points


def draw(runs: list[dict[str, Any]], out: Path) -> None:
    """Draw one line for each run, and for the maze that pays for a cheat a dashed one for the verifier."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        name = f"seed {run['seed']}"
        (line,) = axes.plot(*zip(*smooth(run["curve"], "reward"), strict=True), label=name, linewidth=1.4)
        if run["cheat"]:
            line.set_label(f"{name}: reward")
            verified = smooth(run["curve"], "verified")
            axes.plot(*zip(*verified, strict=True), "--", color=line.get_color(), label=f"{name}: verified")
    axes.set_xlabel("steps")
    axes.set_ylabel(f"mean return, episodes of {WINDOW} updates")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=100, metadata={"Software": None})


def draw_held_out(runs: list[dict[str, Any]], out: Path) -> None:
    """Draw the mean return of the test tasks: a thin line for each run, and a thick one for the mean of a sampler."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for colour, sampler in enumerate(dict.fromkeys(run["sampler"] for run in runs)):
        lines = [run["held_out"] for run in runs if run["sampler"] == sampler]
        for line in lines:
            axes.plot(*zip(*line, strict=True), color=f"C{colour}", linewidth=0.6, alpha=0.6)
        means = [(looks[0][0], statistics.fmean(mean for _, mean in looks)) for looks in zip(*lines, strict=True)]
        axes.plot(*zip(*means, strict=True), color=f"C{colour}", linewidth=2, label=f"{sampler}, mean of {len(lines)}")
    axes.set_xlabel(runs[0]["unit"])
    axes.set_ylabel("mean return, test tasks")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=100, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what a program wrote by --json")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG", help="the picture to write")
    given = parser.parse_args()
    try:
        runs = [run for path in given.files for run in read(path)]
    except ValueError as error:
        sys.exit(f"plot_curves: {error}")
    if all(run["held_out"] for run in runs):
        draw_held_out(runs, given.out)
    else:
        draw(runs, given.out)
    for run in runs:
        means = " | ".join(f"{mean:.2f}" for mean in (*run["reward"], *run["verified"]))
        name = " | ".join(str(run[key]) for key in ("seed", "sampler") if run[key] is not None)
        print(f"| {name} | {means} | {run['lost']} | {run['seconds']:.0f} |")


if __name__ == "__main__":
    main()
