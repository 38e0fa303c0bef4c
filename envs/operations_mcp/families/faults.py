"""The kinds of faults, as a table: what they spoil, how they are found, and how they are mended."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcpenv.extensions.generated_worlds import Call, Changes, NoCase, Row, call

from .. import names
from ..health import System
from .case import READ_POLICY, Broken, Case, becomes

Mend = tuple[list[Call], Changes]
"""The calls that mend a fault, and their changes."""

NODES = ("app", "edge")


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: unique.
        table: where its cause is.
        fits: True if a row can be broken.
        spoil: the columns that are wrong from a time on.
        look: the tool that shows the cause, by service.
        mend: how it is mended, with what must be read for it.
        told: the request if its cause is known, with columns of the row and ``name`` of the service; "" if never.
        at: the column with the service that is at fault.
        felt: the service that suffers first; None for the one at fault.
        tags: what makes it hard.
    """

    name: str
    table: str
    fits: Callable[[Case, Row], bool]
    spoil: Callable[[Case, Row, int], Broken]
    look: str
    mend: Callable[[Case, Row], Mend]
    told: str = ""
    at: str = "service"
    felt: Callable[[Case, Row], int] | None = None
    tags: tuple[str, ...] = ()


def _kind(*kinds: str) -> Callable[[Case, Row], bool]:
    return lambda c, r: c.row("services", int(r["service"]))["kind"] in kinds


def _always(c: Case, r: Row) -> bool:
    return True


def _by(c: Case, at: int) -> Broken:
    return {"changed_at": at, "changed_by": c.somebody()}


def _set(c: Case, table: str, row: Row, tool: str, arguments: dict[str, Any], **columns: Any) -> Mend:
    """Return a mend by one call that also notes who changed what."""
    noted = {"changed_at": 0, "changed_by": c.user["id"]} if "changed_by" in row else {}
    return [call(tool, **arguments)], becomes(table, row, **columns, **noted)


def _roll_back(c: Case, row: Row) -> Mend:
    service = c.row("services", row["service"])
    before = [each for each in c.rows("deployments", service=service["id"]) if each["status"] == "previous"][-1]
    calls, changes = c.approved(service["id"], "rollback") if service["tier"] == 1 else ([], [])
    changes = [
        *changes,
        *becomes("deployments", row, status="rolled back"),
        *becomes("deployments", before, status="live"),
        *becomes("services", service, started_at=0),
    ]
    return [*READ_POLICY, *calls, call("roll_back", service=service["name"])], changes


def _leak(c: Case, row: Row, at: int) -> Broken:
    service = c.row("services", row["service"])
    c.change("services", service["id"], started_at=at - 25)
    return {"defect": "leak", "at": at - 25}


def _setting(c: Case, row: Row, value: str) -> Mend:
    arguments = {"service": c.name(row["service"]), "name": row["name"], "value": value}
    return _set(c, "settings", row, "set_setting", arguments, value=value, previous=row["value"])


def _spoilt(c: Case, row: Row, at: int) -> Broken:
    return {"value": c.say(*names.SPOILT[row["name"]]), "previous": row["value"], **_by(c, at)}


def _spoilt_twice(c: Case, row: Row, at: int) -> Broken:
    value, previous = c.rng.sample(names.SPOILT[row["name"]], 2)
    return {"value": value, "previous": previous, **_by(c, at)}


def _by_runbook(c: Case, row: Row) -> Mend:
    wrong = c.say(*(value for value in names.SETTINGS[row["name"]] if value != row["wanted"]))
    reading = c.figures(row["service"], f"The setting {row['name']}", row["wanted"], wrong)
    calls, changes = _setting(c, row, row["wanted"])
    return [*reading, *calls], changes


def _memory(c: Case, row: Row) -> Mend:
    right = c.rng.randrange(row["needs_mb"] + 50, row["needs_mb"] + 1500, 10)
    reading = c.figures(row["id"], "The limit of memory in MB", right, right - 40)
    calls = [call("set_memory", service=row["name"], memory_mb=right)]
    return [*reading, *calls], becomes("services", row, memory_mb=right)


def _more_traffic(c: Case, row: Row, at: int) -> Broken:
    return {"traffic": row["replicas"] * row["capacity"] * c.rng.randint(115, 170) // 100}


def _scale(c: Case, row: Row) -> Mend:
    replicas = math.ceil(row["traffic"] * 100 / (row["capacity"] * c.policy.load))
    tables = {**c.tables, "services": {**c.tables["services"], row["id"]: {**row, "replicas": replicas}}}
    crowded = any("too many connections" in each for m in System(tables, c.now).measures().values() for each in m.lines)
    if replicas > row["max_replicas"] or crowded:
        raise NoCase
    return [*READ_POLICY, call("scale_service", service=row["name"], replicas=replicas)], becomes(
        "services", row, replicas=replicas
    )


def _queue(tool: str) -> Callable[[Case, Row], Mend]:
    def mend(c: Case, row: Row) -> Mend:
        loose = becomes("queues", row, depth=0, since=0)
        if tool == "resume_queue":
            return [call(tool, queue=row["id"])], [*becomes("queues", row, consuming=1), *loose]
        calls = [call("get_queue", queue=row["id"]), call(tool, queue=row["id"], message=row["poison"])]
        return [*READ_POLICY, *calls], [*becomes("queues", row, poison=""), *loose]

    return mend


def _fill(c: Case, row: Row, at: int) -> Broken:
    job = c.row("jobs", row["job"])
    c.change("jobs", job["id"], enabled=0, **_by(c, at - 5000))
    return {"used_gb": row["size_gb"], "since": at, "growth": row["size_gb"] // 4}


def _clean(c: Case, row: Row) -> Mend:
    job = c.row("jobs", row["job"])
    noted = {"changed_at": 0, "changed_by": c.user["id"]}
    calls = [call("set_job_enabled", job=job["id"], enabled=True), call("clean_disk", disk=row["id"])]
    left = row["size_gb"] - row["junk_gb"]
    return [*READ_POLICY, *calls], [
        *becomes("disks", row, used_gb=left, junk_gb=0, growth=0, since=0),
        *becomes("jobs", job, enabled=1, **noted),
    ]


def _fail_over(c: Case, row: Row) -> Mend:
    calls, changes = c.approved(row["service"], "failover")
    return [*READ_POLICY, *calls, call("fail_over", service=c.name(row["service"]))], [
        *changes,
        *becomes(
            "databases",
            row,
            primary_node=row["standby"],
            standby=row["primary_node"],
            primary_ok=1,
            failovers=row["failovers"] + 1,
        ),
    ]


def _limit(c: Case, row: Row) -> Mend:
    right = int(row["wanted"])
    what = f"The limit a minute for {c.name(row['service'])}"
    reading = c.figures(row["limiter"], what, right, right + 300)
    calls, changes = _set(
        c, "limits", row, "set_rate_limit", {"limit": row["id"], "per_minute": right}, per_minute=right
    )
    return [*reading, *calls], changes


def _pool_database(c: Case, row: Row) -> int:
    needed = [link["needs"] for link in c.rows("links", service=row["service"])]
    return int(next(key for key in needed if c.row("services", key)["kind"] == "database"))


def _fallback_link(c: Case, row: Row) -> Row:
    return c.pick(link for link in c.rows("links", needs=row["id"]) if link["fallback"])


def _fall_back(c: Case, row: Row) -> Mend:
    flag = c.row("flags", _fallback_link(c, row)["fallback"])
    calls, changes = _set(c, "flags", flag, "set_flag", {"flag": flag["id"], "enabled": True}, enabled=1)
    looks = [call("list_flags", service=c.name(flag["service"]))]
    return [*READ_POLICY, *looks, *calls], changes


FAULTS = (
    Fault(
        "bad-deployment",
        "deployments",
        lambda c, r: r["status"] == "live" and _kind(*NODES)(c, r),
        lambda c, r, at: {"defect": "errors", "at": at},
        "list_deployments",
        _roll_back,
        "Version {version} of {name} fails. Roll it back",
    ),
    Fault(
        "memory-leak",
        "deployments",
        lambda c, r: r["status"] == "live" and _kind(*NODES)(c, r),
        _leak,
        "list_deployments",
        _roll_back,
        tags=("worse",),
    ),
    Fault(
        "bad-setting",
        "settings",
        lambda c, r: r["name"] in names.SPOILT,
        _spoilt,
        "list_settings",
        lambda c, r: _setting(c, r, r["previous"]),
        "The setting {name_} of {name} is wrong. Set it to {previous}",
    ),
    Fault(
        "setting-by-runbook",
        "settings",
        lambda c, r: r["name"] in ("timeout_ms", "retries", "batch_size", "cache_ttl_s"),
        _spoilt_twice,
        "list_settings",
        _by_runbook,
        tags=("runbook", "worse"),
    ),
    Fault(
        "bad-flag",
        "flags",
        lambda c, r: "-without-" not in r["name"],
        lambda c, r, at: {"enabled": 1, "defect": 1, **_by(c, at)},
        "list_flags",
        lambda c, r: _set(c, "flags", r, "set_flag", {"flag": r["id"], "enabled": False}, enabled=0),
        "Turn off the flag {name_} of {name}: its code fails",
    ),
    Fault(
        "expired-certificate",
        "certificates",
        _always,
        lambda c, r, at: {"expires_at": at},
        "list_certificates",
        lambda c, r: _set(
            c,
            "certificates",
            r,
            "renew_certificate",
            {"certificate": r["id"]},
            expires_at=0,
            renewals=r["renewals"] + 1,
        ),
        "The certificate of {host}, which is {name}'s, has expired. Renew it",
    ),
    Fault(
        "expired-credential",
        "credentials",
        _always,
        lambda c, r, at: {"expires_at": at},
        "list_credentials",
        lambda c, r: _set(
            c,
            "credentials",
            r,
            "rotate_credential",
            {"credential": r["id"]},
            expires_at=0,
            rotations=r["rotations"] + 1,
        ),
        "{name} cannot sign in: its {target} has expired. Rotate it",
    ),
    Fault(
        "hung-service",
        "services",
        lambda c, r: r["kind"] in NODES,
        lambda c, r, at: {"stuck": 1},
        "get_service",
        lambda c, r: (
            [call("restart_service", service=r["name"])],
            becomes("services", r, stuck=0, restarts=r["restarts"] + 1, started_at=0),
        ),
        "{name} hangs. Restart it",
        at="id",
    ),
    Fault(
        "stopped-service",
        "services",
        lambda c, r: r["kind"] in NODES,
        lambda c, r, at: {"state": "stopped"},
        "get_service",
        lambda c, r: (
            [call("start_service", service=r["name"])],
            becomes("services", r, state="running", started_at=0),
        ),
        "Somebody has stopped {name}. Start it",
        at="id",
    ),
    Fault(
        "out-of-memory",
        "services",
        lambda c, r: r["kind"] in NODES,
        lambda c, r, at: {"memory_mb": r["needs_mb"] // 2},
        "get_service",
        _memory,
        at="id",
        tags=("runbook",),
    ),
    Fault(
        "too-few-replicas",
        "services",
        lambda c, r: r["kind"] in NODES,
        _more_traffic,
        "get_service",
        _scale,
        at="id",
        tags=("worse",),
    ),
    Fault(
        "paused-queue",
        "queues",
        _always,
        lambda c, r, at: {"consuming": 0, "since": at},
        "list_queues",
        _queue("resume_queue"),
        "The queue {name_} of {name} is paused. Resume it",
    ),
    Fault(
        "poisoned-queue",
        "queues",
        _always,
        lambda c, r, at: {"poison": f"m-{c.rng.randint(10_000, 99_999)}", "since": at},
        "list_queues",
        _queue("discard_message"),
        tags=("worse",),
    ),
    Fault("full-disk", "disks", _kind(*NODES, "database"), _fill, "list_disks", _clean, tags=("worse",)),
    Fault(
        "wrong-record",
        "records",
        _always,
        lambda c, r, at: {"address": f"10.{c.rng.randint(100, 199)}.{c.rng.randint(0, 254)}.9", **_by(c, at)},
        "list_dns_records",
        lambda c, r: _set(
            c,
            "records",
            r,
            "set_dns_record",
            {"record": r["id"], "address": c.row("services", r["service"])["address"]},
            address=c.row("services", r["service"])["address"],
        ),
        "The DNS record {name_} of {name} is wrong. Set it to the address that {name} has",
    ),
    Fault(
        "faulty-node",
        "nodes",
        _always,
        lambda c, r, at: {"faulty": 1},
        "list_nodes",
        lambda c, r: ([call("drain_node", node=r["id"])], becomes("nodes", r, serving=0)),
        "The node {name_} of {name} is faulty. Drain it",
    ),
    Fault(
        "dead-primary",
        "databases",
        _always,
        lambda c, r, at: {"primary_ok": 0, "lag_s": c.rng.randint(0, c.policy.lag_s)},
        "get_database",
        _fail_over,
        "The primary of {name} is dead and its standby is well. Fail over, as the policy has it",
        tags=("worse",),
    ),
    Fault(
        "hasty-job",
        "jobs",
        lambda c, r: r["enabled"] == 1,
        lambda c, r, at: {"schedule": "* * * * *", **_by(c, at)},
        "list_jobs",
        lambda c, r: _set(
            c,
            "jobs",
            r,
            "set_job_schedule",
            {"job": r["id"], "schedule": r["wanted"]},
            schedule=r["wanted"],
            previous=r["schedule"],
        ),
        "The job {name_} of {name} starts each minute. Give it the schedule {wanted}",
    ),
    Fault(
        "tight-limit",
        "limits",
        _always,
        lambda c, r, at: {"per_minute": r["per_minute"] // 10, **_by(c, at)},
        "list_rate_limits",
        _limit,
        at="limiter",
        felt=lambda c, r: int(r["service"]),
        tags=("runbook",),
    ),
    Fault(
        "greedy-pool",
        "settings",
        lambda c, r: r["name"] == "pool_size",
        lambda c, r, at: {"value": str(c.rng.randrange(400, 900, 50)), "previous": r["value"], **_by(c, at)},
        "list_settings",
        lambda c, r: _setting(c, r, r["previous"]),
        "{name} opens too many connections. Set its pool_size to {previous}",
        felt=_pool_database,
        tags=("worse",),
    ),
    Fault(
        "provider-outage",
        "services",
        lambda c, r: r["kind"] == "provider" and any(x["fallback"] for x in c.rows("links", needs=r["id"])),
        lambda c, r, at: {"stuck": 1},
        "get_service",
        _fall_back,
        at="id",
        felt=lambda c, r: int(_fallback_link(c, r)["service"]),
        tags=("worse",),
    ),
)
"""All kinds of faults."""
