"""Environments with a mounted FastMCP server that has every setting; over stdio: CLASS MODE."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Context, FastMCP, Skill
from fastmcp.server.auth import StaticTokenVerifier
from fastmcp.server.extensions import MethodBinding, ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.skills.provider import SkillCatalogProvider
from mcp.server.context import ServerRequestContext
from mcp_types import Icon, RequestParams
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig, mode_from

ICON = Icon(src="https://shop.example/icon.png", mime_type="image/png", sizes=["48x48"])


class Stock(BaseModel):
    apples: int


class Stocking(ServerExtension):
    """Tells the stock, and counts calls."""

    identifier = "example.shop/stock"

    def __init__(self) -> None:
        self.running = False
        self.intercepted: list[str] = []

    def settings(self) -> dict[str, Any]:
        return {"unit": "kg"}

    def methods(self) -> Sequence[MethodBinding]:
        return [MethodBinding("stock/get", RequestParams, self._get)]

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: Any) -> Stock:
        assert self.running and self.server.name == "shop"
        return Stock(apples=3)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.running = True
        yield
        self.running = False

    async def intercept_tool_call(self, params: Any, context: Any, call_next: Any) -> Any:
        self.intercepted.append(params.name)
        if params.name == "sold_out":
            return Stock(apples=0)
        return await call_next()


class Watching(Middleware):
    """Notes the messages that it sees."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    async def on_message(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        self.seen.append(context.method)
        return await call_next(context)


def shop(**options: Any) -> FastMCP:
    """A server with two tools and a resource, and these options."""
    server = FastMCP("shop", **options)

    @server.tool(icons=[ICON])
    async def buy(apples: int, ctx: Context) -> str:
        """Buy apples."""
        await ctx.debug("debugging")
        await ctx.warning(f"buying {apples}")
        await ctx.report_progress(1, 2, "half")
        return f"{apples} apples"

    @server.tool
    def refund() -> str:
        """Give the money back."""
        raise LookupError("the till is in the cellar")

    @server.tool
    def sold_out() -> str:
        """Never reached with an extension."""
        return "reached"

    @server.resource("till://{name}")
    def till(name: str) -> str:
        """A till that is lost."""
        raise LookupError("the till is in the cellar")

    return server


def full(**options: Any) -> FastMCP:
    """The shop with every setting that clients see."""
    server = shop(
        instructions="Buy apples.",
        version="3.1",
        website_url="https://shop.example",
        icons=[ICON],
        list_page_size=1,
        cache_ttl=60,
        cache_scope="public",
        experimental_capabilities={"example.shop/bulk": {"limit": 7}},
        middleware=[Watching()],
        **options,
    )
    server.add_extension(Stocking())
    server.add_provider(SkillCatalogProvider([Skill(name="haggle", description="Haggle.", instructions="Ask twice.")]))

    @server.custom_route("/prices", methods=["GET"])
    async def prices(request: Request) -> JSONResponse:
        return JSONResponse({"apples": 2})

    return server


class Shop(MCPEnvironment):
    """An environment around the shop."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    server = full()

    def __init__(self) -> None:
        super().__init__(self.server, tools={"refund": {"mode": "production"}})

        @self.tool(icons=[ICON])
        async def praise(ctx: Context) -> str:
            """Praise the apples."""
            await ctx.info("praising")
            await ctx.report_progress(2, 2)
            return "good"

        @self.tool(mode="simulation")
        def refund() -> str:
            """Give play money back."""
            return "play money"


class Guarded(MCPEnvironment):
    """An environment around a shop whose customers need a token."""

    server = shop(auth=StaticTokenVerifier(tokens={"secret-of-ada": {"client_id": "ada", "scopes": []}}))

    def __init__(self) -> None:
        super().__init__(self.server)


if __name__ == "__main__":
    from mcpenv.extensions.stdio.serving import serve_stdio

    serve_stdio(globals()[sys.argv[1]], ServerConfig(mode=mode_from(sys.argv[2])), log_level="warning")
