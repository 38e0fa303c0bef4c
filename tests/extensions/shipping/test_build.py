"""``mcpenv build``: what it writes, keeps, shows and refuses. Images are built by tests/world."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines, write

from mcpenv.extensions.shipping.image.dockerfile import BASE
from mcpenv.extensions.shipping.image.engine import cause_in
from mcpenv.extensions.shipping.image.generated import checked

ENVIRONMENT = "from mcpenv import MCPEnvironment\n\n\nclass Shop(MCPEnvironment):\n    '''Sell.'''\n"
WHEELS = ("mcpenv-0.1.0-py3-none-any.whl", "mcpenv_client-0.1.0-py3-none-any.whl")
"""Names of wheels that stand in for those of this checkout, whose build takes seconds and an index."""

BROKEN_ENGINE = '#!/bin/sh\n[ "$1" = version ] && exit\necho step one\necho the disk is full >&2\nexit 7\n'


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        write(tmp_path, "shop", ENVIRONMENT)
        yield run


def test_the_files_are_written_once_and_own_ones_kept(cli: Cli) -> None:
    first = json.loads(cli("build", "shop", "--write-only", "--json").out)
    names = ("Dockerfile", ".dockerignore", "constraints.txt")
    assert first["files"] == dict.fromkeys(names, "written") and first["image"] is None
    assert "mcpenv==" in Path("shop/constraints.txt").read_text(encoding="utf-8")
    assert json.loads(cli("build", "shop", "--write-only", "--json").out)["files"] == dict.fromkeys(names, "unchanged")
    Path("shop/Dockerfile").write_text("FROM mine\n", encoding="utf-8")
    kept = cli("build", "shop", "--write-only")
    assert kept.status == 0 and "Dockerfile is your own, and is kept; --force overwrites it." in kept.err
    assert Path("shop/Dockerfile").read_text(encoding="utf-8") == "FROM mine\n"
    assert cli("build", "shop", "--write-only", "--force").status == 0
    assert "ENTRYPOINT" in Path("shop/Dockerfile").read_text(encoding="utf-8")


def test_a_check_shows_the_image_and_writes_nothing(cli: Cli) -> None:
    Path("shop/.env").touch()
    done = cli("build", "shop", "--check")
    assert (done.status, done.err) == (0, "")
    assert "environment.py" in done.out and f"1 file, {len(ENVIRONMENT)} bytes" in done.out
    assert [line.split() for line in done.out.splitlines() if "ignored" in line] == [["ignored", ".env"]]
    assert sorted(path.name for path in Path("shop").iterdir()) == [".env", "environment.py"]


def test_a_check_refuses_keys(cli: Cli) -> None:
    Path("shop/server.key").touch()
    done = cli("build", "shop", "--check", "--json")
    assert done.status == 2
    assert json.loads(done.out)["refused"] == {"server.key": "a file of secrets, by its name"}
    built = cli("build", "shop", "--engine", "podman")
    assert built.status == 2 and "not built, because these would be in it: server.key" in built.err


@pytest.fixture
def broken_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only engine of this machine: podman, which answers, but builds and pushes nothing."""
    engine = tmp_path / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text(BROKEN_ENGINE, encoding="utf-8")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(engine.parent))


@pytest.mark.usefixtures("broken_engine")
def test_a_dry_run_of_a_push_shows_what_the_image_would_have_and_writes_nothing(cli: Cli) -> None:
    Path("shop/.env").write_text("KEY=env-secret", encoding="utf-8")
    shown = cli("share", "push", "shop", "registry.example/team/shop:1", "--dry-run")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines()[:2] == [
        "registry.example/team/shop:1 would be built and pushed by podman",
        "  files     environment.py",
    ]
    document = json.loads(cli("share", "push", "shop", "registry.example/team/shop:1", "--dry-run", "--json").out)
    assert (document["pushed"], document["files"]) == (False, ["environment.py"])
    assert sorted(path.name for path in Path("shop").iterdir()) == [".env", "environment.py"]


@pytest.mark.usefixtures("broken_engine")
def test_the_error_of_a_build_that_fails_has_the_end_of_its_output(cli: Cli, tmp_path: Path) -> None:
    for wheel in WHEELS:
        (tmp_path / wheel).touch()
    done = cli("build", "shop", "--json", *(f"--wheel={wheel}" for wheel in WHEELS))
    error = json.loads(done.out)["error"]
    assert (done.status, error["exit_status"], done.err) == (2, 2, f"error: {error['message']}\n")
    assert "the build by podman failed with status 7: step one | the disk is full" in done.err
    shown = cli("build", "shop", *(f"--wheel={wheel}" for wheel in WHEELS))
    assert shown.err.count("the disk is full") == 1
    assert shown.err.endswith("error: the build by podman failed with status 7: see its output above\n")


def test_the_reason_of_a_failure_is_its_errors_and_no_more() -> None:
    output = [*(f"Collecting package-{number}" for number in range(50)), "", "  error: subprocess-exited-with-error: x"]
    output += ["ERROR: No matching distribution found for mcpenv>=0.1" + "!" * 400, "[notice] A new release of pip"]
    reason = cause_in(output)
    assert reason.startswith(
        "error: subprocess-exited-with-error: x | ERROR: No matching distribution found for mcpenv"
    )
    assert reason.endswith("!...") and "Collecting" not in reason and len(reason) < 400
    assert cause_in(output[:3]) == "Collecting package-0 | Collecting package-1 | Collecting package-2"


def test_a_machine_without_an_engine_is_told_what_to_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no engine works here: install docker, podman or buildah, or write the files" in cli("build", "shop").err
    done = cli("build", "shop", "--engine", "buildah")
    assert done.status == 2 and "buildah is not installed; install it, or choose another --engine" in done.err


def test_the_base_stays_as_it_was_written_until_it_is_forced(cli: Cli) -> None:
    cli("build", "shop", "--write-only")
    file = Path("shop/Dockerfile")
    lines = file.read_text(encoding="utf-8").replace(BASE, "python:3.99").splitlines(keepends=True)
    other = checked("".join(lines[:-1]))
    file.write_text(other, encoding="utf-8")
    assert cli("build", "shop", "--write-only").status == 0 and file.read_text(encoding="utf-8") == other
    assert cli("build", "shop", "--write-only", "--force").status == 0
    assert f"ARG BASE={BASE}\n" in file.read_text(encoding="utf-8")
