"""A world whose tools have every schema that the console's forms know, and whose answers attack the page."""

from __future__ import annotations

import base64
import datetime
import uuid
from typing import Annotated, Any, Literal

from pydantic import AnyUrl, Base64Bytes, BaseModel, Field

from mcpenv import MCPEnvironment

ATTACK = (
    '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'
    "<a href='javascript:window.attacked=1'>a</a>"
)


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: Annotated[float, Field(gt=0, le=100)]


class Box(BaseModel):
    kind: Literal["box"] = "box"
    sides: Annotated[list[int], Field(min_length=2, max_length=3)]


class Branch(BaseModel):
    name: str
    children: list[Branch] = Field(default_factory=list)


class ConsoleWorld(MCPEnvironment):
    """Take values of every kind."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.taken = 0

        @self.tool
        def take_shape(shape: Annotated[Circle | Box, Field(discriminator="kind")]) -> str:
            """Take one of a union."""
            return self._take(shape.kind)

        @self.tool
        def take_tree(tree: Branch) -> str:
            """Take a recursive value."""
            return self._take(f"{tree.name} {len(tree.children)}")

        @self.tool
        def take_formats(day: datetime.date, at: datetime.datetime, id: uuid.UUID, page: AnyUrl) -> str:
            """Take texts of a format."""
            return self._take(f"{day} {at.tzinfo} {id} {page}")

        @self.tool
        def take_file(file: Base64Bytes) -> str:
            """Take the bytes of a file."""
            return self._take(base64.b64encode(file).decode())

        @self.tool
        def take_rest(
            colour: Literal["red", "green"],
            scores: dict[str, int],
            anything: Any,
            note: str | None,
            tags: Annotated[list[str], Field(min_length=1)] = ["a"],  # noqa: B006
        ) -> str:
            """Take a choice, rows, any JSON, a nullable and a default."""
            return self._take(f"{colour} {scores} {anything} {note} {tags}")

        @self.tool(description=ATTACK)
        def attack() -> str:
            return ATTACK

    def _take(self, text: str) -> str:
        self.taken += 1
        return text
