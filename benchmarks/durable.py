"""``python -m benchmarks.durable``: the cost of a step with ``--durable``, beside the same server without it.

The sides alternate, round by round. Postgres and Redis are those of the machine, each in a folder of its own; Redis
writes each change to its file before it answers, Postgres runs without fsync.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from mcpenv_client.connection.handshake import Credential

from .load import WebSocketConnection, closing, drive, frame, one_round, open_websocket
from .pairs import Measured, Pair, middle
from .serving import SIDES, Server, mcpenv, together
from .steps import ASYNC, clients
from .tables import markdown

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from database_servers import PostgresServer, RedisServer, running

PLAIN = "without"
LOADS = (1, 16)
ACTION = {"type": "call_tool", "tool_name": ASYNC.tool, "arguments": ASYNC.arguments}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less than a minute, for a look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    rounds, round_s = (2, 0.2) if given.quick else (9, 0.5)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = {"folder": f"{folder}/store"}
        places["Postgres"] = stack.enter_context(running(PostgresServer())).url
        places["Redis"] = stack.enter_context(running(RedisServer())).url
        sides = {PLAIN: mcpenv(SIDES / "mcpenv_tools.py")}
        for (name, place), writes in itertools.product(places.items(), ("strict", "behind")):
            durable = f"{place}{'&' if '?' in place else '?'}writes={writes}"
            sides[f"{name}, {writes}"] = mcpenv(SIDES / "mcpenv_tools.py", "--durable", durable)
        servers = together(stack, sides)
        print(
            f"Durable episodes: steps of an async tool over /ws, {rounds} rounds of {round_s} s of each side in turns,"
        )
        print("medians; ratios to the same server without --durable, round by round.\n")
        for load in LOADS:
            figures[str(load)] = drive(_compared(servers, load, rounds, round_s))
    _show(figures)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


async def _compared(servers: Mapping[str, Server], load: int, rounds: int, round_s: float) -> dict[str, Any]:
    measured: dict[str, list[Measured]] = {name: [] for name in servers}
    async with AsyncExitStack() as stack:
        sockets = {}
        for name, server in servers.items():
            sockets[name] = [await _resumable(server) for _ in range(load)]
            await stack.enter_async_context(closing(sockets[name]))
        for number in range(-1, rounds):
            for name in servers if number % 2 else reversed([*servers]):
                await asyncio.gather(*(socket.ask(_message("reset", number, {})) for socket in sockets[name]))
                clients = [partial(_step, socket, number) for socket in sockets[name]]
                played = await one_round(clients, round_s, servers[name].cpu_s)
                if number >= 0:
                    measured[name].append(Measured(played.percentile_ms(50), played.cpu_us))
    found = {}
    for name, of in measured.items():
        pair = Pair(measured[PLAIN], of)
        found[name] = {
            "cpu_us": middle([each.cpu_s for each in of]),
            "p50_ms": middle([each.wall_s for each in of]),
            "cpu_ratio": middle(pair.ratios(lambda each: each.cpu_s)),
            "p50_ratio": middle(pair.ratios(lambda each: each.wall_s)),
        }
    return found


async def _resumable(server: Server) -> WebSocketConnection:
    """Return the socket of a session that its client could resume, which is what a durable server keeps."""
    lines = (f"{name}: {value}\r\n" for name, value in Credential().headers())
    return await open_websocket(server.ws, "".join(lines))


async def _step(socket: WebSocketConnection, round_number: int, until: float, latencies: list[float]) -> None:
    """Take steps, each with an id of its own, as a client that resumes does."""
    for number in itertools.count():
        step = _message("step", f"{round_number}-{number}", ACTION)
        began = time.perf_counter()
        await socket.ask(step, ASYNC.mark)
        now = time.perf_counter()
        latencies.append(now - began)
        if now >= until:
            return


def _message(kind: str, number: object, data: dict[str, Any]) -> bytes:
    return frame(json.dumps({"type": kind, "request_id": f"{kind}-{number}", "data": data}).encode())


def _show(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    heading = [f"{what}, {clients(load)}" for load in LOADS for what in ("CPU of a step", "ratio", "p50", "ratio")]
    lines = [["store", *heading]]
    for name in figures[str(LOADS[0])]:
        line = [name]
        for load in LOADS:
            of = figures[str(load)][name]
            line += [
                f"{of['cpu_us']:.0f} µs",
                f"{of['cpu_ratio']:.2f}",
                f"{of['p50_ms']:.2f} ms",
                f"{of['p50_ratio']:.2f}",
            ]
        lines.append(line)
    print(markdown(lines))


if __name__ == "__main__":
    main()
