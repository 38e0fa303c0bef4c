"""Worlds: what they look like, and that what was saved comes back."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mcpenv import Evidence, FilesWorld, MCPEnvironment, ObjectWorld, SQLiteWorld, Verdict, World, score_of
from mcpenv.errors import WorldUnreadable
from mcpenv.worlds import capture
from mcpenv_client.types.status import COMPLETED


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        """
        CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT, balance REAL);
        CREATE TABLE rates ("from" TEXT, "to" TEXT, rate REAL, PRIMARY KEY ("from", "to")) WITHOUT ROWID;
        CREATE TABLE "odd ""name" (value BLOB);
        INSERT INTO accounts VALUES (2, 'Bo', 5), (1, 'Al', 10.5);
        INSERT INTO rates VALUES ('EUR', 'USD', 1.1);
        INSERT INTO "odd ""name" VALUES (x'00ff'), (NULL);
        """
    )
    return connection


def test_a_database_is_seen_by_table_key_and_column(database: sqlite3.Connection) -> None:
    database.row_factory = sqlite3.Row
    assert SQLiteWorld(database, ignore=("rates",)).capture() == {
        "accounts": {
            "1": {"id": 1, "owner": "Al", "balance": 10.5},
            "2": {"id": 2, "owner": "Bo", "balance": 5.0},
        },
        'odd "name': {"1": {"value": "AP8="}, "2": {"value": None}},
    }
    assert SQLiteWorld(database).capture()["rates"] == {"EUR,USD": {"from": "EUR", "to": "USD", "rate": 1.1}}


@pytest.mark.parametrize("where", [":memory:", "file"])
def test_a_database_comes_back_as_it_was(where: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(where if where == ":memory:" else tmp_path / "world.db")
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.commit()
    connection.execute("INSERT INTO notes VALUES ('not committed')")
    world = SQLiteWorld(connection)
    saved, seen = world.save(), world.capture()
    connection.execute("INSERT INTO notes VALUES ('later')")
    connection.execute("CREATE TABLE more (x)")
    world.load(saved)
    assert world.capture() == seen == {"notes": {"1": {"text": "not committed"}}}
    connection.commit()
    assert SQLiteWorld(connection).capture() == seen


def fill(folder: Path) -> None:
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "a.txt").write_text("hello")
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00")
    (folder / "empty").mkdir()
    os.symlink("/etc/passwd", folder / "outside")
    os.chmod(folder / "notes" / "a.txt", 0o640)


def test_files_are_seen_by_path_and_links_are_not_followed(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "long.txt").write_text("x" * 300_000)
    seen = FilesWorld(tmp_path).capture()
    assert seen.pop("long.txt")["size"] == 300_000
    assert seen == {
        "empty": {"folder": True},
        "notes/a.txt": {"text": "hello"},
        "outside": {"link": "/etc/passwd"},
        "picture.bin": {"sha256": "ba778c0261008c8f71ae4061ad0162ffcbe63b52c91f89f236738131d1217ec7", "size": 3},
    }


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    fill(tmp_path)
    world = FilesWorld(tmp_path)
    saved, seen = world.save(), world.capture()
    (tmp_path / "notes" / "a.txt").write_text("changed")
    (tmp_path / "notes" / "b.txt").write_text("new")
    (tmp_path / "empty").rmdir()
    os.unlink(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    world.load(saved)
    assert world.capture() == seen
    assert (tmp_path / "notes" / "a.txt").stat().st_mode & 0o777 == 0o640
    assert Path("/etc/passwd").exists()


def test_what_is_ignored_is_not_seen_but_is_saved(tmp_path: Path) -> None:
    fill(tmp_path)
    world = FilesWorld(tmp_path, ignore=("notes", "picture.bin", "outside"))
    saved = world.save()
    assert world.capture() == {"empty": {"folder": True}}
    (tmp_path / "notes" / "a.txt").unlink()
    world.load(saved)
    assert (tmp_path / "notes" / "a.txt").read_text() == "hello"


@pytest.mark.smoke
def test_files_are_seen_while_another_process_replaces_them(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "print('begun', flush=True)\n"
        "while True:\n"
        "    (folder / 'd').mkdir(exist_ok=True)\n"
        "    for name in 'abc':\n"
        "        (folder / 'd' / name).write_text('x')\n"
        "    for name in 'abc':\n"
        "        (folder / 'd' / name).unlink()\n"
        "    (folder / 'd').rmdir()\n"
    )
    (tmp_path / "kept").write_text("y")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            seen: list[Any] = []
            until = time.monotonic() + 60
            while len(seen) < 300 or len({len(each) for each in seen}) == 1:
                assert time.monotonic() < until, "the other process has written nothing"
                seen.append(FilesWorld(tmp_path).capture())
        finally:
            writer.kill()
    assert all(each["kept"] == {"text": "y"} for each in seen)


@pytest.mark.smoke
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_database_that_another_process_writes_is_seen_by_path(tmp_path: Path, journal: str) -> None:
    file = tmp_path / "shop.db"
    world = SQLiteWorld(file)
    assert world.capture() == {} and not file.exists()
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        f"connection.execute('PRAGMA journal_mode = {journal}')\n"
        "for line in sys.stdin:\n"
        "    print(connection.execute(line).fetchall(), flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:

        def ask(statement: str) -> str:
            assert writer.stdin is not None and writer.stdout is not None
            writer.stdin.write(statement + "\n")
            writer.stdin.flush()
            return writer.stdout.readline().strip()

        ask("CREATE TABLE notes (id INTEGER PRIMARY KEY, text)")
        ask("INSERT INTO notes VALUES (1, 'one')")
        ask("BEGIN IMMEDIATE")
        ask("INSERT INTO notes VALUES (2, 'not committed')")
        assert world.capture() == {"notes": {"1": {"id": 1, "text": "one"}}}
        ask("COMMIT")
        saved, seen = world.save(), world.capture()
        assert set(seen["notes"]) == {"1", "2"}
        ask("DELETE FROM notes")
        world.load(saved)
        assert world.capture() == seen
        assert ask("SELECT count(*) FROM notes") == "[(2,)]"
        ask("BEGIN IMMEDIATE")
        ask("UPDATE notes SET text = 'lost'")
        writer.kill()
    assert world.capture() == seen


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("x" * 5000)
    with pytest.raises(WorldUnreadable, match=r"shop\.db: file is not a database"):
        SQLiteWorld(tmp_path / "shop.db").capture()


@pytest.mark.parametrize("end", ["", "-journal", "-wal"])
def test_a_folder_in_the_place_of_a_database_or_its_journal_makes_it_unreadable(tmp_path: Path, end: str) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE stock (item)")
    file = tmp_path / f"shop.db{end}"
    file.unlink(missing_ok=True)
    (file / "in").mkdir(parents=True)
    with pytest.raises(WorldUnreadable, match=r"shop\.db: "):
        SQLiteWorld(tmp_path / "shop.db").capture()


def test_a_machine_that_cannot_open_a_database_is_no_fault_of_its_content(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE stock (item)")
    limits, kept = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (kept, limits[1]))  # no descriptor is left
    try:
        with pytest.raises(sqlite3.OperationalError):
            SQLiteWorld(tmp_path / "shop.db").capture()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(kept)


@pytest.mark.parametrize("kind", ["deleted", "a file", "a link to itself", "a long name"])
def test_a_folder_that_is_gone_is_unreadable(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / ("x" * 300 if kind == "a long name" else "in")
    if kind == "a file":
        folder.write_text("")
    elif kind == "a link to itself":
        folder.symlink_to(folder)
    with pytest.raises(WorldUnreadable, match="the folder: "):
        FilesWorld(folder).capture()


def test_an_object_comes_back_where_it_can_be_put() -> None:
    state: dict[str, Any] = {"board": [1, 2]}
    world = ObjectWorld(lambda: state, state.update)
    saved = world.save()
    state["board"].append(3)
    world.load(saved)
    assert world.capture() == {"board": [1, 2]}
    with pytest.raises(TypeError, match="list"):
        ObjectWorld(lambda: [1]).capture()


def test_several_worlds_stand_beside_each_other(tmp_path: Path, database: sqlite3.Connection) -> None:
    worlds: dict[str, World] = {"files": FilesWorld(tmp_path), "money": SQLiteWorld(database)}
    assert set(capture(worlds)) == {"files", "money"}
    with pytest.raises(TypeError, match="a str, which is not a World"):
        capture("board")  # type: ignore[arg-type]


def test_no_row_hides_behind_another_that_is_written_alike(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE loose (key PRIMARY KEY, value)")
    database.execute("INSERT INTO loose VALUES (1, 'number'), ('1', 'text'), (NULL, 'none'), (NULL, 'none again')")
    database.execute("INSERT INTO rates VALUES ('a,b', 'c', 1), ('a', 'b,c', 2)")
    seen = SQLiteWorld(database).capture()
    assert sorted(row["value"] for row in seen["loose"].values()) == ["none", "none again", "number", "text"]
    assert len(seen["rates"]) == 3 and set(seen["loose"]) == {"1", "1#2", "None", "None#2"}


def test_a_temporary_table_of_the_same_name_does_not_stand_in_front(database: sqlite3.Connection) -> None:
    seen = SQLiteWorld(database).capture()
    database.execute("CREATE TEMP TABLE accounts (id INTEGER PRIMARY KEY, balance REAL)")
    database.execute("INSERT INTO temp.accounts VALUES (1, 1000000)")
    assert SQLiteWorld(database).capture() == seen


@pytest.mark.parametrize("stored", ["x'ff'", "x'eda080'", "x'6100ff'"])
def test_a_text_that_is_not_utf8_is_replaced(database: sqlite3.Connection, stored: str) -> None:
    database.execute(f"UPDATE accounts SET owner = CAST({stored} AS TEXT) WHERE id = 1")
    (owner,) = {row["owner"] for key, row in SQLiteWorld(database).capture()["accounts"].items() if key == "1"}
    assert "\ufffd" in owner and owner.encode()


def test_what_a_connection_converts_is_captured_as_it_is_stored() -> None:
    sqlite3.register_converter("doubled", lambda stored: b"twice")
    connection = sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
    connection.text_factory = bytes
    connection.row_factory = sqlite3.Row
    connection.executescript(
        """
        CREATE TABLE odd (c DOUBLED PRIMARY KEY, "a [doubled]" TEXT, "rowid" TEXT);
        INSERT INTO odd VALUES ('key', 'text', 'own'), ('b', x'00', NULL);
        CREATE VIEW broken AS SELECT lost FROM nowhere;
        CREATE TABLE "keyed" (b, c, PRIMARY KEY (c, b));
        INSERT INTO "keyed" VALUES (2, 1), (1, 2);
        """
    )
    assert SQLiteWorld(connection).capture() == {
        "odd": {
            "b": {"c": "b", "a [doubled]": "AA==", "rowid": None},
            "key": {"c": "key", "a [doubled]": "text", "rowid": "own"},
        },
        "keyed": {"1,2": {"b": 2, "c": 1}, "2,1": {"b": 1, "c": 2}},
    }
    assert connection.text_factory is bytes
    assert connection.execute("""SELECT 'x' AS "x [doubled]" """).fetchone()[0] == b"twice"


def test_a_default_that_makes_each_row_large_is_refused(database: sqlite3.Connection) -> None:
    longest = database.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    database.execute(f"ALTER TABLE accounts ADD COLUMN large TEXT DEFAULT '{'x' * 600_000}'")
    with pytest.raises(WorldUnreadable, match="the database has more than 1 MiB; max_bytes"):
        SQLiteWorld(database, max_bytes=1 << 20).capture()
    assert len(SQLiteWorld(database).capture()["accounts"]) == 2
    assert database.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) == longest


def test_a_capture_of_a_database_ends_in_its_time(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE many (text TEXT)")
    database.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000) INSERT INTO many SELECT i FROM n"
    )
    with pytest.raises(WorldUnreadable, match="takes too long"):
        capture(SQLiteWorld(database), within_s=0.05)
    assert len(capture(SQLiteWorld(database))["many"]) == 300_000


def test_a_locked_database_is_waited_for_within_the_time(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    other.execute("CREATE TABLE notes (text)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(WorldUnreadable, match="locked"):
        capture(SQLiteWorld(tmp_path / "shop.db"), within_s=0.1)
    other.close()


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 42)
    world = FilesWorld(tmp_path)
    for read in (world.capture, world.save):
        with pytest.raises(WorldUnreadable, match="the folder has more than 1024 MiB; max_bytes"):
            read()  # reading it would take longer than any test
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(WorldUnreadable, match="takes too long"):
        capture(world, within_s=0.05)


def test_many_texts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv.extensions.files_world.world.MAX_TREE", 1 << 20)
    for number in range(8):
        (tmp_path / str(number)).write_bytes(b"x" * 200_000)
    with pytest.raises(WorldUnreadable, match="the text of the folder has more than 1 MiB"):
        FilesWorld(tmp_path).capture()


def test_names_that_are_not_utf8_and_long_paths_are_captured(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff")).write_text("one")
    (tmp_path / os.fsdecode(b"a\xfe")).write_text("other")
    (tmp_path / "link").symlink_to(os.fsdecode(b"\xff"))
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    seen = FilesWorld(tmp_path).capture()
    assert {content["text"] for path, content in seen.items() if path.startswith("a\ufffd")} == {"one", "other"}
    assert seen["link"] == {"link": "\ufffd"}
    (unreadable,) = (content for path, content in seen.items() if path.startswith("d"))
    assert unreadable == {"unreadable": os.strerror(errno.ENAMETOOLONG)}


def test_an_object_without_a_json_form_is_unreadable() -> None:
    with pytest.raises(WorldUnreadable, match=r"(?i)nan"):
        ObjectWorld(lambda: {"value": float("nan")}).capture()


class Converted(MCPEnvironment):
    """A database with a converter, views, one of them broken, bytes for texts, and a text that is not UTF-8."""

    def __init__(self) -> None:
        sqlite3.register_converter("shout", lambda stored: stored.upper())
        parsed = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
        self.shop = sqlite3.connect(":memory:", detect_types=parsed, check_same_thread=False, isolation_level=None)
        self.shop.text_factory, self.shop.row_factory = bytes, sqlite3.Row
        self.shop.executescript(
            "CREATE TABLE stock (item SHOUT PRIMARY KEY, n INTEGER);"
            "INSERT INTO stock VALUES ('tea', 5), (CAST(x'ff' AS TEXT), 1);"
            "CREATE VIEW few AS SELECT item FROM stock WHERE n < 3; CREATE VIEW broken AS SELECT lost FROM nowhere"
        )
        self.world = SQLiteWorld(self.shop)

        @self.tool
        def sell(n: int) -> str:
            """Sell tea, and return its name as the author's own code reads it."""
            self.shop.execute("UPDATE stock SET n = n - ? WHERE item = 'tea'", (n,))
            return bytes(self.shop.execute("SELECT item FROM stock WHERE item = 'tea'").fetchone()["item"]).decode()

    def verify(self, evidence: Evidence) -> Verdict:
        assert evidence.after is not None and set(evidence.after) == {"stock"}
        assert set(evidence.after["stock"]) == {"tea", "\ufffd"}
        return evidence.changes.expect_exactly({"stock/tea/n": 3})


@pytest.mark.parametrize(("sold", "worth"), [(2, 1.0), (1, 0.0)])
def test_a_world_with_converters_views_and_a_text_factory_is_verified(sold: int, worth: float) -> None:
    env = Converted()
    env.reset()
    assert env.call_tool("sell", {"n": sold}).text == "TEA"
    assert env.end().reward == worth == score_of(env.trajectory)  # type: ignore[arg-type]
    assert env.trajectory is not None and env.trajectory.status is COMPLETED
    env.close()
    env.shop.close()
