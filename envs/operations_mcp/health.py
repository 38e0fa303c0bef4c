"""The laws of the simulated system: what follows from its rows for each service, and for those that need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcpenv.extensions.generated_worlds import Row, Tables

DOWN, DEGRADED = 50, 5
"""Percent of requests that fail, from which a service is down or degraded."""
SLOW = 3
"""The factor of latency from which a service is degraded."""
LEAK_MINUTES = 20
"""Minutes after a start in which a leak fills the memory."""


@dataclass(frozen=True)
class Measure:
    """The condition of a service at one time.

    Attributes:
        errors: percent of requests that fail.
        slow: the factor of its usual latency.
        lines: what its log says of it.
    """

    errors: int = 0
    slow: int = 1
    lines: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The word for it: "ok", "degraded" or "down"."""
        if self.errors >= DOWN:
            return "down"
        return "degraded" if self.errors >= DEGRADED or self.slow >= SLOW else "ok"


Holds = Callable[[Row, "System"], bool]


@dataclass(frozen=True)
class Law:
    """One way in which a service fails.

    Attributes:
        table: the table whose rows are judged. The column "service" names who suffers, or the row is the service.
        holds: True if this row makes the service fail.
        errors, slow: how much.
        line: what the log says, with the columns of the row.
    """

    table: str
    holds: Holds
    errors: int
    slow: int
    line: str


def used_gb(disk: Row, now: int) -> int:
    """Return the gigabytes in use of a disk. Its growth is in gigabytes a day, and without a clean-up job only."""
    return min(int(disk["size_gb"]), int(disk["used_gb"] + disk["growth"] * max(0, now - disk["since"]) // 1440))


def depth(queue: Row, now: int) -> int:
    """Return the messages in a queue."""
    passed = max(0, now - queue["since"]) * queue["rate"]
    waiting = queue["depth"] + passed if not queue["consuming"] or queue["poison"] else queue["depth"] - passed
    return max(0, int(waiting))


def _live(deployment: Row, defect: str) -> bool:
    return (deployment["status"], deployment["defect"]) == ("live", defect)


class System:
    """The rows of a system at a time.

    Args:
        tables: the rows.
        now: the minute.
    """

    def __init__(self, tables: Tables, now: int) -> None:
        self.tables, self.now = tables, now

    def row(self, table: str, key: int) -> Row:
        """Return a row."""
        return self.tables[table][key]

    def connections(self, database: int) -> int:
        """Return the connections that the services may open to a database."""
        users = {link["service"] for link in self.tables["links"].values() if link["needs"] == database}
        pools = [s for s in self.tables["settings"].values() if s["name"] == "pool_size" and s["service"] in users]
        return sum(int(pool["value"]) * int(self.row("services", pool["service"])["replicas"]) for pool in pools)

    def measures(self) -> dict[int, Measure]:
        """Return the condition of each service: its own faults, and those of what it needs."""
        own: dict[int, list[Law]] = {key: [] for key in self.tables["services"]}
        said: dict[int, list[str]] = {key: [] for key in self.tables["services"]}
        for law in LAWS:
            for row in self.tables[law.table].values():
                if law.holds(row, self):
                    service = row["id"] if law.table == "services" else row["service"]
                    own[service].append(law)
                    said[service].append(law.line.format(**row))
        needs: dict[int, list[int]] = {key: [] for key in own}
        for link in self.tables["links"].values():
            if not (link["fallback"] and self.row("flags", link["fallback"])["enabled"]):
                needs[link["service"]].append(link["needs"])
        found: dict[int, Measure] = {}

        def measure(key: int) -> Measure:
            if key not in found:
                errors, slow = [law.errors for law in own[key]], [law.slow for law in own[key]]
                lines = list(said[key])
                for needed in needs[key]:
                    theirs = measure(needed)
                    errors.append(theirs.errors * 4 // 5)
                    slow.append(max(1, theirs.slow - 1))
                    if theirs.state != "ok":
                        lines.append(f"call to {self.row('services', needed)['name']} failed or timed out")
                found[key] = Measure(max(errors, default=0), max(slow, default=1), tuple(lines))
            return found[key]

        for key in own:
            measure(key)
        return found


LAWS = (
    Law("services", lambda r, s: r["state"] == "stopped", 100, 1, "no process listens on port 8080"),
    Law(
        "services",
        lambda r, s: r["stuck"] and r["kind"] != "provider",
        60,
        8,
        "all workers wait for a lock since minutes",
    ),
    Law(
        "services",
        lambda r, s: r["stuck"] and r["kind"] == "provider",
        90,
        1,
        "status page of the provider: major outage",
    ),
    Law(
        "services",
        lambda r, s: r["memory_mb"] < r["needs_mb"],
        40,
        2,
        "process was killed: out of memory, the limit is {memory_mb} MB",
    ),
    Law(
        "services",
        lambda r, s: r["restarts"] and s.now < r["started_at"] + r["warm_up"],
        15,
        5,
        "the cache is cold: it takes {warm_up} minutes after a start until it is warm",
    ),
    Law(
        "services",
        lambda r, s: r["traffic"] > r["replicas"] * r["capacity"],
        25,
        4,
        "request queue is full, CPU at 100 % on all {replicas} replicas",
    ),
    Law("deployments", lambda r, s: _live(r, "errors"), 45, 1, "unhandled error in request handler, build {version}"),
    Law(
        "deployments",
        lambda r, s: _live(r, "schema"),
        100,
        1,
        "unknown column: the schema of the database is newer than build {version}",
    ),
    Law(
        "deployments",
        lambda r, s: _live(r, "leak") and s.now - s.row("services", r["service"])["started_at"] > LEAK_MINUTES,
        40,
        6,
        "process was killed: out of memory, the heap of build {version} has grown since its start",
    ),
    Law(
        "settings",
        lambda r, s: r["value"] != r["wanted"] and r["name"] != "pool_size",
        35,
        3,
        "{name}={value}: operation failed",
    ),
    Law("flags", lambda r, s: r["defect"] and r["enabled"], 30, 1, "code behind the flag {name} raised an error"),
    Law(
        "certificates",
        lambda r, s: r["expires_at"] <= s.now,
        100,
        1,
        "TLS handshake for {host} failed: certificate has expired",
    ),
    Law("credentials", lambda r, s: r["expires_at"] <= s.now, 80, 1, "401 from {target}: the credential has expired"),
    Law("queues", lambda r, s: not r["consuming"], 20, 5, "queue {name}: nothing is consumed, messages pile up"),
    Law(
        "queues",
        lambda r, s: bool(r["poison"]),
        30,
        4,
        "queue {name}: message {poison} cannot be parsed and is delivered again",
    ),
    Law(
        "disks",
        lambda r, s: used_gb(r, s.now) >= r["size_gb"],
        70,
        2,
        "write to {mount} failed: no space left on device",
    ),
    Law(
        "jobs",
        lambda r, s: r["enabled"] and r["schedule"] != r["wanted"],
        10,
        6,
        "job {name} starts while its last run still runs",
    ),
    Law(
        "limits",
        lambda r, s: r["per_minute"] < r["wanted"],
        30,
        1,
        "429 Too Many Requests, limit is {per_minute} a minute",
    ),
    Law(
        "records",
        lambda r, s: r["address"] != s.row("services", r["service"])["address"],
        100,
        1,
        "no request arrives; {name} is resolved to {address}",
    ),
    Law("nodes", lambda r, s: r["faulty"] and r["serving"], 33, 2, "I/O error on node {name}"),
    Law("databases", lambda r, s: not r["primary_ok"], 100, 1, "primary {primary_node} does not answer"),
    Law(
        "databases",
        lambda r, s: s.connections(r["service"]) > r["max_connections"],
        55,
        3,
        "too many connections, {max_connections} are allowed",
    ),
    Law(
        "databases",
        lambda r, s: r["lost_s"] > 0,
        60,
        1,
        "the last {lost_s} s of writes are lost, rows are inconsistent",
    ),
)
