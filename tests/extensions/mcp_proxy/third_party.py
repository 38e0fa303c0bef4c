"""MCP servers of other people, each with what makes it an environment, and calls that show a reset.

``third_party.py FOLDER`` makes the virtual environments of those of PyPI, ``third_party.py --npm`` names the packages
of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Call = tuple[str, dict[str, Any]]

IN = "{workspace}"
REPOSITORY = {
    name: {"arguments": {"repo_path": IN}} for name in ("git_status", "git_create_branch", "git_checkout", "git_log")
}


@dataclass(frozen=True)
class Server:
    """A server, and the calls by which one sees a reset.

    Attributes:
        name: the row of the table.
        program: the program in its folder.
        pypi: its package, and those that it wants beside.
        npm: its package.
        args, env: for the process.
        state: where it keeps its state.
        tools: settings of its tools.
        look: a call whose answer tells the state.
        changes: calls that change the state; none: ``look`` does.
        forgets: its state is what it was, after a reset.
        debian: the Debian package of the service behind it.
    """

    name: str
    program: str
    look: Call
    changes: Sequence[Call] = ()
    pypi: tuple[str, ...] = ()
    npm: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    state: str = "workspace"
    tools: Mapping[str, Any] = field(default_factory=dict)
    forgets: bool = True
    debian: str = ""


THOUGHT = {"thought": "one", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 3}

SERVERS = (
    Server(
        "git",
        "mcp-server-git",
        ("git_status", {}),
        [("git_create_branch", {"branch_name": "work"}), ("git_checkout", {"branch_name": "work"})],
        pypi=("mcp-server-git",),
        args=("--repository", IN),
        tools=REPOSITORY,
    ),
    Server(
        "time",
        "mcp-server-time",
        ("convert_time", {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Asia/Kolkata"}),
        pypi=("mcp-server-time",),
        state="none",
    ),
    Server(
        "fetch",
        "mcp-server-fetch",
        ("fetch", {"url": "{page}", "raw": True}),
        pypi=("mcp-server-fetch",),
        args=("--ignore-robots-txt", "--allow-private-ips"),
        state="none",
    ),
    Server(
        "sqlite",
        "mcp-server-sqlite",
        ("list_tables", {}),
        [("create_table", {"query": "CREATE TABLE notes (text TEXT)"})],
        pypi=("mcp-server-sqlite", "mcp<2"),
        args=("--db-path", f"{IN}/data.db"),
    ),
    Server(
        "duckdb",
        "mcp-server-duckdb",
        ("query", {"query": "SELECT count(*) FROM information_schema.tables"}),
        [("query", {"query": "CREATE TABLE notes (text TEXT)"})],
        pypi=("mcp-server-duckdb", "mcp<2"),
        args=("--db-path", f"{IN}/data.duckdb"),
    ),
    Server(
        "excel",
        "excel-mcp-server",
        ("list_workbooks", {}),
        [("create_workbook", {})],
        pypi=("excel-mcp-server",),
        args=("stdio",),
        tools={
            "list_workbooks": {"arguments": {"directory": IN}},
            "create_workbook": {"arguments": {"path": f"{IN}/a.xlsx"}},
        },
    ),
    Server(
        "everything",
        "mcp-server-everything",
        ("toggle-simulated-logging", {}),
        npm="@modelcontextprotocol/server-everything",
        state="process",
    ),
    Server(
        "filesystem",
        "mcp-server-filesystem",
        ("list_directory", {}),
        [("write_file", {"content": "new"})],
        npm="@modelcontextprotocol/server-filesystem",
        args=(IN,),
        tools={
            "list_directory": {"arguments": {"path": IN}},
            "write_file": {"arguments": {"path": f"{IN}/new.txt"}},
        },
    ),
    Server(
        "memory",
        "mcp-server-memory",
        ("read_graph", {}),
        [("create_entities", {"entities": [{"name": "Ada", "entityType": "person", "observations": ["writes"]}]})],
        npm="@modelcontextprotocol/server-memory",
        env={"MEMORY_FILE_PATH": f"{IN}/memory.jsonl"},
    ),
    Server(
        "sequential-thinking",
        "mcp-server-sequential-thinking",
        ("sequentialthinking", THOUGHT),
        npm="@modelcontextprotocol/server-sequential-thinking",
        state="process",
    ),
    Server(
        "redis",
        "mcp-server-redis",
        ("list", {"pattern": "*"}),
        [("set", {"key": "a", "value": "1"})],
        npm="@modelcontextprotocol/server-redis",
        args=("{redis}",),
        state="external",
        forgets=False,
        debian="redis-server",
    ),
)


def main(argument: str) -> None:
    """Do what the module's first line says."""
    if argument == "--npm":
        print("\n".join(server.npm for server in SERVERS if server.npm))
        return
    sys.path.insert(0, str(Path(__file__).parents[2] / "stock"))
    from install import python_of

    for server in SERVERS:
        if server.pypi:
            print(python_of(Path(argument).resolve(), server.pypi))


if __name__ == "__main__":
    main(sys.argv[1])
