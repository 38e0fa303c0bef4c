"""Resources, prompts and completions of servers, as components that an environment offers to agents.

A resource keeps its URI, because tool results and other resources refer to it. If two servers list the same URI, the
first server in the configuration answers. Prompts are named by the same rules as tools.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastmcp.prompts import Message, Prompt, PromptResult
from fastmcp.prompts.base import PromptArgument
from fastmcp.resources import Resource, ResourceTemplate
from fastmcp.resources.base import ResourceContent, ResourceResult
from fastmcp.server.completions import CompletionReference, CompletionValues
from fastmcp.utilities.versions import VersionSpec
from mcp import ClientSession, MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ReadResourceResult,
    TextResourceContents,
)
from mcp_types import Prompt as ListedPrompt
from mcp_types import Resource as ListedResource
from mcp_types import ResourceTemplate as ListedTemplate
from pydantic import AnyUrl, PrivateAttr

from mcpenv.execution.components import CompletingProvider

from .delivery import UpstreamError
from .loop import UPSTREAMS
from .upstream import SERVER_INFO, Offered, Upstream

logger = logging.getLogger("mcpenv.upstream")

T = TypeVar("T")

Read = Callable[[], Awaitable[ResourceResult]]
Render = Callable[[dict[str, Any]], Awaitable[PromptResult]]


class ProxiedResource(Resource):
    """A resource of a server."""

    _read_from: Read = PrivateAttr()

    async def read(self) -> ResourceResult:
        """Read it on its server."""
        return await self._read_from()


class ProxiedPrompt(Prompt):
    """A prompt of a server."""

    _render_by: Render = PrivateAttr()

    async def render(self, arguments: dict[str, Any] | None = None) -> PromptResult:
        """Render the prompt on its server."""
        return await self._render_by(arguments or {})


@dataclass(frozen=True)
class _Owned:
    """A prompt with its server.

    Attributes:
        name: the name for agents.
        server: the server's name.
        listed: the prompt as the server lists it.
    """

    name: str
    server: str
    listed: ListedPrompt


class ProxiedComponents(CompletingProvider):
    """The provider of an environment that proxies MCP servers. The episode's own servers answer requests.

    Args:
        upstreams: the connections of the environment, by server.
        known: the components that each server had when the class was made. They are listed while the server does not
            run.
        always: True to prefix every prompt's name with the server's name; False to prefix only names that clash.
    """

    def __init__(self, upstreams: Mapping[str, Upstream], known: Mapping[str, Offered], *, always: bool) -> None:
        super().__init__()
        self._upstreams = upstreams
        self._known = known
        self._always = always

    async def complete(
        self, ref: CompletionReference, argument: CompletionArgument, context: CompletionContext | None
    ) -> CompletionValues:
        """Return the suggestions of the server that has the prompt or template."""
        offered = await self._offered()
        if isinstance(ref, PromptReference):
            owned = next((each for each in self._named(offered) if each.name == ref.name), None)
            if owned is None:
                return None
            server, ref = owned.server, ref.model_copy(update={"name": owned.listed.name})
        else:
            owner = next(
                (name for name, each in offered.items() if ref.uri in [found.uri_template for found in each.templates]),
                None,
            )
            if owner is None:
                return None
            server = owner
        if not offered[server].completes:
            return None
        asked = {"name": argument.name, "value": argument.value}
        others = None if context is None else context.arguments
        answer = await self._ask(server, lambda session: session.complete(ref, asked, others))
        return answer.completion

    async def _list_resources(self) -> Sequence[Resource]:
        found: dict[str, Resource] = {}
        for server, offered in (await self._offered()).items():
            for listed in offered.resources:
                found.setdefault(listed.uri, self._resource(server, listed))
        return list(found.values())

    async def _get_resource(self, uri: str, version: VersionSpec | None = None) -> Resource | None:
        offered = {name: each for name, each in (await self._offered()).items() if each.has_resources}
        for server, each in offered.items():
            for listed in each.resources:
                if listed.uri == uri:
                    return self._resource(server, listed)
        for server, each in offered.items():
            for template in each.templates:
                if _template(template).matches(uri) is not None:
                    named = ListedResource(uri=uri, name=template.name, mime_type=template.mime_type)
                    return self._resource(server, named)
        if len(offered) == 1:  # a tool's result may refer to a resource that is not listed
            return self._resource(next(iter(offered)), ListedResource(uri=uri, name=uri))
        return None

    async def _list_resource_templates(self) -> Sequence[ResourceTemplate]:
        found: dict[str, ResourceTemplate] = {}
        for offered in (await self._offered()).values():
            for listed in offered.templates:
                found.setdefault(listed.uri_template, _template(listed))
        return list(found.values())

    async def _get_resource_template(self, uri: str, version: VersionSpec | None = None) -> ResourceTemplate | None:
        return None  # `_get_resource` also finds resources by template

    async def _list_prompts(self) -> Sequence[Prompt]:
        return [self._prompt(owned) for owned in self._named(await self._offered())]

    async def _offered(self) -> dict[str, Offered]:
        found = {}
        for name, upstream in self._upstreams.items():
            if upstream.dead:
                found[name] = self._known[name]
                continue
            try:
                found[name] = await UPSTREAMS.run(upstream.offered())
            except UpstreamError as error:
                raise MCPError(INTERNAL_ERROR, str(error)) from error
        return found

    def _named(self, offered: Mapping[str, Offered]) -> list[_Owned]:
        names = Counter(prompt.name for each in offered.values() for prompt in each.prompts)
        return [
            _Owned(f"{server}_{prompt.name}" if self._always or names[prompt.name] > 1 else prompt.name, server, prompt)
            for server, each in offered.items()
            for prompt in each.prompts
        ]

    def _resource(self, server: str, listed: ListedResource) -> ProxiedResource:
        resource = ProxiedResource(
            uri=AnyUrl(listed.uri),
            name=listed.name,
            title=listed.title,
            description=listed.description,
            mime_type=listed.mime_type or "text/plain",
            icons=listed.icons,
            annotations=listed.annotations,
            meta=listed.meta,
        )

        async def read() -> ResourceResult:
            return _content(await self._ask(server, lambda session: session.read_resource(listed.uri)))

        resource._read_from = read
        return resource

    def _prompt(self, owned: _Owned) -> ProxiedPrompt:
        listed = owned.listed
        prompt = ProxiedPrompt(
            name=owned.name,
            title=listed.title,
            description=listed.description,
            arguments=[
                PromptArgument(
                    name=each.name, title=each.title, description=each.description, required=each.required or False
                )
                for each in listed.arguments or ()
            ],
            icons=listed.icons,
            meta=listed.meta,
        )

        async def render(arguments: dict[str, Any]) -> PromptResult:
            found = await self._ask(owned.server, lambda session: session.get_prompt(listed.name, arguments))
            messages = [Message(content=each.content, role=each.role) for each in found.messages]
            return PromptResult(messages=messages, description=found.description, meta=_own_meta(found.meta))

        prompt._render_by = render
        return prompt

    async def _ask(self, server: str, question: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Send a request to a server. Errors of the server are raised unchanged.

        Raises:
            MCPError: the server did not answer.
        """
        try:
            return await UPSTREAMS.run(self._upstreams[server].ask(question))
        except UpstreamError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error


def warn_of_shared_uris(offered: Mapping[str, Offered]) -> None:
    """Warn about URIs that several servers list: only the resource of the first server can be read."""
    owners: dict[str, str] = {}
    for server, each in offered.items():
        for uri in [found.uri for found in each.resources] + [found.uri_template for found in each.templates]:
            first = owners.setdefault(uri, server)
            if first != server:
                logger.warning("servers %r and %r both have the resource %s; %r answers", first, server, uri, first)


def _template(listed: ListedTemplate) -> ResourceTemplate:
    return ResourceTemplate(
        uri_template=listed.uri_template,
        name=listed.name,
        title=listed.title,
        description=listed.description,
        mime_type=listed.mime_type or "text/plain",
        icons=listed.icons,
        annotations=listed.annotations,
        meta=listed.meta,
        parameters={},
    )


def _content(result: ReadResourceResult) -> ResourceResult:
    contents = [
        ResourceContent(
            content=each.text if isinstance(each, TextResourceContents) else base64.b64decode(each.blob),
            mime_type=each.mime_type,
            meta=each.meta,
        )
        for each in result.contents
    ]
    return ResourceResult(contents=contents, meta=_own_meta(result.meta))


def _own_meta(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: value for key, value in (meta or {}).items() if key != SERVER_INFO} or None
