"""Episodes by the environment server of verifiers, as prime-rl's orchestrator asks for them: URL MODEL.

Prints the traces as JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.serve import EnvClient, env_config_data, serve_env


def config_of(url: str) -> vf.EnvConfig:
    """Return the table ``env`` of prime-rl's configuration."""
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return vf.resolve_env_config({"taskset": {"id": "ledger_world", "url": url}, "agent": agent})


def serve(url: str, addresses: Any) -> None:
    """Serve the environment in this process."""
    serve_env(
        max_workers=1,
        address="tcp://127.0.0.1:0",
        address_queue=addresses,
        config_data=env_config_data(config_of(url)),
    )


async def main(url: str, model: str, address: str) -> None:
    """Load the tasks here, and run the first and the last at the server."""
    client = EnvClient(address=address)
    await client.wait_for_server_startup(timeout=200)
    tasks = list(vf.load_taskset(config_of(url).taskset))
    found = []
    for task in (tasks[0], tasks[-1]):
        episode = await client.run(
            task_data=task.data.model_dump(mode="json"),
            client=vf.EvalClientConfig(base_url=f"{model}/v1", api_key_var="OPENAI_API_KEY"),
            model="default",
            sampling=vf.SamplingConfig(temperature=1.0, extra_body={"cache_salt": "1"}),
        )
        (trace,) = episode.traces
        error = trace.last_error.message if trace.last_error else None
        found.append(
            {
                "ok": [episode.ok, trace.ok],
                "turns": trace.num_turns,
                "reward": trace.reward,
                "status": trace.info["status"]["code"],
                "error": error,
            }
        )
    print(json.dumps({"tasks": len(tasks), "found": found}))


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    server = spawn.Process(target=serve, args=(sys.argv[1], queue))
    server.start()
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2], queue.get(timeout=200)))
    finally:
        server.terminate()
        server.join()
