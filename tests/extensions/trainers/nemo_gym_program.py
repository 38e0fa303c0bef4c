"""NeMo Gym's own contract and servers against a server of mcpenv, in a Python that has nemo-gym: URL ROWS [TOKEN].

Runs its session contract, and one episode for each row by its single-agent environment server and its simple agent,
with a model that makes the calls of the row's column ``calls``. Prints what they answered, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import uvicorn
from environment_servers.single_agent_turn.app import (
    SingleAgentTurnEnvironmentServer,
    SingleAgentTurnEnvironmentServerConfig,
)
from fastapi import FastAPI, Request, Response
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.global_config import NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract
from omegaconf import OmegaConf
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig


def forwarding(url: str) -> FastAPI:
    """Return an application that passes requests on, for a check that runs an application in process."""
    app = FastAPI()

    async def forward(path: str, request: Request) -> Response:
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await client.request(request.method, f"/{path}", content=await request.body())
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    app.add_api_route("/{path:path}", forward, methods=["GET", "POST"])
    return app


def model(asked: Callable[[], Awaitable[None]] | None = None) -> FastAPI:
    """Return a model server whose model makes the calls that the user's message lists, then stops."""
    app = FastAPI()
    seen: list[dict[str, Any]] = []
    app.state.seen = seen

    async def responses(path: str, request: Request) -> dict[str, Any]:
        body = await request.json()
        if asked is not None:
            await asked()
        seen.append(body)
        calls = json.loads(body["input"][0]["content"])
        done = sum(item.get("type") == "function_call_output" for item in body["input"])
        if done < len(calls):
            name, arguments = calls[done]
            output: dict[str, Any] = {
                "type": "function_call",
                "id": f"fc_{done}",
                "call_id": f"call_{done}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
        else:
            text = {"type": "output_text", "text": "Done.", "annotations": []}
            output = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [text]}
        return {
            "id": uuid.uuid4().hex,
            "object": "response",
            "created_at": 0.0,
            "model": "scripted",
            "output": [output],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": body["tools"],
        }

    app.add_api_route("/{path:path}", responses, methods=["POST"])
    return app


class Served(uvicorn.Server):
    """A server beside others in one event loop: Ctrl-C is the program's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals."""
        yield


Stack = tuple[SingleAgentTurnEnvironmentServer, list[tuple[Served, socket.socket]], Any]
"""An environment server, the servers that it asks with the sockets on which they listen, and the state of a model."""


def stack_of(url: str, asked: Callable[[], Awaitable[None]] | None = None) -> Stack:
    """Return NeMo Gym's servers in front of a server of mcpenv, not started yet.

    Args:
        url: the server of mcpenv.
        asked: is awaited when the model is asked.
    """
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("agent", "model")}
    ports = {name: each.getsockname()[1] for name, each in sockets.items()}
    ports["world"] = int(url.rpartition(":")[2])
    kinds = {"agent": "responses_api_agents", "model": "responses_api_models", "world": "resources_servers"}
    config = OmegaConf.create(
        {name: {kinds[name]: {"x": {"host": "127.0.0.1", "port": port}}} for name, port in ports.items()}
    )
    os.environ[NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME] = OmegaConf.to_yaml(config)
    head = BaseServerConfig(host="127.0.0.1", port=1)
    client = ServerClient(head_server_config=head, global_config_dict=config)
    agent = SimpleAgent(
        config=SimpleAgentConfig(
            name="agent",
            host="127.0.0.1",
            port=ports["agent"],
            entrypoint="app.py",
            model_server={"type": "responses_api_models", "name": "model"},
            max_steps=8,
        ),
        server_client=client,
    )
    environment = SingleAgentTurnEnvironmentServer(
        config=SingleAgentTurnEnvironmentServerConfig(
            name="environment",
            host="127.0.0.1",
            port=1,
            entrypoint="app.py",
            cleanup_timeout_seconds=20,
            resources_server={"type": "resources_servers", "name": "world"},
            agent_server={"type": "responses_api_agents", "name": "agent"},
            resources_tool_transports=["direct_http"],
        ),
        server_client=client,
    )
    scripted = model(asked)
    apps = {"agent": agent.setup_webserver(), "model": scripted}
    # As NeMo Gym runs its servers: requests that are not answered soon are cancelled.
    options: dict[str, Any] = {"log_level": "critical", "timeout_graceful_shutdown": 0.5}
    served = [(Served(uvicorn.Config(app, **options)), sockets[name]) for name, app in apps.items()]
    return environment, served, scripted.state


def request_of(environment: SingleAgentTurnEnvironmentServer, row: dict[str, Any], number: int) -> Any:
    """Return the request to play a row."""
    task_id = {"taskset": "tasks", "task_id": row.pop("task_id")}
    task = {"task_id": task_id, "task_input": row}
    return environment.request_model.model_validate({"episode_id": {"rollout_id": f"rollout-{number}"}, "task": task})


def main(url: str, rows: list[dict[str, Any]]) -> None:
    """Check, play, print."""
    names = {"taskset": "tasks", "task_id": rows[0]["task_id"]}
    seed = ResourcesSeedSessionRequest.model_validate(
        {"resources_session_id": "s-1", "episode_id": {"rollout_id": "r"}, "task_id": names, "task_data": {}}
    )
    check_resources_session_contract(forwarding(url), seed, keeps_state=True)
    environment, served, state = stack_of(url)
    answers = asyncio.run(play(environment, rows, served))
    print(json.dumps({"answers": answers, "tools": [body["tools"] for body in state.seen]}))


async def play(
    environment: SingleAgentTurnEnvironmentServer, rows: list[dict[str, Any]], served: list[Any]
) -> list[Any]:
    """Play each row once, all at once, beside the servers: NeMo Gym has one HTTP client, for one event loop."""
    running = [asyncio.create_task(server.serve(sockets=[listening])) for server, listening in served]
    requests = [request_of(environment, row, at) for at, row in enumerate(rows)]
    responses = await asyncio.gather(*(environment.run_request(request) for request in requests))
    for server, _ in served:
        server.should_exit = True
    await asyncio.gather(*running)
    return [response.model_dump(mode="json") for response in responses]


if __name__ == "__main__":
    with open(sys.argv[2]) as file:
        main(sys.argv[1], json.load(file))
