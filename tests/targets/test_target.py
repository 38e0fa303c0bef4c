"""Targets: every form of TARGET, what is wrong with the others, and settings."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from mcpenv import MCPEnvironment, TargetError
from mcpenv.errors import describe
from mcpenv.targets.target import Target, load, load_target

COUNTER = '''
from mcpenv import MCPEnvironment


class Counter(MCPEnvironment):
    """Count to the target."""

    def __init__(self, target: int = 3) -> None:
        self.target = target
'''


@pytest.fixture(autouse=True)
def _own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test works in a folder of its own, with what it imports gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: str, text: str = COUNTER) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text), encoding="utf-8")
    return file


def install(name: str, value: str) -> None:
    """An installed distribution in the working directory that offers an environment."""
    write(f"site/{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write(f"site/{name}-1.0.dist-info/entry_points.txt", f"[mcpenv.environments]\n{name} = {value}\n")
    sys.path.insert(0, str(Path("site").resolve()))


def refused(target: str, settings: tuple[str, ...] = ()) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(target, settings)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{target}: ")
    return text.removeprefix(f"{target}: ")


# -- the forms of TARGET


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("game", "game"),
        ("game/environment.py", "game"),
        ("./game/", "game"),
        ("game:Counter", "counter"),
        ("game/environment.py:Counter", "counter"),
        ("game/other.py", "other"),
        ("game.environment:Counter", "counter"),
    ],
)
def test_every_form_finds_the_class(target: str, name: str) -> None:
    write("game/environment.py")
    write("game/other.py")
    loaded = load_target(target)
    assert loaded.environment_class is not None
    assert loaded.environment_class.__name__ == "Counter"
    assert loaded.name == name
    assert loaded.folder == Path("game").resolve()
    assert isinstance(loaded.make(), loaded.environment_class)


def test_the_working_directory_itself_is_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    write("game/environment.py")
    monkeypatch.chdir("game")
    assert load_target(".").name == "game"


def test_a_factory_is_called_for_each_instance() -> None:
    write("made.py", COUNTER + "\n\ndef easy(target: int = 1):\n    return Counter(target)\n")
    loaded = load_target("made:easy", ["target=7"])
    assert loaded.environment_class is None
    first, second = loaded.make(), loaded.make()
    assert first is not second
    assert vars(first)["target"] == 7


def test_an_installed_name_is_a_target() -> None:
    write("site/offered/environment.py")
    write("site/offered/__init__.py", "")
    write("site/offered/README.md", "# Offered")
    install("counting", "offered.environment:Counter")
    loaded = load_target("counting")
    assert (loaded.name, loaded.spec) == ("counting", "offered.environment:Counter")
    assert loaded.readme == "# Offered"


def test_a_folder_with_environment_py_wins_over_an_installed_name() -> None:
    write("site/offered.py")
    install("counting", "offered:Counter")
    write("counting/notes.txt", "no environment here")
    assert load_target("counting").spec == "offered:Counter"
    write("counting/environment.py")
    assert load_target("counting").folder == Path("counting").resolve()


WHOSE = """
from mcpenv import MCPEnvironment

{imports}

class Env(MCPEnvironment):
    \"\"\"It tells whose module it has.\"\"\"

    def __init__(self) -> None:
        @self.tool
        def whose() -> str:
            \"\"\"Tell whose module it is.\"\"\"
            {inside}
            return {owner}
"""


def _two_folders(folder: Path, sibling: str, **code: str) -> list[Path]:
    found = []
    for name in ("one", "two"):
        place = folder / name
        place.mkdir()
        (place / "environment.py").write_text(WHOSE.format(**{"imports": "", "inside": "", **code}))
        (place / sibling).parent.mkdir(parents=True, exist_ok=True)
        (place / sibling).write_text(f"OWNER = {name!r}\n")
        found.append(place)
    return found


@pytest.mark.parametrize(
    ("sibling", "code"),
    [
        ("names_a.py", {"imports": "import names_a", "owner": "names_a.OWNER"}),
        ("names_b.py", {"imports": "from names_b import OWNER", "owner": "OWNER"}),
        ("names_c.py", {"inside": "import names_c", "owner": "names_c.OWNER"}),
        ("names_d/__init__.py", {"imports": "import names_d", "owner": "names_d.OWNER"}),
        ("names_e/inner.py", {"imports": "from names_e.inner import OWNER", "owner": "OWNER"}),
    ],
)
def test_a_second_environment_with_a_sibling_of_the_same_name_is_refused(
    tmp_path: Path, sibling: str, code: dict[str, str]
) -> None:
    first, second = _two_folders(tmp_path, sibling, **code)
    with load(first) as env:
        env.reset()
        assert env.call_tool("whose").text == "one"
    for _ in range(2):
        with pytest.raises(TargetError) as raised:
            load(second)
        assert f"the environment in {first}" in str(raised.value) and "__init__.py" in str(raised.value)
    with load(first) as env:
        env.reset()
        assert env.call_tool("whose").text == "one"


IN_SRC = "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'src'))\nimport names_h"


@pytest.mark.parametrize(
    ("sibling", "imports"),
    [
        ("names_i.py", "import importlib\nnames_i = importlib.import_module('names_i')"),
        ("names_j.py", "names_j = __import__('names_j')"),
        ("src/names_h.py", IN_SRC),
        ("src/names_h/__init__.py", IN_SRC),
    ],
)
def test_a_second_environment_that_would_find_the_module_of_the_first_is_refused(
    tmp_path: Path, sibling: str, imports: str
) -> None:
    name = imports[imports.index("names_") :][:7]
    first, second = _two_folders(tmp_path, sibling, imports=imports, owner=f"{name}.OWNER")
    load(first).close()
    for _ in range(2):
        before = sys.path[:]
        with pytest.raises(TargetError, match=f"its module '{name}' has the name of .* the environment in {first}"):
            load(second)
        assert sys.path == before
    with load(first) as env:
        env.reset()
        assert env.call_tool("whose").text == "one"


class _Answers(ModuleType):
    """Has an attribute of any name, as the modules of some libraries have (torch.classes)."""

    def __getattr__(self, name: str) -> Any:
        return object()


class _Raises(ModuleType):
    """Cannot be asked, as a lazy module whose library is not installed."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError("no such library")


@pytest.mark.parametrize("module", [_Answers("odd"), _Raises("odd"), object(), None])
def test_modules_that_answer_for_every_name_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, "odd", module)
    first, _ = _two_folders(tmp_path, "names_l.py", imports="import names_l", owner="names_l.OWNER")
    with load(first) as env:
        env.reset()
        assert env.call_tool("whose").text == "one"


def test_what_a_refused_environment_has_loaded_is_gone(tmp_path: Path) -> None:
    imports = "import importlib\nnames_k = importlib.import_module('names_k')\n"
    first, second = _two_folders(tmp_path, "names_k.py", imports=imports, owner="names_k.OWNER")
    (second / "names_own.py").write_text("")
    (second / "environment.py").write_text("import names_own\n" + (second / "environment.py").read_text())
    load(first).close()
    with pytest.raises(TargetError, match="its module 'names_k' has the name of"):
        load(second)
    assert "names_own" not in sys.modules


def test_packages_beside_modules_of_the_same_name_are_refused(tmp_path: Path) -> None:
    found = []
    for folder in _two_folders(tmp_path, "names_l.py", imports="import names_l", owner="names_l.OWNER"):
        found.append(folder / f"shop_{folder.name}" / "environment.py")
        found[-1].parent.mkdir()
        (found[-1].parent / "__init__.py").touch()
        (folder / "environment.py").rename(found[-1])
    load(found[0]).close()
    with pytest.raises(TargetError, match=f"its module 'names_l' has the name of .* in {tmp_path / 'one'},"):
        load(found[1])


@pytest.mark.parametrize(("name", "where"), [("yaml", r"yaml/__init__\.py"), ("time", "of Python itself")])
def test_a_sibling_that_a_loaded_module_hides_is_refused_by_name(tmp_path: Path, name: str, where: str) -> None:
    importlib.import_module(name)
    first, _ = _two_folders(tmp_path, f"{name}.py", inside=f"import {name}", owner=f"{name}.OWNER")
    said = rf"its module '{name}' has the name of a module that is loaded in this process \(.*{where}\). Rename it"
    with pytest.raises(TargetError, match=said):
        load(first)


def test_a_sibling_with_the_name_of_a_loaded_module_that_it_does_not_import_is_no_fault(tmp_path: Path) -> None:
    for folder in _two_folders(tmp_path, "yaml.py", owner="'nobody'"):
        load(folder).close()


def test_siblings_of_the_same_name_in_packages_are_apart(tmp_path: Path) -> None:
    folders = _two_folders(tmp_path, "names_f.py", imports="from . import names_f", owner="names_f.OWNER")
    for folder in folders:
        (folder / "__init__.py").touch()
    for folder in folders:
        with load(folder) as env:
            env.reset()
            assert env.call_tool("whose").text == folder.name


def test_a_sibling_that_is_not_imported_refuses_nothing(tmp_path: Path) -> None:
    for folder in _two_folders(tmp_path, "names_g.py", owner="'nobody'"):
        load(folder).close()


def test_a_file_outside_of_packages_imports_its_siblings() -> None:
    write("game/words.py", "GREETING = 'hello'\n")
    write("game/environment.py", "from words import GREETING\n" + COUNTER)
    assert load_target("game").environment_class is not None


def test_a_file_in_a_package_imports_relatively() -> None:
    write("envs/__init__.py", "")
    write("envs/common.py", "LIMIT = 3\n")
    write("envs/game/__init__.py", "")
    write("envs/game/words.py", "GREETING = 'hello'\n")
    write("envs/game/environment.py", "from ..common import LIMIT\nfrom .words import GREETING\n" + COUNTER)
    loaded = load_target("envs/game")
    assert loaded.environment_class is not None
    assert loaded.environment_class.__module__ == "envs.game.environment"


def test_two_environments_of_one_file_name_are_two_modules() -> None:
    write("one/environment.py")
    write("two/environment.py")
    one, two = load_target("one"), load_target("two")
    assert one.environment_class is not two.environment_class
    assert load_target("one").environment_class is one.environment_class


def test_classes_that_are_imported_private_or_abstract_are_not_meant() -> None:
    write("base.py", COUNTER.replace("Counter", "Base"))
    write(
        "game/environment.py",
        """
        from abc import ABC, abstractmethod
        from base import Base

        class _Helper(Base): ...

        class Unfinished(Base, ABC):
            @abstractmethod
            def play(self) -> None: ...

        class Game(Unfinished):
            def play(self) -> None: ...

        Alias = Game
        """,
    )
    sys.path.insert(0, str(Path.cwd()))
    loaded = load_target("game")
    assert loaded.environment_class is not None
    assert loaded.environment_class.__name__ == "Game"


def test_the_readme_beside_it_is_read() -> None:
    write("game/environment.py")
    assert load_target("game").readme is None
    write("game/README.md", "# Gamé")
    assert load_target("game").readme == "# Gamé"


@pytest.mark.parametrize(
    ("folder", "name"),
    [("my game!", "my-game"), ("Échecs", "checs"), ("...", "environment"), ("x" * 90, "x" * 64)],
)
def test_names_have_only_characters_that_hosts_take(folder: str, name: str) -> None:
    write(f"{folder}/environment.py")
    assert load_target(folder).name == name


def test_class_names_become_names_in_words() -> None:
    write("game.py", COUNTER.replace("Counter", "MCPEchoGame2"))
    assert load_target("game:MCPEchoGame2").name == "mcp-echo-game2"


@pytest.mark.process
def test_specs_work_from_any_working_directory(tmp_path: Path) -> None:
    write("game/environment.py")
    write("package/__init__.py", "")
    write("package/inner.py", "LIMIT = 3\n")
    write("package/world.py", "from .inner import LIMIT\n" + COUNTER)
    targets = ["game", "game/environment.py", "game:Counter", "game.environment:Counter", "package.world:Counter"]
    specs = [load_target(target).spec for target in targets]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = (
        "import sys; from mcpenv.targets.target import load_target\nfor spec in sys.argv[1:]: load_target(spec).make()"
    )
    subprocess.run([sys.executable, "-c", script, *specs], cwd=elsewhere, check=True, timeout=60)


# -- what is no target


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "is not a folder with environment.py, a .py file"),
        ("some/where", "there is no such file or folder"),
        ("nowhere.py", "there is no such file or folder"),
        ("others/b.p", "there is no such file or folder. Did you mean 'others/b.py'?"),
        ("empty", "the folder has no environment.py"),
        ("others", "the folder has no environment.py; name one of its files: a.py, b.py"),
        ("notes.txt", "is not a Python file"),
        ("missing_module:Counter", "there is no module 'missing_module'"),
        pytest.param(
            "tau3:retail",
            "there is no module 'tau3'. Did you mean 'tau2:retail'?",
            marks=pytest.mark.extension("tau2"),
        ),
        pytest.param(
            "harbr:some/where",
            "there is no such file or folder. Did you mean 'harbor:some/where'?",
            marks=pytest.mark.extension("harbor"),
        ),
        ("game.missing:Counter", "there is no module 'game.missing'"),
        ("x" * 300, "File name too long"),
        ("~nobody-of-this-name/game", "Could not determine home directory."),
    ],
)
def test_what_is_not_there_is_said(target: str, said: str) -> None:
    Path("empty").mkdir()
    write("others/a.py", "")
    write("others/b.py", "")
    write("others/__init__.py", "")
    write("notes.txt", "")
    write("game/environment.py")
    assert refused(target).startswith(said)


def test_an_empty_target_is_refused() -> None:
    with pytest.raises(TargetError, match=r"^'': names no environment; write '\.' for the current folder$"):
        load_target("")


def test_installed_names_are_listed_for_an_unknown_one() -> None:
    install("counting", "offered:Counter")
    assert refused("countin").endswith("Did you mean 'counting'?")
    assert "Did you mean" not in refused("xyz")
    write("gamble/environment.py")
    assert refused("gambel").endswith("Did you mean 'gamble'?")


def test_a_mistyped_class_and_setting_are_refused_with_those_that_were_meant() -> None:
    write("game/environment.py")
    said = "there is no 'Count' in environment.py; it has Counter. Did you mean 'Counter'?"
    assert refused("game:Count") == said
    assert refused("game/environment.py:Count") == said.replace("environment.py", "the file")
    assert refused("game", ("targt=1",)).endswith("(there are: target). Did you mean 'target'?")


def test_no_environment_is_an_error_that_names_what_is_imported() -> None:
    write("game/environment.py", "from mcpenv import MCPEnvironment\n")
    assert refused("game") == "environment.py defines no MCPEnvironment subclass"
    assert refused("game/environment.py") == "the file defines no MCPEnvironment subclass"
    write("base.py")
    write("again/environment.py", "import sys; sys.path.insert(0, '.')\nfrom base import Counter\n")
    said = "environment.py defines no MCPEnvironment subclass; to use an imported one (Counter), write again:Counter"
    assert refused("again") == said
    assert load_target("again:Counter").environment_class is not None


def test_several_environments_are_listed() -> None:
    write("game/environment.py", COUNTER + COUNTER.replace("Counter", "Other"))
    assert refused("game") == "has several environments: Counter, Other; choose one, such as game:Counter"
    assert load_target("game:Other").name == "other"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Missing", "there is no 'Missing' in environment.py; it has Counter"),
        ("instance", "instance is an instance of Counter; name the class or a factory"),
        ("other", "other is a server of the MCP SDK, not of FastMCP; serve it as a process: mcp:python FILE"),
        ("Plain", "Plain is a class, but not a subclass of MCPEnvironment"),
        ("MCPEnvironment", "MCPEnvironment is a class, but not a subclass of MCPEnvironment"),
        ("number", "number is a int, neither an MCPEnvironment class nor a factory"),
        ("later", "later is an async function; a factory must be a plain function"),
    ],
)
def test_a_name_that_makes_no_environments_is_refused(name: str, said: str) -> None:
    write(
        "game/environment.py",
        COUNTER
        + dedent("""
        from mcp.server.lowlevel import Server
        instance, other, number = Counter(), Server("tools"), 3
        class Plain: ...
        async def later(): return Counter()
        """),
    )
    assert refused(f"game:{name}").startswith(said)


SERVER = """
from fastmcp import FastMCP

mcp = FastMCP("CRM tools", instructions="Keep the customers.")

@mcp.tool
def add(name: str) -> str:
    \"\"\"Add a customer.\"\"\"
    return f"added {name}"
"""


@pytest.mark.parametrize("target", ["crm.py:mcp", "crm.py"])
def test_a_fastmcp_server_is_served_as_it_is(target: str) -> None:
    write("crm.py", SERVER)
    loaded = load_target(target)
    assert loaded.environment_class is not None
    assert (loaded.environment_class.exposed_name(), loaded.environment_class.__doc__) == (
        "CRM tools",
        "Keep the customers.",
    )
    with loaded.make() as env:
        env.reset()
        assert env.call_tool("add", {"name": "Ada"}).text == "added Ada"


def test_of_several_fastmcp_servers_the_one_with_the_name_of_a_main_server_is_served() -> None:
    write("crm.py", SERVER + "other = FastMCP('other')\n")
    with load_target("crm.py").make() as env:
        assert [tool.name for tool in env.list_tools()] == ["add"]
    with load_target("crm.py:other").make() as env:
        assert env.list_tools() == []


def test_several_fastmcp_servers_are_refused_by_name() -> None:
    write("crm.py", SERVER.replace("mcp", "sales").replace("fastsales", "fastmcp") + "other = FastMCP('other')\n")
    assert refused("crm.py") == "has several FastMCP servers: sales, other; choose one, such as crm.py:sales"
    assert refused("crm.py:mcp") == "there is no 'mcp' in the file; it has sales, other"


@pytest.mark.parametrize("target", ["crm.py:mcp", "crm.py"])
def test_a_server_of_the_sdk_is_refused_with_the_target_that_serves_it(target: str) -> None:
    write("crm.py", "from mcp.server import MCPServer\nmcp = MCPServer('CRM')\n")
    assert refused(target) == ("mcp is a server of the MCP SDK, not of FastMCP; serve it as a process: mcp:python FILE")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found' ({}:1)"),
        ("\n\nraise ValueError('two\\nlines')\n", "ValueError: two lines ({}:3)"),
        ("def broken(:\n", "SyntaxError: invalid syntax ({}:1)"),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError: Expecting property name"),
        ("raise SystemExit(3)\n", "SystemExit: 3 ({}:1)"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--port', '1'])\n",
            "SystemExit: 2 ({}:2); if it reads the command line, serve it as a process: mcp:python FILE",
        ),
        ("assert False\n", "AssertionError ({}:1)"),
    ],
)
@pytest.mark.parametrize("package", [False, True])
def test_code_that_does_not_load_is_named_with_its_line(text: str, said: str, package: bool) -> None:
    write("game/environment.py", text)
    if package:
        write("game/__init__.py", "")
    message = refused("game")
    assert message.startswith("cannot be loaded: " + said.format("game/environment.py"))
    assert "game/environment.py:" in message


def test_a_module_that_does_not_load_is_named_with_its_line() -> None:
    write("world.py", "import nowhere_to_be_found\n" + COUNTER)
    assert refused("world:Counter").endswith("No module named 'nowhere_to_be_found' (world.py:1)")


def test_the_failing_line_is_the_authors_even_if_a_sibling_raised() -> None:
    write("game/words.py", "\n\nGREETING = {}['missing']\n")
    write("game/environment.py", "import words\n" + COUNTER)
    assert refused("game") == "cannot be loaded: KeyError: 'missing' (game/words.py:3)"


def test_the_cause_keeps_the_traceback() -> None:
    write("game/environment.py", "raise ValueError('no')\n")
    with pytest.raises(TargetError) as caught:
        load_target("game")
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_file_that_did_not_load_is_loaded_anew() -> None:
    write("game/environment.py", "raise ValueError('no')\n")
    refused("game")
    write("game/environment.py")
    assert load_target("game").environment_class is not None


def test_a_package_with_the_name_of_a_loaded_module_is_refused() -> None:
    write("json/__init__.py", "")
    write("json/environment.py")
    assert refused("json").startswith("its package has the name of the module 'json', which mcpenv uses")


# -- making


def test_a_constructor_that_raises_is_named_with_its_line() -> None:
    write("game/environment.py", COUNTER.replace("self.target = target", "int('no number')"))
    with pytest.raises(TargetError) as caught:
        load_target("game").make()
    said = "invalid literal for int() with base 10: 'no number'"
    assert str(caught.value) == f"game: the constructor raised ValueError: {said} (game/environment.py:9)"
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_constructor_that_raises_no_exception_of_programs_is_named_with_its_line() -> None:
    write("game/environment.py", COUNTER.replace("self.target = target", "raise type('Odd', (BaseException,), {})(7)"))
    with pytest.raises(TargetError, match=r"^game: the constructor raised Odd: 7 \(game/environment\.py:9\)$"):
        load_target("game").make()
    write("other/environment.py", COUNTER.replace("self.target = target", "raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        load_target("other").make()


def test_a_factory_that_gives_something_else_is_refused() -> None:
    write("made.py", "def nothing(): ...\n")
    with pytest.raises(TargetError, match="the factory returned a NoneType, not an MCPEnvironment"):
        load_target("made:nothing").make()


def test_an_error_outside_of_the_folder_has_no_place() -> None:
    assert describe(ValueError("no"), Path.cwd()) == "ValueError: no"


# -- settings

SETTINGS = '''
import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

from pydantic import BaseModel, Field
from mcpenv import MCPEnvironment

if TYPE_CHECKING:
    from nowhere import Unknown


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(BaseModel):
    width: int
    height: int = 1


class Opaque: ...


class World(MCPEnvironment):
    """Keeps what it is given."""

    def __init__(
        self,
        whole: int = 0,
        number: float = 0.0,
        flag: bool = False,
        text: str = "",
        short: Annotated[str, Field(max_length=3)] = "",
        maybe: Optional[str] = None,
        level: Literal["easy", "hard", "3"] = "easy",
        colour: Colour = Colour.RED,
        path: Path = Path("."),
        names: list[str] = [],
        either: int | str = 0,
        size: Size | None = None,
        day: datetime.date | None = None,
        anything: Any = None,
        bare=None,
        opaque: Opaque | None = None,
        *,
        keyword: int = 0,
    ) -> None:
        self.given = {k: v for k, v in locals().items() if k != "self" and not k.startswith("_")}
'''


def given(setting: str) -> Any:
    env: Any = load_target("world", [setting]).make()
    return env.given[setting.partition("=")[0]]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("whole=5", 5),
        ("whole=-5", -5),
        ("number=0.5", 0.5),
        ("number=1e3", 1000.0),
        ("flag=true", True),
        ("flag=yes", True),
        ("flag=0", False),
        ("text=5", "5"),
        ("text=a=b", "a=b"),
        ('text="quoted"', '"quoted"'),
        ("text=", ""),
        ("short=abc", "abc"),
        ("maybe=5", "5"),
        ("maybe=null", None),
        ("level=hard", "hard"),
        ("level=3", "3"),
        ("path=/tmp/x", Path("/tmp/x")),
        ("path=5", Path("5")),
        ('names=["a", "b"]', ["a", "b"]),
        ("either=5", 5),
        ("either=five", "five"),
        ('anything={"a": [1]}', {"a": [1]}),
        ("anything=word", "word"),
        ("bare=2", 2),
        ("keyword=4", 4),
    ],
)
def test_values_are_read_as_the_annotation_wants_them(setting: str, value: Any) -> None:
    write("world/environment.py", SETTINGS)
    got = given(setting)
    assert got == value
    assert type(got) is type(value)


def test_values_of_the_authors_own_types() -> None:
    write("world/environment.py", SETTINGS)
    assert given("colour=blue").name == "BLUE"
    assert given('size={"width": 2}').height == 1
    assert given("day=2026-07-28").year == 2026


def test_the_last_of_two_values_counts() -> None:
    write("world/environment.py", SETTINGS)
    env: Any = load_target("world", ["whole=1", "whole=2"]).make()
    assert env.given["whole"] == 2


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("whole=five", "Input should be a valid integer, unable to parse string as an integer"),
        ("whole=1.5", "Input should be a valid integer, got a number with a fractional part"),
        ("flag=perhaps", "Input should be a valid boolean, unable to interpret input"),
        ("short=abcd", "String should have at most 3 characters"),
        ("level=medium", "Input should be 'easy', 'hard' or '3'"),
        ("colour=green", "Input should be 'red' or 'blue'"),
        ("names=a", "Input should be a valid list"),
        ("names=[1]", "0: Input should be a valid string"),
        ('size={"height": 1}', "width: Field required"),
        ("opaque=1", "Input should be an instance of Opaque"),
    ],
)
def test_values_that_do_not_fit_are_refused(setting: str, said: str) -> None:
    write("world/environment.py", SETTINGS)
    assert refused("world", (setting,)) == f"--set {setting}: {said}"


def test_unknown_settings_list_those_there_are() -> None:
    write("game/environment.py")
    assert refused("game", ("goal=1",)) == "--set goal=1: there is no setting 'goal' (there are: target)"


def test_settings_of_an_environment_that_takes_none() -> None:
    write("game/environment.py", "from mcpenv import MCPEnvironment\nclass Game(MCPEnvironment): ...\n")
    assert refused("game", ("mcp=1",)) == "--set mcp=1: there is no setting 'mcp' (there are: none)"


@pytest.mark.parametrize("setting", ["target", "=1", ""])
def test_a_setting_without_name_or_value_is_refused(setting: str) -> None:
    write("game/environment.py")
    assert refused("game", (setting,)) == f"--set {setting}: write name=value"


def test_missing_settings_are_named() -> None:
    write("game/environment.py", COUNTER.replace("target: int = 3", "target: int, *, level: str, seed: int = 0"))
    assert refused("game") == "needs --set target=VALUE --set level=VALUE"
    assert refused("game", ("target=1",)) == "needs --set level=VALUE"
    load_target("game", ["target=1", "level=x"]).make()


def test_a_constructor_that_takes_anything_gets_anything() -> None:
    write("game/environment.py", COUNTER.replace("target: int = 3", "**target: object"))
    env: Any = load_target("game", ["a=1", "b=x"]).make()
    assert env.target == {"a": 1, "b": "x"}


def test_an_inherited_constructor_has_its_settings() -> None:
    write("game/environment.py", COUNTER.replace("Counter", "_Base") + "\n\nclass Game(_Base): ...\n")
    env: Any = load_target("game", ["target=9"]).make()
    assert env.target == 9


def test_annotations_that_only_a_type_checker_sees_do_not_matter() -> None:
    text = COUNTER.replace("target: int = 3", "target: 'Unknown' = 3")
    write("game/environment.py", text)
    env: Any = load_target("game", ["target=5"]).make()
    assert env.target == 5


def test_a_target_is_a_plain_value() -> None:
    target = Target("x", MCPEnvironment, MCPEnvironment, None, None, "x")
    with pytest.raises(AttributeError):
        target.name = "y"  # type: ignore[misc]
