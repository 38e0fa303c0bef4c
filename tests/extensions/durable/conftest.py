"""Servers of databases for the stores of durable sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from database_servers import PostgresServer, RedisServer, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that runs."""
    with running(PostgresServer()) as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A server that runs."""
    with running(RedisServer()) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The address of an empty store in Postgres."""
    import psycopg

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS mcpenv_durable CASCADE")
    return postgres.url


@pytest.fixture
def redis_url(redis: RedisServer) -> str:
    """The address of an empty store in Redis."""
    assert redis.ask("FLUSHALL") == "+OK"
    return redis.url


@pytest.fixture(
    params=["folder", pytest.param("postgres", marks=pytest.mark.world), pytest.param("redis", marks=pytest.mark.world)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "folder":
        return str(tmp_path / "store")
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
