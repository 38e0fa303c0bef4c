"""The multi-turn tasks of the Berkeley Function Calling Leaderboard, from the package ``bfcl-eval`` of PyPI."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, Strict, ValidatorFunctionWrapHandler, WrapValidator

from mcpenv import ConfigurationError, Evidence, MCPEnvironment, OracleCall, Task, TaskSet, Verdict
from mcpenv.extensions.users import ScriptedUser, UserTools, UserTurn, add_user

try:
    from importlib.resources import files

    from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC as NEW_TOOLS
    from bfcl_eval.constants.executable_backend_config import (
        CLASS_FILE_PATH_MAPPING,
        MULTI_TURN_FUNC_DOC_FILE_MAPPING,
        STATELESS_CLASSES,
    )
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker
except ImportError as error:
    raise ConfigurationError(
        f"{error}. Install the package without its many dependencies: "
        "pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath==1.3.0"
    ) from error

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
DATA = files("bfcl_eval") / "data"
MOST_CALLS = (3, 5, 8)
"""The most expected calls of a task, by level; the fourth level has more."""
TYPES = {"string": str, "float": float, "integer": int, "boolean": bool, "array": list, "dict": dict}
DONE = "Tell the user that the request is done, or what you need to know. The answer is the user's next request."

Call = tuple[str, list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A task of the benchmark.

    Attributes:
        requests: the user's request of each turn.
        expected: the calls of each turn that the benchmark expects; of a turn without calls anything is right.
        backends: the classes whose methods are the tools.
        new_tools: the tools that are withheld until a turn, by its 0-based number.
    """

    id: str
    requests: list[str]
    expected: list[list[Call]]
    backends: list[str]
    config: dict[str, Any]
    new_tools: dict[int, list[str]]


def read(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of the package."""
    return map(json.loads, (DATA / name).read_text(encoding="utf-8").splitlines())


def entries_of(category: str) -> Iterator[Entry]:
    """Yield the tasks of a category."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    for row, answer in zip(read(name), read(f"possible_answer/{name}"), strict=True):
        assert row["id"] == answer["id"]
        yield Entry(
            row["id"],
            [turn[0]["content"] if turn else NEW_TOOLS for turn in row["question"]],
            [[parsed(call) for call in turn] for turn in answer["ground_truth"]],
            row["involved_classes"],
            row["initial_config"],
            {int(turn): names for turn, names in row.get("missed_function", {}).items()},
        )


def parsed(call: str) -> Call:
    """Return the name and the arguments of a call that is written in Python."""
    node = ast.parse(call.strip(), mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), call
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return node.func.id, [ast.literal_eval(each) for each in node.args], named


def oracle_of(entry: Entry) -> Iterator[OracleCall]:
    """Yield the calls that solve a task: those that the benchmark expects, and ``respond`` after each turn."""
    for turn in entry.expected:
        for name, args, named in turn:
            first = dict(zip(TOOLS[name].parameters, args, strict=False))
            yield OracleCall(tool_name=name, arguments={**first, **named})
        yield OracleCall(tool_name="respond", arguments={"message": "Done."})


@dataclass(frozen=True)
class Method:
    """A tool: a method of a backend, as the benchmark describes it to models."""

    backend: str
    name: str
    description: str
    parameters: dict[str, inspect.Parameter]


def methods_of(backend: str) -> Iterator[Method]:
    """Yield the tools of a backend."""
    for row in read(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[backend]}"):
        schemas, parameters = row["parameters"]["properties"], {}
        for name, parameter in inspect.signature(getattr(backend_class(backend), row["name"])).parameters.items():
            if name != "self":
                about = Field(description=schemas[name]["description"])
                kind: Any = type_of(schemas[name])
                kind = Annotated[kind, Strict(), WrapValidator(as_sent), about]
                parameters[name] = parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
        yield Method(backend, row["name"], row["description"], parameters)


def type_of(schema: dict[str, Any]) -> Any:
    """Return the Python type for a type of the benchmark."""
    if schema["type"] == "array" and "items" in schema:
        return list[type_of(schema["items"])]  # type: ignore[misc]
    return TYPES[schema["type"]]


def as_sent(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Return a value that fits its type, unchanged: the benchmark compares answers as text, and 5 is not 5.0."""
    check(value)
    return value


@functools.cache
def backend_class(name: str) -> Any:
    """Return the class of a backend."""
    return getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)


ENTRIES = {category: list(entries_of(category)) for category in CATEGORIES}
BY_ID = {entry.id: entry for entries in ENTRIES.values() for entry in entries}
BACKENDS = sorted({backend for entry in BY_ID.values() for backend in entry.backends})
TOOLS = {method.name: method for backend in BACKENDS for method in methods_of(backend)}


def level_of(entry: Entry) -> int:
    """Return the level of a task, from 1 to 5: by its expected calls, and one more where something is withheld."""
    calls = sum(map(len, entry.expected))
    return 1 + sum(calls > most for most in MOST_CALLS) + entry.id.startswith("multi_turn_miss_")


def tasks() -> Iterator[Task]:
    """Yield all tasks. The categories are the splits."""
    for category, entries in ENTRIES.items():
        for entry in entries:
            yield Task(
                id=entry.id,
                split=category,
                prompt=entry.requests[0],
                options={"entry": entry.id},
                oracle=list(oracle_of(entry)),
                metadata={"turns": len(entry.requests)},
                level=level_of(entry),
                family=" and ".join(entry.backends),
                tags=[category, f"{len(entry.requests)} turns"],
            )


class Run:
    """The backends of a task, and what calls of their methods returned."""

    def __init__(self, entry: Entry) -> None:
        self.backends: dict[str, Any] = {}
        for name in entry.backends:
            self.backends[name] = backend = backend_class(name)()
            if name not in STATELESS_CLASSES:
                backend._load_scenario(
                    copy.deepcopy(entry.config.get(name, {})), long_context="long_context" in entry.id
                )

    def call(self, name: str, args: Sequence[Any], named: dict[str, Any]) -> str:
        """Call a tool, and return the answer as the benchmark writes it."""
        method = getattr(self.backends[TOOLS[name].backend], name)
        try:
            answer = method(*copy.deepcopy(args), **copy.deepcopy(named))
        except Exception as error:  # noqa: BLE001 - to the benchmark a backend that raises has answered
            return f"Error during execution: {error}"
        if isinstance(answer, dict):
            try:
                return json.dumps(answer)
            except (TypeError, ValueError):
                return str(answer)
        return str(answer)


class Requests(ScriptedUser):
    """The user of the benchmark, who has a request for each turn, whatever the agent says."""

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """End the turn, and return the next request."""
        ended = await tools.call("end_turn", {})
        return replace(await super().answer(message, tools), calls=[ended])


class BFCLEnvironment(MCPEnvironment):
    """Do what a user asks for, request by request, with the tools of one or two simulated services.

    Description:
        The multi-turn part of the Berkeley Function Calling Leaderboard (v4): files, tickets, trading, travel, a
        vehicle, messages, posts, mathematics. The user has some requests, one a turn, and makes the next one when the
        agent says that it is done.

    Tools:
        The methods of the task's services, with the benchmark's descriptions. Of ``miss_func``, some are there from a
        later turn on.
        respond(message): end the turn; the answer is the next request.

    Observation:
        Of a reset: ``metadata.prompt``, the first request. Of a step: the tool's answer as text.

    Reward:
        At the end, 1.0 if the benchmark's own checks pass after each turn, else 0.0. A twin makes the calls that the
        benchmark expects. After each turn in which it expects calls, the agent has made one, the attributes of its
        services are those of the twin's, and the twin's answers of this turn are among the answers that it had so far.

    Start:
        The services as the task configures them. The seed has no effect.

    End:
        Terminated when the agent has responded to the last request.

    Arguments:
        entry: a reset option, the benchmark's id of the task.

    Version:
        2026.3.23
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    DYNAMIC_TOOLS = True
    EXPOSED_NAME = "bfcl"
    VERSION = "2026.3.23"
    tasks = TaskSet(tasks()).with_licence("Apache-2.0", source="bfcl-eval 2026.3.23")

    def __init__(self) -> None:
        self._start(BY_ID["multi_turn_base_0"])
        self._offered: set[str] = set()
        self._offer(list(TOOLS))  # all, so that an instance can restore the tools of any snapshot
        add_user(self, self.end_turn, description=DONE)

    def reset(self, seed: int | None = None, episode_id: str | None = None, entry: str = "multi_turn_base_0") -> None:
        found = BY_ID[entry]
        self._start(found)
        self.user = Requests(found.requests[1:])
        withheld = {name for names in found.new_tools.values() for name in names}
        self._offer([name for name, tool in TOOLS.items() if tool.backend in found.backends and name not in withheld])

    def _start(self, entry: Entry) -> None:
        self.entry, self.turn, self.problems = entry, 0, list[str]()
        self.run_of_agent, self.twin = Run(entry), Run(entry)
        self.answers, self.called = list[str](), False

    def _offer(self, names: Sequence[str]) -> None:
        """Offer these tools of services, and no others."""
        for name in self._offered - set(names):
            self.remove_tool(name)
        for name in names:
            if name not in self._offered:
                self.tool(self._function(name), name=name, description=TOOLS[name].description)
        self._offered = set(names)

    def _function(self, name: str) -> Callable[..., str]:
        """Return the function of a tool, with the signature of its method."""

        def call(**arguments: Any) -> str:
            self.called = True
            answer = self.run_of_agent.call(name, (), arguments)
            self.answers.append(answer)
            return answer

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            list(TOOLS[name].parameters.values()), return_annotation=str
        )
        return call

    def end_turn(self) -> str:
        """Judge the turn that ends, and begin the next one."""
        expected = self.entry.expected[self.turn]
        answers = [self.twin.call(*call) for call in expected]
        if expected:
            states = state_checker(self.run_of_agent.backends, self.twin.backends)
            said = response_checker(self.answers, answers, self.turn)
            if not self.called:
                self.problems.append(f"turn {self.turn + 1}: no tool was called")
            self.problems += [
                f"turn {self.turn + 1}: {checked['error_message']}"
                for checked in (states, said)
                if not checked["valid"]
            ]
        self.turn, self.called = self.turn + 1, False
        if self.turn in self.entry.new_tools:
            self._offer([*self._offered, *self.entry.new_tools[self.turn]])
        return "; ".join(self.problems) or "as expected"

    def verify(self, evidence: Evidence) -> Verdict:
        """Judge the turn that was not ended by ``respond``, and say whether all turns were right."""
        if self.turn < len(self.entry.expected):
            self.end_turn()
        for number in range(self.turn, len(self.entry.expected)):
            if self.entry.expected[number]:
                self.problems.append(f"turn {number + 1} was not reached")
        return Verdict(not self.problems, self.problems)
