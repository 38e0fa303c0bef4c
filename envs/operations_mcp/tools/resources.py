"""What services use: queues, disks, jobs, databases, certificates, credentials, DNS records and rate limits."""

from __future__ import annotations

import zlib
from typing import Annotated

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from ..health import System, depth, used_gb
from .arguments import AnyService, Id, Rows, Short

YEAR = 365 * 1440


class QueueTools:
    """Tools of queues."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_queues,
            self.get_queue,
            self.pause_queue,
            self.resume_queue,
            self.discard_message,
            self.purge_queue,
        )

    def list_queues(self, service: AnyService = None) -> Rows:
        """List the queues that a service consumes, or all: producer, messages that wait, whether it is consumed."""
        key = None if service is None else self.desk.service(service)["id"]
        return [self._shown(row) for row in self.desk.find("queues", service=key)]

    def get_queue(self, queue: Id) -> Row:
        """Show a queue with its oldest message, and how often that was delivered."""
        row = self.desk.row("queues", queue)
        number = zlib.crc32(f"{row['name']}/{self.desk.now}".encode()) % 90_000
        head = row["poison"] or f"m-{number}"
        return {**self._shown(row), "oldest_message": head, "deliveries": 57 if row["poison"] else 1}

    def pause_queue(self, queue: Id) -> Row:
        """Stop consuming a queue. Its messages wait."""
        return self._set(queue, consuming=0)

    def resume_queue(self, queue: Id) -> Row:
        """Consume a queue again."""
        return self._set(queue, consuming=1)

    def discard_message(self, queue: Id, message: Annotated[str, Field(min_length=1, max_length=40)]) -> Row:
        """Delete the oldest message of a queue for good. Name it as get_queue shows it."""
        shown = self.get_queue(queue)
        if message.strip() != shown["oldest_message"]:
            raise ToolError(f"The oldest message of queue {queue} is {shown['oldest_message']!r}. Name that one.")
        row = self.desk.row("queues", queue)
        return self._set(queue, poison="", lost=row["lost"] + (not row["poison"]))

    def purge_queue(self, queue: Id) -> Row:
        """Delete all messages of a queue for good."""
        row = self.desk.row("queues", queue)
        lost = row["lost"] + depth(row, self.desk.now)
        return self.desk.done(self.desk.update("queues", queue, poison="", depth=0, since=self.desk.now, lost=lost))

    def _set(self, queue: int, **columns: object) -> Row:
        now = self.desk.now
        waiting = depth(self.desk.row("queues", queue), now)
        self.desk.update("queues", queue, depth=waiting, since=now, **columns)
        self.desk.tick()
        return self._shown(self.desk.row("queues", queue))

    def _shown(self, row: Row) -> Row:
        return {**self.desk.public(row), "depth": depth(row, self.desk.now)}


class DiskTools:
    """Tools of disks and of the jobs that keep them clean, among others."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_disks,
            self.clean_disk,
            self.grow_disk,
            self.list_jobs,
            self.set_job_schedule,
            self.set_job_enabled,
        )

    def list_disks(self, service: AnyService = None) -> Rows:
        """List the disks of a service, or of all, with the id of the job that cleans each."""
        key = None if service is None else self.desk.service(service)["id"]
        return [self._shown(row) for row in self.desk.find("disks", service=key)]

    def clean_disk(self, disk: Id) -> Row:
        """Delete old logs and temporary files from a disk."""
        row = self.desk.row("disks", disk)
        used = used_gb(row, self.desk.now)
        self.desk.update("disks", disk, used_gb=max(0, used - row["junk_gb"]), junk_gb=0, since=self.desk.now)
        self.desk.tick()
        return self._shown(self.desk.row("disks", disk))

    def grow_disk(self, disk: Id, size_gb: Annotated[int, Field(ge=1, le=10_000, examples=[5000])]) -> Row:
        """Make a disk larger. It can never be made smaller again."""
        if size_gb <= (size := self.desk.row("disks", disk)["size_gb"]):
            raise ToolError(f"Disk {disk} has {size} GB. Name a larger size.")
        self.desk.update("disks", disk, size_gb=size_gb)
        self.desk.tick()
        return self._shown(self.desk.row("disks", disk))

    def list_jobs(self, service: AnyService = None) -> Rows:
        """List the jobs of a service, or of all: schedule as in cron, the schedule before, whether it is on."""
        return self.desk.shown_of("jobs", service)

    def set_job_schedule(
        self, job: Id, schedule: Annotated[str, Field(min_length=9, max_length=60, examples=["15 2 * * *"])]
    ) -> Row:
        """Change when a job runs, in the five fields of cron."""
        new = " ".join(schedule.split())
        if len(new.split()) != 5:
            raise ToolError(f"{schedule[:40]!r} has not five fields. Write it as '15 2 * * *'.")
        return self._job(job, schedule=new, previous=self.desk.row("jobs", job)["schedule"])

    def set_job_enabled(self, job: Id, enabled: bool) -> Row:
        """Turn a job on or off. A disk fills while its clean-up job is off."""
        for disk in self.desk.find("disks", job=job):
            now = self.desk.now
            growth = 0 if enabled else disk["size_gb"] // 4
            self.desk.update("disks", disk["id"], used_gb=used_gb(disk, now), since=now, growth=growth)
        return self._job(job, enabled=int(enabled))

    def _job(self, job: int, **columns: object) -> Row:
        return self.desk.done(
            self.desk.update("jobs", job, **columns, changed_at=self.desk.now, changed_by=self.desk.user)
        )

    def _shown(self, row: Row) -> Row:
        return {**self.desk.public(row), "used_gb": used_gb(row, self.desk.now)}


class DatabaseTools:
    """Tools of databases."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.list_databases, self.get_database, self.fail_over)

    def list_databases(self) -> Rows:
        """List the databases with their nodes, the lag of the standby in seconds, and allowed connections."""
        return self.desk.shown_of("databases")

    def get_database(
        self, service: Annotated[str, Field(max_length=60, description="Its service, of kind database")]
    ) -> Row:
        """Show a database with the connections that its users may open: pool_size times replicas of each."""
        row = self._of(service)
        tables = {
            table: {each["id"]: dict(each) for each in self.desk.db.execute(f"SELECT * FROM {table}")}
            for table in ("links", "settings", "services")
        }
        used = System(tables, self.desk.now).connections(row["service"])
        return {**self.desk.public(row), "connections": used}

    def fail_over(
        self, service: Annotated[str, Field(max_length=60, description="Its service, of kind database")]
    ) -> Row:
        """Make the standby of a database its primary. Writes that the standby has not got yet are lost."""
        row = self._of(service)
        return self.desk.done(
            self.desk.update(
                "databases",
                row["id"],
                primary_node=row["standby"],
                standby=row["primary_node"],
                primary_ok=1,
                failovers=row["failovers"] + 1,
                lost_s=row["lag_s"] if row["lag_s"] > 10 else 0,
            )
        )

    def _of(self, service: str) -> Row:
        found = self.desk.find("databases", service=self.desk.service(service)["id"])
        if not found:
            raise ToolError(f"{service[:40]} is no database. list_databases has them.")
        return found[0]


class SecurityTools:
    """Tools of certificates and credentials."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.list_certificates, self.renew_certificate, self.list_credentials, self.rotate_credential)

    def list_certificates(self, service: AnyService = None) -> Rows:
        """List the certificates of a service, or of all, with the time when each expires."""
        return self.desk.shown_of("certificates", service)

    def renew_certificate(self, certificate: Id) -> Row:
        """Renew a certificate for a year."""
        renewals = self.desk.row("certificates", certificate)["renewals"] + 1
        expiry = self.desk.now + YEAR
        return self.desk.done(self.desk.update("certificates", certificate, expires_at=expiry, renewals=renewals))

    def list_credentials(self, service: AnyService = None) -> Rows:
        """List the credentials with which a service, or all, sign in elsewhere, and when each expires."""
        return self.desk.shown_of("credentials", service)

    def rotate_credential(self, credential: Id) -> Row:
        """Replace a credential by a new one that is valid for a year."""
        rotations = self.desk.row("credentials", credential)["rotations"] + 1
        expiry = self.desk.now + YEAR
        return self.desk.done(self.desk.update("credentials", credential, expires_at=expiry, rotations=rotations))


class NetworkTools:
    """Tools of DNS records and rate limits."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.list_dns_records, self.set_dns_record, self.list_rate_limits, self.set_rate_limit)

    def list_dns_records(self, service: AnyService = None) -> Rows:
        """List the DNS records of a service, or of all. get_service has the address that a service really has."""
        return self.desk.shown_of("records", service)

    def set_dns_record(self, record: Id, address: Short) -> Row:
        """Change the address of a DNS record."""
        now, user = self.desk.now, self.desk.user
        return self.desk.done(
            self.desk.update("records", record, address=address.strip(), changed_at=now, changed_by=user)
        )

    def list_rate_limits(self, service: AnyService = None) -> Rows:
        """List rate limits: the requests a minute that a service may send to the limiter, a service that it calls."""
        return self.desk.shown_of("limits", service)

    def set_rate_limit(self, limit: Id, per_minute: Annotated[int, Field(ge=1, le=1_000_000)]) -> Row:
        """Change a rate limit."""
        now, user = self.desk.now, self.desk.user
        return self.desk.done(self.desk.update("limits", limit, per_minute=per_minute, changed_at=now, changed_by=user))
