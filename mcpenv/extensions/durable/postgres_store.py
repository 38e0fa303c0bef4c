"""The store in a Postgres database. Needs psycopg: ``mcpenv[postgres]``."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mcpenv.errors import ConfigurationError

from .sql_store import SIZE, Execute, SqlStore
from .store import StoreError, shown

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.rows import tuple_row
except ImportError as error:
    raise ConfigurationError("a Postgres store needs psycopg: pip install 'mcpenv[postgres]'") from error

SCHEMA = "mcpenv_durable"
"""The schema of the tables."""

# A lock, because two servers that start at once cannot both create what does not exist.
_CREATE = f"""
BEGIN;
SELECT pg_advisory_xact_lock(hashtext('{SCHEMA}'));
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.owners (id TEXT PRIMARY KEY, until DOUBLE PRECISION NOT NULL);
CREATE TABLE IF NOT EXISTS {SCHEMA}.sessions (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL, environment TEXT NOT NULL, handle TEXT NOT NULL, address TEXT NOT NULL,
    header BYTEA NOT NULL, over BOOLEAN NOT NULL, owner TEXT, fence BIGINT NOT NULL, steps BIGINT NOT NULL,
    updated DOUBLE PRECISION NOT NULL, wanted BOOLEAN NOT NULL DEFAULT FALSE, bytes BIGINT NOT NULL DEFAULT 0
);
ALTER TABLE {SCHEMA}.sessions ADD COLUMN IF NOT EXISTS bytes BIGINT NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS by_handle ON {SCHEMA}.sessions (handle);
CREATE INDEX IF NOT EXISTS by_owner ON {SCHEMA}.sessions (owner);
CREATE INDEX IF NOT EXISTS by_end ON {SCHEMA}.sessions (over) WHERE over;
CREATE INDEX IF NOT EXISTS by_time ON {SCHEMA}.sessions (updated);
CREATE TABLE IF NOT EXISTS {SCHEMA}.entries (
    session TEXT NOT NULL, number BIGINT NOT NULL, body BYTEA, request_id TEXT, digest BYTEA, reply TEXT,
    PRIMARY KEY (session, number)
);
SET LOCAL search_path TO {SCHEMA};
UPDATE sessions SET bytes = ({SIZE}) WHERE bytes = 0;
COMMIT;
"""

_EXISTS = (
    "SELECT EXISTS (SELECT 1 FROM information_schema.columns "
    f"WHERE table_schema = '{SCHEMA}' AND table_name = 'sessions' AND column_name = 'bytes')"
)  # a table of an earlier version has no such column
_NOW = "extract(epoch FROM clock_timestamp())::float8"

# Of a server that does not answer any more. What the URL says has precedence.
_CONNECTION = {
    "connect_timeout": "5", "tcp_user_timeout": "5000", "keepalives_idle": "5", "keepalives_interval": "2",
    "keepalives_count": "3", "application_name": "mcpenv",
}  # fmt: skip


class PostgresStore(SqlStore):
    """A store in a Postgres database.

    It has one connection, and makes another one at the next call after that was lost.

    Args:
        place: its URL, with the parameters that libpq takes.
        make: False: the tables must exist.
    """

    LOCK = " FOR UPDATE"

    def __init__(self, place: str, *, make: bool = True) -> None:
        try:
            given = conninfo_to_dict(place)
        except psycopg.Error:
            # Its text has parts of the URL, which may be those of a password.
            raise ConfigurationError(
                f"--durable {shown(place)}: that is no URL of Postgres, or a parameter in it is none"
            ) from None
        self._place = place
        self._server = make_conninfo("", **{**_CONNECTION, **given})
        self._make = make
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        super().__init__()

    @contextmanager
    def _reading(self) -> Iterator[Execute]:
        try:
            connection = self._connected()

            def execute(statement: str, parameters: tuple[Any, ...]) -> psycopg.Cursor[tuple[Any, ...]]:
                text = statement.replace("now_s()", _NOW).replace("?", "%s")
                return connection.execute(text.encode(), parameters)

            yield execute
        except psycopg.Error as error:
            if self._connection is not None and self._connection.closed:
                self._connection = None
            raise StoreError(str(error).strip()) from error

    @contextmanager
    def _changing(self) -> Iterator[Execute]:
        with self._reading() as execute:
            assert self._connection is not None
            with self._connection.transaction():
                yield execute

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            connection = psycopg.connect(self._server, autocommit=True, row_factory=tuple_row)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.execute(f"SET search_path TO {SCHEMA}".encode())
        (exists,) = connection.execute(_EXISTS.encode()).fetchone() or (False,)
        if exists:
            return
        if not self._make:
            raise ConfigurationError(f"{shown(self._place)}: there is no store of durable sessions")
        connection.execute(_CREATE.encode())

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _abort(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
