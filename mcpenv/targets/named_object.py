"""The object in a module that a target names: an environment's class, or a factory."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fastmcp import FastMCP
from mcp.server import MCPServer, Server

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import TargetError, meant

from .place import Place, called, slug

_MAIN = ("mcp", "server", "app")
"""The names of a module's main server, as in the command line of FastMCP."""

_OF_SDK = "is a server of the MCP SDK, not of FastMCP; serve it as a process: mcp:python FILE"


def pick(place: Place, module: ModuleType) -> Any:
    """Return the class or factory that the target names.

    Raises:
        TargetError: there is none, there are several, or it does not make environments.
    """
    own = {name: value for name, value in _classes(module).items() if value.__module__ == module.__name__}
    if place.attribute is None:
        return _only(place, module, own)
    missing = object()
    made = getattr(module, place.attribute, missing)
    if made is missing:
        has = [*own, *_servers(module)]
        known = f"; it has {', '.join(has)}{meant(place.attribute, has)}" if has else ""
        raise TargetError(place.target, f"there is no {place.attribute!r} in {called(place)}{known}")
    if isinstance(made, MCPEnvironment):
        raise TargetError(
            place.target,
            f"{place.attribute} is an instance of {type(made).__name__}; name the class or a factory, "
            "because every session needs its own instance",
        )
    if isinstance(made, FastMCP):
        return _environment_of(made, module)
    if isinstance(made, type) and (not issubclass(made, MCPEnvironment) or made is MCPEnvironment):
        raise TargetError(place.target, f"{place.attribute} is a class, but not a subclass of MCPEnvironment")
    if isinstance(made, MCPServer | Server):
        raise TargetError(place.target, f"{place.attribute} {_OF_SDK}")
    if not callable(made):
        raise TargetError(
            place.target, f"{place.attribute} is a {type(made).__name__}, neither an MCPEnvironment class nor a factory"
        )
    if inspect.iscoroutinefunction(made):
        raise TargetError(place.target, f"{place.attribute} is an async function; a factory must be a plain function")
    return made


def _only(place: Place, module: ModuleType, own: Mapping[str, type[MCPEnvironment]]) -> type[MCPEnvironment]:
    classes = {name: cls for name, cls in own.items() if not name.startswith("_") and not inspect.isabstract(cls)}
    if len(set(classes.values())) == 1:
        return next(iter(classes.values()))
    if classes:
        raise TargetError(
            place.target,
            f"has several environments: {', '.join(classes)}; choose one, such as {place.target}:{next(iter(classes))}",
        )
    if not own and (servers := _servers(module)):
        name = next((each for each in _MAIN if each in servers), next(iter(servers)))
        if name not in _MAIN and len({id(server) for server in servers.values()}) > 1:
            raise TargetError(
                place.target,
                f"has several FastMCP servers: {', '.join(servers)}; choose one, such as {place.target}:{name}",
            )
        return _environment_of(servers[name], module)
    of_sdk = [name for name, value in vars(module).items() if isinstance(value, MCPServer | Server)]
    if of_sdk:
        raise TargetError(place.target, f"{of_sdk[0]} {_OF_SDK}")
    imported = [name for name in _classes(module) if name not in own]
    hint = f"; to use an imported one ({', '.join(imported)}), write {place.target}:{imported[0]}" if imported else ""
    raise TargetError(place.target, f"{called(place)} defines no MCPEnvironment subclass{hint}")


def _environment_of(server: FastMCP, module: ModuleType) -> type[MCPEnvironment]:
    """Return the environment of a FastMCP server as it is: its tools, without rewards. A reset leaves its state."""

    def __init__(self: MCPEnvironment) -> None:
        MCPEnvironment.__init__(self, server)

    members = {
        "__init__": __init__,
        "__doc__": server.instructions or f"The tools of {server.name}.",
        "__module__": module.__name__,
        "EXPOSED_NAME": server.name,
    }
    return type(slug(server.name), (MCPEnvironment,), members)


def _servers(module: ModuleType) -> dict[str, FastMCP]:
    return {name: value for name, value in vars(module).items() if isinstance(value, FastMCP)}


def _classes(module: ModuleType) -> dict[str, type[MCPEnvironment]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, MCPEnvironment) and value is not MCPEnvironment
    }
