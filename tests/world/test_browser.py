"""A proxied Playwright server with Chromium: one browser, a context for each episode, screenshots in the record."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import free_port

from mcpenv import Recorder, read_episodes
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.records.images import images_of

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

CONFIG = Path(__file__).resolve().parents[2] / "envs" / "browser_mcp" / "mcp.json"
PAGE = b"""<!doctype html><title>Visits</title><h1 id=n></h1><button onclick="location.reload()">Again</button>
<script>localStorage.n = 1 + +(localStorage.n || 0); n.textContent = "visit " + localStorage.n</script>"""


class Page(http.server.BaseHTTPRequestHandler):
    """A page that counts its visits in the storage of the browser."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def page() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Playwright:
    """A running Playwright server."""

    url: str
    pid: int

    def browsers(self) -> list[int]:
        """The browser processes of the server, without the parts that a browser starts itself."""
        parents = {}
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit():
                    stat = (process / "stat").read_text().rpartition(")")[2].split()
                    parents[int(process.name)] = int(stat[1]), (process / "cmdline").read_bytes()
        below = {self.pid}
        while more := {pid for pid, (parent, _) in parents.items() if parent in below} - below:
            below |= more
        return [
            pid
            for pid in below
            if pid in parents and b"--headless" in parents[pid][1] and b"--type=" not in parents[pid][1]
            if b"cli.js" not in parents[pid][1]
        ]


@pytest.fixture(scope="module")
def playwright(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playwright]:
    named = os.environ.get("MCPENV_NODE_MODULES")
    assert named, "MCPENV_NODE_MODULES names no folder; .ci/run installs the npm packages and sets it"
    chromium = shutil.which("chromium")
    assert chromium, "there is no chromium; .ci/run installs it"
    node = shutil.which("node", path=f"{named}/.bin:{os.environ['PATH']}")
    assert node
    port, folder = free_port(), tmp_path_factory.mktemp("playwright")
    program = Path(named, "@playwright", "mcp", "cli.js")
    options = ["--headless", "--isolated", "--no-sandbox", "--executable-path", chromium, "--output-dir", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [node, str(program), *options, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 60
        while not listens(port):
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)  # no message says that it listens
        yield Playwright(f"http://localhost:{port}/mcp", process.pid)
    finally:
        process.terminate()
        process.wait(30)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def environment(playwright: Playwright, url: str) -> type[ProxyEnvironment]:
    """The example's environment, at another address and with another page."""
    config: dict[str, Any] = json.loads(CONFIG.read_text())
    config["mcpServers"]["browser"]["url"] = playwright.url
    config["mcpenv"]["on_reset"][0]["arguments"]["url"] = url
    return ProxyEnvironment.from_config(config)


def visits(env: ProxyEnvironment) -> str:
    observation = env.call_tool("browser_evaluate", {"function": "() => 'visit ' + localStorage.n"})
    assert observation.error is None
    (found,) = re.findall(r'"visit (\d+)"', observation.text)
    return str(found)


def test_episodes_share_a_browser_and_no_storage(playwright: Playwright) -> None:
    with page() as url:
        made = environment(playwright, url)
        with made() as one, made() as other:
            one.reset()
            other.reset()
            one.call_tool("browser_navigate", {"url": url})
            assert (visits(one), visits(other)) == ("2", "1")
            assert len(playwright.browsers()) == 1
            one.reset()
            assert (visits(one), visits(other)) == ("1", "1")


def test_screenshots_are_in_the_observation_of_the_reset_and_in_the_record_once(
    playwright: Playwright, tmp_path: Path
) -> None:
    with page() as url, environment(playwright, url)() as env, Recorder(tmp_path / "record") as recorder:
        recorder.attach(env)
        first: Any = env.reset(episode_id="visit")
        assert first.content[-1]["type"] == "image"
        for _ in range(2):
            assert "[image]" in env.call_tool("browser_take_screenshot", {"scale": "css"}).text
        env.end()
    (episode,) = read_episodes(tmp_path / "record")
    images = list(images_of(episode))
    assert [image.step for image in images] == [0, 1, 2]
    assert all(image.data is not None and image.data.startswith((b"\x89PNG", b"\xff\xd8\xff")) for image in images)
    stored = [file for file in (tmp_path / "record" / "blobs").iterdir() if file.suffix in (".png", ".jpg")]
    assert len(stored) == len({image.data for image in images})
