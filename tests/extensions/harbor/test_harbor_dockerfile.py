"""Read Dockerfiles as steps, and name what needs a container engine."""

from __future__ import annotations

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


def test_a_dockerignore_needs_an_engine(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").touch()
    with pytest.raises(NeedsEngine, match="dockerignore"):
        recipe(tmp_path, "FROM a\n")
