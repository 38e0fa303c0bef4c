"""The server that an evaluation starts for its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpenv.extensions.evaluation.server_process import OwnServer
from mcpenv_client import EnvClient

TOKEN = "a-token-of-control"
ENVIRONMENT = (
    "from mcpenv import MCPEnvironment\n\n\nclass Empty(MCPEnvironment):\n    SUPPORTS_CONCURRENT_SESSIONS = True\n"
)
MANIFEST = "schema_version: 1\nname: empty\nentry: environment.py:Empty\nlimits: {max_sessions: 3}\n"


@pytest.mark.slow
def test_an_evaluation_has_the_limits_of_the_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "environment.py").write_text(ENVIRONMENT, encoding="utf-8")
    (folder / "mcpenv.yaml").write_text(MANIFEST, encoding="utf-8")
    server = OwnServer(str(folder), [], None, None, TOKEN, tmp_path / "log")
    try:
        url, where = server.started()
        assert where == folder
        with EnvClient(url, headers={"Authorization": f"Bearer {TOKEN}"}).sync() as client:
            assert client.capacity().max_sessions == 3
    finally:
        server.stop()
