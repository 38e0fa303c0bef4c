"""The console in a frame of another site, in Debian's Chromium: signing in works there, and only there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from command_line import free_port
from console_world import ConsoleWorld

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]


@contextmanager
def embedding(port: int, address: list[str]) -> Iterator[str]:
    """Serve a page that shows a frame. For the browser, localhost is another site than 127.0.0.1."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html><iframe src='{address[0]}' width=900 height=700></iframe>".encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{port}/"
        server.shutdown()


def test_a_visitor_signs_in_within_a_frame_of_another_site() -> None:
    port, address = free_port(), [""]
    # Browsers take 127.0.0.1 for as safe as https; the address that the server is told makes it say Secure.
    config = ServerConfig(
        control_token="secret-token",
        public_url="https://env.example",
        frame_ancestors=(f"http://localhost:{port}",),
    )
    with serving(ConsoleWorld, config) as url, embedding(port, address) as page, visiting() as visitor:
        address[0] = f"{url}/console/#/live"
        visitor.browser.get(page)
        visitor.browser.switch_to.frame(0)
        visitor.type("Control token", "secret-token")
        visitor.press("Sign in")
        visitor.read("No session is open")
        # Outside of the frame it is another cookie jar.
        visitor.open(url, "live")
        visitor.find("//label[.='Control token']")
