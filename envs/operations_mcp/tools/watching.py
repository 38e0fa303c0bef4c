"""What is measured: alerts, metrics, logs, and the time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from ..system import shown
from .arguments import AnyService, Id, Minutes, Rows, ServiceName, Short


class WatchTools:
    """Tools of alerts, metrics, logs and the time."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_alerts,
            self.acknowledge_alert,
            self.silence_alert,
            self.set_alert_threshold,
            self.get_metrics,
            self.read_logs,
            self.search_logs,
            self.now,
            self.wait,
        )

    def list_alerts(self, service: AnyService = None, firing: bool = True) -> Rows:
        """List the alerts that fire now, or all. Thresholds of errors are in percent, of latency in ms."""
        key = None if service is None else self.desk.service(service)["id"]
        seen = {row["alert"] for row in self.desk.find("acknowledged")}
        found = []
        for row in self.desk.find("alerts", service=key):
            measured = self.desk.measured(row["service"], self.desk.now)
            value = measured["errors_percent" if row["metric"] == "errors" else "latency_ms"]
            if value > row["threshold"] or not firing:
                state = {"value": value, "firing": value > row["threshold"], "acknowledged": row["id"] in seen}
                found.append({**self.desk.public(row), **state})
        return found

    def acknowledge_alert(self, alert: Id) -> Row:
        """Say that you have seen an alert. It changes nothing else."""
        self.desk.row("alerts", alert)
        if not self.desk.find("acknowledged", alert=alert):
            self.desk.insert("acknowledged", alert=alert, at=self.desk.now)
        return self.desk.done(self.desk.row("alerts", alert))

    def silence_alert(self, alert: Id, minutes: Annotated[int, Field(ge=1, le=10_000)]) -> Row:
        """Silence an alert from now on, for some minutes."""
        until = self.desk.now + minutes
        return self.desk.done(self.desk.update("alerts", alert, silenced_until=until, silenced_for=minutes))

    def set_alert_threshold(self, alert: Id, threshold: Annotated[int, Field(ge=1, le=100_000)]) -> Row:
        """Change the value above which an alert fires."""
        return self.desk.done(self.desk.update("alerts", alert, threshold=threshold))

    def get_metrics(self, service: ServiceName, minutes: Minutes = 60) -> Rows:
        """Show the metrics of a service, at some ten times of the last minutes."""
        key, now = self.desk.service(service)["id"], self.desk.now
        step = max(1, minutes // 10)
        return [self.desk.measured(key, minute) for minute in range(now - minutes + step, now + 1, step)]

    def read_logs(self, service: ServiceName, minutes: Minutes = 20) -> Rows:
        """Read the log of one service, oldest line first. It says what this service saw, not why others fail."""
        return self.desk.log(self.desk.service(service)["id"], minutes)

    def search_logs(self, words: Short, minutes: Minutes = 20) -> Rows:
        """Find lines of all logs whose text, without the level, has all these words; at most five of each service."""
        found: Rows = []
        for service in self.desk.find("services"):
            lines = [
                line
                for line in self.desk.log(service["id"], minutes)
                if all(word in line["text"].lower() for word in words.lower().split())
            ]
            found += [{"service": service["name"], **line} for line in lines[-5:]]
        return found

    def now(self) -> str:
        """Tell the time."""
        return shown(self.desk.now)

    def wait(self, minutes: Annotated[int, Field(ge=1, le=60)]) -> str:
        """Let some minutes pass, to see whether a mend holds. Each change takes a minute anyway."""
        for _ in range(minutes):
            self.desk.tick()
        return f"It is {shown(self.desk.now)}."
