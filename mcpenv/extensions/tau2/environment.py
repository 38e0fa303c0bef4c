"""The domains of tau2 as environments, from the packages ``tau2-{retail,airline,mock}-mcp-eval`` of PyPI.

Users install the packages, which name no license. Their servers keep the state of each "state key" in a file. Agents
see neither the key nor the tools that reset the state or list the calls.

The reward is 1 if the database at the end equals the one after the task's reference actions, else 0. **This is not
tau2's own score**: tau2's checks of the conversation are not made, and there is no user unless a setting provides one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from mcpenv.errors import ConfigurationError, meant
from mcpenv.extensions.mcp_proxy.catalog import ProxiedTool
from mcpenv.extensions.mcp_proxy.delivery import DiscoveryFailed
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.mcp_proxy.loop import UPSTREAMS
from mcpenv.extensions.mcp_proxy.upstream import Upstream
from mcpenv.extensions.mcp_proxy.workspace import Workspace
from mcpenv.extensions.users import ModelUser, ScriptedUser, User, add_user
from mcpenv.rewards.verifiers import Evidence, Verdict
from mcpenv.tasks import TaskSet
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.tasks import OracleCall, Task
from mcpenv_client.types.tools import ToolResult

logger = logging.getLogger("mcpenv.upstream")

DOMAINS = ("retail", "airline", "mock")
KEY, SHOWS_STATE = "state_key", "get_call_log"
HIDDEN = ("reset_state", SHOWS_STATE)
PROBE_S = 30.0

_NOT_THE_WORLD = ("calls", "domain", "task_id")
"""The parts of a state file that are not the database."""

_PROMPT = """You act for a customer, by the policy below. Do what the customer wants, as far as the policy allows it.

# Policy

{policy}"""

_CUSTOMER = """

# The customer

{customer}"""

_SPEAKS = """

# The customer

The customer is there, and tells you what is wanted when you ask."""

MakeUser = Callable[[str, int | None], User]
"""Creates the user of an episode from the customer's wishes and the seed."""


class Tau2Environment(ProxyEnvironment):
    """A domain of tau2. `load` makes the class.

    Attributes:
        domain: its name.
        expected: the hashes of databases after the reference actions, by task id. Filled as tasks are verified.
        customers: the customer's wishes, by task id.
        make_user: creates the customer with whom the agent speaks; None if the prompt contains the customer's wishes.
    """

    domain: ClassVar[str]
    expected: ClassVar[dict[str, str]]
    customers: ClassVar[dict[str, str]]
    make_user: ClassVar[MakeUser | None]

    def __init__(self) -> None:
        super().__init__()
        if type(self).make_user is not None:
            add_user(self)

    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Reset like every proxied environment, with a new customer. Without a task there is no customer."""
        observation = await super().reset(seed, episode_id)
        make_user, task = type(self).make_user, self.task
        self.user = None if make_user is None or task is None else make_user(self.customers[task.id], seed)
        return observation

    def before_call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Add the state key, which names the task."""
        return {**arguments, KEY: self._key(self.task)}

    def after_call(self, server: str, tool: str, arguments: dict[str, Any], result: ToolResult) -> ToolResult:
        """Return tau2's own answer, without the state key and the counters around it."""
        payload = result.structured_content
        if not isinstance(payload, dict) or "parsed_content" not in payload:
            return result
        answer = payload["parsed_content"]
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        return ToolResult(content=[{"type": "text", "text": text}], is_error=result.is_error)

    async def verify(self, evidence: Evidence) -> Verdict | None:
        """Compare the database with the one after the reference actions. None without a task."""
        task = evidence.task
        if task is None:
            return None
        (upstream,) = self._upstreams.values()
        assert self.workspace is not None
        found = await UPSTREAMS.run(_database(upstream, self.workspace, self._key(task)))
        if task.id not in self.expected:
            self.expected[task.id] = await UPSTREAMS.run(self._play_reference(task))
        same = found == self.expected[task.id]
        return Verdict(same, [] if same else ["the database is not that of the reference actions"])

    async def _play_reference(self, task: Task) -> str:
        """Return the hash of the database after the reference actions of a task, in a server of its own."""
        (upstream,) = self._upstreams.values()
        workspace = await asyncio.to_thread(self.catalog.workspace)
        assert workspace is not None
        await asyncio.to_thread(workspace.restore)
        other = Upstream(upstream.name, upstream.settings, upstream.launcher, workspace)
        try:
            await other.open_in_turn()
            for call in task.oracle or ():
                await other.call_alone(call.tool_name, {**call.arguments, KEY: self._key(task)})
            return await _database(other, workspace, self._key(task))
        finally:
            await other.close()
            await asyncio.to_thread(workspace.remove)

    @classmethod
    def _key(cls, task: Task | None) -> str:
        return f"tau2/{cls.domain}/{'none' if task is None else task.id}"


def load(
    domain: str,
    /,
    *,
    command: str | None = None,
    user: str | None = None,
    user_url: str | None = None,
    user_model: str | None = None,
    user_key_env: str | None = None,
) -> type[Tau2Environment]:
    """Return the class of a domain.

    Args:
        domain: "retail", "airline" or "mock".
        command: the server's program. Default: ``tau2-DOMAIN-mcp-eval``.
        user: "prompt": the agent's prompt contains the customer's wishes. "script": a customer who answers once with
            all wishes, and then leaves. "model": a model plays the customer. Default: "model" with ``user_url``,
            otherwise "prompt".
        user_url, user_model: the endpoint with OpenAI's chat completions and the model's name there.
        user_key_env: the environment variable with the endpoint's key. Default: no key.

    Raises:
        ConfigurationError: there is no such domain, its package is not installed, or the user's settings do not fit.
    """
    make_user = _user(user, user_url, user_model, user_key_env)
    if domain not in DOMAINS:
        raise ConfigurationError(
            f"there is no domain {domain!r} (there are: {', '.join(DOMAINS)}){meant(domain, DOMAINS)}"
        )
    program = _program(f"tau2-{domain}-mcp-eval", command)
    server: dict[str, Any] = {
        "command": program,
        "env": {f"TAU2_{domain.upper()}_MCP_STATE_DIR": "{workspace}"},
        "state": "process",
    }
    name = f"tau2-{domain}"
    config: dict[str, Any] = {"mcpServers": {name: server}, "mcpenv": {"name": name}}
    try:
        tools = Tau2Environment.from_config(config).catalog.tools
        server["tools"] = {tool.name: _settings(tool) for tool in tools}
        cls = Tau2Environment.from_config(config)
    except DiscoveryFailed as error:
        raise ConfigurationError(str(error)) from error
    cls.__doc__ = f"The {domain} domain of tau2."
    cls.domain, cls.expected, cls.make_user = domain, {}, make_user
    cls.customers = {}
    found = []
    for task, customer in _tasks(_data(program, domain), {tool.name for tool in tools}):
        cls.customers[task.id] = customer
        says = _CUSTOMER.format(customer=customer) if make_user is None else _SPEAKS
        found.append(task.model_copy(update={"prompt": f"{task.prompt}{says}"}))
    cls.tasks = TaskSet(found)
    return cls


def _user(kind: str | None, url: str | None, model: str | None, key_env: str | None) -> MakeUser | None:
    """Return the maker of customers for the settings; None if the prompt contains the customer's wishes."""
    kind = kind or ("prompt" if url is None else "model")
    if kind not in ("prompt", "script", "model"):
        raise ConfigurationError(f"there is no user {kind!r} (there are: prompt, script, model)")
    if kind != "model":
        if any(each is not None for each in (url, model, key_env)):
            raise ConfigurationError(
                f"user_url, user_model and user_key_env are for a user that a model plays, and user is {kind!r}; "
                "set user_url and user_model, or none of them"
            )
        return None if kind == "prompt" else lambda customer, seed: ScriptedUser([customer])
    if url is None or model is None:
        raise ConfigurationError("a user that a model plays needs user_url and user_model")

    def make(customer: str, seed: int | None) -> User:
        return ModelUser(url, model, customer, seed=seed, api_key_env=key_env)

    try:
        make("", None)
    except ValueError as error:
        raise ConfigurationError(f"user_url: {error}") from error
    return make


def _settings(tool: ProxiedTool) -> dict[str, Any]:
    takes_key = KEY in tool.kind.spec.input_schema.get("properties", {})
    return {"hidden": tool.name in HIDDEN, "arguments": {KEY: ""} if takes_key else {}}


def _program(name: str, command: str | None) -> str:
    found = shutil.which(command or name) or shutil.which(str(Path(sys.executable).with_name(command or name)))
    if found is None:
        raise ConfigurationError(
            f"there is no program {command or name!r}; install it (pip install {name}), or name it: --set command=PATH"
        )
    return str(Path(found).absolute())


def _data(program: str, domain: str) -> Path:
    """Return the folder of a domain's tasks, from the Python that has the server."""
    python = Path(program).with_name("python")
    code = f"import tau2_{domain}_mcp; print(tau2_{domain}_mcp.__path__[0])"
    try:
        ran = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=PROBE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"the tasks of {program} are not found by {python}: {error}") from error
    package = Path(ran.stdout.strip()) / "data"
    return next((path.parent for path in sorted(package.rglob("tasks.json"))), package)


def _tasks(folder: Path, tools: set[str]) -> list[tuple[Task, str]]:
    """Return the tasks, and the customer's wishes in each."""
    rows, policy, splits = (_read(folder / name) for name in ("tasks.json", "policy.md", "split_tasks.json"))
    found = []
    for row in rows or []:
        criteria = row.get("evaluation_criteria") or {}
        calls = criteria.get("actions")
        basis = criteria.get("reward_basis")
        if calls is None or not {call["name"] for call in calls} <= tools or (basis is not None and "DB" not in basis):
            logger.warning("tau2: task %r is left out: its database says nothing about it", row["id"])
            continue
        split = next((name for name in ("train", "test") if row["id"] in (splits or {}).get(name, ())), "test")
        scenario = row["user_scenario"]["instructions"]
        customer = scenario if isinstance(scenario, str) else "\n".join(str(text) for text in scenario.values() if text)
        task = Task(
            id=row["id"],
            split=split,
            prompt=_PROMPT.format(policy=policy or "(none)"),
            oracle=[OracleCall(tool_name=call["name"], arguments=call["arguments"]) for call in calls],
            metadata={"tau2": {"reward_basis": basis or []}},
        )
        found.append((task, customer))
    return found


def _read(path: Path) -> Any:
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else text


async def _database(upstream: Upstream, workspace: Workspace, key: str) -> str:
    """Return the hash of the database of a state key. The server creates the database if no tool has been called."""
    await upstream.call_alone(SHOWS_STATE, {KEY: key})
    return await asyncio.to_thread(_hash_of, workspace.path / f"{hashlib.sha256(key.encode()).hexdigest()}.json")


def _hash_of(file: Path) -> str:
    state: Mapping[str, Any] = json.loads(file.read_bytes())
    world = {name: value for name, value in state.items() if name not in _NOT_THE_WORLD}
    return hashlib.sha256(json.dumps(world, sort_keys=True).encode()).hexdigest()
