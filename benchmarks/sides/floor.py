"""The floor: Starlette under uvicorn as mcpenv runs it, with handlers that do no work.

``/ws?bytes=N`` answers each frame with a text of N bytes, ``POST /step?bytes=N`` each request.
"""

from __future__ import annotations

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    answer = "x" * int(socket.query_params["bytes"])
    try:
        while True:
            await socket.receive_text()
            await socket.send_text(answer)
    except WebSocketDisconnect:
        return


async def step(request: Request) -> Response:
    await request.body()
    return Response(b"x" * int(request.query_params["bytes"]), media_type="application/json")


app = Starlette(routes=[WebSocketRoute("/ws", echo), Route("/step", step, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(
        app,
        port=0,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=16 * 1024 * 1024,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        ws_per_message_deflate=False,
        access_log=False,
        timeout_keep_alive=75,
        server_header=False,
        proxy_headers=False,
    )
