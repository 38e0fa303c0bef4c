"""What servers on the nodes of a Ray cluster must show, for an interpreter that has Ray. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from mcpenv_client import EnvClient, Status
from mcpenv_client.pool import BlockingEpisode, EnvPool
from mcpenv_client.providers import ray_servers as module
from mcpenv_client.providers.ray_servers import ray_servers

MAZE = str(Path(__file__).parents[3] / "envs" / "maze_mcp")


def looks(episode: BlockingEpisode) -> str:
    return "".join(episode.call_tool("look").text for _ in range(5))


async def main() -> dict[str, Any]:
    module.LOOK_S = 0.2
    found: dict[str, Any] = {}
    ray.init(include_dashboard=False)
    async with EnvPool(MAZE, 4) as pool:
        expected = [each.value for each in await pool.rollout(looks, n=20, seed=0)]
    async with ray_servers(MAZE) as servers:
        found["servers"] = len(servers.urls)
        async with EnvPool(servers.urls, 4, backend="remote", connect=servers.connect) as pool:
            played = await pool.rollout(looks, n=20, seed=0)
            found["equal"] = [each.value for each in played] == expected
            found["where"] = {each.where for each in played} == set(servers.urls)
            async with servers.connect(servers.urls[0]) as client:
                began = await client.reset(seed=0)
                found["handle"] = str(began.info["mcp_url"]).startswith(servers.urls[0])
            try:
                async with EnvClient(servers.urls[0]) as stranger:
                    await stranger.reset()
            except Exception as error:  # noqa: BLE001 - its name is what is tested
                found["stranger"] = type(error).__name__
            before = list(servers.urls)
            servers.changed.clear()
            ray.kill(servers.actors[0], no_restart=False)
            await asyncio.wait_for(servers.changed.wait(), 240)
            found["moved"] = servers.urls != before
            played = await pool.rollout(looks, n=20, seed=0, retries=5)
            found["equal again"] = [each.value for each in played] == expected
            found["usable"] = all(isinstance(each.status, Status) and each.status.usable for each in played)
    try:
        async with ray_servers("nowhere_mcp"):
            pass
    except RayError as error:
        found["nowhere"] = "nowhere_mcp" in str(error)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(), 900))))
