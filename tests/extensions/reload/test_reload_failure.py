"""What is said of code that does not load: the author's file and line, and nothing of mcpenv's own."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import mcpenv
from mcpenv.errors import StartupError, TargetError
from mcpenv.extensions.reload.author_files import is_authors
from mcpenv.extensions.reload.failure import failure_of
from mcpenv.targets.target import load_target


def failure_of_code(folder: Path, code: str) -> tuple[str | None, int | None, str, str | None, str]:
    """Load code, and return the fields of its failure."""
    (folder / "environment.py").write_text(code, encoding="utf-8")
    try:
        load_target(str(folder))
    except TargetError as error:
        failure = failure_of(error.with_traceback(None), folder)  # its frames are those of this test
        return failure.file, failure.line, failure.message, failure.source, failure.traceback
    raise AssertionError("the code has loaded")


def test_an_exception_is_told_with_the_last_line_of_the_authors(tmp_path: Path) -> None:
    code = "import json\n\n\ndef read(text):\n    return json.loads(text)\n\n\nread('{')\n"
    file, line, message, source, traceback = failure_of_code(tmp_path, code)
    assert (file, line, source) == (str(tmp_path / "environment.py"), 5, "return json.loads(text)")
    assert message.startswith("JSONDecodeError: Expecting property name")
    assert "line 8" in traceback and "decoder.py" not in traceback and "target.py" not in traceback


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    file, line, message, source, _ = failure_of_code(tmp_path, "x = 1\ndef f(:\n")
    assert (file, line, message) == (str(tmp_path / "environment.py"), 2, "SyntaxError: invalid syntax")
    assert source == "def f(:"


def test_a_refusal_of_mcpenv_is_told_in_its_own_words(tmp_path: Path) -> None:
    file, line, message, source, traceback = failure_of_code(tmp_path, "x = 1\n")
    assert (file, line, source, traceback) == (None, None, None, "")
    assert "defines no MCPEnvironment subclass" in message


def test_the_innermost_cause_in_an_authors_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "world.py"
    file.write_text("def make():\n    raise KeyError('price')\n", encoding="utf-8")
    scope: dict[str, object] = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    try:
        try:
            scope["make"]()  # type: ignore[operator]
        except KeyError as cause:
            raise StartupError("World could not be made") from cause
    except StartupError as error:
        failure = failure_of(error, tmp_path)
    assert (failure.file, failure.line, failure.message) == (str(file), 2, "KeyError: 'price'")


def test_installed_files_and_mcpenvs_own_are_not_the_authors(tmp_path: Path) -> None:
    own = Path(str(mcpenv.__file__)).parent / "api.py"
    assert is_authors(str(tmp_path / "world.py"), tmp_path)
    assert is_authors(str(tmp_path.parent / "shared.py"), tmp_path)
    assert is_authors(str(own), own.parent)  # an environment that mcpenv brings is being written
    assert not is_authors(str(own), tmp_path)
    assert not is_authors(str(tmp_path / ".venv" / "lib" / "site-packages" / "x.py"), tmp_path)
    assert not is_authors(str(Path(sysconfig.get_path("stdlib")) / "json" / "decoder.py"), tmp_path)
    assert not is_authors("<string>", tmp_path)
