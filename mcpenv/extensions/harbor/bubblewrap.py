"""Boxes by bubblewrap: the task's own files on top of the system folders of this machine.

A box has its own, writable root folder. ``/usr`` and the folders of programs and libraries are this machine's own,
read-only. ``/etc`` is a copy of the parts that programs need, without passwords and keys. A shell loop in the box
starts the commands, so that their background processes continue until the box ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath

from mcpenv.extensions.sandbox.bubblewrap import command_line, tmpfs
from mcpenv.extensions.sandbox.slirp import NAMESERVER, Network, NetworkFailed

from .box import (
    KILLED_WITHIN_S,
    MAX_OUTPUT,
    TESTS,
    TIMED_OUT,
    VERIFIER_LOGS,
    Box,
    BoxFailed,
    Done,
    cut,
    exports,
    last_lines,
)
from .dockerfile import CONTEXT, VARIABLES, Recipe
from .pristine import SYSTEM, Carried

logger = logging.getLogger("mcpenv.harbor")

OPTIONS = () if os.geteuid() == 0 else ("--unshare-user", "--uid", "0", "--gid", "0")
"""The options by which a user who is not root is root in the box."""

STARTS_WITHIN_S = 30.0
_DEEPEST, _MOST_CHANGES = 32, 10_000
"""The depth of folders and the number of changes that are looked at, to name changes that tests do not find."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "java*", "ld.so.*",
    "localtime", "login.defs", "mime.types", "nsswitch.conf", "os-release", "perl", "pki", "profile", "protocols",
    "python3*", "services", "ssl",
)  # fmt: skip
_LEFT_OUT = shutil.ignore_patterns("private", "*.key", "*.gz")  # private keys, and links to manual pages
_FOLDERS = (
    "etc", "home", "logs/agent", "logs/artifacts", "logs/verifier", "mnt", "opt", "root", "run", "srv", "tmp",
    "var/cache", "var/lib", "var/log", "var/tmp",
)  # fmt: skip
_PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
_RESOLV_CONF = f"nameserver {NAMESERVER}\n"

# Reads "run ID" and "kill PID", writes "ID started PID" and "ID ended STATUS". A command leads a process group. Its
# script is a descriptor, because bash names it in errors, which must be the same in each run.
_LOOP = r"""
while read -r verb id; do
  if [ "$verb" = kill ]; then
    kill -s KILL -- "-$id"
  else
    {
      /usr/bin/setsid /bin/sh -c '
        echo "$1 started $$"
        exec /bin/bash /dev/fd/9 9<"in/$1.sh" <"in/$1.stdin" >"out/$1.stdout" 2>"out/$1.stderr"
      ' sh "$id"
      echo "$id ended $?"
    } &
  fi
done
"""


@dataclass
class _Running:
    """A command that was sent to the box.

    Attributes:
        started: its process id; None if it or the box ended before.
        ended: its exit status; None if the box ended before.
        unwanted: True to kill it as soon as it has started.
    """

    started: asyncio.Future[int | None]
    ended: asyncio.Future[int | None]
    unwanted: bool = False


class Template:
    """The files of a task's box before an episode. `build` runs once; boxes get copies.

    Args:
        bwrap: the path of bubblewrap's program.
        recipe: the steps of the Dockerfile.
        context: the folder of the Dockerfile.
        env: additional variables of the box.
        workdir: its working folder, instead of the recipe's.
        timeout_s: maximum seconds of the build.
        slirp: the path of slirp4netns; None if it cannot be used, so that no box has a network.
        keep: system paths that are carried over to the box of the tests.
        tests_env: the variables of the tests of each step.
        fresh: False to run the tests with all files of the agent, the system's too.
    """

    def __init__(
        self,
        bwrap: str,
        recipe: Recipe,
        context: Path,
        env: Mapping[str, str],
        workdir: str | None,
        timeout_s: float,
        *,
        slirp: str | None = None,
        keep: Sequence[str] = (),
        tests_env: Sequence[Mapping[str, str]] = (),
        fresh: bool = True,
    ) -> None:
        self.bwrap = bwrap
        self.tmpfs = tmpfs(bwrap)
        self.slirp = slirp
        self.env = {**VARIABLES, **recipe.env, **env}
        self.workdir = workdir or recipe.workdir
        self.carried = Carried.of(self.env, self.workdir, keep, tests_env)
        self.fresh = fresh
        self._recipe = recipe
        self._context = context
        self._timeout_s = timeout_s
        self._mutex = asyncio.Lock()
        self._made: tempfile.TemporaryDirectory[str] | None = None

    async def box(self, networks: Mapping[str, bool]) -> BubblewrapBox:
        """Return a new box. The first one waits for the build.

        Args:
            networks: True for each phase ("agent", "verifier") that has a network.

        Raises:
            BoxFailed: the build failed, or the box does not start.
        """
        await self.prepare()
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="mcpenv-harbor-"))
        await asyncio.to_thread(shutil.copytree, self.root, folder / "root", symlinks=True, dirs_exist_ok=True)
        box = BubblewrapBox(self, folder, networks)
        try:
            await box.start()
        except BaseException:
            await box.close()
            raise
        return box

    async def prepare(self) -> None:
        """Build the root folder, once.

        Raises:
            BoxFailed: the build failed.
        """
        async with self._mutex:
            if self._made is None:
                self._made = await self._build()

    @property
    def root(self) -> Path:
        """The root folder, once it is built."""
        assert self._made is not None
        return Path(self._made.name) / "root"

    async def _build(self) -> tempfile.TemporaryDirectory[str]:
        made = tempfile.TemporaryDirectory(prefix="mcpenv-harbor-image-", ignore_cleanup_errors=True)
        folder = Path(made.name)
        await asyncio.to_thread(_furnish, folder / "root")
        mounts = ("--ro-bind", str(self._context), CONTEXT)
        box = BubblewrapBox(self, folder, {"build": self.slirp is not None}, phase="build", mounts=mounts)
        without = "" if self.slirp else "; there is no network without slirp4netns"
        try:
            async with asyncio.timeout(self._timeout_s):
                await box.start()
                for step in self._recipe.steps:
                    enter = f"cd {shlex.quote(step.workdir)} && exec /bin/sh -c {shlex.quote(step.script)}"
                    script = exports(step.env) + enter
                    done = await box.run(script, timeout_s=self._timeout_s)
                    if done.exit_code:
                        raise BoxFailed(
                            f"line {step.line} of {self._context / 'Dockerfile'} failed with status {done.exit_code} "
                            f"(system folders are read-only without a container engine{without})"
                            f"{last_lines(done.stderr.strip() or done.stdout)}"
                        )
                await box.run(f"mkdir -p -- {shlex.quote(self.workdir)}", timeout_s=self._timeout_s)
        except TimeoutError as error:
            raise BoxFailed(f"{self._context / 'Dockerfile'} took more than {self._timeout_s:g} s") from error
        finally:
            await box.stop()
        return made


class BubblewrapBox(Box):
    """A box by bubblewrap.

    Args:
        template: its variables and working folder.
        folder: a folder for it alone, with its root folder ``root``.
        networks: as for `Template.box`.
        phase: the initial phase, which determines the network.
        mounts: additional arguments for bubblewrap.
    """

    def __init__(
        self,
        template: Template,
        folder: Path,
        networks: Mapping[str, bool],
        *,
        phase: str = "agent",
        mounts: Sequence[str] = (),
    ) -> None:
        self._template = template
        self._folder = folder
        self._networks = networks
        self._phase = phase
        self._mounts = mounts
        self._process: asyncio.subprocess.Process | None = None
        self._first_pid: int | None = None
        self._network: Network | None = None
        self._reader: asyncio.Task[None] | None = None
        self._running: dict[str, _Running] = {}

    async def start(self) -> None:
        """Start the loop of commands.

        Raises:
            BoxFailed: it does not start.
        """
        for name in ("in", "out"):
            folder = self._folder / name
            if folder.exists():
                await asyncio.to_thread(_delete, folder)
            folder.mkdir()
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command_line(writing),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._template.env,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        told = await asyncio.to_thread(_read_to_end, reading)
        if not told:
            assert self._process.stderr is not None
            text = (await self._process.stderr.read()).decode("utf-8", "replace").strip()
            raise BoxFailed(f"bubblewrap failed: {text.splitlines()[-1] if text else 'no reason given'}")
        self._first_pid = pid = int(json.loads(told)["child-pid"])
        assert self._process.stdout is not None
        self._reader = asyncio.create_task(self._read(self._process.stdout))
        done = await self.run("true", timeout_s=STARTS_WITHIN_S)
        if done.exit_code:
            raise BoxFailed(f"the box does not run commands: {done.reason}")
        if self._networks[self._phase]:  # not before: bubblewrap fails if its loopback interface is already up
            await self._connect(pid)

    async def run(
        self,
        script: str,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Done:
        """Implement `Box.run`. The only user is root."""
        process = self._process
        if process is None or process.stdin is None or self._reader is None or self._reader.done():
            raise BoxFailed("the box has ended")
        name, loop = secrets.token_hex(8), asyncio.get_running_loop()
        await asyncio.to_thread(self._write, name, self._enter() + exports(env) + script + "\n", stdin)
        running = self._running[name] = _Running(loop.create_future(), loop.create_future())
        timed_out = False
        try:
            process.stdin.write(f"run {name}\n".encode())
            await asyncio.shield(running.started)
            try:
                status = await asyncio.wait_for(asyncio.shield(running.ended), timeout_s)
            except TimeoutError:
                timed_out, status = True, TIMED_OUT
                self._kill(running)
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(running.ended), KILLED_WITHIN_S)
        except asyncio.CancelledError:
            self._kill(running)
            raise
        if status is None:
            raise BoxFailed("the box has ended")
        outputs = await asyncio.to_thread(self._outputs, name, max_output)
        return Done(status, *outputs, timed_out=timed_out)

    async def begin_verification(self, tests: Sequence[Path], *, goes_on: bool = False) -> str | None:
        """Implement `Box.begin_verification`, in a new sandbox with the files of the old one."""
        await self.stop()
        root = self._folder / "root"
        dropped = None
        if self._template.fresh:
            if goes_on:
                await self._keep(root)
            changed = await asyncio.to_thread(lambda: [*islice(_changes(root, self._template.root), _MOST_CHANGES)])
            dropped = self._template.carried.dropped(changed)
            await asyncio.to_thread(self._restore_system, root)
        logs = self._folder / "verifier"
        for path in (TESTS, VERIFIER_LOGS):
            await asyncio.to_thread(_empty, root, path.relative_to("/").parts)
        for folder in tests:
            await asyncio.to_thread(shutil.copytree, folder, root / "tests", symlinks=True, dirs_exist_ok=True)
        logs.mkdir()
        self._phase, self._mounts = "verifier", ("--bind", str(logs), str(VERIFIER_LOGS))
        await self.start()
        return dropped

    async def resume(self) -> None:
        """Implement `Box.resume`, in a new sandbox."""
        await self.stop()
        root, kept = self._folder / "root", self._folder / "kept"
        await asyncio.to_thread(_remove, self._folder / "verifier")
        if kept.exists():
            await asyncio.to_thread(_remove, root)
            kept.rename(root)
        else:
            for path in (TESTS, VERIFIER_LOGS):
                await asyncio.to_thread(_empty, root, path.relative_to("/").parts)
        self._phase, self._mounts = "agent", ()
        await self.start()

    async def _keep(self, root: Path) -> None:
        """Move the root folder away, and put a copy in its place. Files that this user cannot read are not copied."""
        kept, copy = self._folder / "kept", self._folder / "copy"
        words = ("cp", "--archive", "--reflink=auto", "--", str(root), str(copy))
        process = await asyncio.create_subprocess_exec(
            *words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if not copy.is_dir():
            raise BoxFailed("the files of the agent cannot be copied")
        await asyncio.to_thread(root.rename, kept)
        await asyncio.to_thread(copy.rename, root)

    async def _connect(self, pid: int) -> None:
        if self._template.slirp is None:
            raise BoxFailed("the box has no network without slirp4netns")
        self._network = Network(self._template.slirp)
        try:
            await self._network.start(pid)
        except NetworkFailed as error:
            raise BoxFailed(f"the box has no network: {error}") from error

    async def stop(self) -> None:
        """End all processes. When it returns, no process is alive."""
        network, self._network = self._network, None
        if network is not None:
            await network.stop()
        process, self._process = self._process, None
        if process is None:
            return
        # bubblewrap ends with the first process of the sandbox, which ends when all others have ended.
        with suppress(ProcessLookupError):
            os.kill(process.pid if self._first_pid is None else self._first_pid, 9)
        await process.wait()
        if self._reader is not None:
            await self._reader

    async def close(self) -> None:
        """Implement `Box.close`."""
        await self.stop()
        await asyncio.to_thread(_remove, self._folder)

    def _command_line(self, info: int) -> list[str]:
        root = ["--bind", str(self._folder / "root"), "/"]
        for name in _SYSTEM:
            if Path("/", name).is_dir():
                root += ["--ro-bind", str(Path("/", name).resolve()), f"/{name}"]
        mounts = [*self._template.tmpfs, "/run", "--ro-bind", str(self._folder / "in"), "/run/mcpenv/in"]
        mounts += ["--bind", str(self._folder / "out"), "/run/mcpenv/out", *self._mounts, "--chdir", "/run/mcpenv"]
        return command_line(
            self._template.bwrap,
            ["/bin/sh", "-c", _LOOP],
            root=root,
            mounts=mounts,
            network=False,  # that of this machine has its loopback ports and abstract sockets
            sysfs=False,
            options=(*OPTIONS, "--info-fd", str(info), "--hostname", "box"),
        )

    def _restore_system(self, root: Path) -> None:
        """Replace the root folder by a copy of the template's, with the files that are carried over."""
        left = self._folder / "left"
        root.rename(left)
        left.chmod(0o700)
        pristine = self._template.root
        shutil.copytree(pristine, root, symlinks=True)
        carried = self._template.carried
        for entry in os.scandir(left):
            if carried.is_system(PurePosixPath("/", entry.name)):
                continue
            if carried.in_root or entry.is_dir(follow_symlinks=False):
                _replace(root, left, (entry.name,))
        for folder in carried.folders:
            if folder.parts[1] in SYSTEM:
                _replace(root, left, folder.parts[1:])
        homes = [("root",), *(("home", name) for name in _names(root / "home"))]
        settings = [(*home, name) for home in homes for name in {*_names(root, home), *_names(pristine, home)}]
        own = {PurePosixPath("/", *parts) for parts in settings}
        restored = (*(path for path in own if carried.is_system(path)), *carried.programs)
        for path in restored:
            _replace(root, pristine, path.parts[1:], move=False)
        _delete(left)

    def _enter(self) -> str:
        """Return the line of a script that enters the working folder; the root if the agent has removed it."""
        return f"cd {shlex.quote(self._template.workdir)} 2>/dev/null || cd /; "

    def _kill(self, running: _Running) -> None:
        running.unwanted = True
        pid = running.started.result() if running.started.done() else None
        if self._process is not None and self._process.stdin is not None and pid is not None:
            self._process.stdin.write(f"kill {pid}\n".encode())

    async def _read(self, told: asyncio.StreamReader) -> None:
        """Read the outcomes of commands until the box ends."""
        try:
            while line := await told.readline():
                name, event, number = (*line.decode("ascii", "replace").split(), "", "", "")[:3]
                running = self._running.get(name)
                if running is None or not number.isdecimal():
                    continue
                future = running.started if event == "started" else running.ended
                if not future.done():
                    future.set_result(int(number))
                if event == "ended":
                    if not running.started.done():
                        running.started.set_result(None)
                    del self._running[name]
                elif running.unwanted:
                    self._kill(running)
        except ValueError:
            logger.error("a box wrote a line that is too long, and is not used any more")
        for running in self._running.values():
            for future in (running.started, running.ended):
                if not future.done():
                    future.set_result(None)
        self._running.clear()

    def _write(self, name: str, script: str, stdin: bytes) -> None:
        for suffix, data in ((".sh", script.encode()), (".stdin", stdin)):
            (self._folder / "in" / f"{name}{suffix}").write_bytes(data)

    def _outputs(self, name: str, most: int) -> tuple[bytes, bytes]:
        """Return the output of a command, and delete its files."""
        folder = self._folder / "out"
        stdout, stderr = (_beginning_and_end(folder / f"{name}.{kind}", most) for kind in ("stdout", "stderr"))
        for path in (*folder.glob(f"{name}.*"), *(self._folder / "in").glob(f"{name}.*")):
            with suppress(OSError):  # the box may have replaced it
                path.unlink()
        return stdout, stderr


def _read_to_end(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def _beginning_and_end(path: Path, most: int) -> bytes:
    """Return a file, cut if it is long; the box may have replaced it by anything."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            return b""
        if status.st_size <= most:
            return file.read(most)
        head = file.read(most // 2)
        file.seek(status.st_size - (most - most // 2))
        return cut(head + file.read(most - most // 2), most, status.st_size)


def _furnish(root: Path) -> None:
    """Create the folders of a root folder, and the parts of ``/etc`` that programs need."""
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for pattern in _ETC:
        for path in Path("/etc").glob(pattern):
            target = root / "etc" / path.name
            with suppress(PermissionError):
                if path.is_dir():
                    copy = partial(shutil.copytree, symlinks=True, ignore=_LEFT_OUT, copy_function=_copy_readable)
                    copy(path, target)
                else:
                    shutil.copy(path, target)
    texts = {"passwd": _PASSWD, "group": _GROUP, "hosts": _HOSTS, "hostname": "box\n", "resolv.conf": _RESOLV_CONF}
    for name, text in texts.items():
        (root / "etc" / name).write_text(text)


def _copy_readable(source: str, target: str) -> str:
    """Copy a file for `shutil.copytree`, unless this user cannot read it."""
    if os.access(source, os.R_OK):
        shutil.copy2(source, target)
    return target


def _empty(root: Path, parts: Sequence[str]) -> None:
    """Make an empty folder below ``root``. Anything at its path, such as a link, is deleted."""
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    _delete(path)
    path.mkdir()


def _is_folder(root: Path, parts: Sequence[str]) -> bool:
    """Return True if a path below ``root`` is a folder, and no part of it is a link."""
    paths = [root.joinpath(*parts[: number + 1]) for number in range(len(parts))]
    return all(path.is_dir() and not path.is_symlink() for path in paths)


def _names(root: Path, parts: Sequence[str] = ()) -> list[str]:
    return os.listdir(root.joinpath(*parts)) if _is_folder(root, parts) and root.joinpath(*parts).is_dir() else []


def _changes(root: Path, pristine: Path) -> Iterator[PurePosixPath]:
    """Yield the paths in system folders and homes that differ below two root folders. No link is followed."""

    def names(parts: tuple[str, ...]) -> set[str]:
        found = set[str]()
        for each in (root, pristine):
            with suppress(OSError):  # a folder that this user cannot read, or whose path is too long
                found.update(_names(each, parts))
        return found

    homes = [("root",), *(("home", name) for name in names(("home",)))]
    for top in ((), *((name,) for name in SYSTEM), *homes):
        waiting = [(*top, name) for name in names(top)]
        while waiting:
            parts = waiting.pop()
            if _state(root, parts) != _state(pristine, parts):
                yield PurePosixPath("/", *parts)
            if len(top) == 1 and top[0] in SYSTEM and len(parts) < _DEEPEST:
                waiting += [(*parts, name) for name in names(parts)]


def _state(root: Path, parts: Sequence[str]) -> tuple[int, ...] | None:
    """Return the part of a file's status that a change changes; None if it does not exist."""
    try:
        status = root.joinpath(*parts).lstat()
    except OSError:
        return None
    return (status.st_mode,) if stat.S_ISDIR(status.st_mode) else (status.st_mode, status.st_size, status.st_mtime_ns)


def _replace(root: Path, other: Path, parts: Sequence[str], *, move: bool = True) -> None:
    """Replace a path below ``root`` by the same path below another root. No link is followed."""
    above = parts[:-1]
    for number in range(len(above)):
        path = root.joinpath(*above[: number + 1])
        if not os.path.lexists(path) and not os.path.lexists(other.joinpath(*above[: number + 1])):
            return
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(exist_ok=True)
        path.chmod(path.stat().st_mode | 0o700)
    old, new = root.joinpath(*parts), other.joinpath(*parts)
    if old.is_symlink() or old.is_file():
        old.unlink()
    elif old.is_dir():
        _delete(old)
    elif os.path.lexists(old):
        old.unlink()
    if not _is_folder(other, above) or not os.path.lexists(new):
        return
    if not move:
        copy = shutil.copytree if new.is_dir() and not new.is_symlink() else shutil.copy2
        copy(new, old, symlinks=True) if copy is shutil.copytree else shutil.copy2(new, old, follow_symlinks=False)
        return
    is_folder = new.is_dir() and not new.is_symlink()
    mode = stat.S_IMODE(new.lstat().st_mode)
    if is_folder:
        new.chmod(mode | 0o700)  # a folder that moves to another parent must be writable
    new.rename(old)
    if is_folder:
        old.chmod(mode)


def _delete(folder: Path) -> None:
    """Delete a folder that is nested to any depth, also one that denies this user its parts.

    Raises:
        OSError: it cannot be deleted.
    """
    for words in (("rm", "-rf"), ("chmod", "-R", "u+rwx"), ("rm", "-rf")):
        done = subprocess.run([*words, "--", folder], stdin=subprocess.DEVNULL, capture_output=True)
        if words[0] == "rm" and not done.returncode:
            return
    raise OSError(last_lines(done.stderr))


def _remove(folder: Path) -> None:
    try:
        _delete(folder)
    except OSError as error:
        logger.warning("the files of a box, %s, are not deleted: %s", folder, error)
