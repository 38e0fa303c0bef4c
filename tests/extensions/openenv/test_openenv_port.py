"""``mcpenv share import-openenv``: what becomes of an OpenEnv folder, and of the rest. No OpenEnv is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from mcpenv import TargetError
from mcpenv.cli import execute
from mcpenv.extensions.openenv.port import port, read_manifest

WORLD_ECHO = Path(__file__).with_name("openenv_echo")

APP = """
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
try:
    from .counter_environment import CounterEnvironment
except ImportError:
    from server.counter_environment import CounterEnvironment
app = create_app(CounterEnvironment, CallToolAction, CallToolObservation, env_name="counter", max_concurrent_envs=2)
"""
WITH_TOOLS = '''
"""A counter."""
from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State

from ..words import plural


class CounterEnvironment(MCPEnvironment):
    """Count."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("counter")

        @mcp.tool
        def add(by: int = 1) -> str:
            """Add."""
            self.count += by
            return plural(self.count)

        super().__init__(mcp)
        self.count = 0
        self._state = State(episode_id="none", step_count=0)

    def reset(self, seed=None, episode_id=None, start: int = 0, **kwargs) -> Observation:
        self.count = start
        self._state = State(episode_id=episode_id, step_count=0)
        return Observation(done=False, reward=0.0, metadata={"start": start})

    def _step_impl(self, action: Action, timeout_s=None, **kwargs) -> Observation:
        return Observation(metadata={"error": "unknown"})

    async def step_async(self, action, timeout_s=None, **kwargs):
        """Count it."""
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    @property
    def state(self) -> State:
        return self._state
'''
PLAIN_APP = """
from openenv.core.env_server.http_server import HTTPEnvServer
from light.models import Switch, Light, LightState
from .light import LightEnvironment
server = HTTPEnvServer(LightEnvironment, action_cls=Switch, observation_cls=Light, state_cls=LightState)
"""
PLAIN_MODELS = '''
"""Models."""
from openenv.core.env_server.types import Action, Observation, State


class Switch(Action):
    on: bool


class Light(Observation):
    shines: bool = False


class LightState(State):
    switched: int = 0
'''
PLAIN = '''
"""A light."""
from typing import Any

from light.models import Light, LightState, Switch
from openenv.core.env_server.interfaces import Environment


class LightEnvironment(Environment[Switch, Light, LightState]):
    """Switch it on."""

    def __init__(self) -> None:
        super().__init__()
        self._state = LightState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Light:
        self._state = LightState(episode_id=episode_id)
        return Light()

    def step(self, action: Switch, timeout_s: float | None = None, **kwargs: Any) -> Light:
        self._state.switched += 1
        self._state.step_count += 1
        return Light(shines=action.on, reward=1.0 if action.on else 0.0, done=action.on)

    @property
    def state(self) -> LightState:
        return self._state
'''


def write(folder: Path, **files: str) -> Path:
    """A folder with these files; two underscores stand for a slash."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip())
    return folder


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    folder = write(
        tmp_path / "counter",
        server__app=APP,
        server__counter_environment=WITH_TOOLS,
        words="def plural(n):\n    return f'{n} time' + 's' * (n != 1)\n",
        client="from openenv.core import EnvClient\n",
    )
    (folder / "openenv.yaml").write_text(
        'spec_version: 1\nname: "counter"  # of things\nversion: 0.2.0\napp: server.app:app\n'
    )
    (folder / "README.md").write_text("---\ntitle: Counter\nsdk: docker\n---\n\n# Counter\n")
    return folder


@pytest.fixture
def light(tmp_path: Path) -> Path:
    folder = write(tmp_path / "light", __init__="", models=PLAIN_MODELS, server__light=PLAIN, server__app=PLAIN_APP)
    (folder / "openenv.yaml").write_text("name: light\n")
    return folder


def used(folder: Path, body: str) -> Any:
    """Return the output of a program, in a process of its own, that uses the environment of a folder."""
    head = f"from mcpenv.targets.target import load_target\nimport json\nenv = load_target({str(folder)!r}).make()\n"
    command = [sys.executable, "-c", head + body]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_an_environment_with_tools_becomes_one_that_needs_no_openenv(
    counter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(("share", "import-openenv", str(counter))) == 0
    new = counter.with_name("counter_mcpenv")
    assert sorted(file.name for file in new.iterdir()) == ["README.md", "environment.py", "words.py"]
    assert str(new) in capsys.readouterr().out
    assert "openenv" not in (new / "environment.py").read_text()
    assert (new / "README.md").read_text() == "# Counter\n"
    assert used(
        new,
        "first = env.reset(start=4, episode_id='mine')\n"
        "step = env.call_tool('add', {'by': 2})\n"
        "print(json.dumps([env.exposed_name(), env.VERSION, env.SUPPORTS_CONCURRENT_SESSIONS, first.metadata,"
        " step.text, env.state.episode_id, env.state.step_count]))",
    ) == ["counter", "0.2.0", True, {"start": 4}, "6 times", "mine", 1]


def test_an_environment_without_tools_becomes_one_of_own_actions_and_agents_take_them_by_act(light: Path) -> None:
    assert execute(("share", "import-openenv", str(light))) == 0
    new = light.with_name("light_mcpenv")
    assert used(
        new,
        "(Switch,) = env.action_types\n"
        "env.reset()\n"
        "dark, bright = env.step(Switch(on=False)), env.step(Switch(on=True))\n"
        "print(json.dumps([dark.reward, dark.done, bright.shines, bright.reward, bright.done, env.state.switched,"
        " env.state_type.__name__, env.observation_type.__name__]))",
    ) == [0.0, False, True, 1.0, True, 2, "LightState", "Light"]
    assert used(
        new,
        "(tool,) = env.list_tools()\n"
        "env.reset()\n"
        "steps = [env.call_tool('act', {'on': on}) for on in ('perhaps', False, True)]\n"
        "print(json.dumps([tool.name, list(tool.input_schema['properties']), steps[0].info['status']['code'],"
        " [[step.result.structured_content, step.reward, step.done] for step in steps[1:]], env.state.switched]))",
    ) == ["act", ["on"], "agent_error", [[{"shines": False}, 0.0, False], [{"shines": True}, 1.0, True]], 2]


def test_a_constructor_that_keeps_the_tool_from_being_made_is_named(light: Path) -> None:
    module = light / "server" / "light.py"
    module.write_text(module.read_text().replace("        super().__init__()\n", ""))
    assert port(light).could_not == ["server/light.py:11: agents get no tool for Switch: call super().__init__() first"]


@pytest.mark.parametrize("default", ["", " = False", " = Field(default=False, description='over')", " = True"])
def test_an_observation_may_declare_its_end_again(light: Path, default: str) -> None:
    models = light / "models.py"
    again = PLAIN_MODELS.replace("    shines: bool", f"    done: bool{default}\n    shines: bool")
    models.write_text(again.replace("from openenv", "from pydantic import Field\nfrom openenv", 1))
    named = [what for what in port(light).could_not if what.startswith("models.py")]
    assert [what.partition(": ")[2] for what in named] == (
        ["the default of done: give done to each observation"] if "True" in default else []
    )
    assert execute(("share", "import-openenv", str(light))) == len(named)
    assert used(
        light.with_name("light_mcpenv"),
        "(Switch,) = env.action_types\n"
        "env.reset()\n"
        "print(json.dumps([env.step(Switch(on=on)).done for on in (False, True)]))",
    ) == [False, True]


def test_what_has_no_counterpart_is_said_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("share", "import-openenv", str(WORLD_ECHO), "--out", str(tmp_path / "new"), "--json")) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["environment"], said["folder"]) == ("EchoEnvironment", str(tmp_path / "new"))
    assert said["written"] == ["README.md", "environment.py"]
    lines = (WORLD_ECHO / "server" / "echo_environment.py").read_text().splitlines()
    for word, what in (("import Rubric", "Rubric of openenv"), ("self.rubric =", "rubrics: give rewards by score")):
        number = next(n for n, line in enumerate(lines, 1) if word in line)
        assert any(f"server/echo_environment.py:{number}: " in each and what in each for each in said["could_not"])
    assert any("the new environment cannot be made" in each for each in said["could_not"])


@pytest.mark.parametrize(
    "step",
    [
        "def step(self, action, **kw):\n    self.total += 10\n    return super().step(action, **kw)",
        "def step(self, action, **kw):\n    return self.scored(super().step(action, **kw))",
        "async def step_async(self, action, **kw):\n    return self.scored(await super().step_async(action, **kw))",
        "def _step_impl(self, action, **kw):\n    return Observation(reward=5.0)",
        "def _step_impl(self, action, **kw):\n    self.total = 42\n    return Observation()",
    ],
)
def test_a_step_that_may_earn_a_reward_is_said_and_not_dropped_in_silence(
    counter: Path, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    module = counter / "server" / "counter_environment.py"
    name = step.partition("(")[0].split()[-1]
    text = module.read_text().replace(f"def {name}(", f"def {name}_before(") + "\n" + indent(step, "    ") + "\n"
    module.write_text(text)
    assert execute(("share", "import-openenv", str(counter))) == 1
    assert (
        f"server/counter_environment.py:{text[: text.index(step.splitlines()[0])].count(chr(10)) + 1}: {name}"
        in capsys.readouterr().out
    )


def test_a_step_with_code_of_its_own_is_said(counter: Path) -> None:
    module = counter / "server" / "counter_environment.py"
    module.write_text(module.read_text().replace("self._state.step_count += 1", "self.bonus = 5"))
    (said,) = port(counter).could_not
    assert said.endswith("step_async: steps are the framework's; move what it does to score")


def test_the_async_method_counts_where_there_are_both(light: Path) -> None:
    module = light / "server" / "light.py"
    text = module.read_text().replace("    def step(", "    async def step_async(")
    module.write_text(text + "\n    def step(self, action: Switch) -> Light:\n        raise NotImplementedError\n")
    text = port(light).files["environment.py"]
    assert "async def act(self, action: Switch" in text
    assert "NotImplementedError" not in text


def test_what_it_needs_and_what_else_cannot_come_along_is_said(counter: Path) -> None:
    (counter / "pyproject.toml").write_text('[project]\ndependencies = [\n  "openenv>=0.2",\n  "chess>=1",\n]\n')
    write(counter, server__words="X = 1\n", server____init__="def helper():\n    pass\n")
    (counter / "server" / "__init__.py").write_text("def helper():\n    pass\n")
    said = port(counter).could_not
    assert any("it needs chess>=1" in each for each in said)
    assert any("a second module named words" in each for each in said)
    assert any("server/__init__.py: code of a package" in each for each in said)


def test_nothing_is_overwritten_unless_it_is_asked_for(counter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = counter.with_name("counter_mcpenv")
    new.mkdir()
    (new / "environment.py").write_text("mine")
    assert execute(("share", "import-openenv", str(counter))) == 2
    assert "has environment.py already; --force overwrites" in capsys.readouterr().err
    assert [(new / "environment.py").read_text(), len(list(new.iterdir()))] == ["mine", 1]
    assert execute(("share", "import-openenv", str(counter), "--force")) == 0
    assert "class CounterEnvironment" in (new / "environment.py").read_text()


def test_the_folder_itself_is_left_as_it_was(counter: Path) -> None:
    before = {file: file.read_text() for file in counter.rglob("*") if file.is_file()}
    assert execute(("share", "import-openenv", str(counter))) == 0
    assert {file: file.read_text() for file in counter.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no openenv.yaml, so it is not an OpenEnv environment"),
        ({"openenv.yaml": "name: x\n"}, "has no server/app.py, which openenv.yaml names"),
        ({"openenv.yaml": "name: x\n", "server/app.py": "app = (\n"}, "server/app.py cannot be parsed"),
        ({"openenv.yaml": "name: x\napp: main:app\n", "main.py": "app = 1\n"}, "main.py calls none of create_app"),
        (
            {"openenv.yaml": "name: x\n", "server/app.py": "def make(): ...\napp = create_app(make, A, O)\n"},
            "serves the result of a function",
        ),
        (
            {"openenv.yaml": "name: x\n", "server/app.py": "app = create_app(Away, A, O)\n"},
            "no module of the folder defines Away",
        ),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_line_and_status_2(
    tmp_path: Path, files: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert execute(("share", "import-openenv", str(folder))) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not folder.with_name("it_mcpenv").exists()


def test_the_manifest_is_read_without_quotes_and_comments(counter: Path, tmp_path: Path) -> None:
    assert read_manifest(counter) == {
        "spec_version": "1",
        "name": "counter",
        "version": "0.2.0",
        "app": "server.app:app",
    }
    with pytest.raises(TargetError):
        read_manifest(tmp_path)


def test_without_a_python_that_has_openenv_run_says_which_variable_names_one(
    counter: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MCPENV_OPENENV", raising=False)
    for command in ("run", "inspect"):
        assert execute((command, str(counter))) == 2
        assert "this Python has no openenv" in capsys.readouterr().err
    monkeypatch.setenv("MCPENV_OPENENV", str(counter / "nowhere"))
    assert execute(("inspect", str(counter))) == 2
    assert "which is not a file. Set it to a Python interpreter" in capsys.readouterr().err
