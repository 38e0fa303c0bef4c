"""nginx in front of a server, with the configuration that ``deploy/`` has for users."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

NGINX = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
PATIENCE_S = 60.0


@contextmanager
def nginx(behind: str, folder: Path) -> Iterator[str]:
    """The base URL of nginx with the configuration of ``deploy/``, in front of a server."""
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    assert program is not None, "there is no nginx; .ci/run installs it"
    with socket.create_server(("127.0.0.1", 0)) as free:  # nginx cannot choose one itself
        address = f"127.0.0.1:{free.getsockname()[1]}"
    text = NGINX.read_text(encoding="utf-8")
    for line, ours in (
        ("server 127.0.0.1:8000;", f"server {urlsplit(behind).netloc};"),
        ("listen 8080;", f"listen {address};"),
    ):
        assert text.count(line) == 1
        text = text.replace(line, ours)
    (folder / "mcpenv.conf").write_text(text, encoding="utf-8")
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; include {folder}/mcpenv.conf; }}\n",
        encoding="utf-8",
    )
    with subprocess.Popen([program, "-p", str(folder), "-c", str(main)], stdin=subprocess.DEVNULL) as process:
        try:
            limit = time.monotonic() + PATIENCE_S
            while not answers(f"http://{address}/health"):
                assert process.poll() is None and time.monotonic() < limit, "nginx does not serve"
                time.sleep(0.05)
            yield f"http://{address}"
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE_S).status_code == 200
    except httpx.ConnectError:
        return False
