"""Run commands in sandboxes of kubernetes-sigs/agent-sandbox. Needs ``mcpenv-client[agent-sandbox]``."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import io
import shlex
import time
from collections.abc import Iterable, Iterator
from typing import ClassVar

from mcpenv.errors import ConfigurationError, WorldUnreadable
from mcpenv_client.providers.access import Access

from .archive import packed, unpacked
from .sandbox import (
    FOLDER,
    HAVE,
    LIMITS,
    MAX_BYTES,
    MAX_OUTPUT,
    TIMED_OUT,
    VARIABLES,
    Completed,
    Entry,
    Sandbox,
    SandboxFailed,
    counted,
    shown,
)

try:
    from mcpenv_client.providers.sandbox_api import FAILURES, Claim, claim, has_pool
except ImportError as error:
    raise ConfigurationError(
        "the backend 'remote' needs the client of agent-sandbox: pip install 'mcpenv-client[agent-sandbox]'"
    ) from error

_NEEDED = ("base64", "bash", "env", "head", "mktemp", "stat", "tail", "tar", "timeout")
_FILES, _STDIN = "mcpenv-files.tar", "mcpenv-stdin"
"""Files in the folder of the runtime, in which its commands start, too."""

_CHECK = (
    f'mkdir -p {FOLDER} && [ -w {FOLDER} ] || echo "a writable folder {FOLDER}"; '
    f'for each in {" ".join(_NEEDED)}; do command -v $each >/dev/null || echo "$each"; done'
)
_RUN = f"""
exec 0<"$3"
cd {FOLDER} && kept=$(mktemp -d) || exit 1
timeout -s KILL "$1" env "${{@:4}}" bash -c '{LIMITS}; exec bash -c "$1"' bash "$2" >"$kept/1" 2>"$kept/2"
echo $?
for each in 1 2; do
    size=$(stat -c %s "$kept/$each")
    echo "$size"
    if [ "$size" -gt {MAX_OUTPUT} ]; then
        {{ head -c {MAX_OUTPUT // 2} "$kept/$each"; tail -c {MAX_OUTPUT // 2} "$kept/$each"; }} | base64 -w 0
    else
        base64 -w 0 "$kept/$each"
    fi
    echo
done
rm -r "$kept"
"""
"""Runs a command, and prints its exit status, and of each output its size and as much as is shown, in base64: what a
runtime answers is text."""

_KILLED = 128 + 9
_MARGIN_S = 60


class RemoteSandbox(Sandbox):
    """A sandbox with the programs of a pod's image, claimed from a warm pool in a cluster.

    The sandboxes of the pool run a runtime of agent-sandbox, and have bash, GNU's core programs and tar. Their network,
    limits and user are those of the pool's template. A `fill` or `load` of a used sandbox claims another one.

    A process that leaves the session of its command goes on when the command has ended.

    Args:
        pool: the name of the SandboxWarmPool.
        namespace: its namespace.
        context: another context of the kubeconfig.
        kubeconfig: the path of a kubeconfig; ``KUBECONFIG``, or ``~/.kube/config``, by default.
        url: the router to the sandboxes; None: the addresses of pods, as inside the cluster.
        port: the port of the runtime.
        lifetime_s: seconds after which a claim ends by itself.
        start_timeout_s: maximum seconds until a claim is ready.

    Raises:
        ConfigurationError: there is no client, no cluster, no such pool, or its sandboxes lack a program.
    """

    backend = "remote"
    capabilities: ClassVar = HAVE["remote"]
    max_file: ClassVar = MAX_BYTES

    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        env: dict[str, str] | None = None,
        pool: str | None = None,
        namespace: str = "default",
        context: str | None = None,
        kubeconfig: str | None = None,
        url: str | None = None,
        port: int = 8888,
        lifetime_s: int = 86400,
        start_timeout_s: int = 180,
    ) -> None:
        super().__init__(timeout_s=timeout_s, env=env)
        if pool is None:
            raise ConfigurationError("the backend 'remote' needs pool=, the name of a SandboxWarmPool")
        access = Access(context, kubeconfig)
        self._claimed = functools.partial(
            claim, access, pool, namespace, start_timeout_s, lifetime_s, port=port, url=url
        )
        needs = "the backend 'remote' needs"
        try:
            if not has_pool(access, pool, namespace):
                raise ConfigurationError(f"{needs} the SandboxWarmPool {pool}, which the namespace {namespace} lacks")
            self._claim: Claim | None = self._claimed()
        except FAILURES as error:
            raise ConfigurationError(
                f"{needs} a cluster with agent-sandbox: no sandbox could be claimed ({error}); set KUBECONFIG"
            ) from error
        self._is_used = False
        try:
            code, out, err = self._execute(_CHECK)
            lacks = out.splitlines() or ([] if code == 0 else ["bash", err])
        except SandboxFailed as error:
            lacks = [str(error)]
        if lacks:
            self.close()
            raise ConfigurationError(f"the sandboxes of the pool {pool} lack {', '.join(lacks)}")

    def run(self, command: str, *, stdin: bytes = b"") -> Completed:
        """Run a command, as `Sandbox.run`."""
        self.check_size("stdin", stdin)
        live = self._live()
        self._is_used = True
        with _refusals():
            if stdin:
                live.write(_STDIN, stdin)
        source = _STDIN if stdin else "/dev/null"
        variables = [f"{name}={value}" for name, value in {**VARIABLES, **self.env}.items()]
        started = time.monotonic()
        code, answer, err = self._execute(_RUN, str(self.timeout_s), command, source, *variables)
        took = time.monotonic() - started
        try:
            status, *outputs = answer.splitlines()
            streams = zip(outputs[1::2], outputs[::2], strict=True)
            stdout, stderr = (shown(base64.b64decode(data), int(size)) for data, size in streams)
            exit_code = int(status)
        except (ValueError, binascii.Error) as error:
            raise SandboxFailed(f"its runtime answered with status {code}: {answer[:200]} {err[:200]}") from error
        if exit_code == _KILLED and took >= self.timeout_s:
            note = f"the command exceeded its time limit ({self.timeout_s:g} s)\n"
            return Completed(TIMED_OUT, stdout, stderr + note, True)
        return Completed(exit_code, stdout, stderr)

    def entries(self) -> list[Entry]:
        """Return everything in the folder, as `Sandbox.entries`."""
        live = self._live()
        code, _, err = self._execute(f"ulimit -f {MAX_BYTES >> 9}; tar -C {FOLDER} -cf {_FILES} .")
        if code:
            raise WorldUnreadable(f"the files of the sandbox cannot be packed: {err}")
        with _refusals():
            return counted(unpacked(io.BytesIO(live.read(_FILES)), "."))

    def fill(self, entries: Iterable[Entry]) -> None:
        """Start anew with these files."""
        given = self.checked(entries)
        live = self._live()
        with _refusals():
            if self._is_used:
                live.give_up()
                self._claim = live = self._claimed()
                self._is_used = False
                self._execute(_CHECK)
            if given:
                self._is_used = True
                live.write(_FILES, packed(given))
        if given:
            code, _, err = self._execute(f"tar -C {FOLDER} --no-same-owner -xpf {_FILES}")
            if code:
                raise OSError(f"the files cannot be unpacked: {err}")

    def close(self) -> None:
        """Give up the claim, and with it the files. A second call does nothing."""
        if self._claim is not None:
            with _refusals():
                self._claim.give_up()
            self._claim = None

    def _live(self) -> Claim:
        if self._claim is None:
            raise SandboxFailed("the sandbox is closed")
        return self._claim

    def _execute(self, script: str, *words: str) -> tuple[int, str, str]:
        with _refusals():
            command = shlex.join(["bash", "-c", script, "bash", *words])
            return self._live().run(command, int(self.timeout_s) + _MARGIN_S)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise SandboxFailed(f"the sandbox did not answer: {error}") from error
