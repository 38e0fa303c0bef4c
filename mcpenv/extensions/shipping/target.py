"""Targets of ``mcpenv run`` only: ``image:REF``, a container of this machine, and ``hub:OWNER/NAME``, a Space."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from mcpenv.cli.output import Page
from mcpenv.cli.ready_file import write_ready_file
from mcpenv.cli.run_options import Given
from mcpenv.cli.run_request import RunRequest
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.targets.external import TargetKind
from mcpenv_client.errors import InstanceFailed, ProviderUnavailable
from mcpenv_client.providers.docker import DockerProvider
from mcpenv_client.providers.provider import Instance

from .download import consent, hub
from .hub.space import SpaceName

WATCH_S = 1.0
"""Seconds between two checks that the container runs."""

_UNFIT = ("transport", "tasks", "record", "workers", "reload", "console")
_FIT = {"port", "control_token", "control_token_file"}


def environment_of(names: Sequence[str]) -> dict[str, str]:
    """Return environment variables of this process, by name.

    Raises:
        ConfigurationError: one is not set.
    """
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigurationError(f"--env: not set: {', '.join(missing)}; give names of variables that are")
    return {name: os.environ[name] for name in names}


def refuse_for_image(request: RunRequest) -> None:
    """Raise if an option was given that has no effect on a container. The port and the control token are allowed.

    Raises:
        ConfigurationError: an option was given; the text names it.
    """
    usual = {field.name: field.default for field in fields(RunRequest)}
    given = [name for name in _UNFIT if getattr(request, name) != usual[name]]
    groups: tuple[Given, ...] = (request.addresses, request.sessions, request.limits, request.credentials)
    unfit = [*given, *sorted(name for group in groups for name in group.given - _FIT)]
    if unfit:
        option = unfit[0].replace("_", "-")
        raise ConfigurationError(f"--{option} has no effect on an image: target, which has its own settings")


def run_image(request: RunRequest) -> int:
    """Run a container until a signal comes, then remove it.

    Raises:
        ConfigurationError: a requirement is missing, or the container does not start.
    """
    refuse_for_image(request)
    token = request.credentials.read(ServerConfig())[0].control_token
    mode = [] if request.mode is None else ["--mode", request.mode]
    env, image = environment_of(request.env or ()), request.target.removeprefix("image:")
    if not image:
        raise ConfigurationError("image: names no image; write image:REF")
    provider = DockerProvider(
        image,
        options=[*mode, *(f"--set={setting}" for setting in request.settings or ())],
        env=env,
        control_token=token,
        host_port=(request.addresses.port if "port" in request.addresses.given else 0) or None,
        require_handle=False,
    )
    try:
        with contextlib.suppress(asyncio.CancelledError):  # by a signal
            asyncio.run(_run(provider, token is None, request.ready_file))
    except (ProviderUnavailable, InstanceFailed) as error:
        raise ConfigurationError(str(error)) from error
    return 0


def downloaded(request: RunRequest) -> str:
    """Return the folder with the code of a Space, after permission to run it.

    Raises:
        ConfigurationError: there is no such Space, or permission is denied.
    """
    request.refuse_env()
    if request.reload:
        raise ConfigurationError("--reload is for code of your own; copy it first, with mcpenv share fork")
    space = SpaceName.parse(request.target)
    library = hub()
    consent(request.target, request.trust)
    return str(library.download(space)[0])


async def _run(provider: DockerProvider, show_token: bool, ready_file: Path | None) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))
    async with provider.instance() as instance:
        if ready_file is not None:
            write_ready_file(ready_file, url=instance.url, mcp_url=f"{instance.url}/mcp")
        _introduce(provider, instance, show_token)
        while await instance.is_running():
            await asyncio.sleep(WATCH_S)
        raise InstanceFailed(instance.name, "it ended", await instance.logs())


def _introduce(provider: DockerProvider, instance: Instance, show_token: bool) -> None:
    page = Page(sys.stdout)
    page.line((provider.image, "bold"), f" in {instance.name}")
    page.line()
    page.line("MCP      ", (f"{instance.url}/mcp", "cyan"), indent=2)
    page.line("control  ", (f"{instance.url}", "cyan"), indent=2)
    if show_token:
        page.line("token    ", (f"{instance.control_token}", "cyan"), indent=2)
    page.line()
    page.line(("Ctrl-C stops the container and removes it.", "dim"))
    sys.stdout.flush()


IMAGE = TargetKind(run=run_image)
"""The targets ``image:REF``."""

HUB = TargetKind(run=downloaded)
"""The targets ``hub:OWNER/NAME`` and ``hub:OWNER/NAME@REVISION``."""
