"""New folders from templates: names, refusals, and nothing left after a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mcpenv
from mcpenv import ConfigurationError
from mcpenv.extensions.shipping import scaffold
from mcpenv.extensions.shipping.image.constraints import constraints
from mcpenv.extensions.shipping.scaffold import TEMPLATES, class_name_of, make_scaffold
from mcpenv.targets.manifest_file import read_manifest

FOLDERS = Path(str(scaffold.__file__)).with_name("templates")
COMMON = {
    ".dockerignore",
    ".gitignore",
    "AGENTS.md",
    "Dockerfile",
    "README.md",
    "constraints.txt",
    "mcpenv.schema.json",
    "mcpenv.yaml",
    "pyproject.toml",
    "wheels/.gitkeep",
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_templates_are_the_folders() -> None:
    assert {folder.name for folder in FOLDERS.iterdir() if folder.is_dir()} == {*TEMPLATES, "common"}


@pytest.mark.parametrize("template", TEMPLATES)
def test_names_are_replaced_in_files_and_texts(template: str) -> None:
    made = make_scaffold("corner_shop", template, Path("somewhere/deep"), "Mind the shop: it is Anna's.")
    assert set(made.files) >= COMMON
    assert {"corner_shop/__init__.py", "corner_shop/environment.py", "tests/test_corner_shop.py"} <= set(made.files)
    for name in made.files:
        text = (made.folder / name).read_text(encoding="utf-8")
        assert not re.search("my_env|MyEnv", name + text), name
    manifest = read_manifest(made.folder / "mcpenv.yaml")
    assert (manifest.name, manifest.entry) == ("corner_shop", "corner_shop/environment.py:CornerShopEnv")
    for name in ("mcpenv.yaml", "pyproject.toml", "README.md", "corner_shop/environment.py"):
        assert "Mind the shop: it is Anna's." in (made.folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_has_the_same_facts_in_all_its_files(template: str) -> None:
    folder = FOLDERS / template
    manifest = read_manifest(folder / "mcpenv.yaml")
    project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    code = (folder / "my_env" / "environment.py").read_text(encoding="utf-8")
    assert f'version = "{manifest.version}"' in project and f'VERSION = "{manifest.version}"' in code
    assert manifest.description is not None
    assert all(manifest.description in text for text in (project, code, (folder / "README.md").read_text("utf-8")))
    major, minor, *_ = mcpenv.__version__.split(".")
    assert f"mcpenv>={major}.{minor},<{major}.{int(minor) + 1}" in project
    for heading in ("Description", "Tools", "Observation", "Reward", "Start", "End", "Version"):
        assert f"    {heading}:\n" in code
    shown = (
        FOLDERS / "common" / "AGENTS.md",
        *(folder / name for name in ("README.md", "mcpenv.yaml", "pyproject.toml")),
    )
    texts = "".join(file.read_text(encoding="utf-8") for file in shown)
    assert not re.search(r"index-url|pypi\.org|https?://(?!127\.0\.0\.1|rooms\.example\.com)", texts)


@pytest.mark.parametrize(
    ("name", "class_name"),
    [("weather", "WeatherEnv"), ("weather_env", "WeatherEnv"), ("test_env", "TestEnv"), ("a2_b", "A2BEnv")],
)
def test_the_class_is_named_after_the_package(name: str, class_name: str) -> None:
    assert class_name_of(name) == class_name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Env", "use small letters, digits and _, beginning with a letter, such as my_env"),
        ("2x", "cannot be the name of a package"),
        ("", "cannot be the name of a package"),
        ("../x", "cannot be the name of a package"),
        ("class", "cannot be the name of a package"),
        ("random", "is a module of Python"),
        ("fastmcp", "is an installed module"),
        ("mcpenv", "is an installed module"),
        ("step", "is reserved; choose another name, such as step_env"),
        ("tests", "is reserved"),
        ("a" * 51, "has 51 characters; use 50 or fewer"),
    ],
)
def test_a_name_that_a_package_cannot_have_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        make_scaffold(name, "minimal", Path("new"))
    assert list(Path.cwd().iterdir()) == []


def test_the_name_of_another_packages_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "fruit_stall-1.dist-info").mkdir(parents=True)
    (site / "fruit_stall-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: fruit_stall\nVersion: 1\n")
    (site / "fruit_stall-1.dist-info" / "entry_points.txt").write_text(
        "[mcpenv.environments]\nfruit_stall = fruit_stall.environment:E\nbazaar = fruit_stall.environment:E\n"
    )
    monkeypatch.syspath_prepend(site)
    with pytest.raises(ConfigurationError, match="'bazaar' is the name of an installed environment"):
        make_scaffold("bazaar", "minimal", Path("new"))
    assert not Path("new").exists()
    # The same package under the same name is made anew, not hidden by another one.
    assert make_scaffold("fruit_stall", "minimal", Path("new")).files


@pytest.mark.parametrize("description", ["", "a" * 101, "two\nlines", 'a "quote"', "a \\ backslash"])
def test_a_description_that_would_end_a_string_is_refused(description: str) -> None:
    with pytest.raises(ConfigurationError, match="the description must"):
        make_scaffold("fruit_stall", "minimal", Path("new"), description)
    assert list(Path.cwd().iterdir()) == []


def test_only_an_empty_folder_is_filled() -> None:
    Path("full").mkdir()
    Path("full/file").write_text("kept")
    with pytest.raises(ConfigurationError, match="full is not empty"):
        make_scaffold("fruit_stall", "minimal", Path("full"))
    with pytest.raises(ConfigurationError, match="full/file is a file"):
        make_scaffold("fruit_stall", "minimal", Path("full/file"))
    assert [path.name for path in Path("full").iterdir()] == ["file"]
    Path("empty").mkdir()
    assert "fruit_stall/environment.py" in make_scaffold("fruit_stall", "minimal", Path("empty")).files


@pytest.mark.parametrize("where", ["new", "deep/new", "empty"])
@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "ctrl-c"]
)
def test_a_failure_leaves_nothing(where: str, failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("empty").mkdir()

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(scaffold, "constraints", fail)  # when all but the pins is written
    with pytest.raises((ConfigurationError, KeyboardInterrupt)):
        make_scaffold("fruit_stall", "tasks", Path(where))
    assert [path.name for path in Path.cwd().rglob("*")] == ["empty"]


def test_constraints_pin_what_mcpenv_needs() -> None:
    lines = constraints("mcpenv").splitlines()[1:]
    names = [line.partition("==")[0] for line in lines]
    assert {"mcpenv", "mcpenv-client", "fastmcp", "pydantic-core", "uvicorn"} <= set(names)
    assert "pytest" not in names  # of an extra
    assert names == sorted(names) and all(re.fullmatch(r"[a-z0-9-]+==[\w.!]+", line) for line in lines)


def test_a_folder_that_is_there_already_is_named_before_a_package_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "fastmcp").mkdir()
    (tmp_path / "fastmcp" / "mcpenv.yaml").touch()
    with pytest.raises(ConfigurationError, match="fastmcp is not empty; choose another folder"):
        make_scaffold("fastmcp", "minimal", tmp_path / "fastmcp")
