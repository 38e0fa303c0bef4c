"""Run an image as TARGET of ``mcpenv run``: ``image:REF``, in a container of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcpenv.cli.output import Page
from mcpenv.cli.ready_file import write_ready_file
from mcpenv.cli.run_options import Given
from mcpenv.errors import ConfigurationError
from mcpenv_client.errors import InstanceFailed, ProviderUnavailable
from mcpenv_client.providers.docker import DockerProvider
from mcpenv_client.providers.provider import Instance

IMAGE = "image:"
"""The prefix of an image."""

WATCH_S = 1.0
"""Seconds between two looks at whether the container runs."""

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


def refuse_for_image(given: Sequence[str], *groups: Given) -> None:
    """Raise if an option was given that has no effect on a container.

    Args:
        given: names of options that are in no group.
        groups: the groups. The port and the control token have an effect.

    Raises:
        ConfigurationError: with the option.
    """
    unfit = [*given, *sorted(name for group in groups for name in group.given - _FIT)]
    if unfit:
        option = unfit[0].replace("_", "-")
        raise ConfigurationError(f"--{option} has no effect on an image: target, which has its own settings")


def run_image(
    target: str,
    options: Sequence[str],
    env: Mapping[str, str],
    control_token: str | None,
    port: int,
    ready_file: Path | None,
) -> int:
    """Run a container until a signal comes, then remove it.

    Args:
        target: ``image:REF``.
        options: options of ``mcpenv run`` in the container.
        env: its environment variables.
        control_token: its control token; None for one that is made and printed.
        port: its port on loopback; 0 for any free one.
        ready_file: the file to write when it is ready.

    Raises:
        ConfigurationError: something is missing, or the container does not start.
    """
    image = target.removeprefix(IMAGE)
    if not image:
        raise ConfigurationError("image: names no image; write image:REF")
    provider = DockerProvider(
        image, options=options, env=env, control_token=control_token, host_port=port or None, require_handle=False
    )
    try:
        with contextlib.suppress(asyncio.CancelledError):  # by a signal
            asyncio.run(_run(provider, control_token is None, ready_file))
    except (ProviderUnavailable, InstanceFailed) as error:
        raise ConfigurationError(str(error)) from error
    return 0


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


__all__ = ["IMAGE", "environment_of", "refuse_for_image", "run_image"]
