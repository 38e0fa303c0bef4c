"""OwnServer: an environment served for one evaluation, in a process of its own that ends with it, however it ends.

This module is both ends: `OwnServer` starts the process, `main` is what runs there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from mcpenv_client.errors import McpenvError

from ..config import ServerConfig
from ..errors import ConfigurationError, StartupError
from ..serve import serve_http
from ..targets import load_target

STOP_TIMEOUT_S = 15.0
SHUTDOWN_S = 5.0


class OwnServer:
    """The process. Its control plane wants a token that the agents do not have; they get addresses of episodes only.

    Args:
        target: as the command line takes it.
        settings: ``name=value`` each, for the constructor or factory.
        tasks: a file of tasks that takes the place of the environment's.
        control_token: what its control plane wants.
        log: what it and the environment print is added to this file.
    """

    def __init__(self, target: str, settings: Sequence[str], tasks: Path | None, control_token: str, log: Path) -> None:
        job = {
            "target": target,
            "settings": list(settings),
            "tasks": None if tasks is None else str(tasks),
            "control_token": control_token,
        }
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"import sys; from {__name__} import main; sys.exit(main())"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Ctrl-C is for the evaluation, which then ends this.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        # Not among the arguments, which everybody on this machine sees.
        with contextlib.suppress(BrokenPipeError):  # it is dead already; `url` says so
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def url(self) -> str:
        """Where it serves; blocks until it does.

        Raises:
            ConfigurationError: it does not start; the text is its own.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            said = json.loads(line)
        except ValueError:
            raise ConfigurationError("the environment's server ended while it started; its log says why") from None
        if "error" in said:
            raise ConfigurationError(said["error"])
        return f"http://127.0.0.1:{said['port']}"

    def stop(self) -> None:
        """End it, and its environments; it is killed if that takes too long. Harmless twice."""
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
    """Serve what the first line of stdin says until stdin ends; tells the port, or why not, on stdout."""
    told, job = _streams()
    asked = json.loads(job.readline())
    _end_with(job)
    try:
        target = load_target(asked["target"], asked["settings"], asked["tasks"])
        config = replace(
            ServerConfig(),
            control_token=asked["control_token"],
            require_handle=True,
            shutdown_timeout_s=SHUTDOWN_S,
        )
        serve_http(
            target.factory,
            config,
            port=0,
            readme=target.readme,
            on_started=lambda port, _: _tell(told, {"port": port}),
        )
    except McpenvError as error:
        _tell(told, {"error": str(error)})
        return StartupError.exit_status
    return 0


def _streams() -> tuple[TextIO, TextIO]:
    """Where to tell, and where the job comes from; whatever the environment prints or reads goes elsewhere."""
    told, job = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return told, job


def _tell(told: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=told, flush=True)


def _end_with(job: TextIO) -> None:
    """End this process when whoever started it closes the pipe, as its death does."""

    def wait() -> None:
        job.read()
        os.kill(os.getpid(), signal.SIGTERM)
        # An environment that will not close must not outlive the evaluation.
        threading.Event().wait(STOP_TIMEOUT_S)
        os._exit(1)

    threading.Thread(target=wait, name="mcpenv-end", daemon=True).start()
