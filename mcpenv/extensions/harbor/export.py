"""Write a task of an environment as a task directory that Harbor 0.25 loads.

The container runs the environment's server as root, and the agent as another user, whom only MCP connects to it. The
server begins the episode when Harbor checks the container's health; the tests end the episode and write its score.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from mcpenv.errors import ConfigurationError
from mcpenv_client.types.tasks import Task

AGENT = "agent"
"""The container's user that runs the agent in Harbor."""

PORT = 8000
HOME = "/opt/mcpenv"
SOCKET = f"{HOME}/episode.sock"

_IGNORED = shutil.ignore_patterns(
    ".git", "__pycache__", "*.pyc", ".venv", "node_modules", ".mypy_cache", ".pytest_cache"
)

_DOCKERFILE = """\
FROM {image}
RUN useradd --create-home {agent}
WORKDIR {home}
{copies}RUN pip install --no-cache-dir {public}
RUN python3 -m venv --system-site-packages venv
{private}COPY task.jsonl start.sh ./
RUN chmod -R go-rwx {home} && chmod u+x start.sh
WORKDIR /home/{agent}
"""

_START = """\
#!/bin/sh
# Start the episode unless it runs. Succeed once it can be played.
if mkdir {home}/started 2>/dev/null; then
  cd {home}
  setsid venv/bin/python -m mcpenv tasks serve {words} >{home}/log 2>&1 </dev/null &
fi
test -S {socket}
"""

_TEST = """\
#!/bin/sh
# End the episode, and write its score.
mkdir -p /logs/verifier
mcpenv tasks score {socket} >/logs/verifier/score && mv /logs/verifier/score /logs/verifier/reward.json
"""

_SOLVE = """\
#!/bin/sh
exec python3 "$(dirname "$0")/solve.py" http://127.0.0.1:{port}/mcp
"""

_SOLVE_PY = """\
\"\"\"Make the calls of calls.json on an MCP server.\"\"\"

import asyncio
import json
import pathlib
import sys

from fastmcp import Client


async def main() -> None:
    calls = json.loads(pathlib.Path(__file__).with_name("calls.json").read_text(encoding="utf-8"))
    async with Client(sys.argv[1]) as client:
        for call in calls:
            result = await client.call_tool(call["tool_name"], call["arguments"], raise_on_error=False)
            print(call["tool_name"], "failed" if result.is_error else "done", flush=True)


asyncio.run(main())
"""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
OWN = ("mcpenv", "mcpenv-client")
"""The packages that the agent may read."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Served:
    """The environment that a container serves.

    Attributes:
        name: its name.
        target: the target in the container's command; relative to `code` if it is inside that folder.
        code: the folder of its code, which is copied; None if `install` provides it.
        settings: ``name=value`` each.
        install: the packages to install by pip: requirements, or paths of wheels.
        image: the image of the container, with Python, pip and venv.
    """

    name: str
    target: str
    code: Path | None
    settings: Sequence[str]
    install: Sequence[str]
    image: str


def write_task(task: Task, served: Served, org: str, folder: Path) -> None:
    """Write the directory of a task.

    Raises:
        ConfigurationError: Harbor cannot express something in the task.
        OSError: a file cannot be written.
    """
    config = _config(task, served, org)
    folder.mkdir(parents=True)
    files = {
        "instruction.md": f"{task.prompt.rstrip()}\n\nUse the tools of the MCP server `{served.name}`.\n",
        "task.toml": config,
        "tests/test.sh": _TEST.format(socket=SOCKET),
        "environment/task.jsonl": json.dumps(task.model_dump(mode="json")) + "\n",
        "environment/start.sh": _START.format(home=HOME, socket=SOCKET, words=shlex.join(_words(task, served))),
    }
    if task.oracle is not None:
        files["solution/solve.sh"] = _SOLVE.format(port=PORT)
        files["solution/solve.py"] = _SOLVE_PY
        files["solution/calls.json"] = json.dumps([call.model_dump(mode="json") for call in task.oracle], indent=2)
    files["environment/Dockerfile"] = _dockerfile(served, folder / "environment")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def _dockerfile(served: Served, environment: Path) -> str:
    """Copy the code and the wheels to the Dockerfile's folder, and return the text of the Dockerfile."""
    environment.mkdir()
    copies = []
    install: dict[bool, list[str]] = {True: [], False: []}  # True for what the agent may read
    for item in served.install:
        if item.endswith(".whl"):
            wheel = Path(item).expanduser()
            if not wheel.is_file():
                raise ConfigurationError(f"--install {item}: there is no such file")
            (environment / "wheels").mkdir(exist_ok=True)
            shutil.copy(wheel, environment / "wheels")
            install[package_of(item) in OWN].append(f"wheels/{wheel.name}")
        else:
            install[package_of(item) in OWN].append(item)
    if (environment / "wheels").exists():
        copies.append("COPY wheels wheels\n")
    if served.code is not None:
        shutil.copytree(served.code, environment / "code", ignore=_IGNORED)
        copies.append("COPY code code\n")
        if (served.code / "requirements.txt").is_file():
            install[False] += ["--requirement", "code/requirements.txt"]
    private = f"RUN venv/bin/pip install --no-cache-dir {shlex.join(install[False])}\n" if install[False] else ""
    public = shlex.join(install[True])
    return _DOCKERFILE.format(
        image=served.image, agent=AGENT, home=HOME, copies="".join(copies), public=public, private=private
    )


def package_of(item: str) -> str:
    """Return the normalised name of a requirement, or of the path of a wheel; empty if it has none."""
    found = _NAME.match(Path(item).name.partition("-")[0] if item.endswith(".whl") else item.strip())
    return "" if found is None else canonicalize_name(found[0])


def _words(task: Task, served: Served) -> list[str]:
    target = served.target if served.code is None else f"{HOME}/code/{served.target}".removesuffix("/.")
    settings = [word for setting in served.settings for word in ("--set", setting)]
    return [target, task.id, "--tasks", "task.jsonl", "--port", str(PORT), "--socket", SOCKET, *settings]


def _config(task: Task, served: Served, org: str) -> str:
    limit = {} if task.limits.timeout_s is None else {"timeout_sec": task.limits.timeout_s}
    sections: dict[str, Mapping[str, Any]] = {
        "task": {"name": f"{org}/{slug_of(task.id)}", "description": f"A task of {served.name}."},
        "metadata": {
            **task.metadata,
            "mcpenv": {**task.name, "environment": served.name},
            # The server computes the score; it runs as root, out of the agent's reach.
            "harbor": {"lint": {"ignore": ["shared-verifier"]}},
        },
        "agent": {"user": AGENT, **limit},
        "verifier": {"user": "root", "timeout_sec": 600.0},
        "environment": {"build_timeout_sec": 900.0},
        "environment.healthcheck": {
            "command": f"{HOME}/start.sh",
            "start_period_sec": 120.0,
            "start_interval_sec": 1.0,
            "interval_sec": 1.0,
        },
    }
    lines = ['schema_version = "1.4"']
    for name, section in sections.items():
        lines += ["", f"[{name}]"]
        lines += [f"{_key(key)} = {_value(task, f'{name}.{key}', value)}" for key, value in section.items()]
    lines += ["", "[[environment.mcp_servers]]", f"name = {json.dumps(served.name)}"]
    lines += ['transport = "streamable-http"', f'url = "http://127.0.0.1:{PORT}/mcp"']
    return "\n".join(lines) + "\n"


def slug_of(task_id: str) -> str:
    """Return a task's id as the name of a folder and of a Harbor package."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", task_id).strip("-_") or "task"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(task: Task, place: str, value: Any) -> str:
    """Return a JSON value as TOML.

    Raises:
        ConfigurationError: the value has a null, which TOML does not support.
    """
    if value is None:
        raise ConfigurationError(f"task {task.id!r} cannot be exported: {place} is null, which TOML cannot say")
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(task, f'{place}.{key}', item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(task, place, item) for item in value)}]"
    return json.dumps(value)
