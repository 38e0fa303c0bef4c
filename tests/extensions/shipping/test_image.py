"""The files of an image: what its Dockerfile says, and what its author has changed."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from mcpenv import TargetError
from mcpenv.extensions.shipping.image.dockerfile import dockerfile, tag_of
from mcpenv.extensions.shipping.image.dockerignore import dockerignore
from mcpenv.extensions.shipping.image.files import files_of, stage
from mcpenv.extensions.shipping.image.generated import Written, checked, is_changed, write_text
from mcpenv.extensions.shipping.image.plan import ImagePlan, plan_image
from mcpenv.extensions.shipping.image.sbom import sbom
from mcpenv.extensions.shipping.scaffold import TEMPLATES, make_scaffold

ENVIRONMENT = "from mcpenv import MCPEnvironment\n\n\nclass Shop(MCPEnvironment):\n    '''Sell.'''\n"


@pytest.mark.parametrize("template", TEMPLATES)
def test_init_writes_what_build_would_write(template: str, tmp_path: Path) -> None:
    folder = make_scaffold("corner_shop", template, tmp_path / "shop").folder
    plan = plan_image(str(folder))
    assert (plan.name, plan.distribution) == ("corner_shop", "corner_shop")
    assert plan.copied == ("mcpenv.yaml", "README.md", "corner_shop")
    assert (folder / "Dockerfile").read_text(encoding="utf-8") == dockerfile(plan)
    assert (folder / ".dockerignore").read_text(encoding="utf-8") == dockerignore()


def test_a_dockerfile_is_pinned_and_not_of_root_and_has_a_health_check(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = dockerfile(plan_image(str(make_scaffold("corner_shop", "http-api", tmp_path / "shop").folder)))
    assert "--constraint /src/constraints.txt" in text and f"ARG BASE=docker.io/library/python:{version}-slim\n" in text
    assert "\nUSER 1000\n" in text and "\nHEALTHCHECK CMD " in text and "\nEXPOSE 8000\n" in text
    assert " -e ROOMS_API_TOKEN corner_shop\n" in text
    assert text.index("USER 1000") > text.index("COPY corner_shop ./corner_shop")
    assert "COPY . " not in text, "a change of the code would install all packages again"
    assert text.index("RUN python3 -m venv") < text.index("COPY corner_shop") and "\nARG PIP_INDEX_URL\n" in text


def test_a_folder_without_a_package_is_copied_whole(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text(ENVIRONMENT, encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("requests[socks]>=2 # http\n-r other.txt\n", encoding="utf-8")
    plan = plan_image(str(tmp_path))
    assert plan == ImagePlan(tmp_path, tmp_path.name, has_requirements=True, needs=("mcpenv", "requests[socks]"))
    text = dockerfile(plan)
    assert " mcpenv --requirement /src/requirements.txt \\\n" in text and "\nRUN rm -rf /src/wheels\n" in text
    assert "COPY *.txt /src/\n" in text and "COPY --from=files /src ./\n" in text and '"run", "/app", "--host"' in text


@pytest.mark.parametrize(
    ("target", "served"),
    [("shop.py", "/app/shop.py"), ("shop.py:Shop", "/app/shop.py:Shop"), (".:Shop", "/app:Shop")],
)
def test_a_file_and_a_class_are_served_by_name(
    target: str, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shop.py", "environment.py"):
        Path(name).write_text(ENVIRONMENT, encoding="utf-8")
    assert f'"run", "{served}", ' in dockerfile(plan_image(target))


def test_a_port_and_options_are_those_of_the_entrypoint(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text(ENVIRONMENT, encoding="utf-8")
    text = dockerfile(plan_image(str(tmp_path)), port=7860, options=("--require-handle",))
    assert '"--port", "7860", "--require-handle"]\n' in text
    assert "EXPOSE 7860" in text and "127.0.0.1:7860/health" in text


@pytest.mark.parametrize("target", ["echo_mcp", "mcp:npx server", "gone", "notes.txt", "."])
def test_what_is_no_folder_of_an_environment_is_refused(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    with pytest.raises(TargetError, match=r"an image is made of a folder with mcpenv\.yaml or environment\.py"):
        plan_image(target)


def test_a_package_without_its_parent_is_refused(tmp_path: Path) -> None:
    for name in ("environment.py", "__init__.py"):
        (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(TargetError, match=r"add a mcpenv\.yaml to the folder above it"):
        plan_image(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "tag"), [("my_env", "my_env"), ("My Env!", "my-env"), ("-", "environment"), ("a.b", "a-b")]
)
def test_a_name_becomes_a_tag(name: str, tag: str) -> None:
    assert tag_of(name) == tag


def test_a_file_that_its_author_changed_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    assert write_text(file, checked("FROM a\n"), force=False) is Written.NEW
    assert write_text(file, checked("FROM a\n"), force=False) is Written.SAME
    assert write_text(file, checked("FROM b\n"), force=False) is Written.UPDATED
    for own in ("FROM mine\n", checked("FROM b\n").replace("FROM b", "FROM mine"), checked("FROM b\n") + "USER me\n"):
        assert is_changed(own)
        file.write_text(own, encoding="utf-8")
        assert write_text(file, checked("FROM a\n"), force=False) is Written.KEPT
        assert file.read_text(encoding="utf-8") == own
    assert write_text(file, checked("FROM a\n"), force=True) is Written.UPDATED
    assert not is_changed(file.read_text(encoding="utf-8"))
    assert os.listdir(tmp_path) == ["Dockerfile"]


def test_labels_hold_a_version_as_it_is_written(tmp_path: Path) -> None:
    plan = ImagePlan(tmp_path, "shop", version='1.0 "$HOME" \\')
    assert 'image.version="1.0 \\"\\$HOME\\" \\\\"' in dockerfile(plan)


def test_dependencies_that_only_a_build_backend_knows_are_found_by_it(tmp_path: Path) -> None:
    folder = make_scaffold("corner_shop", "minimal", tmp_path / "shop").folder
    project = folder / "pyproject.toml"
    own = project.read_text(encoding="utf-8")
    assert "\ndependencies = " in own and not plan_image(str(folder)).is_dynamic
    project.write_text(own.replace("\ndependencies = ", '\ndynamic = ["dependencies"]\n# '), encoding="utf-8")
    text = dockerfile(plan_image(str(folder)))
    assert "\nCOPY . /src/\n" in text and " mcpenv /src \\\n" in text and "--yes corner_shop pip" in text


def test_equal_files_are_staged_equal_whenever_they_were_made(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "environment.py").write_text(ENVIRONMENT, encoding="utf-8")
    plan, times = plan_image(str(tmp_path / "shop")), []
    for when in (1e9, 2e9):
        os.utime(tmp_path / "shop" / "environment.py", (when, when))
        place = tmp_path / f"{when:g}"
        place.mkdir()
        stage(plan, files_of(plan), (), place)
        times.append({each.name: each.stat().st_mtime for each in (place, *place.rglob("*")) if each != place})
    assert times[0] == times[1] and len(set(times[0].values())) == 1


def test_a_bill_of_materials_has_each_package_and_what_it_depends_on() -> None:
    document = sbom()
    assert document == sbom() and document["bomFormat"] == "CycloneDX"
    by_name = {each["name"]: each for each in document["components"]}
    assert by_name["mcpenv"]["purl"] == f"pkg:pypi/mcpenv@{version('mcpenv')}"
    assert by_name["fastmcp"]["version"] == version("fastmcp") and by_name["fastmcp"]["licenses"]
    needs = {each["ref"]: each["dependsOn"] for each in document["dependencies"]}
    assert needs.keys() == {each["bom-ref"] for each in document["components"]}
    assert by_name["fastmcp"]["purl"] in needs[by_name["mcpenv"]["purl"]]
