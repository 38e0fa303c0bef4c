"""The tasks of harness-bench-fast on files, spreadsheets and SQLite, from the package of that name of PyPI."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from types import CodeType, FunctionType
from typing import Annotated, Any

from pydantic import Field

from mcpenv import ConfigurationError, Evidence, MCPEnvironment, OracleCall, Task, TaskSet, ToolError
from mcpenv.extensions.sandbox_world import ShellTools, make_sandbox
from mcpenv.extensions.sandbox_world.sandbox import Entry, files

try:
    import openpyxl
    from harness_bench.tasks import ALL_TASKS
    from openpyxl.utils.cell import coordinate_to_tuple
    from openpyxl.utils.exceptions import InvalidFileException
except ImportError as error:
    raise ConfigurationError(
        f"{error}. Install the package without its agents: "
        "pip install --no-deps --ignore-requires-python harness-bench-fast==0.1.0 && pip install openpyxl pyyaml"
    ) from error

LEVELS = {"easy": 1, "medium": 2, "hard": 3}
RUNS_CODE = {"subprocess", "exec", "eval", "exec_module", "import_module", "__import__", "runpy"}
CHECK = Path(__file__).with_name("check.py")
"""The program of a check. It limits its own processor time and memory."""

MOST_UNPACKED = 16 << 20
"""Maximum bytes of a workbook, unpacked."""

Cell = str | int | float | bool | None
Sheet = Annotated[str | None, Field(description="The name of the sheet; the first one if it is left out")]
Book = Annotated[str, Field(min_length=1, max_length=1000, description='Relative to the folder: "sales.xlsx"')]


def runs_code(check: Any) -> bool:
    """Return True if a check, or what it calls in its package, can run what an agent wrote."""
    seen: list[Any] = []
    todo = [check]
    while todo:
        each = todo.pop()
        if isinstance(each, tuple | list):
            todo += each
        elif isinstance(each, FunctionType) and each not in seen:
            seen.append(each)
            names = set(names_in(each.__code__))
            if names & RUNS_CODE:
                return True
            todo += [cell.cell_contents for cell in each.__closure__ or ()]
            if each.__module__.startswith("harness_bench"):
                todo += [each.__globals__[name] for name in names if name in each.__globals__]
    return False


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code uses, and the functions in it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)


def made(task: Any, solved: bool = False) -> dict[str, bytes]:
    """Return the files with which a task starts, or those of its solution."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task.setup(folder)
        if solved:
            task.apply_gold(folder)
        return {
            file.relative_to(folder).as_posix(): settled(file.read_bytes())
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }


def settled(content: bytes) -> bytes:
    """Return a file without the time at which it was made, which archives and workbooks have in them."""
    out = io.BytesIO()
    if content[:2] == b"\x1f\x8b":
        return gzip.compress(settled(gzip.decompress(content)), mtime=0)
    if content[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(content)) as members, tarfile.open(fileobj=out, mode="w") as packed:
            for member in members:
                member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
                packed.addfile(member, members.extractfile(member) if member.isfile() else None)
        return out.getvalue()
    if content[:4] != b"PK\x03\x04":
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            if name == "docProps/core.xml":
                part = re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"2026-01-01T00:00:00Z", part)
            new.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def folders(paths: Iterable[str]) -> set[str]:
    """Return the folders in which files are, and the folders of these."""
    return {str(each) for path in paths for each in PurePosixPath(path).parents if each.name}


def solution(task: Any) -> Iterator[OracleCall]:
    """Yield the calls that turn the files of the start into those of the solution."""
    before, after = made(task), made(task, solved=True)
    for path in sorted(before.keys() - after.keys()):
        yield OracleCall(tool_name="run", arguments={"command": f"rm {shlex.quote(path)}"})
    for folder in sorted(folders(before) - folders(after), reverse=True):
        yield OracleCall(tool_name="run", arguments={"command": f"rmdir {shlex.quote(folder)}"})
    for path, content in after.items():
        if before.get(path) == content:
            continue
        try:
            yield OracleCall(tool_name="write_file", arguments={"path": path, "text": content.decode()})
        except UnicodeDecodeError:
            command = f"base64 -d > {shlex.quote(path)} <<'END'\n{b64encode(content).decode()}\nEND"
            yield OracleCall(tool_name="run", arguments={"command": command})


def passes(task: str, entries: list[Entry]) -> bool:
    """Return True if the package's own check of a task accepts these files. Links are left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in entries:
            if stat.S_ISDIR(entry.mode):
                (folder / entry.path).mkdir()
            elif isinstance(entry.content, bytes):
                (folder / entry.path).write_bytes(entry.content)
        command = [sys.executable, "-P", str(CHECK), task, name]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_task(task: Any) -> Task:
    """Return a task of the package. What its AGENTS.md says stands before the request, as it does there."""
    rules = task.setup_files.get("AGENTS.md")
    return Task(
        id=task.id,
        split="test",
        prompt=task.prompt if rules is None else f"{rules}\n\n{task.prompt}",
        options={"workspace": task.id},
        oracle=list(solution(task)),
        level=next(LEVELS[tag] for tag in task.tags if tag in LEVELS),
        family=task.tags[0],
        tags=[tag for tag in task.tags[1:] if tag not in LEVELS],
    )


UNFIT = {"task_335_adv_missing_config_file", "task_351_adv_huge_file_no_slurp"}
"""Tasks that are left out: the check of the one passes at the start, and the other has a file of 105 MB."""

BY_ID = {task.id: task for task in ALL_TASKS if task.id not in UNFIT and not runs_code(task.verifier)}
"""The tasks that are offered."""


class HarnessBenchEnvironment(MCPEnvironment):
    """Do what is asked for with the files of a folder: texts, CSV and JSON, logs, workbooks, SQLite, archives, notes.

    Description:
        Tasks of harness-bench-fast, in Russian, whose results are checked by the package's own code. Tasks whose check
        runs what the agent wrote are left out.

    Tools:
        run(command): run a command of bash in the folder, with sqlite3, jq, awk, tar. read_file(path), write_file(path,
        text): read and write a text. read_sheet(path, sheet?), write_cells(path, cells, sheet?): read and write the
        cells of a workbook, which the shell cannot.

    Observation:
        Of a reset: ``metadata.prompt``, the request, after the rules of the folder's AGENTS.md if it has one.

    Reward:
        At the end, 1.0 if the package's check passes, else 0.0.

    Start:
        The files of the task.

    End:
        Ended by the orchestrator after the agent has stopped.

    Arguments:
        workspace: a reset option, the id of the package's task.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "harness_bench"
    VERSION = "0.1.0"
    tasks = TaskSet(map(make_task, BY_ID.values())).with_licence("MIT", source="harness-bench-fast 0.1.0")

    def __init__(self) -> None:
        self.workspace = ""
        self.world = self.sandbox = make_sandbox()
        self.shell = ShellTools(self.sandbox)
        for tool in (self.shell.run, self.shell.read_file, self.shell.write_file, self.read_sheet, self.write_cells):
            self.tool(tool)

    def reset(self, seed: int | None = None, episode_id: str | None = None, workspace: str = next(iter(BY_ID))) -> None:
        self.workspace = workspace
        self.sandbox.fill(files(made(BY_ID[workspace])))

    def close(self) -> None:
        self.sandbox.close()

    def read_sheet(self, path: Book, sheet: Sheet = None) -> list[list[Cell]]:
        """Return the rows of a sheet of a workbook (xlsx), from A1 on. Formulas are not computed."""
        _, page = self._sheet(path, sheet)
        return [[each if isinstance(each, Cell) else str(each) for each in row] for row in page.values]

    def write_cells(
        self,
        path: Book,
        cells: Annotated[dict[str, Cell], Field(description="Values by cell", examples=[{"B2": 7, "B3": "=B1+B2"}])],
        sheet: Sheet = None,
    ) -> str:
        """Write cells of a sheet of a workbook that is there."""
        book, page = self._sheet(path, sheet)
        for place, value in cells.items():
            try:
                page.cell(*coordinate_to_tuple(place), value)
            except ValueError as error:
                raise ToolError(f"{place!r} is not a cell such as B2: {error}") from error
        out = io.BytesIO()
        book.save(out)
        self.shell.put(path, settled(out.getvalue()))
        return "The cells are written."

    def _sheet(self, path: str, sheet: str | None) -> tuple[Any, Any]:
        content = self.shell.content(path)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as parts:
                if sum(part.file_size for part in parts.infolist()) > MOST_UNPACKED:
                    raise ToolError(f"{path!r} has more than {MOST_UNPACKED} bytes, unpacked")
            book = openpyxl.load_workbook(io.BytesIO(content))
        except (zipfile.BadZipFile, InvalidFileException, KeyError, ValueError) as error:
            raise ToolError(f"{path!r} is not a workbook: {error}") from error
        if sheet is not None and sheet not in book.sheetnames:
            raise ToolError(f"{path!r} has no sheet {sheet!r}; it has {', '.join(book.sheetnames)}")
        return book, book.worksheets[0] if sheet is None else book[sheet]

    def verify(self, evidence: Evidence) -> float:
        return float(passes(self.workspace, self.sandbox.entries()))
