"""The changes to the source files of an environment."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

from mcpenv.errors import ConfigurationError

SUFFIXES = (".py", ".pyx", ".pyd", ".yaml", ".yml", ".jsonl", ".md")
"""The suffixes of an environment's source files."""

DEBOUNCE_MS, STEP_MS = 60, 20
"""Changes are reported after the second time without another change, and after the first time at the latest."""

REAPPEAR_S = 0.25
"""Maximum seconds for a deleted file to reappear. Some editors save by deleting and rewriting a file."""


@dataclass(frozen=True)
class Sources:
    """The files that are watched.

    Attributes:
        root: a folder, in which every file with one of `SUFFIXES` counts; or one file.
        files: further files, such as tasks in another folder.
        ignored: a folder below the root with files that do not count, such as a record's folder.
    """

    root: Path
    files: frozenset[Path] = frozenset()
    ignored: Path | None = None

    @property
    def tree(self) -> Path | None:
        """The folder that is watched recursively."""
        return self.root if self.root.is_dir() else None

    @property
    def single(self) -> frozenset[Path]:
        """The files that count in any folder."""
        return self.files if self.root.is_dir() else self.files | {self.root}


class Changes:
    """The watcher of an environment's sources."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._imported = frozenset[Path]()
        self._digests: dict[Path, bytes | None] = {}
        self._found: asyncio.Queue[set[Path]] = asyncio.Queue()
        self._moved = asyncio.Event()

    def learn(self, files: Iterable[Path]) -> None:
        """Watch imported files outside of the root, instead of the previously imported ones."""
        root = self._sources.tree
        outside = frozenset(file for file in files if root is None or not file.is_relative_to(root))
        if outside != self._imported:
            self._imported = outside
            self._moved.set()

    async def watch(self, on_change: Callable[[list[Path]], None]) -> None:
        """Call ``on_change`` with the files that have changed, until cancelled.

        A touched file without new content does not count.

        Raises:
            ConfigurationError: the system refuses to watch the files.
        """
        tasks = [asyncio.create_task(each) for each in (self._follow_tree(), self._follow_files())]
        tasks.append(asyncio.create_task(self._report(on_change)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _report(self, on_change: Callable[[list[Path]], None]) -> None:
        while True:
            files = sorted(await self._settled())
            changed = [file for file in files if await asyncio.to_thread(self._differs, file)]
            if changed:
                on_change(changed)

    async def _settled(self) -> set[Path]:
        """Return the next changed files, after waiting for deleted files to reappear."""
        files = await self._found.get()
        with contextlib.suppress(TimeoutError):  # deleted for good, which is a change too
            async with asyncio.timeout(REAPPEAR_S):
                while not all(file.exists() for file in files):
                    files |= await self._found.get()
        return files

    def _differs(self, file: Path) -> bool:
        """Return True if a file's content has changed since the last call, or the file is new to this method."""
        try:
            digest = hashlib.sha256(file.read_bytes()).digest()
        except OSError:  # deleted, or replaced by a folder
            digest = None
        same = file in self._digests and self._digests[file] == digest
        self._digests[file] = digest
        return not same

    async def _follow_tree(self) -> None:
        root = self._sources.tree
        if root is not None:
            await self._follow({root}, _OfTree(self._sources), recursive=True)

    async def _follow_files(self) -> None:
        """Watch the folders of single files: a file that an editor replaces is a different file to the system."""
        while True:
            self._moved.clear()
            files = self._sources.single | self._imported
            folders = {file.parent for file in files if file.parent.is_dir()}
            if folders:
                await self._follow(folders, _OfFiles(files), recursive=False, until=self._moved)
            else:
                await self._moved.wait()

    async def _follow(
        self, folders: set[Path], counts: DefaultFilter, *, recursive: bool, until: asyncio.Event | None = None
    ) -> None:
        try:
            async for changes in awatch(
                *folders,
                watch_filter=counts,
                debounce=DEBOUNCE_MS,
                step=STEP_MS,
                stop_event=until,
                recursive=recursive,
                ignore_permission_denied=True,
            ):
                self._found.put_nowait({Path(path) for _, path in changes})
        except OSError as error:  # such as the limit of watches
            names = ", ".join(map(str, sorted(folders)))
            raise ConfigurationError(f"{names} cannot be watched for changes: {error}") from error


class _OfTree(DefaultFilter):
    """The filter of files in the watched folder."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self._root = sources.root
        self._ignored = sources.ignored

    def __call__(self, change: Change, path: str) -> bool:
        file = Path(path)
        if not path.endswith(SUFFIXES) or (self._ignored is not None and file.is_relative_to(self._ignored)):
            return False
        # Only folders below the root are checked: the root itself may be in a folder with an ignored name.
        return super().__call__(change, str(file.relative_to(self._root) if file.is_relative_to(self._root) else file))


class _OfFiles(DefaultFilter):
    """The filter of single files."""

    def __init__(self, files: frozenset[Path]) -> None:
        super().__init__()
        self._files = files

    def __call__(self, change: Change, path: str) -> bool:
        return Path(path) in self._files
