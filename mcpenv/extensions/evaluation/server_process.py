"""The server process of one evaluation, which ends when the evaluation's process ends, in any way.

`OwnServer` starts the process, and `main` runs in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from mcpenv.errors import ConfigurationError, StartupError
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serve_http
from mcpenv.targets.target import load_target
from mcpenv_client.errors import McpenvError
from mcpenv_client.providers.inside.local_server import end_with, owner_stream
from mcpenv_client.types.tools import Mode

STOP_TIMEOUT_S = 15.0
SHUTDOWN_S = 5.0


class OwnServer:
    """The server process. Agents do not have its control token and get only the URLs of episodes.

    Args:
        target: TARGET as on the command line.
        settings: ``name=value`` each, for the constructor or factory.
        tasks: a file of tasks to use instead of the environment's own.
        columns: its columns by the fields of a task: ``prompt=question,answer=solution``.
        control_token: the token that its control plane requires.
        log: the file to which the output of the server and the environment is appended.
    """

    def __init__(
        self,
        target: str,
        settings: Sequence[str],
        tasks: Path | None,
        columns: str | None,
        control_token: str,
        log: Path,
    ) -> None:
        job = {
            "target": target,
            "settings": list(settings),
            "tasks": None if tasks is None else str(tasks),
            "columns": columns,
            "control_token": control_token,
        }
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"import sys; from {__name__} import main; sys.exit(main())"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Ctrl-C must reach the evaluation only, which then ends this process.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        # Not as an argument, because every user of this machine can see those.
        with contextlib.suppress(BrokenPipeError):  # the process has ended; `started` reports it
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def started(self) -> tuple[str, Path | None]:
        """Block until the server accepts connections; return its URL and the folder of the environment's code.

        Raises:
            ConfigurationError: the server does not start. The text is the server's own error message.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            said = json.loads(line)
        except ValueError:
            raise ConfigurationError("the environment's server ended while it started; see its log") from None
        if "error" in said:
            raise ConfigurationError(said["error"])
        folder = said["folder"]
        return f"http://127.0.0.1:{said['port']}", None if folder is None else Path(folder)

    def stop(self) -> None:
        """Stop the server and its environments; kill it after `STOP_TIMEOUT_S` seconds. Idempotent."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


# -- in the process


def main() -> int:
    """Serve the job in the first line of stdin until stdin is closed; write port and folder, or an error, to stdout."""
    told, job = os.fdopen(os.dup(1), "w"), owner_stream()
    os.dup2(2, 1)  # what user code prints is for the log
    asked = json.loads(job.readline())
    threading.Thread(target=end_with, args=(job,), name="mcpenv-end", daemon=True).start()
    try:
        target = load_target(asked["target"], asked["settings"], asked["tasks"], asked["columns"])
        target.refuse_other(Mode.SIMULATION)
        folder = None if target.folder is None else str(target.folder)
        config = replace(
            ServerConfig(**({} if target.manifest is None else target.manifest.limits.server_settings())),
            control_token=asked["control_token"],
            require_handle=True,
            shutdown_timeout_s=SHUTDOWN_S,
        )
        serve_http(
            target.factory,
            config,
            port=0,
            readme=target.readme,
            auth=False,  # its agents get the address of an episode
            on_started=lambda port, *_: _tell(told, {"port": port, "folder": folder}),
        )
    except McpenvError as error:
        _tell(told, {"error": str(error)})
        return StartupError.exit_status
    return 0


def _tell(told: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=told, flush=True)
