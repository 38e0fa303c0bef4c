"""Evaluations by Inspect in a Python that has it and the client, but no server: DOORS SHOP DIARY ODD BOOTH DISK FOLDER.

Prints what the logs have, read as the viewer reads them, as JSON.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

from inspect_ai import eval
from inspect_ai.agent import as_solver, react
from inspect_ai.log import EvalLog, read_eval_log

from mcpenv_client import ToolNotExpressible
from mcpenv_client.trainers.inspect_ai import EpisodeTools, mcpenv

MODEL = "openai-api/scripted/player"


def seen(log: EvalLog) -> dict[str, Any]:
    """Return what is in the file of a log."""
    read = read_eval_log(log.location)
    samples = [
        {
            "id": sample.id,
            "input": sample.input,
            "metadata": sample.metadata,
            "score": next(iter((sample.scores or {}).values())).value if sample.scores else None,
            "status": next(iter(sample.scores.values())).metadata["status"] if sample.scores else None,
            "error": sample.error.message if sample.error else None,
            "limit": sample.limit.type if sample.limit else None,
        }
        for sample in read.samples or []
    ]
    metrics = {} if read.results is None else {name: m.value for name, m in read.results.scores[0].metrics.items()}
    return {"status": read.status, "samples": samples, "metrics": metrics}


def main(doors: str, shop: str, diary: str, odd: str, booth: str, disk: str, folder: str) -> None:
    """Run all evaluations."""
    options: dict[str, Any] = {"model": MODEL, "log_dir": folder, "display": "none"}
    found: dict[str, Any] = {}
    said = io.StringIO()
    logging.getLogger("mcpenv_client").addHandler(logging.StreamHandler(said))
    (log,) = eval(mcpenv(doors, split="train"), epochs=2, **options)
    found["plain"] = seen(log)
    solver = as_solver(react(tools=[EpisodeTools()], submit=False))
    (log,) = eval(mcpenv(doors, split="train", num_tasks=2, solver=solver), **options)
    found["react"] = seen(log)
    (log,) = eval(mcpenv(doors, split="train", num_tasks=1), message_limit=2, **options)
    found["limited"] = seen(log)
    (log,) = eval(mcpenv(shop, split="train"), **options)
    found["shop"] = seen(log)
    (log,) = eval(mcpenv(diary, split="train"), **options)
    found["diary"] = {**seen(log), "unscored": log.results.scores[0].unscored_samples if log.results else None}
    (log,) = eval(mcpenv(booth, split="train"), **options)
    found["booth"] = seen(log)
    (log,) = eval(mcpenv(booth, split="train", solver=solver), **options)
    found["booth by tools"] = seen(log)
    (log,) = eval(mcpenv(disk, split="train"), **options)
    found["disk"] = seen(log)
    (log,) = eval(mcpenv(disk, split="train", mask_failed_steps=False), **options)
    found["disk, not masked"] = seen(log)
    try:
        mcpenv(odd, split=None, num_tasks=1)
    except ToolNotExpressible as error:
        found["refused"] = str(error)
    print(json.dumps({**found, "said": said.getvalue()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
