"""The domains of tau2 as the package inspect-evals has them: tasks, policies, tools, and the state of an episode.

The tools of the package find their state in a `Store` by a context variable. `Domain.call` runs each tool in a context
of its own with the store of one episode, so that episodes at once share nothing.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import gzip
import inspect
import json
import pickle
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar

from fastmcp.exceptions import ToolError
from inspect_ai.model import ChatMessageAssistant
from inspect_ai.tool import Tool, ToolCall, ToolDef
from inspect_ai.tool import ToolError as ToolRefused
from inspect_ai.util import Store, store_as
from inspect_ai.util._store import init_subtask_store
from inspect_evals.tau2.airline import agents as airline_agents
from inspect_evals.tau2.airline.AirlineAgentTools import AirlineAgentTools
from inspect_evals.tau2.airline.tools import all_airline_tools
from inspect_evals.tau2.banking import environment as banking
from inspect_evals.tau2.banking.data_model import KnowledgeBase
from inspect_evals.tau2.banking.tools import all_banking_agent_tools, banking_grep
from inspect_evals.tau2.banking.user_tools import all_banking_user_tools
from inspect_evals.tau2.banking.utils import BANKING_DATA_DIR, BANKING_DOCUMENTS_FILE
from inspect_evals.tau2.common.scorer import find_unused_actions
from inspect_evals.tau2.data_model.tasks import Task as Task  # for the types of the environment
from inspect_evals.tau2.retail import agents as retail_agents
from inspect_evals.tau2.retail.RetailAgentTools import RetailAgentTools
from inspect_evals.tau2.retail.tools import all_retail_tools
from inspect_evals.tau2.telecom import agents as telecom_agents
from inspect_evals.tau2.telecom.environment import get_environment
from inspect_evals.tau2.telecom.TelecomAgentTools import IDGenerator
from inspect_evals.tau2.telecom.tools import all_telecom_agent_tools
from inspect_evals.tau2.telecom.user_tools import all_telecom_user_tools
from inspect_evals.tau2.utils import (
    TAU2_DATA_DIR,
    USER_SIMULATOR_GUIDELINES,
    USER_SIMULATOR_GUIDELINES_WITH_TOOLS,
    get_dict_hash,
    get_pydantic_hash,
)
from pydantic import BaseModel, Field

PACKAGE = "inspect-evals"
VERSION = version(PACKAGE)
LICENCE = "MIT"

Side = Literal["assistant", "user"]
"""The one who has a tool, in tau2's words."""

OF_CONTENT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The exceptions of a tool that meets arguments of another form than it expects."""

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A call that was made, or that a task refers to.

    Attributes:
        side: the one whose tool it is.
        name, arguments: the tool, and its arguments as plain data.
    """

    side: Side
    name: str
    arguments: Mapping[str, Any]


class DomainTool:
    """A tool of a domain, without the prefix that some names have in the package.

    Attributes:
        name, description: as agents see them.
        side: the one who has it.
        signature: the parameters, with tau2's descriptions.
    """

    def __init__(self, make: Callable[[], Tool], side: Side) -> None:
        self._execute: Callable[..., Coroutine[Any, Any, Any]] = make()
        about = ToolDef(self._execute)
        self.name = about.name.removeprefix("banking_")
        self.description = about.description
        self.side = side
        properties = about.parameters.properties
        self.signature = inspect.Signature(
            [
                parameter.replace(
                    kind=inspect.Parameter.KEYWORD_ONLY,
                    annotation=Annotated[_kept(parameter.annotation), Field(description=properties[name].description)],
                )
                for name, parameter in inspect.signature(self._execute).parameters.items()
            ],
            return_annotation=str,
        )

    def run(self, arguments: Mapping[str, Any]) -> str:
        """Return the tool's answer, in a context with a store.

        Raises:
            ToolError: it refuses the call, or fails over these arguments.
        """
        running = self._execute(**arguments)
        try:
            running.send(None)
        except StopIteration as returned:
            return str(returned.value)
        except (ToolRefused, *OF_CONTENT) as error:  # tau2 itself answers each of them to the agent
            raise ToolError(f"Error: {error}") from error
        running.close()
        raise AssertionError(f"the tool {self.name} of tau2 waits for something")


def _kept(annotation: Any) -> Any:
    """Return a type that keeps 100000 as it is. The ids of banking differ between 100000 and 100000.0."""
    return int | float if annotation is float else annotation


@dataclass(frozen=True, eq=False)
class Domain:
    """A domain: its tasks, policies and tools, and what makes and changes the state of an episode.

    Attributes:
        name: as targets have it.
        folder: the name of its folder of data.
        tools: by name, those of the agent before those of the user.
        bound: the objects of tau2 with the state of the current store, of the agent and of the user. They are made at
            the first time. They are brought in line with each other.
        policy: what agents must obey. True: for an agent who has the user's tools, too.
        begin: brings the current store to the start of a task.
    """

    name: str
    folder: str
    tools: Mapping[str, DomainTool]
    bound: Callable[[], tuple[Any, Any]]
    policy: Callable[[bool], str]
    begin: Callable[[Task], None]
    guidelines: str = USER_SIMULATOR_GUIDELINES

    def of(self, side: Side) -> list[DomainTool]:
        """Return the tools of the agent, or of the user."""
        return [tool for tool in self.tools.values() if tool.side == side]

    @functools.cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The tasks as tau2's files have them, by id."""
        found = _read(self.folder, "tasks.json") or _read(self.folder, "tasks.json.gz")
        return {row["id"]: row for row in found}

    @functools.cached_property
    def split_of(self) -> dict[str, str]:
        """The split of each task of tau2's splits ``train`` and ``test``, by id."""
        splits = _read(self.folder, "split_tasks.json") or {}
        return {each: name for name in ("train", "test") for each in splits.get(name, ())}

    def task(self, task_id: str) -> Task:
        """Return a task as tau2 has it."""
        return Task.model_validate(self.rows[task_id])

    # -- the state of an episode

    def store(self, task: Task | None) -> Store:
        """Return a new store, at the start of a task; None: with the domain's own data."""
        made: Store = pickle.loads(self._saved)
        if task is not None:
            _inside(made, lambda: self.begin(task))
        return made

    def call(self, store: Store, call: Call) -> str:
        """Call a tool on the state in a store, and return its answer.

        Raises:
            ToolError: as `DomainTool.run`.
        """

        def run() -> str:
            try:
                return self.tools[call.name].run(call.arguments)
            finally:
                self.bound()

        return _inside(store, run)

    def tree(self, store: Store) -> dict[str, dict[str, Any]]:
        """Return what differs from the domain's own data: fields of tau2's objects, by the names of their classes."""
        found: dict[str, dict[str, Any]] = {}
        seen = set()
        for key, value in store.items():
            kind, *_, name = key.split(":")
            if name not in ("instance", "initialized") and id(value) not in seen:  # banking has one database for both
                seen.add(id(value))
                found.setdefault(kind, {})[name] = _difference(value, self._own_data.get(key))
        return found

    @functools.cached_property
    def _own_data(self) -> Store:
        """The store of nobody's episode."""
        empty = Store()
        _inside(empty, self.bound)
        return empty

    @functools.cached_property
    def _saved(self) -> bytes:
        return pickle.dumps(self._own_data)

    # -- what tau2 checks

    def hash_of(self, store: Store) -> str:
        """Return a hash of the agent's database. It is equal for two databases if tau2's own hash is, and only then."""
        db = _inside(store, self.bound)[0].db
        tables = {name: table.changed() for name, table in vars(db).items() if isinstance(table, _Rows)}
        return str(get_dict_hash(tables) if tables else db.get_hash())

    def hash_after(self, task: Task) -> str:
        """Return the hash of the database after the reference actions of a task. Those that fail change nothing."""
        store = self.store(task)
        for call in references(task):
            try:
                self.call(store, call)
            except ToolError:
                continue
        return self.hash_of(store)

    def pays_nothing(self, task: Task) -> bool:
        """True if the reward asks for the database of the start. Each task of telecom and banking asks for more."""
        return self.name in _FLAT and self.hash_after(task) == self.hash_of(self.store(task))

    def failed_assertions(self, store: Store, task: Task) -> list[str]:
        """Return the assertions of a task about the state that do not hold."""
        assert task.evaluation_criteria is not None
        sides = dict(zip(("assistant", "user"), _inside(store, self.bound), strict=True))
        return [
            f"{each.func_name}({json.dumps(each.arguments)}) is not {each.assert_value}"
            for each in task.evaluation_criteria.env_assertions or ()
            if _inside(store, functools.partial(getattr(sides[each.env_type], each.func_name), **each.arguments))
            != each.assert_value
        ]


def references(task: Task) -> list[Call]:
    """Return the reference actions of a task."""
    criteria = task.evaluation_criteria
    actions = (criteria and criteria.actions) or ()
    return [Call(each.requestor, each.name.removeprefix("banking_"), each.arguments) for each in actions]


def missing_actions(calls: list[Call], task: Task) -> list[str]:
    """Return the names of the reference actions of a task that are not among the calls, as tau2 compares them."""
    of = {side: _messages(call for call in calls if call.side == side) for side in ("assistant", "user")}
    return [each.name for each in find_unused_actions(of["assistant"], of["user"], task)]


def basis_of(task: Task) -> list[str]:
    """Return the names of what tau2's reward of a task depends on."""
    criteria = task.evaluation_criteria
    return [] if criteria is None else [each.value for each in criteria.reward_basis]


def _messages(calls: Iterator[Call]) -> Any:
    made = [ToolCall(id=call.name, function=call.name, arguments=dict(call.arguments)) for call in calls]
    return SimpleNamespace(messages=[ChatMessageAssistant(content="", tool_calls=made)])


def _inside(store: Store, run: Callable[[], T]) -> T:
    """Run a function in a context with this store."""

    def with_store() -> T:
        init_subtask_store(store)
        return run()

    return contextvars.copy_context().run(with_store)


def _difference(value: Any, own: Any) -> Any:
    """Return a value without the parts that equal those of another one. What is missing is None."""
    now, before = _parts(value), _parts(own)
    if now is None or before is None:
        return value if now is None else now
    changed = {name: _difference(part, before.get(name)) for name, part in now.items() if _differs(name, part, before)}
    return {**changed, **dict.fromkeys(before.keys() - now.keys())}


def _differs(name: Any, part: Any, before: Mapping[Any, Any]) -> bool:
    return name not in before or bool(part != before[name])


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the parts of an object or a mapping; None for another value."""
    if isinstance(value, BaseModel | IDGenerator):
        return vars(value)
    return dict(value) if isinstance(value, Mapping) else None


def _read(folder: str, name: str) -> Any:
    path = TAU2_DATA_DIR / "domains" / folder / name
    if not path.is_file():
        return None
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


# -- the domains


def _tools(agent: list[Callable[[], Tool]], user: list[Callable[[], Tool]]) -> dict[str, DomainTool]:
    made = [*(DomainTool(each, "assistant") for each in agent), *(DomainTool(each, "user") for each in user)]
    return {tool.name: tool for tool in made}


class _Rows(dict[str, Any]):
    """A table of a database: the domain's own rows, each of which is copied when a tool first reads it.

    Tools change rows that they have read. A copy of the whole database would take most of the time of an episode. What
    pydantic and ``dict`` read for a comparison or a dump does not come by here, and is not copied.

    Args:
        domain, name: the table.
        changed: the rows that differ from the domain's own.
        removed: the keys of the domain's own rows that the table does not have.
    """

    def __init__(
        self, domain: str, name: str, changed: Mapping[str, Any] | None = None, removed: Iterable[str] = ()
    ) -> None:
        self.place = domain, name
        self.own: dict[str, Any] = getattr(_own_database(domain), name)
        super().__init__({**self.own, **(changed or {})})
        for key in removed:
            del self[key]

    def __getitem__(self, key: str) -> Any:
        row = super().__getitem__(key)
        if row is self.own.get(key):
            row = self[key] = pickle.loads(pickle.dumps(row))
        return row

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - it would call itself

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def __reduce__(self) -> Any:
        return _Rows, (*self.place, self._read(), sorted(self.own.keys() - self.keys()))

    def changed(self) -> dict[str, Any]:
        """Return the plain data of the rows that differ from the domain's own; None for a removed one."""
        own = self.own
        rows = {
            key: row.model_dump()
            for key, row in self._read().items()
            if key not in own or get_pydantic_hash(row) != get_pydantic_hash(own[key])
        }
        return {**rows, **dict.fromkeys(own.keys() - self.keys())}

    def _read(self) -> dict[str, Any]:
        """Return the rows that are not the domain's own."""
        return {key: row for key, row in dict(self).items() if row is not self.own.get(key)}


@functools.cache
def _own_database(domain: str) -> Any:
    """Return the database of a domain, which nobody changes."""
    return _FLAT[domain][0].model_fields["db"].annotation.model_validate(_read(domain, "db.json.gz"))


def _database(kind: type[Any], instance: str, domain: str) -> Callable[[], tuple[Any, Any]]:
    """Return the function that binds the objects of a domain without a user's tools.

    The package would leave a temporary file whenever it loads a compressed database.
    """

    def bound() -> tuple[Any, Any]:
        tools = store_as(kind, instance)
        if not tools.initialized:
            own = _own_database(domain)
            tools.db = type(own).model_construct(**{name: _Rows(domain, name) for name in vars(own)})
            tools.initialized = True
        return tools, None

    return bound


def _begin_as_loaded(task: Task) -> None:
    """Leave the state as it is: the tasks of these domains begin with the domain's own data."""


def _telecom_objects() -> tuple[Any, Any]:
    environment = get_environment()  # brings phone and line in line
    return environment.tools, environment.user_tools


def _begin_telecom(task: Task) -> None:
    for action in (task.initial_state and task.initial_state.initialization_actions) or ():
        agent, user = _telecom_objects()
        getattr(user if action.env_type == "user" else agent, action.func_name)(**action.arguments)
    _telecom_objects()


def _telecom_policy(solo: bool) -> str:
    policy = str(telecom_agents.get_domain_policy(workflow=False))
    if solo:
        folder = TAU2_DATA_DIR / "domains" / "telecom"
        plain, own = ((folder / f"{name}.txt").read_text("utf-8") for name in ("main_policy", "main_policy_solo"))
        assert plain in policy
        policy = policy.replace(plain, own)
    return policy


def _banking_policy(knowledge: str) -> str:
    """Return the policy of banking, with its parts, for a way to the documents."""
    folder = BANKING_DATA_DIR / "prompts"
    name = "grep_only" if knowledge == "grep" else knowledge
    policy = (folder / f"{name}.md").read_text("utf-8")
    for part in (folder / "components").glob("*.md"):
        policy = policy.replace(f"{{{{component:{part.stem}}}}}", part.read_text("utf-8"))
    if knowledge == "full_kb":
        documents = KnowledgeBase.load(str(BANKING_DOCUMENTS_FILE)).format_for_prompt()
        policy = policy.replace("{{full_knowledge_base}}", documents)
    return str(policy)


def _banking_objects() -> tuple[Any, Any]:
    banking.initialize_environment()
    return banking.get_agent_tools(), banking.get_user_tools()


def _begin_banking(task: Task) -> None:
    # tau2 puts the task's own objects into the database, and would change them with it.
    banking.apply_initial_state(*_banking_objects(), copy.deepcopy(task.initial_state))


_FLAT: dict[str, tuple[type[Any], str, list[Callable[[], Tool]], Any]] = {
    "retail": (RetailAgentTools, "RetailTools", all_retail_tools, retail_agents),
    "airline": (AirlineAgentTools, "AirlineTools", all_airline_tools, airline_agents),
}
"""The domains without a user's tools: the class of their state, its name in the store, the tools, the policy."""


@functools.cache
def domain_of(name: str, knowledge: str) -> Domain:
    """Return a domain.

    Args:
        name: "retail", "airline", "telecom" or "banking".
        knowledge: the way to the documents of banking: "grep", "full_kb" or "no_knowledge". Others have none.
    """
    if name in ("retail", "airline"):
        kind, instance, made, agents = _FLAT[name]
        bound, policy = _database(kind, instance, name), agents.get_domain_policy()
        return Domain(name, name, _tools(made, []), bound, lambda solo: policy, _begin_as_loaded)
    guided = USER_SIMULATOR_GUIDELINES_WITH_TOOLS
    if name == "telecom":
        tools = _tools(all_telecom_agent_tools, all_telecom_user_tools)
        return Domain(name, name, tools, _telecom_objects, _telecom_policy, _begin_telecom, guided)
    search = [banking_grep] if knowledge == "grep" else []
    tools = _tools([*all_banking_agent_tools, *search], all_banking_user_tools)
    policy = _banking_policy(knowledge)
    return Domain(name, "banking_knowledge", tools, _banking_objects, lambda solo: policy, _begin_banking, guided)
