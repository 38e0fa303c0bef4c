"""The watched files: which count, and that saving one is one change."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mcpenv.extensions.reload.changes import Changes, Sources

TIMEOUT_S = 60.0
PROBES = 1_000


def put(file: Path, text: str) -> None:
    """Write a file in one step, which is one change on a loaded machine, too."""
    beside = file.with_name(f"{file.name}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)


class Watched:
    """The batches of changes of a folder, in their order.

    A probe is a file whose change shows that the watcher has begun, and has reported all that came before.
    """

    def __init__(self, folder: Path, changes: Changes) -> None:
        self._folder = folder
        self._changes = changes
        self._batches: asyncio.Queue[list[Path]] = asyncio.Queue()
        self._number = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        task = asyncio.create_task(self._changes.watch(self._batches.put_nowait))
        try:
            await self.since()
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def since(self) -> list[list[str]]:
        """Return the names of the files in each batch since this or `next` was last called."""
        found: list[list[str]] = []
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                self._number += 1
                probe = probe_of(self._folder, self._number)
                put(probe, "x")
                with contextlib.suppress(TimeoutError):  # the watcher had not begun
                    async with asyncio.timeout(1.0):
                        while True:
                            batch = await self._batches.get()
                            found += names_in(batch)
                            if probe in batch:
                                return found

    async def next(self) -> list[str]:
        """Return the names of the files in the next batch."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for names in names_in(await self._batches.get()):
                    return names


def probe_of(folder: Path, number: int) -> Path:
    return folder / f"probe-{number}.md"


def names_in(batch: list[Path]) -> list[list[str]]:
    """Return the names of a batch's files in a list; an empty list if all are probes."""
    names = [file.name for file in batch if not file.name.startswith("probe-")]
    return [names] if names else []


def test_code_texts_and_tasks_count_and_other_files_do_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with Watched(tmp_path, Changes(Sources(tmp_path, ignored=tmp_path / "record"))).running() as watched:
            for folder in ("record", ".venv", "__pycache__", "inner"):
                (tmp_path / folder).mkdir()
            for name in ("x.pyc", "x.log", "record/x.jsonl", ".venv/x.py", "__pycache__/x.py"):
                put(tmp_path / name, "x")
            assert await watched.since() == []
            for name in ("x.py", "mcpenv.yaml", "tasks.jsonl", "README.md", "inner/y.py"):
                put(tmp_path / name, "x")
                assert await watched.next() == [Path(name).name]

    asyncio.run(run())


def test_a_saved_file_is_one_change_however_it_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "world.py"

    async def run() -> None:
        async with Watched(tmp_path, Changes(Sources(tmp_path))).running() as watched:
            put(file, "1")
            assert await watched.next() == ["world.py"]
            put(file, "2")
            assert await watched.next() == ["world.py"]
            file.unlink()
            await asyncio.sleep(0.1)  # longer than changes are collected
            put(file, "3")
            assert await watched.since() == [["world.py"]]
            os.utime(file)
            assert await watched.since() == []
            file.unlink()
            assert await watched.next() == ["world.py"]

    asyncio.run(run())


def test_imported_files_elsewhere_count_once_they_are_known(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "game", tmp_path / "shared"
    root.mkdir()
    elsewhere.mkdir()
    sibling, other = elsewhere / "prices.py", elsewhere / "other.py"
    sibling.write_text("1", encoding="utf-8")

    async def run() -> None:
        changes = Changes(Sources(root))
        async with Watched(root, changes).running() as watched:
            changes.learn([sibling, root / "environment.py"])
            async with asyncio.timeout(TIMEOUT_S):
                number = 1
                while not await seen(watched, number):
                    number += 1
            put(other, "1")
            assert ["other.py"] not in await watched.since()

    async def seen(watched: Watched, number: int) -> bool:
        """Return True if a change of the sibling is reported, which it is once the watcher has moved."""
        put(sibling, f"{number} now")
        return ["prices.py"] in await watched.since()

    asyncio.run(run())


def test_a_single_file_is_watched_through_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text("{}", encoding="utf-8")

    async def run() -> None:
        changes = Changes(Sources(file, frozenset(probe_of(tmp_path, number) for number in range(PROBES))))
        async with Watched(tmp_path, changes).running() as watched:
            put(tmp_path / "other.json", "{}")
            assert await watched.since() == []
            put(file, "[]")
            assert await watched.next() == ["servers.json"]

    asyncio.run(run())
