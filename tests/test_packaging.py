"""The promises of the two distributions: versions, dependencies, entry points, types, public names."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mcpenv
import mcpenv_client

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {"mcpenv": ROOT, "mcpenv-client": ROOT / "clients" / "python"}
PACKAGES = {"mcpenv": mcpenv, "mcpenv-client": mcpenv_client}


def project(name: str) -> dict[str, Any]:
    """The ``[project]`` table of a distribution."""
    pyproject = tomllib.loads((DISTRIBUTIONS[name] / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = pyproject["project"]
    return table


def test_both_distributions_have_one_version() -> None:
    assert project("mcpenv")["version"] == project("mcpenv-client")["version"]


def test_mcpenv_asks_for_exactly_its_own_client() -> None:
    needed = [requirement for requirement in project("mcpenv")["dependencies"] if "mcpenv" in requirement]
    assert needed == [f"mcpenv-client=={project('mcpenv')['version']}"]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_installed_is_what_is_here(name: str) -> None:
    installed = importlib.metadata.distribution(name)
    assert installed.version == project(name)["version"] == PACKAGES[name].__version__
    assert {re.split(r"[^\w-]", r)[0] for r in installed.requires or () if "extra ==" not in r} == {
        re.split(r"[^\w-]", r)[0] for r in project(name)["dependencies"]
    }


def test_the_client_needs_three_packages() -> None:
    needed = {re.split(r"[^\w-]", requirement)[0] for requirement in project("mcpenv-client")["dependencies"]}
    assert needed == {"pydantic", "websockets", "httpx"}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_is_typed_and_licensed(name: str) -> None:
    assert (Path(str(PACKAGES[name].__file__)).parent / "py.typed").is_file()
    assert project(name)["license"] == "Apache-2.0"
    assert "Apache License" in (DISTRIBUTIONS[name] / "LICENSE").read_text(encoding="utf-8")


def test_the_installed_echo_environment_loads() -> None:
    (offered,) = importlib.metadata.entry_points(group="mcpenv.environments", name="echo_mcp")
    environment = offered.load()
    assert issubclass(environment, mcpenv.MCPEnvironment)
    with environment() as env:
        assert env.call_tool("echo_message", {"message": "hello"}).text == "hello"


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_every_public_name_can_be_imported_and_is_in_the_docs(package: ModuleType) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    missing = [name for name in package.__all__ if not hasattr(package, name)]
    unwritten = [name for name in package.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)]
    assert (missing, unwritten) == ([], [])
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_only_versions_of_python_that_ran_are_claimed(name: str) -> None:
    claimed = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project(name)["classifiers"]))
    page = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    (tested,) = re.findall(rf"^\| `{name}` \| ([\d., ]+) \|$", page, re.MULTILINE)
    assert claimed == tested.split(", ")
    assert project(name)["requires-python"] == f">={claimed[0]}"


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (latest, *_) = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert latest == project("mcpenv")["version"]


def test_the_contributing_page_has_the_command_of_every_extension() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.relative_to(ROOT).parts[2] for path in (ROOT / "tests" / "extensions").rglob("test_*.py")}
    missing = [
        name for name in sorted(folders) if f'`pytest -n auto tests/extensions/{name} -m "not world"`' not in page
    ]
    assert missing == []
