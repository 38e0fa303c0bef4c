"""Define `PostgresWorld`, a database made from a template database. Needs psycopg: ``mcpenv[postgres]``."""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from typing import Any, LiteralString
from urllib.parse import quote, urlencode

from mcpenv.errors import WorldUnreadable
from mcpenv.worlds.world import Tree, free_key, left_of_capture
from mcpenv_client.errors import NotSupported

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.rows import tuple_row
except ImportError as error:
    raise ImportError("PostgresWorld needs psycopg: pip install 'mcpenv[postgres]'") from error

LOCK_MS = 30_000
"""Maximum milliseconds that a capture waits for a lock, which an agent's connection may hold."""

_TABLES = """
    SELECT c.oid, n.nspname, c.relname
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
        AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
    ORDER BY n.nspname <> 'public', n.nspname, c.relname
"""

_KEY = """
    SELECT a.attname FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indkey) WITH ORDINALITY k(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attnum = k.number
    WHERE i.indrelid = %(table)s AND i.indisprimary AND a.attrelid = %(table)s ORDER BY k.place
"""


class PostgresWorld:
    """A Postgres database of one instance. `reset` drops it, and recreates it from a template database.

    Captured as ``{table: {primary key: {column: value}}}``, with ``schema.table`` for schemas other than "public". The
    columns of a compound key are joined by ",". A table without a key is keyed by all of its columns. Keys of the same
    text get the suffixes "#2", "#3". Bytes are base64 text, times ISO 8601 in UTC. Uncommitted changes are not
    captured. Sequences are not captured.

    A snapshot cannot include it: its state is in a server.

    Args:
        server: the address of the server, as libpq takes it, for a role that may create databases:
            "postgresql://admin@localhost/postgres".
        template: the name of the template database. No client may be connected to it during a reset.
        name: the name of the database; None for a random one that begins with "mcpenv_". A database of that name is
            dropped.
        ignore: tables that are not part of the state.

    Attributes:
        name: the name of the database.
    """

    def __init__(self, server: str, template: str, *, name: str | None = None, ignore: Iterable[str] = ()) -> None:
        self.name = name if name is not None else f"mcpenv_{secrets.token_hex(8)}"
        self._server = server
        self._template = template
        self._ignore = frozenset(ignore)

    def address(self, user: str | None = None, password: str | None = None) -> str:
        """Return the URL of the database.

        Args:
            user: the role; None for the role in the server's address. Give agents a role that owns nothing else.
            password: its password.
        """
        parts = {**conninfo_to_dict(self._server), "dbname": self.name}
        if user is not None:
            parts = {name: value for name, value in parts.items() if name not in ("user", "password")} | {"user": user}
        if password is not None:
            parts["password"] = password
        who = quote(str(parts.pop("user", "")), safe="")
        secret = parts.pop("password", None)
        if secret is not None:
            who += f":{quote(str(secret), safe='')}"
        host, port = str(parts.pop("host", "")), parts.pop("port", None)
        if host.startswith("/"):  # the folder of a Unix socket is no name of a host
            parts["host"], host = host, ""
        database = quote(str(parts.pop("dbname")), safe="")
        where = f"{who}@" if who else ""
        query = f"?{urlencode(parts, quote_via=quote)}" if parts else ""
        return f"postgresql://{where}{host}{f':{port}' if port else ''}/{database}{query}"

    def reset(self) -> None:
        """Recreate the database. All its connections are closed.

        Raises:
            psycopg.Error: the server refuses, or a client is connected to the template.
        """
        self._command("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)
        self._command("CREATE DATABASE {} TEMPLATE {}", self.name, self._template)

    def close(self) -> None:
        """Drop the database."""
        self._command("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)

    def capture(self) -> Tree:
        """Return all committed rows of every table, read in one transaction.

        Raises:
            WorldUnreadable: the content cannot be read, such as a date after the year 9999, or a lock is not released.
            psycopg.Error: the server failed.
        """
        try:
            return self._tables()
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError) and not isinstance(error, psycopg.errors.LockNotAvailable):
                raise
            raise WorldUnreadable(str(error).strip()) from error

    def _tables(self) -> Tree:
        with psycopg.connect(make_conninfo(self._server, dbname=self.name), row_factory=tuple_row) as connection:
            # Functions created by an agent must not shadow the server's own.
            connection.execute("SET search_path = pg_catalog; SET row_security = off; SET TIME ZONE 'UTC'")
            left_s = left_of_capture()
            limit_ms = LOCK_MS if left_s is None else min(LOCK_MS, max(int(left_s * 1000), 1))
            connection.execute(sql.SQL("SET lock_timeout = {}").format(limit_ms))
            connection.commit()
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            tree: Tree = {}
            for table, schema, name in connection.execute(_TABLES).fetchall():
                written = name if schema == "public" else f"{schema}.{name}"
                if written not in self._ignore:
                    tree[written] = _rows(connection, table, schema, name)
            return tree

    def save(self) -> bytes:
        """Raise: the state is in a database server.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(
            "a PostgresWorld cannot be saved: its state is in a database server. Reset the episode and call its tools "
            "again, or keep the state in SQLite"
        )

    def load(self, saved: bytes) -> None:
        """Raise, as `save` does.

        Raises:
            NotSupported: always.
        """
        self.save()

    def held(self) -> tuple[object, ...]:
        """Return nothing: the database is known by its name."""
        return ()

    def _command(self, command: LiteralString, *names: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL(command).format(*map(sql.Identifier, names)))


def _rows(connection: psycopg.Connection[tuple[Any, ...]], table: int, schema: str, name: str) -> Tree:
    key = [column for (column,) in connection.execute(_KEY, {"table": table}).fetchall()]
    found = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, name)))
    columns = [column.name for column in found.description or ()]
    rows = [dict(zip(columns, map(_plain, row), strict=True)) for row in found]
    keyed = [(",".join(str(row[column]) for column in key or columns), row) for row in rows]
    tree: Tree = {}
    for written, row in sorted(keyed, key=lambda each: each[0]):
        tree[free_key(written, tree)] = row
    return tree


def _plain(value: Any) -> Any:
    """Return a value of a column as plain JSON data."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Decimal):
        if value.is_finite() and value == value.to_integral_value():
            return int(value)
        value = float(value) if value.is_finite() else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | memoryview):
        return base64.urlsafe_b64encode(bytes(value)).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return str(value)
