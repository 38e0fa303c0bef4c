"""An environment's own view reaches no address, by no means. A listener counts what arrives, in Debian's Chromium."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from reaching_world import WAYS, page
from selenium.common.exceptions import WebDriverException
from visitor import visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent


class Listener:
    """Listens at one port, by TCP and UDP, and keeps what arrives. The path `/WAY` is answered with that view."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        self.arrived: list[bytes] = []
        for target in (self._accept, self._receive):
            threading.Thread(target=target, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.tcp.accept()
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        self.arrived.append(b"")
        number = len(self.arrived) - 1
        with connection, suppress(OSError):
            self.arrived[number] = connection.recv(4096).split(b"\r\n")[0]
            if not self.arrived[number]:
                return
            way = self.arrived[number].split()[1].decode()[1:]
            answer = page(way, self.port).encode() if way in WAYS else b""
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + answer)

    def _receive(self) -> None:
        with suppress(OSError):
            while True:
                datagram = self.udp.recv(4096)
                self.arrived.append(b"UDP " + datagram[:4])


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    with made.tcp, made.udp:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_view_reaches_no_address_by(way: str, listener: Listener) -> None:
    world = {"WAY": way, "LISTENER": str(listener.port)}
    with (
        visiting() as visitor,
        started(HERE, "run", "reaching_world.py:ReachingWorld", "--port", "0", "--drain-s", "0", **world) as server,
    ):
        visitor.play(server.url())
        visitor.type("by", "5")
        visitor.call()
        try:
            visitor.see("1. add")
            visitor.browser.switch_to.frame(visitor.find("//section[@aria-label='View']/iframe"))
            # The view says when it has tried all. A navigation leaves the browser's own page in its place.
            visitor.until(lambda browser: browser.execute_script("return document.body.innerText || document.title"))
        except WebDriverException as error:
            assert way == "WebRTC" and "crashed" in str(error)  # of a frame in a view, Chromium 156 ends the tab
        assert len(visitor.browser.window_handles) == 1
    assert listener.arrived == []


def test_the_same_page_reaches_the_listener_where_nothing_forbids_it(listener: Listener) -> None:
    with visiting() as visitor:
        for way in ("connections", "WebRTC"):
            visitor.browser.get(f"http://127.0.0.1:{listener.port}/{way}")
        visitor.until(lambda _: any(each.startswith(b"UDP") for each in listener.arrived))
        visitor.until(lambda _: len({*listener.arrived}) > 20)
