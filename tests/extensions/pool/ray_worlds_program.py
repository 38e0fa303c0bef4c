"""The digests of the shipped worlds in Ray actors, for an interpreter that has Ray. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import ray
from digested_worlds import TASKS, WORLDS, found, solution_of

from mcpenv_client.pool import EnvPool


async def main() -> dict[str, Any]:
    ray.init(include_dashboard=False)
    digests = {}
    for world, environment in WORLDS.items():
        async with EnvPool(
            environment, 2, backend="ray", start_timeout_s=600, workers=2, actor_options={"num_cpus": 0.1}
        ) as pool:
            digests[world] = found(await pool.rollout(solution_of(world), TASKS, seed=5))
    return digests


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(), 900))))
