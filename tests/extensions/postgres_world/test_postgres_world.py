"""The Postgres world, with a real server from Debian."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from database_servers import PostgresServer, running

from mcpenv import REMOVED, Changes, Evidence, MCPEnvironment, NotSupported, Verdict

pytestmark = pytest.mark.world


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Run a server of its own, and return its address."""
    with running(PostgresServer()) as found:
        yield found.url


@pytest.fixture(scope="module")
def template(server: str) -> str:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    with psycopg.connect(server.replace("/postgres?", "/shop?")) as connection:
        connection.execute(
            """
            CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance numeric(10,2));
            CREATE TABLE rates ("from" text, "to" text, rate float, PRIMARY KEY ("from", "to"));
            CREATE TABLE notes (text text, data jsonb, at timestamptz, raw bytea, tags text[]);
            CREATE SCHEMA staff; CREATE TABLE staff.people (name text PRIMARY KEY);
            CREATE TABLE parts (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
            CREATE TABLE parts_one PARTITION OF parts FOR VALUES FROM (0) TO (10);
            INSERT INTO accounts VALUES (1, 'Al', 10.50), (2, 'Bo', 5);
            INSERT INTO rates VALUES ('EUR', 'USD', 1.1), ('a,b', 'c', 'NaN');
            INSERT INTO notes VALUES ('x', '{"a": [1, null]}', '2020-01-01T02:00:00+02', '\\x00ff', '{p,q}');
            INSERT INTO notes SELECT * FROM notes;
            INSERT INTO staff.people VALUES ('Cy');
            INSERT INTO parts VALUES (7, 1);
            """
        )
    return "shop"


@pytest.fixture
def world(server: str, template: str) -> Iterator[Any]:
    from mcpenv.extensions.postgres_world.world import PostgresWorld

    made = PostgresWorld(server, template, ignore=("parts",))
    made.reset()
    yield made
    made.close()


def run(world: Any, command: str) -> None:
    import psycopg

    with psycopg.connect(world.address()) as connection:
        connection.execute(command)


def test_a_database_is_seen_by_table_key_and_column(server: str, template: str, world: Any) -> None:
    from mcpenv.extensions.postgres_world.world import PostgresWorld

    note = {"text": "x", "data": {"a": [1, None]}, "at": "2020-01-01T00:00:00+00:00", "raw": "AP8=", "tags": ["p", "q"]}
    seen = world.capture()
    notes = seen.pop("notes")
    assert list(notes.values()) == [note, note] and next(reversed(notes)).endswith("#2")
    assert seen == {
        "accounts": {
            "1": {"id": 1, "owner": "Al", "balance": 10.5},
            "2": {"id": 2, "owner": "Bo", "balance": 5},
        },
        "rates": {
            "EUR,USD": {"from": "EUR", "to": "USD", "rate": 1.1},
            "a,b,c": {"from": "a,b", "to": "c", "rate": "nan"},
        },
        "staff.people": {"Cy": {"name": "Cy"}},
    }
    assert PostgresWorld(server, template, name=world.name).capture()["parts"] == {"7,1": {"id": 7, "at": 1}}


def test_a_reset_puts_the_template_back_under_open_connections(world: Any) -> None:
    import psycopg

    before = world.capture()
    with psycopg.connect(world.address()) as connection:
        connection.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
        assert world.capture() == before  # it is not committed
        connection.commit()
        assert [str(change) for change in Changes(before, world.capture())] == [
            "accounts/1/balance changed from 10.5 to 0"
        ]
        world.reset()
        assert world.capture() == before
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_functions_that_an_agent_made_are_not_run(world: Any) -> None:
    before = world.capture()
    run(
        world,
        """
        CREATE FUNCTION public.unnest(int2vector) RETURNS SETOF int LANGUAGE sql AS 'SELECT 1/0';
        CREATE FUNCTION fail() RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''ran''; END';
        ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
        CREATE POLICY p ON accounts USING (fail());
        """,
    )
    assert world.capture() == before


def test_twenty_databases_share_nothing(server: str, template: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from mcpenv.extensions.postgres_world.world import PostgresWorld

    def episode(number: int) -> list[str]:
        world = PostgresWorld(server, template)
        try:
            world.reset()
            before = world.capture()
            run(world, f"INSERT INTO staff.people VALUES ('{number}')")
            return [change.where for change in Changes(before, world.capture())]
        finally:
            world.close()

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(episode, range(20))) == [[f"staff.people/{number}"] for number in range(20)]


def test_a_snapshot_says_why_it_cannot_be(world: Any) -> None:
    class Shop(MCPEnvironment):
        """A shop."""

        def __init__(self) -> None:
            self.world = world

            @self.tool
            def pay(amount: int) -> str:
                """Pay."""
                run(world, f"UPDATE accounts SET balance = balance - {amount} WHERE id = 1")
                return "paid"

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
            world.reset()

        def verify(self, evidence: Evidence) -> Verdict:
            return evidence.changes.expect_exactly({"accounts/1/balance": 7.5})

    with Shop() as env:
        for amount, reward in ((3, 1.0), (4, 0.0)):
            env.reset()
            env.call_tool("pay", {"amount": amount})
            with pytest.raises(NotSupported, match="its state is in a database server"):
                env.snapshot()
            assert env.end().reward == reward


def test_a_proxied_server_works_on_a_database_that_a_reset_makes_anew(
    server: str, template: str, tmp_path: Path
) -> None:
    from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
    from mcpenv.extensions.postgres_world.world import PostgresWorld

    program = tmp_path / "shop.py"
    program.write_text(
        "import os, psycopg\n"
        "from fastmcp import FastMCP\n"
        "server = FastMCP('shop')\n"
        "connection = psycopg.connect(os.environ['DATABASE'], autocommit=True)\n"
        "@server.tool\n"
        "def run(command: str) -> str:\n"
        "    'Run SQL.'\n"
        "    return str(connection.execute(command).rowcount)\n"
        "server.run(show_banner=False)\n"
    )
    shared = PostgresWorld(server, template, name="episode")
    shared.reset()
    settings = {"command": sys.executable, "args": [str(program)], "env": {"DATABASE": shared.address()}}

    class Shop(ProxyEnvironment.from_config({"mcpServers": {"shop": settings}})):  # type: ignore[misc]
        """A shop."""

        SUPPORTS_CONCURRENT_SESSIONS = False

        def __init__(self) -> None:
            super().__init__()
            self.world = PostgresWorld(server, template, name="episode")

        async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            await asyncio.to_thread(self.world.reset)
            return await super().reset(seed, episode_id)

        def verify(self, evidence: Evidence) -> Verdict:
            return evidence.changes.expect_exactly({"accounts/1": REMOVED})

    with Shop() as env:
        for _ in range(2):
            env.reset()
            assert env.call_tool("run", {"command": "DELETE FROM accounts WHERE id = 1"}).text == "1"
            assert env.end().reward == 1.0
    shared.close()


def test_an_address_names_role_and_password(server: str) -> None:
    from mcpenv.extensions.postgres_world.world import PostgresWorld

    world = PostgresWorld("host=db.example port=5433 user=admin password=secret sslmode=require", "t", name="e 1")
    assert world.address() == "postgresql://admin:secret@db.example:5433/e%201?sslmode=require"
    assert world.address("agent", "p/w") == "postgresql://agent:p%2Fw@db.example:5433/e%201?sslmode=require"
    assert PostgresWorld(server, "t", name="e").address().startswith("postgresql://admin@/e?host=%2F")


def test_without_psycopg_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['psycopg'] = None; import mcpenv.extensions.postgres_world.world"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode and "pip install 'mcpenv[postgres]'" in done.stderr
