"""A world whose tools have every schema that the console's forms know, and whose answers attack the page."""

from __future__ import annotations

import base64
import datetime
import uuid
from typing import Annotated, Any, Literal

from mcp_types import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextResourceContents,
)
from pydantic import AnyUrl, Base64Bytes, BaseModel, Field

from mcpenv import MCPEnvironment, ToolError

SVG = """<svg xmlns="http://www.w3.org/2000/svg" onload="window.attacked=1"><script>window.attacked=1</script></svg>"""
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


class Address(BaseModel):
    street: str
    city: str = "Bern"


class Order(BaseModel):
    to: Address
    gift: bool
    notes: list[Address] = Field(default_factory=list)


class Branch(BaseModel):
    name: str
    children: list[Branch] = Field(default_factory=list)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


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

        @self.tool
        def take_nested(
            order: Order, pair: tuple[int, str], nights: Annotated[int, Field(ge=1, le=9)] | None = None
        ) -> str:
            """Take an object of objects, a tuple, and a number or nothing."""
            return self._take(f"{order.model_dump_json()} {pair} {nights}")

        @self.tool
        def take_named(
            place: Address | Branch,
            few: Annotated[list[Annotated[str, Field(min_length=3)]], Field(min_length=1, max_length=2)],
        ) -> str:
            """Take one of two models, and a short list."""
            return self._take(f"{place.street if isinstance(place, Address) else place.name} {few}")

        @self.tool
        def take_switches(off: bool = False, on: bool = True, maybe: bool | None = None) -> str:
            """Take booleans with and without a default."""
            return self._take(f"off {off}, on {on}, maybe {maybe}")

        @self.tool
        def leave() -> str:
            """End the episode."""
            self.finish()
            return self._take("left")

        @self.tool(title=ATTACK, description=ATTACK)
        def attack(text: Annotated[str, Field(description=ATTACK)] = ATTACK) -> str:
            return text

        @self.tool
        def attack_by_error() -> str:
            """Refuse with HTML."""
            raise ToolError(ATTACK)

        @self.tool
        def attack_by_media() -> list[ContentBlock]:
            """Return pages that pretend to be images, and images with scripts."""
            return [
                ImageContent(type="image", mime_type="image/svg+xml", data=_base64(SVG)),
                ImageContent(type="image", mime_type="text/html", data=_base64(ATTACK)),
                ImageContent(type="image", mime_type='image/png" onerror="window.attacked=1', data=_base64(ATTACK)),
                ImageContent(type="image", mime_type="image/png", data='x" onerror="window.attacked=1'),
                AudioContent(type="audio", mime_type="text/html", data=_base64(ATTACK)),
                ResourceLink(type="resource_link", name=ATTACK, uri="javascript:window.attacked=1"),
                EmbeddedResource(
                    type="resource",
                    resource=TextResourceContents(uri="ui://page", mime_type="text/html", text=ATTACK),
                ),
            ]

        @self.tool
        def attack_by_keys() -> dict[str, Any]:
            """Return HTML in the names of a value."""
            return {ATTACK: {"__proto__": ATTACK, "constructor": 1}}

    def _take(self, text: str) -> str:
        self.taken += 1
        return text
