"""The checks of an environment's folder: secrets, dependencies, layout, headings, and targets that have no folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines

from mcpenv.extensions.shipping.secret_files import secrets_in
from mcpenv.extensions.validation.checks.dependencies import declared_in, open_ended, undeclared_in
from mcpenv.targets.target import load_target

ENVIRONMENT = '''"""Echo."""

from mcpenv import MCPEnvironment


class Echo(MCPEnvironment):
    """Echo.

    Tools:
        echo(text): the text.

    Reward:
        None.
    """

    def __init__(self) -> None:
        @self.tool
        def echo(text: str) -> str:
            """Return the text."""
            return text
'''


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def put(folder: Path, name: str, text: str = "") -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (".env", "A=1", "a file of secrets, by its name"),
        ("keys/server.pem", "", "a file of secrets, by its name"),
        ("notes.txt", "-----BEGIN OPENSSH PRIVATE KEY-----", "has a private key"),
        ("cloud.py", "\nKEY = 'AKIAIOSFODNN7EXAMPLE'", "has a key of AWS"),
        ("hub.py", f"TOKEN = 'hf_{'a' * 34}'", "has a token of Hugging Face"),
        ("model.py", f"KEY = 'sk-{'a1' * 20}'", "has a key of a model's API"),
    ],
)
def test_a_secret_is_found_by_its_file_or_its_form_and_is_not_repeated(
    name: str, text: str, why: str, tmp_path: Path
) -> None:
    put(tmp_path, name, text)
    ((place, said),) = secrets_in(tmp_path)
    assert said == why and place.partition(":")[0] == name


@pytest.mark.parametrize(
    ("name", "text"),
    [(".env.example", "A="), ("sketch.py", "risk-" + "a" * 40), ("__pycache__/a.txt", "AKIAIOSFODNN7EXAMPLE")],
)
def test_what_only_looks_like_a_secret_is_left_alone(name: str, text: str, tmp_path: Path) -> None:
    put(tmp_path, name, text)
    assert list(secrets_in(tmp_path)) == []


def test_the_value_of_a_secret_of_the_manifest_is_found_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "a-long-key-of-the-shop")
    put(tmp_path, "shop.py", "#\nkey = 'a-long-key-of-the-shop'\n")
    assert list(secrets_in(tmp_path, ["SHOP_KEY"])) == [("shop.py:2", "has the value of SHOP_KEY")]


def test_imports_are_compared_with_what_is_declared(tmp_path: Path) -> None:
    put(tmp_path, "environment.py", "import json\nimport pydantic\nimport helper\nfrom numpy import array\n")
    put(tmp_path, "helper.py", "import no_such_module_anywhere\n")
    put(tmp_path, "tests/test_it.py", "import pytest\n")
    put(tmp_path, "requirements.txt", "# of the environment\nmcpenv>=0.1\nnumpy\n")
    declared = declared_in(tmp_path)
    assert declared is not None and open_ended(tmp_path, declared) == ["numpy"]
    assert list(undeclared_in(tmp_path, declared)) == [("helper.py:1", "no_such_module_anywhere")]
    put(tmp_path, "constraints.txt", "# Nothing of numpy-like things.\npydantic==2.0\n")
    assert open_ended(tmp_path, declared) == ["numpy"], "a file that does not name it pins nothing"
    put(tmp_path, "constraints.txt", "NumPy==2.0\n")
    assert open_ended(tmp_path, declared) == []


def test_a_project_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert declared_in(tmp_path) is None
    put(tmp_path, "pyproject.toml", "[project]\ndependencies = ['two words']\n")
    with pytest.raises(ValueError, match=r"pyproject\.toml: "):
        declared_in(tmp_path)
    put(tmp_path, "pyproject.toml", "[project")
    with pytest.raises(ValueError, match=r"pyproject\.toml: "):
        declared_in(tmp_path)


def test_a_package_that_reads_a_file_beside_it_fails_as_a_wheel(tmp_path: Path, cli: Cli) -> None:
    put(tmp_path, "shop/__init__.py")
    put(tmp_path, "shop/environment.py", ENVIRONMENT + "\n\nfrom pathlib import Path\n\n"
        "WORDS = (Path(__file__).parents[1] / 'words.txt').read_text()\n")  # fmt: skip
    put(tmp_path, "words.txt", "heron")
    put(tmp_path, "mcpenv.yaml", "schema_version: 1\nname: shop\nentry: shop/environment.py:Echo\n")
    done = cli("validate", ".", "--only", "packaging", "--json")
    findings = {each["check"]: each for each in json.loads(done.out)["parts"][-1]["findings"]}
    assert done.status == 1 and findings["layout"]["verdict"] == "failed"
    assert "the package 'shop' alone, as in a wheel" in findings["layout"]["reason"]
    assert findings["manifest"]["reason"] == "no version and no description"
    assert findings["readme"]["reason"] == "there is no README.md"


def test_a_file_among_others_is_not_judged_as_a_folder(tmp_path: Path, cli: Cli) -> None:
    put(tmp_path, "echo.py", ENVIRONMENT)
    put(tmp_path, ".env", "A=1")
    done = cli("validate", "echo.py", "--only", "packaging", "--only", "security")
    assert done.status == 2 and "not applicable  the code of the target is not in a folder of its own" in done.out
    assert load_target("echo.py").folder == tmp_path


def test_a_badge_is_a_drawing_that_needs_no_network(tmp_path: Path, cli: Cli) -> None:
    put(tmp_path, "environment.py", ENVIRONMENT)
    done = cli("validate", ".", "--only", "schemas", "--badge", "badge.svg")
    assert done.out.splitlines()[-1] == "![mcpenv validate: sound, 1 of 8 parts](badge.svg)"
    drawn = (tmp_path / "badge.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<svg ") and "sound, 1 of 8 parts" in drawn
    assert drawn.count("http") == 1  # the name of SVG's namespace
