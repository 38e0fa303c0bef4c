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
    """Return the scheduling strategy of each of so many actors, as their options say or so that the nodes share them.

    Ray spreads what asks for resources. Actors that ask for none are given to the nodes in turn, one for each
    processor. The affinity is hard, because Ray takes a soft one for a wish; see `ActorHandle` for lost nodes.
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
    """Give what runs a blocking call in a thread that does nothing else, and lives as long as the connection.

    In Ray 2.60 all threads that have ever connected name what they put after the driver, and each counts for itself.
    Two of them would put two objects of one name, which aborts the process: a thread that has connected must put
    nothing. And Linux kills the processes of a cluster that was started here at the end of the thread that started
    them, because Ray asks for that at the end of their parent.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="mcpenv-ray")

    async def run(call: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(thread, call)

    try:
        yield run
    finally:
        thread.shutdown(wait=False)


__all__ = ["connected", "strategies"]
