"""Give a sandbox with a network namespace of its own a network, by slirp4netns.

The sandbox reaches other machines through sockets of slirp4netns. It does not reach the loopback addresses of this
machine, where servers listen that trust every local program.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
from contextlib import ExitStack, suppress

from mcpenv.errors import ConfigurationError
from mcpenv_client.errors import McpenvError

NAMESERVER = "10.0.2.3"
"""The address in the sandbox that passes DNS queries on to this machine's name server."""

READY_WITHIN_S = 30.0
"""Seconds to wait for the network of a sandbox."""

_TUN = "/dev/net/tun"
_NS_GET_USERNS = 0xB701  # of linux/nsfs.h: the user namespace that owns a namespace


class NetworkFailed(McpenvError, RuntimeError):
    """Raised if a sandbox does not get its network."""


def find_slirp() -> str:
    """Return the path of slirp4netns.

    Raises:
        ConfigurationError: it is not installed, or cannot create network devices.
    """
    program = shutil.which("slirp4netns")
    if program is None:
        raise ConfigurationError("slirp4netns is not installed")
    if not os.access(_TUN, os.R_OK | os.W_OK):
        raise ConfigurationError(f"slirp4netns needs {_TUN}, which this user cannot open")
    return program


class Network:
    """The network of a sandbox. It ends with `stop`, and with this process.

    Args:
        program: the path of slirp4netns.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._alive: int | None = None

    async def start(self, pid: int) -> None:
        """Wait until the sandbox has its network.

        Args:
            pid: a process of the sandbox.

        Raises:
            NetworkFailed: slirp4netns does not work here.
        """
        with ExitStack() as descriptors:
            try:
                network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
                descriptors.callback(os.close, network)
                # Not that of the process: bubblewrap may have put it into a further one, without rights to the network.
                owner = fcntl.ioctl(network, _NS_GET_USERNS)
                descriptors.callback(os.close, owner)
            except OSError as error:
                raise NetworkFailed(f"the sandbox has no network namespace: {error}") from error
            own = os.stat("/proc/self/ns/user").st_ino == os.fstat(owner).st_ino
            ready, told = os.pipe()
            descriptors.callback(os.close, ready)
            exit_fd, self._alive = os.pipe()
            descriptors.callback(os.close, exit_fd)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(self._program, "--configure", "--mtu=65520", "--disable-host-loopback"),
                    *(f"--ready-fd={told}", f"--exit-fd={exit_fd}"),
                    *(() if own else (f"--userns-path=/proc/self/fd/{owner}",)),
                    *("--netns-type=path", f"/proc/self/fd/{network}", "tap0"),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(told, exit_fd, network, owner),
                    start_new_session=True,
                )
            except OSError as error:
                raise NetworkFailed(f"slirp4netns cannot be run: {error}") from error
            finally:
                os.close(told)
            try:
                answer = await asyncio.wait_for(asyncio.to_thread(os.read, ready, 1), READY_WITHIN_S)
            except BaseException as error:
                await self.stop()  # which ends the thread's read
                if isinstance(error, TimeoutError):
                    raise NetworkFailed(f"slirp4netns did not answer within {READY_WITHIN_S:g} s") from error
                raise
        if not answer:
            assert self._process.stderr is not None
            lines = (await self._process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
            raise NetworkFailed(f"slirp4netns failed: {lines[-1] if lines else 'no reason given'}")

    async def stop(self) -> None:
        """End the network."""
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
