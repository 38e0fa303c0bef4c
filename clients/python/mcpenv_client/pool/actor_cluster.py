"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@asynccontextmanager
async def connected(address: str | None) -> AsyncIterator[None]:
    """Connect to Ray, or start it, unless the program has done so; disconnect at the end.

    Args:
        address: the cluster's address; None: as ``ray.init()``.
    """
    if ray.is_initialized():
        yield
        return
    local = {} if address else {"include_dashboard": False}
    with _thread_of_its_own() as run:
        await run(functools.partial(ray.init, address=address, logging_level=logging.WARNING, **local))
        try:
            yield
        finally:
            await run(ray.shutdown)


def strategies(options: Mapping[str, Any], number: int) -> list[Any]:
    """Return the scheduling strategy of each actor: from its options, or one that spreads the actors over the nodes.

    Ray itself spreads actors that request resources. Actors without requests are assigned to the nodes in rotation, one
    for each processor. The affinity is hard, because Ray does not guarantee a soft one; see `ActorHandle` for lost
    nodes.
    """
    if "scheduling_strategy" in options:
        return [options["scheduling_strategy"]] * number
    if any(options.get(name) for name in ("num_cpus", "num_gpus", "memory", "resources", "label_selector")):
        return ["SPREAD"] * number
    nodes = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    rounds = range(max(nodes.values()))
    turns = [node for round_number in rounds for node, processors in nodes.items() if round_number < processors]
    chosen = itertools.islice(itertools.cycle(turns or nodes), number)
    return [NodeAffinitySchedulingStrategy(node, soft=False) for node in chosen]


@contextmanager
def _thread_of_its_own() -> Iterator[Callable[[Callable[[], Any]], Awaitable[None]]]:
    """Return a runner of blocking calls in a dedicated thread, which lives as long as the connection.

    In Ray 2.60 every thread that has ever connected names its objects by the driver, with a counter of its own. Two
    such threads would put two objects under one name, which aborts the process: a thread that has connected must put
    nothing. Also, Ray requests that Linux kill the processes of a cluster that was started here when their parent ends.
    Linux does so already at the end of the thread that started them.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="mcpenv-ray")

    async def run(call: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(thread, call)

    try:
        yield run
    finally:
        thread.shutdown(wait=False)
