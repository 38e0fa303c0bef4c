"""The manifest ``mcpenv.yaml``: what it states is in force, and a mistake in it is reported with its line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from command_line import Cli, command_lines, started

from mcpenv import Mode, TargetError
from mcpenv.cli.run_options import Addresses, Limits, Sessions, config_from, with_manifest
from mcpenv.redaction import redact
from mcpenv.targets import manifest as manifest_module
from mcpenv.targets.manifest import Manifest, ManifestLimits, manifest_schema
from mcpenv.targets.manifest_file import read_manifest
from mcpenv.targets.requirements import machine_cpu, machine_memory
from mcpenv.targets.target import load, load_target, manifest_of
from mcpenv_client import EnvClient
from mcpenv_client.errors import CapacityReached

CODE = '''
import os

from mcpenv import MCPEnvironment, TaskSet


class Greeter(MCPEnvironment):
    """Greet in the class's words.

    Version:
        0.0.1
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.0.1"
    tasks = TaskSet([{"id": "of-the-class"}])

    def __init__(self, greeting: str = "Hello") -> None:
        @self.tool
        def greet(name: str) -> str:
            """Greet somebody."""
            return f"{greeting}, {name}"


class Other(MCPEnvironment):
    """Another one."""


def make() -> Greeter:
    return Greeter("From the factory")
'''

LEAST = """
schema_version: 1
name: greeter
entry: hello/environment.py:Greeter
"""


@pytest.fixture(autouse=True)
def _own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test works in a folder of its own, with what it imports gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield
    for name in {name for name in sys.modules if name.startswith("hello")} - before:
        del sys.modules[name]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def folder(more: str = "", manifest: str = LEAST) -> str:
    """Write a folder with a manifest and a package, and return its name."""
    package = Path("env/hello")
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "environment.py").write_text(CODE, encoding="utf-8")
    Path("env/README.md").write_text("# Read me", encoding="utf-8")
    Path("env/mcpenv.yaml").write_text(dedent(manifest).lstrip() + dedent(more), encoding="utf-8")
    return "env"


def refused(more: str = "", manifest: str = LEAST) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(folder(more, manifest))
    return str(caught.value).removeprefix(f"{Path('env').absolute()}/")


def test_a_folder_with_a_manifest_is_a_target(tmp_path: Path) -> None:
    target = load_target(folder())
    assert (target.name, target.folder, target.readme) == ("greeter", tmp_path / "env", "# Read me")
    assert target.spec == str(tmp_path / "env")
    assert load_target(target.spec).environment_class is not None
    with target.make() as env:
        assert env.call_tool("greet", {"name": "Ana"}).text == "Hello, Ana"


def test_what_a_manifest_states_replaces_what_the_class_says() -> None:
    Path("env").mkdir()
    Path("env/mine.jsonl").write_text('{"id": "of-the-manifest"}\n', encoding="utf-8")
    name = folder('version: "2.0"\ndescription: Greets by the manifest.\ntasks: mine.jsonl\n')
    with pytest.warns(UserWarning, match="two sources of tasks"):
        env = load(name)
    with env:
        assert (env.exposed_name(), env.VERSION) == ("greeter", "2.0")
        assert env.instructions() == "Greets by the manifest."
        assert "0.0.1" in (type(env).__doc__ or "")  # the rest of the docstring stays
        assert env.tasks is not None and env.tasks.find("of-the-manifest").id == "of-the-manifest"


def test_two_sources_of_tasks_are_named_with_the_one_that_counts() -> None:
    Path("env").mkdir()
    Path("env/mine.jsonl").write_text('{"id": "of-the-manifest"}\n', encoding="utf-8")
    name = folder("tasks: mine.jsonl\n")
    with pytest.warns(UserWarning, match=r"mine.jsonl counts, .* \(a list in Python\) have no effect") as warned:
        tasks = load(name).tasks
    assert warned[0].filename.endswith("mcpenv.yaml") and warned[0].lineno == 4
    assert tasks is not None and tasks.source == str(Path("env/mine.jsonl").absolute())


@pytest.mark.parametrize("content", ['{"id": "of-the-class"}\n', '[{"id": "of-the-class"}]'])
def test_a_file_with_the_tasks_of_the_class_is_no_second_source(recwarn: pytest.WarningsRecorder, content: str) -> None:
    Path("env").mkdir()
    Path("env/mine.jsonl").write_text(content, encoding="utf-8")
    load_target(folder("tasks: mine.jsonl\n"))
    assert not recwarn.list


def test_a_factory_may_be_the_entry() -> None:
    with load(folder(manifest=LEAST.replace("Greeter", "make") + 'version: "2.0"\n')) as env:
        assert (env.exposed_name(), env.VERSION) == ("greeter", "2.0")
        assert env.call_tool("greet", {"name": "Ana"}).text == "From the factory, Ana"


def test_options_and_a_class_on_the_command_line_win() -> None:
    name = folder('version: "2.0"\ntasks: absent.jsonl\n')
    Path("other.jsonl").write_text('{"id": "of-the-option"}\n', encoding="utf-8")
    with load(name, tasks="other.jsonl", greeting="Hi") as env:
        assert env.tasks is not None and env.tasks.find("of-the-option").id == "of-the-option"
        assert env.call_tool("greet", {"name": "Ana"}).text == "Hi, Ana"
    cls = load_target(f"{name}:Other", tasks="other.jsonl").environment_class
    assert cls is not None and (cls.__name__, cls.VERSION) == ("Other", "2.0")


def test_limits_are_those_of_the_server_unless_an_option_is_given() -> None:
    stated = manifest_of(folder("limits: {max_sessions: 7, step_timeout_s: 30, queue_timeout_s: 0}\n"))
    config = config_from(Mode.SIMULATION, Addresses(), *with_manifest(Sessions(), Limits(), stated))
    assert (config.max_concurrent_envs, config.step_timeout_s, config.queue_timeout_s) == (7, 30.0, 0.0)
    # Given, though with the value of the default.
    given = with_manifest(Sessions(max_sessions=2), Limits(step_timeout_s=300.0), stated)
    config = config_from(Mode.SIMULATION, Addresses(), *given)
    assert (config.max_concurrent_envs, config.step_timeout_s, config.queue_timeout_s) == (2, 300.0, 0.0)


def test_every_limit_is_an_option_of_run() -> None:
    options = Sessions.__annotations__.keys() | Limits.__annotations__.keys()
    assert ManifestLimits.model_fields.keys() <= options
    assert options - ManifestLimits.model_fields.keys() == {
        "durable", "session_scope", "require_handle", "wires", "extensions"
    }  # fmt: skip


@pytest.mark.slow
def test_a_server_has_the_limits_of_the_manifest(tmp_path: Path) -> None:
    name = folder("limits: {max_sessions: 1, queue_timeout_s: 0}\nversion: '3'\n")
    with started(tmp_path, "run", name, "--port", "0") as server, EnvClient(server.url()).sync() as one:
        one.reset()
        assert server.wait_for("greeter in simulation mode")
        with EnvClient(server.url()).sync() as other, pytest.raises(CapacityReached):
            other.reset()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("run",), id="run"),
        pytest.param(("inspect",), id="inspect", marks=pytest.mark.extension("inspection")),
        pytest.param(("call", "greet", "name=x"), id="call"),
        pytest.param(("connect",), id="connect", marks=pytest.mark.extension("hosts")),
    ],
)
def test_a_mode_that_is_not_allowed_is_refused(command: tuple[str, ...], cli: Cli) -> None:
    folder("modes: [simulation]\n")
    verb, *rest = command
    arguments = [verb, "claude-code", "env"] if verb == "connect" else [verb, "env", *rest]
    done = cli(*arguments, "--mode", "production")
    assert done.status == 2
    assert "mcpenv.yaml allows simulation" in done.err and "add production to modes there" in done.err


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=pytest.mark.extension(extension))
        for name, extension in {"play": "play", "validate": "validation", "replay": "records"}.items()
    ],
)
def test_commands_with_episodes_refuse_a_manifest_without_simulation(command: str, cli: Cli, tmp_path: Path) -> None:
    folder("modes: [production]\n")
    done = cli(command, str(tmp_path), "--target", "env") if command == "replay" else cli(command, "env")
    assert done.status == 2 and "mcpenv.yaml allows production, not simulation" in done.err


def test_the_only_mode_is_the_default_mode(cli: Cli) -> None:
    folder("modes: [production]\n")
    assert cli("call", "env", "greet", "name=Ana").out == "Hello, Ana\n"


@pytest.mark.extension("inspection")
def test_the_only_mode_is_that_which_is_shown(cli: Cli) -> None:
    folder("modes: [production]\n")
    assert json.loads(cli("inspect", "env", "--json").out)["modes"] == ["production"]


@pytest.mark.extension("hosts")
def test_an_agent_is_connected_in_the_only_mode(cli: Cli) -> None:
    folder("modes: [simulation]\n")
    assert "--mode simulation" in cli("connect", "claude-code", "env").out


def test_a_secret_that_is_not_set_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    folder("secrets:\n  GREETER_KEY: the key of the greeting service\n")
    for value in (None, ""):
        monkeypatch.delenv("GREETER_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("GREETER_KEY", value)
        for command in (("run", "env"), ("call", "env", "greet", "name=x")):
            done = cli(*command)
            assert done.status == 2
            assert "GREETER_KEY is not set (the key of the greeting service)" in done.err
    monkeypatch.setenv("GREETER_KEY", "a-very-secret-key")
    assert cli("call", "env", "greet", "name=x").out == "Hello, x\n"
    assert "a-very-secret-key" not in redact("the log has a-very-secret-key in it")


def test_a_machine_that_has_less_than_is_needed_is_refused() -> None:
    memory = machine_memory()
    assert memory is not None and memory > 2**20 and machine_cpu() > 0
    load_target(folder("needs: {memory: 1Mi, cpu: 0.01, network: true}\n"))
    assert refused("needs: {memory: 9999Ti}\n").startswith(
        "env: needs 9999Ti of memory, and this machine or container has"
    )
    assert refused("needs: {cpu: 100000}\n").startswith(
        "env: needs 100000 processors, and this machine or container has"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "limits:\n  max_sesions: 3\n",
            "mcpenv.yaml:5: unknown key 'limits.max_sesions'. Did you mean 'max_sessions'?",
        ),
        ("verison: 1\n", "mcpenv.yaml:4: unknown key 'verison'. Did you mean 'version'?"),
        ("qqqq: 1\n", "mcpenv.yaml:4: unknown key 'qqqq'; known are schema_version, name, entry"),
        (
            "version: 0.10\n",
            "mcpenv.yaml:4: version: Input should be a valid string, and 0.1 is none; put it in quotes",
        ),
        ("limits:\n  step_timeout_s: 0\n", "mcpenv.yaml:5: limits.step_timeout_s: Input should be greater than 0"),
        ("limits:\n  max_sessions: true\n", "mcpenv.yaml:5: limits.max_sessions: Input should be a valid integer"),
        ("modes: [training]\n", "mcpenv.yaml:4: modes.0: Input should be 'simulation' or 'production'"),
        ("modes: [simulation, simulation]\n", "mcpenv.yaml:4: modes: has a mode twice"),
        ("modes: []\n", "mcpenv.yaml:4: modes: List should have at least 1 item"),
        ("tasks: ../tasks.jsonl\n", "mcpenv.yaml:4: tasks: must be a path in the folder of mcpenv.yaml"),
        ("secrets:\n  A KEY: x\n", "mcpenv.yaml:5: secrets.A KEY: String should match pattern"),
        ("secrets:\n  MCPENV_CONTROL_TOKEN: x\n", "mcpenv.yaml:4: secrets: MCPENV_CONTROL_TOKEN is mcpenv's own"),
        ("needs:\n  memory: 512\n", "mcpenv.yaml:5: needs.memory: Input should be a valid string, and 512 is none"),
        ("needs:\n  memory: 512 MB\n", "mcpenv.yaml:5: needs.memory: String should match pattern"),
        ("name: twice\n", "mcpenv.yaml:4: the key 'name' is given twice; keep one"),
        ("version: [\n", "mcpenv.yaml:5: is not valid YAML"),
        (
            "version: !!python/object:os.system {}\n",
            "mcpenv.yaml:4: is not valid YAML: could not determine a constructor",
        ),
        ("a: &a [*a]\n", "mcpenv.yaml:4: unknown key 'a'"),
    ],
)
def test_a_mistake_is_reported_with_its_line(more: str, said: str) -> None:
    assert refused(more).startswith(said)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("", "mcpenv.yaml:1: must be a mapping of keys to values; begin with schema_version: 1"),
        ("- a\n", "mcpenv.yaml:1: must be a mapping"),
        ("name: x\n", "mcpenv.yaml:1: schema_version is missing; add the line schema_version: 1"),
        (
            LEAST.replace(": 1", ": 2"),
            "mcpenv.yaml:1: schema_version is 2, and this mcpenv reads up to 1; install a later",
        ),
        (LEAST.replace(": 1", ": one"), "mcpenv.yaml:1: schema_version: Input should be 1"),
        ("schema_version: 1\nname: x\n", "mcpenv.yaml:1: the key 'entry' is missing"),
        (LEAST.replace("name: greeter", "name: two words"), "mcpenv.yaml:2: name: String should match pattern"),
        (LEAST.replace(":Greeter", ""), "mcpenv.yaml:3: entry: String should match pattern"),
        (LEAST.replace("hello/", "../hello/"), "mcpenv.yaml:3: entry: must be a path in the folder of mcpenv.yaml"),
        (LEAST.replace("hello/", "/hello/"), "mcpenv.yaml:3: entry: must be a path in the folder of mcpenv.yaml"),
        (
            LEAST.replace("hello/", "absent/"),
            "mcpenv.yaml:3: entry: there is no file absent/environment.py in its folder",
        ),
        (
            LEAST.replace("Greeter", "Absent"),
            "mcpenv.yaml:3: there is no 'Absent' in environment.py; it has Greeter, Other",
        ),
        (
            LEAST + "tasks: absent.jsonl\n",
            "mcpenv.yaml:4: tasks: there is no file or folder absent.jsonl in its folder",
        ),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(manifest: str, said: str) -> None:
    assert refused(manifest=manifest).startswith(said)


def test_several_mistakes_are_reported_together() -> None:
    said = refused("limits:\n  step_timeout_s: soon\nverison: 1\n")
    assert said == (
        "mcpenv.yaml:5: limits.step_timeout_s: Input should be a valid number; "
        "line 6: unknown key 'verison'. Did you mean 'version'?"
    )


def test_bytes_that_are_no_text_are_reported() -> None:
    folder()
    Path("env/mcpenv.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(TargetError, match=r"mcpenv\.yaml: cannot be read: 'utf-8' codec"):
        read_manifest(Path("env/mcpenv.yaml"))


SHIPPED = Path(str(manifest_module.__file__)).with_name("mcpenv.schema.json").read_text(encoding="utf-8")


@pytest.mark.extension("shipping")
def test_the_schema_in_the_package_is_what_a_command_prints(cli: Cli) -> None:
    assert cli("init", "--manifest-schema").out == cli("manifest", "schema").out == SHIPPED


def test_the_schema_in_the_package_is_that_of_the_model() -> None:
    schema = json.loads(SHIPPED)
    assert schema == manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    documents: dict[str, dict[str, Any]] = {
        "fits": {"schema_version": 1, "name": "x", "entry": "a/b.py:C", "secrets": {"A_KEY": "what"}},
        "unknown": {"schema_version": 1, "name": "x", "entry": "a/b.py:C", "extra": 1},
        "secret": {"schema_version": 1, "name": "x", "entry": "a/b.py:C", "secrets": {"A KEY": "what"}},
        "limit": {"schema_version": 1, "name": "x", "entry": "a/b.py:C", "limits": {"max_sessions": 0}},
    }
    validator = jsonschema.Draft202012Validator(schema)
    assert {name for name, document in documents.items() if validator.is_valid(document)} == {"fits"}
    Manifest.model_validate(documents["fits"])


def test_every_key_is_described_in_the_schema_and_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "manifest.md").read_text(encoding="utf-8")
    schema = manifest_schema()
    for part in (schema, schema["$defs"]["ManifestLimits"], schema["$defs"]["ManifestNeeds"]):
        for key, described in part["properties"].items():
            assert described["description"], key
            assert f"`{key}`" in page, key
