"""Run real agent programs with a scripted model: on episodes by `mcpenv eval`, on production over HTTP and stdio."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from evaluate_world import Counting
from scripted_model import DONE, JSON, ScriptedModel, scripted_model

from mcpenv import Mode
from mcpenv.extensions.model_proxy.apis import api_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client.types.model_turns import request_of

COUNTING = f"{Path(__file__).parents[1] / 'extensions' / 'evaluation' / 'evaluate_world.py'}:Counting"
TIMEOUT_S = 150
NODE_MODULES = Path(os.environ.get("MCPENV_NODE_MODULES", "/nowhere"))
PROMPT = "solve: count to 2."


@dataclass(frozen=True)
class Program:
    """One agent program.

    Attributes:
        package: its package on npm.
        command: the command that docs/how-to/evaluate.md has for it, with ``{mcp_url}`` and ``{prompt}``.
        model: returns the variables that make it use a model at a URL. It may write files to its home folder.
        files: the files of its workspace, by name.
        executable: its program in the folder of packages.
        stdio: the arguments in place of those with ``{mcp_url}``, and the files, for a server that is a command.
    """

    package: str
    executable: str
    command: str
    model: Callable[[str, Path], dict[str, str]]
    files: dict[str, str]
    stdio: Callable[[list[str]], tuple[str, dict[str, str]]]


def _claude_model(url: str, home: Path) -> dict[str, str]:
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-scripted", **quiet}


def _codex_model(url: str, home: Path) -> dict[str, str]:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        'model = "gpt-5"\nmodel_provider = "scripted"\n[model_providers.scripted]\nname = "scripted"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "SCRIPTED_KEY"\n'
    )
    return {"SCRIPTED_KEY": "key"}


def _gemini_model(url: str, home: Path) -> dict[str, str]:
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    return {"GEMINI_API_KEY": "key", "GEMINI_MODEL": "gemini-2.5-flash", "GOOGLE_GEMINI_BASE_URL": url}


def _goose_model(url: str, home: Path) -> dict[str, str]:
    names = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "gpt-4o", "OPENAI_HOST": url, "OPENAI_API_KEY": "key"}
    return {**names, "GOOSE_DISABLE_KEYRING": "1", "GOOSE_MODE": "auto"}


CLAUDE = "claude -p {prompt} --strict-mcp-config --allowedTools mcp__env --mcp-config "
CODEX = "codex exec --skip-git-repo-check "
CODEX_END = " -c mcp_servers.env.required=true -c mcp_servers.env.default_tools_approval_mode=approve {prompt}"
GEMINI = "env GEMINI_CLI_TRUST_WORKSPACE=true gemini --approval-mode yolo -p {prompt}"
GOOSE = "goose run --no-session --recipe goose.yaml --params prompt={prompt}"
RECIPE = """\
version: "1.0.0"
title: episode
description: An episode of an environment.
prompt: "{{ prompt }}"
parameters:
  - {key: prompt, input_type: string, requirement: required, description: What to do.}
"""
ADDRESS = "  - {key: mcp_url, input_type: string, requirement: required, description: The episode's address.}\n"


def _gemini_settings(server: dict[str, object]) -> dict[str, str]:
    return {".gemini/settings.json": json.dumps({"mcpServers": {"env": {**server, "trust": True}}})}


def _claude_code(package: str, executable: str) -> Program:
    return Program(
        package,
        executable,
        CLAUDE + """'{"mcpServers": {"env": {"type": "http", "url": "{mcp_url}"}}}'""",
        _claude_model,
        {},
        lambda server: (
            CLAUDE + shlex.quote(json.dumps({"mcpServers": {"env": {"command": server[0], "args": server[1:]}}})),
            {},
        ),
    )


PROGRAMS = {
    "Claude Code": _claude_code("@anthropic-ai/claude-code", ".bin/claude"),
    "Claude Code (handshake)": _claude_code("claude-code-handshake", "claude-code-handshake/cli.js"),
    "Codex": Program(
        "@openai/codex",
        ".bin/codex",
        f"{CODEX}-c mcp_servers.env.url={{mcp_url}}{CODEX_END}",
        _codex_model,
        {},
        lambda server: (
            f"{CODEX}-c mcp_servers.env.command={server[0]} "
            f"-c {shlex.quote(f'mcp_servers.env.args={json.dumps(server[1:])}')}{CODEX_END}",
            {},
        ),
    ),
    "gemini-cli": Program(
        "@google/gemini-cli",
        ".bin/gemini",
        GEMINI,
        _gemini_model,
        _gemini_settings({"httpUrl": "$MCPENV_MCP_URL"}),
        lambda server: (GEMINI, _gemini_settings({"command": server[0], "args": server[1:]})),
    ),
    "Goose": Program(
        "@aaif/goose-binary-linux-x64",
        ".bin/goose-binary-linux-x64",
        f"{GOOSE} --params mcp_url={{mcp_url}}",
        _goose_model,
        {
            "goose.yaml": f"{RECIPE}{ADDRESS}extensions:\n"
            '  - {type: streamable_http, name: env, uri: "{{ mcp_url }}", timeout: 300}\n'
        },
        lambda server: (
            GOOSE,
            {
                "goose.yaml": f"{RECIPE}extensions:\n"
                f"  - {{type: stdio, name: env, cmd: {json.dumps(server[0])}, args: {json.dumps(server[1:])}}}\n"
            },
        ),
    ),
}
SESSIONS = {
    "Claude Code": "service",
    "Claude Code (handshake)": "connection",
    "Codex": "connection",
    "gemini-cli": "connection",
    "Goose": "service",
}
"""The kind of session that each opens on production: stateless clients share one, a handshake has its own."""

IMPATIENT = {"Claude Code (handshake)": 5}
"""Programs that ask their model without the tools of a server that takes longer than five seconds to start, as it may
where other work is done: how often they are started."""

RECORDED = {
    "Claude Code": "",
    "Claude Code (handshake)": "",
    "Codex": (
        "-c model_provider=env -c model_providers.env.name=env -c model_providers.env.wire_api=responses "
        "-c model_providers.env.base_url={model_url}/v1 -c model_providers.env.env_key=OPENAI_API_KEY "
    ),
    "gemini-cli": "",
    "Goose": "",
}
"""The programs whose model is recorded, and what docs/how-to/record-models.md adds to their commands."""

KEY = "sk-of-the-endpoint-0123456789"

TABLE: dict[str, dict[str, str]] = {name: {} for name in PROGRAMS}
COLUMNS = ("eval, bubblewrap", "eval, recorded", "production, HTTP", "production, stdio")


@pytest.fixture(scope="module", autouse=True)
def _print_the_table() -> Iterator[None]:
    yield
    if not any(TABLE.values()):
        return
    rows: list[tuple[str, ...]] = [("agent program", *COLUMNS)]
    for name, found in TABLE.items():
        version = json.loads((NODE_MODULES / PROGRAMS[name].package / "package.json").read_text())["version"]
        rows.append((f"{name} {version}", *(found.get(column, "not run") for column in COLUMNS)))
    print("\n" + "\n".join("".join(cell.ljust(34) for cell in row).rstrip() for row in rows))


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted_model() as served:
        yield served


def variables(program: Program, model: ScriptedModel, folder: Path) -> dict[str, str]:
    """Return the variables of a program with a new home folder, that uses the model."""
    home, commands = folder / "home", folder / "bin"
    home.mkdir()
    commands.mkdir()
    # Two versions of Claude Code have one name, and Goose has one with its platform.
    name = next(word for word in program.command.split() if word != "env" and "=" not in word)
    (commands / name).symlink_to(NODE_MODULES / program.executable)
    path = [str(commands), str(NODE_MODULES / "node" / "bin"), os.environ["PATH"]]
    return {**os.environ, "HOME": str(home), "PATH": os.pathsep.join(path), **program.model(model.url, home)}


def workspace(files: dict[str, str], folder: Path) -> Path:
    made = folder / "workspace"
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    made.mkdir(exist_ok=True)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_command_is_the_documented_one(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "evaluate.md").read_text(encoding="utf-8")
    documented = " ".join(page.replace("\\\n", " ").replace('\\"', '"').split())
    assert PROGRAMS[name].command in documented


@pytest.mark.world
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_solves_an_episode_by_the_documented_command(name: str, model: ScriptedModel, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    options = ["--split", "odd", "--out", str(tmp_path / "out"), "--isolation", "bubblewrap", "--json"]
    options += ["--timeout-s", str(TIMEOUT_S - 30)]
    if program.files:
        options += ["--workspace", str(workspace(program.files, tmp_path))]
    options += [part for path in (tmp_path / "bin", NODE_MODULES) for part in ("--show", str(path))]
    done = subprocess.run(
        [sys.executable, "-m", "mcpenv", "eval", COUNTING, "--agent", program.command, *options],
        env=variables(program, model, tmp_path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = "".join(log.read_text() for log in (tmp_path / "out" / "agents").glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{said[-3000:]}"
    (result,) = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert (result["return"], result["steps"], result["status"]["code"]) == (1.0, 2, "completed")
    TABLE[name]["eval, bubblewrap"] = "2 calls, return 1.0"


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_recorded_command_adds_is_documented(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "record-models.md").read_text(encoding="utf-8")
    assert RECORDED[name].strip() in " ".join(page.replace("\\\n", " ").split())


@pytest.mark.world
@pytest.mark.parametrize("name", RECORDED)
def test_a_program_and_its_model_are_in_one_record_that_replays(
    name: str, model: ScriptedModel, tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    env = {**variables(program, model, tmp_path), "THE_KEY": KEY}
    for variable in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "OPENAI_HOST", "OPENAI_API_KEY", "SCRIPTED_KEY",
        "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY",
    ):  # fmt: skip
        env.pop(variable, None)
    if (config := tmp_path / "home" / ".codex" / "config.toml").exists():
        config.write_text('model = "gpt-5"\n')
    command = program.command.replace(CODEX, CODEX + RECORDED[name])
    options = ["--split", "odd", "--out", str(tmp_path / "out"), "--isolation", "none", "--json"]
    options += ["--base-url", f"{model.url}/v1", "--api-key-env", "THE_KEY", "--timeout-s", str(TIMEOUT_S - 30)]
    if program.files:
        options += ["--workspace", str(workspace(program.files, tmp_path))]
    done = mcpenv("eval", COUNTING, "--agent", command, *options, env=env)
    said = "".join(log.read_text() for log in (tmp_path / "out" / "agents").glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{said[-3000:]}"
    (episode,) = read_episodes(tmp_path / "out" / "record")
    turns = episode.model_turns or []
    made = [call.step for turn in turns for call in turn.calls if call.name.endswith("add")]
    assert made == [1, 2] == [step.call.step for step in episode.trajectory.steps]
    asked = [body for path, body in model.asked if api_of("POST", path.partition("?")[0]) is not None]
    assert in_order(asked) == in_order([request_of(turns, index) for index in range(len(turns))])
    assert KEY not in str(turns)
    figures = json.loads(done.stdout)
    assert figures["prompt_tokens"] == 10 * sum(turn.usage is not None for turn in turns) > 0
    replayed = mcpenv("replay", str(tmp_path / "out" / "record"), "--target", COUNTING, env=env)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    TABLE[name]["eval, recorded"] = f"{len(turns)} turns, steps {made}, replayed"


def in_order(bodies: list[JSON]) -> list[str]:
    return sorted(json.dumps(body, sort_keys=True) for body in bodies)


def mcpenv(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcpenv", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.world
@pytest.mark.parametrize("transport", ["HTTP", "stdio"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_uses_production(name: str, transport: str, model: ScriptedModel, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    env = variables(program, model, tmp_path)

    def run(command: str, files: dict[str, str], url: str, times: int = 1) -> None:
        words = [word.replace("{mcp_url}", url).replace("{prompt}", PROMPT) for word in shlex.split(command)]
        done = subprocess.run(
            words,
            cwd=workspace(files, tmp_path),
            env={**env, "MCPENV_MCP_URL": url},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert DONE in done.stdout
        if not model.results() and times > 1:
            run(command, files, url, times - 1)

    if transport == "HTTP":
        with serving(Counting, ServerConfig(mode=Mode.PRODUCTION, metrics_token="metrics-token")) as url:
            run(program.command, program.files, f"{url}/mcp")
            metrics = httpx.get(f"{url}/metrics", headers={"Authorization": "Bearer metrics-token"}).text
        opened = re.findall(r'^mcpenv_sessions_opened_total\{origin="(\w+)"\} 1', metrics, re.MULTILINE)
        assert opened == [SESSIONS[name]]
    else:
        server = [sys.executable, "-m", "mcpenv", "run", COUNTING, "--transport", "stdio", "--mode", "production"]
        run(*program.stdio(server), "", times=IMPATIENT.get(name, 1))
    assert model.results() == ["1", "2"]
    TABLE[name][f"production, {transport}"] = "1, 2" + (f", {SESSIONS[name]}" if transport == "HTTP" else "")
