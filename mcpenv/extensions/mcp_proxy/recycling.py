"""Reset the servers of an instance, and verify that the world is the initial one.

A kept process is reused only if the hashes of its tools and of the workspace are the initial ones. Otherwise the
difference is reported, and the process is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from mcp_types import Tool as ListedTool

from .catalog import Catalog, tools_hash
from .delivery import DiscoveryFailed, UpstreamError
from .upstream import Upstream
from .workspace import Workspace, digest_of

logger = logging.getLogger("mcpenv.upstream")


class ResetFailed(UpstreamError):
    """Raised if the workspace cannot be made equal to its template."""


async def recycle(
    upstreams: Mapping[str, Upstream], workspace: Workspace | None, catalog: Catalog
) -> tuple[dict[str, Any], dict[str, list[ListedTool]]]:
    """Prepare the world of an episode. Runs on the loop of `UPSTREAMS`.

    Returns:
        The metadata about the world, and the tools of the servers that were started.

    Raises:
        DiscoveryFailed: a server does not start.
        ResetFailed: the workspace is not equal to its template.
    """
    for upstream in upstreams.values():
        upstream.reuses += 1
    await close_all(upstream for upstream in upstreams.values() if not _may_stay(upstream))
    replaced: dict[str, str] = {}
    told: dict[str, Any] = {}
    if workspace is not None:
        told["workspace"] = await _restored(workspace, upstreams, catalog, replaced)
    kept = [upstream for upstream in upstreams.values() if not upstream.dead]
    for upstream, reason in zip(
        kept, await asyncio.gather(*(_difference(each, catalog) for each in kept)), strict=True
    ):
        if reason is not None:
            replaced[upstream.name] = reason
            await upstream.close()
    told["servers"], listings = await _started(upstreams, catalog)
    for name, reason in replaced.items():
        logger.warning("server %r was kept, and is replaced: %s", name, reason)
    if replaced:
        told["replaced"] = replaced
    return told, listings


def _may_stay(upstream: Upstream) -> bool:
    if upstream.dead or not upstream.settings.kept:
        return False
    if upstream.suspect:
        logger.warning("server %r was kept, and is replaced: a call was left without an answer", upstream.name)
        return False
    return upstream.settings.max_reuses is None or upstream.reuses <= upstream.settings.max_reuses


async def _restored(
    workspace: Workspace, upstreams: Mapping[str, Upstream], catalog: Catalog, replaced: dict[str, str]
) -> str:
    """Restore the workspace, and return its hash. If the hash is wrong, replace the servers that work in it."""
    assert catalog.template is not None
    pristine = catalog.template.digest
    working = [each for each in upstreams.values() if not each.dead and each.settings.uses_workspace]
    await asyncio.to_thread(workspace.restore, in_place=bool(working))
    found = await asyncio.to_thread(workspace.digest)
    if found == pristine:
        return found
    for upstream in working:
        replaced[upstream.name] = "the restored workspace differed from its template"
    await close_all(working)
    await asyncio.to_thread(workspace.restore, in_place=False)
    found = await asyncio.to_thread(workspace.digest)
    if found == pristine:
        return found
    folder = catalog.template.folder
    if folder is None or found != await asyncio.to_thread(digest_of, folder):
        raise ResetFailed(f"workspace {workspace.path} is not equal to its template: something else writes to it")
    logger.warning(
        "the template %s has changed since the environment was made; episodes differ from earlier ones", folder
    )
    return found


async def _difference(upstream: Upstream, catalog: Catalog) -> str | None:
    """Return the difference between a kept server and its initial state; None if there is none."""
    try:
        listed = await upstream.list_tools()
    except DiscoveryFailed as error:
        return str(error)
    same = tools_hash(listed) == catalog.servers[upstream.name]["tools_hash"]
    return None if same else "its list of tools differed from the first one"


async def _started(
    upstreams: Mapping[str, Upstream], catalog: Catalog
) -> tuple[dict[str, dict[str, Any]], dict[str, list[ListedTool]]]:
    """Start the servers that do not run; return the metadata of all servers, and the tools of the started ones."""
    servers = {name: dict(about) for name, about in catalog.servers.items()}
    starting = [upstream for upstream in upstreams.values() if upstream.dead]
    opened = await asyncio.gather(*(each.open_in_turn() for each in starting), return_exceptions=True)
    listings: dict[str, list[ListedTool]] = {}
    for upstream, listed in zip(starting, opened, strict=True):
        if isinstance(listed, BaseException):
            raise listed
        listings[upstream.name] = listed
        servers[upstream.name]["tools_hash"] = tools_hash(listed)
    return servers, listings


async def close_all(upstreams: Iterable[Upstream]) -> None:
    """End the sessions and processes of servers. Idempotent."""
    await asyncio.gather(*(upstream.close() for upstream in upstreams))
