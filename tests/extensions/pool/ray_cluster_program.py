"""What pools and servers on a Ray cluster of several nodes must show. Prints one JSON object.

The nodes are on one machine, each with a raylet and an object store of its own, as those of a cluster.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from pool_worlds import Dice, five_rolls
from ray.cluster_utils import Cluster

from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import BlockingEpisode, EnvPool, Played
from mcpenv_client.providers.ray_servers import ray_servers

MAZE = str(Path(__file__).parents[3] / "envs" / "maze_mcp")
TASKS = [f"t{number}" for number in range(6)]


def digests(played: list[Played]) -> list[str]:
    return [digest_of(each.trajectory) for each in played if each.trajectory is not None]


def on_node(episode: BlockingEpisode) -> str:
    """Play, and return the id of the node on which this runs."""
    five_rolls(episode)
    return str(ray.get_runtime_context().get_node_id())


class OnNodes:
    """Play once episodes have begun on that many nodes, and return the id of the node on which this runs."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.directory, self.nodes = directory, nodes

    def __call__(self, episode: BlockingEpisode) -> str:
        node = on_node(episode)
        (self.directory / node).touch()
        while len(list(self.directory.iterdir())) < self.nodes:
            time.sleep(0.01)  # how long an actor takes to start is Ray's
        return node


async def one_after_the_other(expected: list[str], cluster: Cluster) -> list[bool]:
    """Connect to the cluster in several pools in a row."""
    equal = []
    for options in ({}, {"num_cpus": 0.1}, {"scheduling_strategy": "DEFAULT"}):
        async with EnvPool(
            Dice, 4, backend="ray", start_timeout_s=600, workers=2, address=cluster.address, actor_options=options
        ) as pool:
            equal += [digests(await pool.rollout(five_rolls, TASKS, n=5, seed=5)) == expected for _ in range(3)]
    return equal


async def main(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with EnvPool(Dice, 4) as local:
        expected = digests(await local.rollout(five_rolls, TASKS, n=50, seed=5))
        few = digests(await local.rollout(five_rolls, TASKS, n=5, seed=5))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        found["pools in a row"] = await one_after_the_other(few, cluster)
        found["left"] = not ray.is_initialized()
        async with EnvPool(Dice, 4, backend="ray", start_timeout_s=600, workers=2, address=cluster.address) as pool:
            played = await pool.rollout(OnNodes(directory, 2), TASKS, n=50, seed=5)
            found["equal"] = digests(played) == expected
            found["nodes"] = len({each.value for each in played})

            played = []
            async for each in pool.play(on_node, TASKS, n=50, seed=5, retries=5):
                played.append(each)
                if len(played) == 20:
                    await asyncio.to_thread(cluster.remove_node, other, allow_graceful=False)
            played.sort(key=lambda each: each.assignment.number)
            found["equal after the loss of a node"] = digests(played) == expected
            found["all completed"] = {each.status.code.value for each in played} == {"completed"}
            # Its actor is placed on the node that is left.
            played = await pool.rollout(on_node, TASKS, n=50, seed=5)
            found["equal on one node"] = digests(played) == expected
            found["nodes left"] = len({each.value for each in played})

        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        async with ray_servers(MAZE, address=cluster.address) as servers:
            found["servers"] = len(servers.urls)
    finally:
        cluster.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(Path(sys.argv[1])), 900))))
