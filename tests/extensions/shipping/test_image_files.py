"""The files that an image gets, and those that must not leave the machine."""

from __future__ import annotations

from pathlib import Path

import docker.utils
import pytest

from mcpenv import ConfigurationError
from mcpenv.extensions.shipping.image.dockerignore import DockerIgnore, dockerignore
from mcpenv.extensions.shipping.image.files import files_of, stage
from mcpenv.extensions.shipping.image.plan import plan_image
from mcpenv.extensions.shipping.scaffold import make_scaffold

FILES = [
    "a.py", "b.txt", ".env", "x/.env", "x/a.py", "x/y/a.py", "x/y/z.txt", "x/__pycache__/a.pyc", "build/a", "x/build/a",
    "tests/a.py", "wheels/a.whl", "deep/er/build/x", "a[1].txt", "x.egg-info/PKG", ".mypy_cache/a", "star*.txt",
]  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return make_scaffold("corner_shop", "tasks", tmp_path / "shop").folder


@pytest.mark.parametrize(
    "text",
    [
        dockerignore(),
        "build",
        "/build/",
        "**/build",
        "*.txt",
        "**/*.py\n!x/y/a.py",
        "x\n!x/y",
        "x/*\n!x/y",
        "*\n!a.py\n!x/**",
        "x/**/a.py",
        "**",
        "?.py",
        "[ab].*",
        "./x/./y",
        "# x\n\n  b.txt  ",
        "x/y/**",
    ],
)
def test_files_are_ignored_as_docker_ignores_them(text: str, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    patterns = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    dockers = docker.utils.exclude_paths(str(tmp_path), patterns)
    seen = {path for path in dockers if (tmp_path / path).is_file()}
    kept = {name for name in FILES if not DockerIgnore.read(text).ignores(name)}
    assert kept == seen - {".dockerignore", "Dockerfile"}


def test_the_image_of_a_scaffold_gets_what_it_serves(shop: Path) -> None:
    (shop / ".env").write_text("TOKEN=1", encoding="utf-8")
    files = files_of(plan_image(str(shop)), dockerignore())
    assert [file.path for file in files.image] == [
        "README.md",
        "corner_shop/__init__.py",
        "corner_shop/environment.py",
        "corner_shop/tasks.jsonl",
        "mcpenv.yaml",
    ]
    assert files.size == sum((shop / file.path).stat().st_size for file in files.image)
    assert "constraints.txt" in {file.path for file in files.build} and files.refused == {}
    assert files.ignored == [".env", "tests/"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("corner_shop/server.pem", "x", "a file of secrets, by its name"),
        ("id_ed25519", "x", "a file of secrets, by its name"),
        (".aws/config", "x", "a file of secrets, by its name"),
        ("corner_shop/key.txt", "# mine\n-----BEGIN OPENSSH PRIVATE KEY-----\n", "has a private key"),
    ],
)
def test_a_file_of_secrets_is_refused_until_it_is_ignored(shop: Path, name: str, text: str, reason: str) -> None:
    (shop / name).parent.mkdir(exist_ok=True)
    (shop / name).write_text(text, encoding="utf-8")
    files = files_of(plan_image(str(shop)), dockerignore())
    assert files.refused == {name: reason}
    with pytest.raises(ConfigurationError, match=rf"{name} \({reason}\); add them to \.dockerignore"):
        files.refuse()
    files_of(plan_image(str(shop)), f"{dockerignore()}\n{name}\n").refuse()


def test_an_env_file_that_an_own_dockerignore_lets_through_is_refused(shop: Path) -> None:
    (shop / ".env").touch()
    assert list(files_of(plan_image(str(shop)), "tests\n").refused) == [".env"]


def test_a_link_out_of_the_folder_is_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x", encoding="utf-8")
    (shop / "corner_shop" / "data").symlink_to(tmp_path / "outside")
    (shop / "corner_shop" / "all").symlink_to(tmp_path)
    (shop / "corner_shop" / "same.py").symlink_to(shop / "corner_shop" / "environment.py")
    files = files_of(plan_image(str(shop)), dockerignore())
    assert files.refused == {
        "corner_shop/all": "a link to a folder or to nothing",
        "corner_shop/data": "a link out of the folder",
    }
    assert "corner_shop/same.py" in {file.path for file in files.image}


def test_a_build_sees_the_files_and_the_wheels_and_nothing_else(shop: Path, tmp_path: Path) -> None:
    (shop / ".env").touch()
    wheel, context = tmp_path / "a-1-py3-none-any.whl", tmp_path / "context"
    wheel.touch()
    plan = plan_image(str(shop))
    files = files_of(plan, dockerignore())
    stage(plan, files, [wheel], context)
    pins = (context / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert pins[-1] == f"a @ file:///src/wheels/{wheel.name}" and any(pin.startswith("fastmcp==") for pin in pins)
    found = {file.relative_to(context).as_posix() for file in context.rglob("*") if file.is_file()}
    assert found == {file.path for file in (*files.image, *files.build)} | {f"wheels/{wheel.name}"}
    with pytest.raises(ConfigurationError, match=r"--wheel .*gone\.whl: there is no such wheel"):
        stage(plan, files, [tmp_path / "gone.whl"], context)


def test_a_wheel_takes_the_place_of_its_pin_but_not_where_the_dockerfile_is_the_authors(
    shop: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "fastmcp-99-py3-none-any.whl"
    wheel.touch()
    plan = plan_image(str(shop))
    before = (shop / "constraints.txt").read_text(encoding="utf-8")
    stage(plan, files_of(plan, dockerignore()), [wheel], tmp_path / "ours")
    pins = (tmp_path / "ours" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    ours = f"fastmcp @ file:///src/wheels/{wheel.name}"
    assert [pin for pin in pins if pin.startswith(("fastmcp=", "fastmcp "))] == [ours]
    (shop / "Dockerfile").write_text("FROM mine\n", encoding="utf-8")
    stage(plan, files_of(plan, dockerignore()), [wheel], tmp_path / "authors")
    assert (tmp_path / "authors" / "constraints.txt").read_text(encoding="utf-8") == before
