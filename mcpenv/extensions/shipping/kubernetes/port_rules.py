"""Rules for the ports of a server: those of its options, of its container, and of the URL that it gives to agents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from .problem import Found, Problem, items

OPTIONS = {"--port": "agents", "--control-port": "control"}
"""The names of a container's ports, by the option of ``mcpenv run`` that says where the server listens."""

PUBLIC_URL = "--public-url"
_POD_IP, _POD_NAME = "$(POD_IP)", "$(POD_NAME)"
_PORT_OF = re.compile(r":([0-9]+)$")


def check_server_ports(found: Found, path: str, container: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the ports of a container at which its server does not listen.

    A port without its option is not judged: the image's entrypoint may have the option.
    """
    given = _options(container)
    for option, name in OPTIONS.items():
        listens = given.get(option, "")
        for _, port in items(container, "ports"):
            number = port.get("containerPort")
            if port.get("name") == name and listens.isdecimal() and isinstance(number, int) and int(listens) != number:
                yield found.problem(
                    f"{path}.args",
                    f'the server listens at {listens}, and the port "{name}" is {number}; '
                    f"{option} and containerPort must be the same",
                )
    listens, url = given.get("--port", ""), given.get(PUBLIC_URL, "")
    host, public_port = _address(url)
    # Nothing stands between agents and these hosts that would map one port to another.
    service = found.spec.get("serviceName")
    is_pod = host == _POD_IP or (service is not None and f"{host}.".startswith(f"{_POD_NAME}.{service}."))
    if is_pod and listens.isdecimal() and int(listens) != public_port:
        yield found.problem(
            f"{path}.args",
            f"the server listens at {listens}, and {PUBLIC_URL} sends agents to port {public_port} of the pod",
        )


def _options(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the options above, written as one word or as two. The last one counts, as on a console."""
    words = [str(word) for field in ("command", "args") for word in _list(container.get(field))]
    values = {}
    for word, after in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option in OPTIONS or option == PUBLIC_URL:
            values[option] = value if equals else after
    return values


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _address(url: str) -> tuple[str, int]:
    """Return the host of a URL as it is written, and its port."""
    scheme, _, rest = url.partition("://")
    netloc = rest.partition("/")[0]
    port = _PORT_OF.search(netloc)
    if port is None:
        return netloc, 443 if scheme == "https" else 80
    return netloc[: port.start()], int(port[1])


__all__ = ["check_server_ports"]
