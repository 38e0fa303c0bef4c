"""``server.json``, which ``mcpenv inspect --server-json`` prints for the MCP registry."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import mounted_worlds
import pytest
from mounted_worlds import ICON, Shop

from mcpenv import ConfigurationError
from mcpenv.extensions.inspection.inspect import registry_entry
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving


def server_json(target: str) -> Any:
    command = [sys.executable, "-m", "mcpenv", "inspect", target, "--server-json", "com.example/shop"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.process
def test_a_server_json_of_code_and_of_a_running_server() -> None:
    target = f"{mounted_worlds.__file__}:Shop"
    of_code = server_json(target)
    assert of_code == {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "com.example/shop",
        "title": "shop",
        "description": "An environment around the shop.",
        "version": "3.1",
        "websiteUrl": "https://shop.example",
        "icons": [{"src": ICON.src, "mimeType": "image/png", "sizes": ["48x48"]}],
    }
    with serving(Shop, ServerConfig(public_url="https://shops.example.com")) as url:
        of_server = server_json(url)
    remotes = [{"type": "streamable-http", "url": "https://shops.example.com/mcp"}]
    assert of_server == {**of_code, "remotes": remotes}


def test_a_name_that_the_registry_would_refuse_is_refused() -> None:
    for name in ("shop", "a/b/c", "com.example/", "com.example/my shop"):
        with pytest.raises(ConfigurationError, match=r"io\.github\.user/weather"):
            registry_entry(name, {})


def test_icons_that_the_registry_does_not_take_are_left_out() -> None:
    entry = registry_entry("com.example/shop", {"name": "shop", "icons": [{"src": "data:image/png;base64,AA=="}]})
    assert "icons" not in entry
