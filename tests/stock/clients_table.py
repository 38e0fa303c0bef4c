"""The table of stock clients in docs/reference/mcp-clients.md, made of what was seen of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import HANDLE, MCP, STDIO, WITH_TOKEN, Driven
from programs import ROOT
from stock_clients import StockClient

PAGE = ROOT / "docs" / "reference" / "mcp-clients.md"
BEGIN, END = "<!-- stock clients: begin -->\n", "<!-- stock clients: end -->\n"

HEAD = (
    "client",
    "version",
    "era asked for",
    "spoken",
    "sessions at `/mcp`",
    "HTTP",
    "bearer token",
    "episode's handle",
    "stdio",
    "state at `/mcp`",
    "configuration",
)


def rendered(rows: Sequence[tuple[StockClient, str | None, Mapping[str, Driven]]]) -> str:
    """The table in Markdown: a row for each client and era, from what was seen at each place."""
    lines = [HEAD, ("---",) * len(HEAD), *(_row(client, mode, seen) for client, mode, seen in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row(client: StockClient, mode: str | None, seen: Mapping[str, Driven]) -> tuple[str, ...]:
    plain = seen[MCP]
    return (
        client.name,
        client.version,
        "" if mode is None else f"`{mode}`",
        plain.protocol,
        plain.sessions,
        _works(plain),
        f"{_works(seen[MCP + WITH_TOKEN])}, state {_kept(seen[MCP + WITH_TOKEN])}",
        f"{_works(seen[HANDLE], seen[HANDLE + WITH_TOKEN])}, state {_kept(seen[HANDLE], seen[HANDLE + WITH_TOKEN])}",
        f"{_works(seen[STDIO])}, state {_kept(seen[STDIO])}" if STDIO in seen else "it has none",
        _kept(plain) + ("" if not plain.kept else ", shared" if plain.shared else ", its own"),
        f"`{client.line}`",
    )


def _works(*runs: Driven) -> str:
    return "yes" if all(run.failed[:4] == [False, False, True, False] for run in runs) else "NO"


def _kept(*runs: Driven) -> str:
    return "kept" if all(run.kept for run in runs) else "new for each call"


def committed() -> str:
    """The table as it stands in the page, between its two marks."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def write(seen: str) -> None:
    """Put a table between the marks."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} has no marks"
    PAGE.write_text(f"{before}{begin}\n{seen}\n{end}{after}", encoding="utf-8")
