"""Each template from end to end: made, installed, tested, validated and served."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import Process

from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.shipping.scaffold import TEMPLATES, make_scaffold
from mcpenv.targets.target import load_target
from mcpenv_client import EnvClient

TIMEOUT_S = 300
NAME = "corner_shop"
ENVIRON = {**os.environ, "ROOMS_API_TOKEN": "any", "PYTHONPATH": ""}
FIRST_CALL: dict[str, tuple[str, dict[str, Any]]] = {
    "minimal": ("add", {"by": 5}),
    "tasks": ("put", {"bin": "letters"}),
    "database": ("lend", {"book": 1, "reader": 3}),
    "mcp-server": ("add_item", {"name": "milk", "quantity": 2}),
    "http-api": ("book_room", {"room": "hall", "hour": 9, "who": "Ana"}),
}
DOCKER_COPIES = ("mcpenv.yaml", "README.md", NAME)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder, and return its output."""
    ended = subprocess.run(
        command, cwd=folder, env=ENVIRON, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A virtual environment that sees the packages of this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    places = [entry for entry in sys.path if "site-packages" in entry]
    (site,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({place!r})" for place in places]  # their own .pth files count too
    (site / "seen.pth").write_text("\n".join(lines), encoding="utf-8")
    return str(python)


@pytest.fixture(scope="module", params=TEMPLATES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A template and the folder made from it."""
    template: str = request.param
    folder = tmp_path_factory.mktemp(template) / NAME
    make_scaffold(NAME, template, folder, "Mind the shop.")
    return template, folder


@contextmanager
def served(python: str, folder: Path, target: str) -> Iterator[str]:
    """Serve a target from a folder, and yield the server's address."""
    popen = subprocess.Popen(
        [python, "-m", "mcpenv", "run", target, "--port", "0"],
        cwd=folder,
        env=ENVIRON,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process = Process(popen)
    try:
        yield process.url()
    finally:
        popen.terminate()
        process.end()


def test_its_own_tests_pass(made: tuple[str, Path], python: str) -> None:
    _, folder = made
    out = run(folder, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "passed" in out and "failed" not in out


def test_it_is_valid(made: tuple[str, Path], python: str) -> None:
    template, folder = made
    # Contract and tasks are in its own tests, too; each instance of this one starts a server.
    skipped = ("--skip", "contract", "--skip", "load", "--skip", "tasks", "-n", "1") if template == "mcp-server" else ()
    report = json.loads(run(folder, python, "-m", "mcpenv", "validate", ".", "--json", "--random-seeds", "1", *skipped))
    assert report["ok"] and report["without_oracle"] == []
    has_tasks = template in ("tasks", "database")
    assert bool(report["tasks"]) == has_tasks
    assert [part["part"] for part in report["parts"] if part["verdict"] == "failed"] == []


def test_its_code_is_clean(made: tuple[str, Path]) -> None:
    _, folder = made
    run(folder, sys.executable, "-m", "ruff", "check", "--no-cache", ".")


def test_it_serves_episodes_by_what_its_image_copies(made: tuple[str, Path], python: str, tmp_path: Path) -> None:
    template, folder = made
    tool, arguments = FIRST_CALL[template]
    dockerfile = (folder / "Dockerfile").read_text(encoding="utf-8")
    assert f"COPY mcpenv.yaml README.md ./\nCOPY {NAME} ./{NAME}\n" in dockerfile
    for name in DOCKER_COPIES:
        (tmp_path / name).symlink_to(folder / name)
    with served(python, tmp_path, str(tmp_path)) as url, EnvClient(url).sync() as client:
        metadata = client.metadata()
        assert (metadata["name"], metadata["description"].splitlines()[0]) == (NAME, "Mind the shop.")
        client.reset(seed=1)
        step = client.call_tool(tool, arguments)
        assert step.error is None and step.result is not None and not step.result.is_error


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling, the build backend")
def test_it_installs(made: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = made
    site = tmp_path / "site"
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    run(folder, sys.executable, "-m", "pip", "install", *options, ".")
    assert (site / NAME / "environment.py").is_file()
    points = next(site.glob(f"{NAME}-*.dist-info/entry_points.txt")).read_text(encoding="utf-8")
    assert f"{NAME} = {NAME}.environment:CornerShopEnv" in points


def test_the_template_itself_loads_as_it_stands(made: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    template, _ = made
    monkeypatch.setenv("ROOMS_API_TOKEN", "any")
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = Path(sys.modules[make_scaffold.__module__].__file__ or "").with_name("templates") / template
    try:
        loaded = load_target(str(folder)).environment_class
        assert loaded is not None and issubclass(loaded, ProxyEnvironment) == (template == "mcp-server")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_env"]:
            del sys.modules[name]
