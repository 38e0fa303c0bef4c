"""Read Dockerfiles as steps, and name what needs a container engine."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mcpenv.extensions.harbor.dockerfile import CONTEXT, NeedsEngine, Recipe, read_recipe


def recipe(folder: Path, text: str) -> Recipe:
    (folder / "Dockerfile").write_text(text)
    return read_recipe(folder)


def test_instructions_become_steps_with_folder_and_variables(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    found = recipe(
        tmp_path,
        """# syntax=docker/dockerfile:1
FROM python:3.12-slim AS base
ARG VERSION=2
ENV HOME_OF=/srv/app OLD="a b"
ENV VERSIONED v${VERSION}
WORKDIR $HOME_OF
WORKDIR sub
RUN echo one \\
    # a comment between
    && echo \\$two
RUN ["echo", "a b"]
COPY --chmod=755 a.txt ./bin/
EXPOSE 80
USER root
CMD ["sleep", "1"]
""",
    )
    assert found.image == "python:3.12-slim" and found.workdir == "/srv/app/sub"
    assert found.env == {"HOME_OF": "/srv/app", "OLD": "a b", "VERSIONED": "v2"}
    made, made_sub, first, second, copied = found.steps
    assert (made.script, made_sub.script) == ("mkdir -p -- /srv/app", "mkdir -p -- /srv/app/sub")
    assert " ".join(first.script.split()) == "echo one && echo \\$two"
    assert first.workdir == "/srv/app/sub" and first.env["VERSION"] == "2"
    assert second.script == "echo 'a b'"
    assert f"cp -RP -- {CONTEXT}/a.txt /srv/app/sub/./bin/" in copied.script
    assert copied.script.endswith("chmod -R 755 -- /srv/app/sub/./bin/a.txt")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=bye X=$A", "hello"),
        ("X='$A'", "$A"),
        ("""X="it's $A\"""", "it's hello"),
        ('X="a \\"$B\\" c"', 'a "x  \'y" c'),
        ("X=$A$B", "hellox  'y"),
        ("X=\\$A", "$A"),
        ('X="\\$A"', "$A"),
        ("X=${A:+yes}${U:+no}${E:+no}${E+set}${U+no}", "yesset"),
        ("X=${U-1}${E-2}${E:-3}${A:-4}", "13hello"),
        ("X=${U:-${A}s}", "hellos"),
        ('X=${U:-"a b"}', "a b"),
        ("X a  '$A' $A", "a  $A hello"),
    ],
)
def test_variables_are_those_before_the_line_and_not_in_single_quotes(tmp_path: Path, line: str, value: str) -> None:
    before = 'FROM a\nARG U\nENV A=hello E=\nENV B="x  \'y"\n'
    assert recipe(tmp_path, f"{before}ENV {line}\n").env["X"] == value


def test_an_argument_before_from_keeps_its_value_and_shifts_are_no_here_document(tmp_path: Path) -> None:
    found = recipe(tmp_path, 'ARG V=1\nFROM a\nARG V\nENV X=$V\nWORKDIR "/a b"\nRUN echo $((1<<3)); cat <<<word\n')
    assert (found.env["X"], found.workdir, found.steps[-1].script) == ("1", "/a b", "echo $((1<<3)); cat <<<word")


def test_an_archive_of_any_name_needs_an_engine(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.data", "w:bz2") as archive:
        archive.add(__file__, "a")
    with pytest.raises(NeedsEngine, match="an archive"):
        recipe(tmp_path, "FROM b\nADD a.data /x\n")
    assert recipe(tmp_path, "FROM b\nCOPY a.data /x\n").steps


def test_a_folder_is_copied_by_its_contents(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    step = recipe(tmp_path, "FROM a\nCOPY src /app\nCOPY . /all/\n").steps
    assert step[0].script == f"mkdir -p -- /app && cp -RP -- {CONTEXT}/src/. /app"
    assert step[1].script == f"mkdir -p -- /all/ && cp -RP -- {CONTEXT}/./. /all/"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("FROM b", "a second FROM"),
        ("COPY --from=b /x /x", "COPY --from=b"),
        ("COPY missing /x", "there is no such file"),
        ("COPY ../x /x", "leads out of environment/"),
        ("ADD https://example.com/x /x", "ADD of a URL or an archive"),
        ("ADD x.tar.gz /x", "ADD of a URL or an archive"),
        ("ADD x.tbz /x", "ADD of a URL or an archive"),
        ("ENV A=${HOME%/*}", "only :- - :+ and + are there"),
        ("RUN --mount=type=cache,target=/x true", "RUN --mount"),
        ("RUN <<EOF\ntrue\nEOF", "a here-document"),
        ("USER agent", "only root is there"),
        ('ENTRYPOINT ["x"]', "ENTRYPOINT"),
        ("HEALTHCHECK CMD true", "HEALTHCHECK"),
        ('SHELL ["bash", "-c"]', "SHELL"),
        ("VOLUME /x", "VOLUME"),
    ],
)
def test_what_only_an_engine_can_do_is_named_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(NeedsEngine) as raised:
        recipe(tmp_path, f"FROM a\n{line}\n")
    assert "line 2 of environment/Dockerfile" in str(raised.value) and said in str(raised.value)


def test_a_run_in_brackets_that_is_no_array_is_a_test_of_the_shell(tmp_path: Path) -> None:
    line = '[ -f "a" ] || touch "a"'
    assert recipe(tmp_path, f"FROM a\nRUN {line}\n").steps[0].script == line


def test_a_dockerignore_needs_an_engine(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").touch()
    with pytest.raises(NeedsEngine, match="dockerignore"):
        recipe(tmp_path, "FROM a\n")
