"""The MCP server: a shopping list in a file of the folder that its argument names. It knows nothing of episodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from pydantic import Field

server = FastMCP("shopping")
FILE = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "items.json"

Name = Annotated[str, Field(min_length=1, max_length=60, description="What to buy, such as milk")]


def _read() -> dict[str, int]:
    items: dict[str, int] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return items


def _write(items: dict[str, int]) -> dict[str, int]:
    FILE.write_text(json.dumps(items), encoding="utf-8")
    return items


@server.tool
def list_items() -> dict[str, int]:
    """Return the list: how many of each item."""
    return _read()


@server.tool
def add_item(name: Name, quantity: Annotated[int, Field(ge=1, le=99)] = 1) -> dict[str, int]:
    """Add to the list, and return it."""
    items = _read()
    return _write({**items, name: items.get(name, 0) + quantity})


@server.tool
def remove_item(name: Name) -> dict[str, int]:
    """Take an item off the list, and return the list."""
    items = _read()
    if name not in items:
        raise ToolError(f"{name!r} is not on the list")
    del items[name]
    return _write(items)


if __name__ == "__main__":
    server.run(show_banner=False)
