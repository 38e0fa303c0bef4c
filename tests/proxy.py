"""Reverse proxies in front of servers, with the configurations that ``deploy/`` has for users."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
PATIENCE_S = 60.0
LISTENS = {"nginx-servers.conf": ("listen 8080;", "listen {};"), "haproxy.cfg": ("bind :8080", "bind {}")}
"""The line with the address of a proxy in these files, and its form."""
SERVERS = ("127.0.0.1:8001", "127.0.0.1:8002")
"""The addresses of servers in them."""


def free_address() -> str:
    """An address of this machine for a proxy, which cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def nginx(behind: str, folder: Path) -> Iterator[str]:
    """The base URL of nginx with the configuration for one server, in front of a server."""
    address = free_address()
    server = f"server {urlsplit(behind).netloc};"
    text = configured("nginx.conf", {"server 127.0.0.1:8000;": server, "listen 8080;": f"listen {address};"})
    with running(nginx_command(text, folder), address) as url:
        yield url


@contextmanager
def in_front(
    program: str, address: str, servers: Sequence[str], folder: Path, changes: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The base URL of nginx or HAProxy at an address, with the configuration for two servers, changed so."""
    file = "haproxy.cfg" if program == "haproxy" else "nginx-servers.conf"
    listens, form = LISTENS[file]
    places = {ours: urlsplit(server).netloc for ours, server in zip(SERVERS, servers, strict=True)}
    text = configured(file, {listens: form.format(address)}, {**places, **(changes or {})})
    if program == "haproxy":
        (folder / file).write_text(text, encoding="utf-8")
        command = [found("haproxy"), "-db", "-f", str(folder / file)]
    else:
        command = nginx_command(text, folder)
    with running(command, address) as url:
        yield url


def configured(file: str, once: Mapping[str, str], everywhere: Mapping[str, str] | None = None) -> str:
    """A file of ``deploy/`` with other addresses."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    for written, ours in once.items():
        assert text.count(written) == 1
        text = text.replace(written, ours)
    for written, ours in (everywhere or {}).items():
        assert written in text
        text = text.replace(written, ours)
    return text


def nginx_command(text: str, folder: Path) -> list[str]:
    """The command that runs nginx with this file among others."""
    (folder / "mcpenv.conf").write_text(text, encoding="utf-8")
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; include {folder}/mcpenv.conf; }}\n",
        encoding="utf-8",
    )
    return [found("nginx"), "-p", str(folder), "-c", str(main)]


def found(program: str) -> str:
    """The path of a program, which may be one for administrators."""
    path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")
    assert path is not None, f"there is no {program}; .ci/run installs it"
    return path


@contextmanager
def running(command: Sequence[str], address: str) -> Iterator[str]:
    """The base URL of a proxy that runs."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            limit = time.monotonic() + PATIENCE_S
            while not answers(f"http://{address}/health"):
                assert process.poll() is None and time.monotonic() < limit, f"{command[0]} does not serve"
                time.sleep(0.05)
            yield f"http://{address}"
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE_S).status_code == 200
    except httpx.ConnectError:
        return False
