"""Real Prometheus in front of a server, with the configuration that ``deploy/`` has for users."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
CONTROL, METRICS = "control-secret", "metrics-secret"
HEADERS = {"Authorization": f"Bearer {CONTROL}"}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (apt-get install prometheus)"
)


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S)

    def get(self, path: str, **query: str) -> Any:
        reply = self._http.get(f"/api/v1/{path}", params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def query(self, expression: str) -> dict[str, float]:
        """The values of an instant query by their labels, without those of the target."""
        found = {}
        for each in self.get("query", query=expression)["result"]:
            labels = {
                name: text for name, text in each["metric"].items() if name not in ("__name__", "instance", "job")
            }
            found[",".join(labels.values())] = float(each["value"][1])
        return found

    def until(self, expression: str, expected: dict[str, float]) -> None:
        """Wait until a query has the expected answer."""
        deadline = time.monotonic() + 60
        while (found := self.query(expression)) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == expected, expression


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """The configuration of ``deploy/``, with the address of the server, its token, and shorter times."""
    config = (DEPLOY / "prometheus.yml").read_text()
    (folder / "token").write_text(METRICS)
    for before, after in {
        "127.0.0.1:8000": target,
        "/etc/prometheus/mcpenv-metrics-token": str(folder / "token"),
        "mcpenv-alerts.yml": str(DEPLOY / "mcpenv-alerts.yml"),
        "interval: 15s": "interval: 250ms",
    }.items():
        assert before in config
        config = config.replace(before, after)
    (folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--web.listen-address={address}",
                f"--storage.tsdb.path={folder / 'data'}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if httpx.get(f"http://{address}/-/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert process.poll() is None and time.monotonic() < deadline, (folder / "prometheus.log").read_text()
            time.sleep(0.05)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
