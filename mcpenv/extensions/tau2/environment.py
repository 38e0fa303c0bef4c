"""The domains of tau2 as environments: retail, airline, telecom and banking, from the package ``inspect-evals``.

Tasks, policies, databases, and the tools of agents and users are those of the installed package, ``mcpenv[tau2]``. So
is the reward, wherever it needs no judge.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, meant
from mcpenv.extensions.models.judge import Judge
from mcpenv.extensions.users import ModelUser, ScriptedUser, User, add_user
from mcpenv.rewards.verifiers import Evidence
from mcpenv.tasks import TaskSet
from mcpenv.worlds import ObjectWorld
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.scores import reaches
from mcpenv_client.types.records import Reward
from mcpenv_client.types.values import encode, to_plain

from .customers import Customer, ObedientUser

if TYPE_CHECKING:
    from .domains import Call, Domain, DomainTool, Task

DOMAINS = ("retail", "airline", "telecom", "banking")
USERS = ("prompt", "script", "model")
KNOWLEDGE = ("grep", "full_kb", "no_knowledge")

STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""The texts with which tau2's user leaves."""

_TRANSFER, _ASKS_FOR_TRANSFER = "transfer_to_human_agents", "request_human_agent_transfer"
_UNLOCK, _CALL_UNLOCKED = "unlock_discoverable_agent_tool", "call_discoverable_agent_tool"

_PROMPT = """You act for a customer, by the policy below. Do what the customer wants, as far as the policy allows it.

# Policy

{policy}

# The customer

{customer}"""

_SPEAKS = "The customer is there, and tells you what is wanted when you ask."

_ALONE = """The customer cannot be asked, and confirms whatever of this needs a confirmation.{tools} When you are \
done, tell the customer the result with the tool respond.

{wishes}"""

_OWN_TOOLS = " You have the customer's own tools, too: {names}."

_LAST_WORD = "Tell the customer the result, when you are done. The customer reads nothing else, and the episode ends."

_QUESTION = """You are given a conversation between a customer and an agent, with the calls that both made, and a \
list of statements about it. The score is 1 if every statement is true, and 0 if one is not."""

_TELECOM_ID = re.compile(r"\[(\w+)\](.+)\[PERSONA:(\w+)\]")
"""The id of a task of telecom: the kind of problem, its faults, and the persona."""


_ABOUT = """
Description:
    The agent serves customers, by a policy that binds it. The customer is played by nobody, by a script or by a model.

Tools:
    tau2's own. respond(message): speak to the customer.

Observation:
    Of a reset: ``metadata.prompt``, the policy and what is known of the customer. Of a step: tau2's answer as text.

Reward:
    At the end, 1.0 if each part is right on which tau2's reward of the task depends, else 0.0. The parts: ``db``,
    ``env_assertions``, ``actions``, ``communicate``, and with a judge ``nl_assertions``.

Start:
    The domain's data, changed as the task has it. The seed is given to a model that plays the customer.

End:
    Terminated when the customer has left.

Arguments:
    scenario: reset option, the id of a task of tau2.
"""


class Tau2Environment(MCPEnvironment):
    """A domain of tau2. `load` makes the class.

    Attributes:
        domain: the domain.
        played_by: "prompt", "script" or "model", as `load` has it.
        make_user: makes the customer of an episode, from the wishes and the seed.
        judge: judges statements in natural language; None leaves them out.
        expected: the hashes of databases after the reference actions, by task. Filled as tasks are verified.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    domain: ClassVar[Domain]
    played_by: ClassVar[str]
    make_user: ClassVar[Callable[[str, int | None], User]]
    judge: ClassVar[Judge | None]
    expected: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        self.scenario: str | None = None
        self.calls: list[Call] = []
        self.store = self.domain.store(None)
        self.world = ObjectWorld(lambda: self.domain.tree(self.store))
        for tool in self.domain.of("assistant"):
            self.tool(self._function(tool), name=tool.name, description=tool.description)
        users = [self._function(tool) for tool in self.domain.of("user")]
        if self.played_by == "prompt":
            for function in users:
                self.tool(function)
            add_user(self, description=_LAST_WORD)
        else:
            add_user(self, *users)

    def reset(self, seed: int | None = None, episode_id: str | None = None, scenario: str | None = None) -> None:
        """Begin a task of tau2, with a new customer.

        Args:
            scenario: the id of a task of tau2; None: the domain's own data, without a customer and a reward.
        """
        task = None if scenario is None else self._task(scenario)
        self.scenario, self.calls = scenario, []
        self.store = self.domain.store(task)
        self.user = None if task is None else Customer(type(self).make_user(wishes_of(task, self.played_by), seed))

    async def verify(self, evidence: Evidence) -> Reward | None:
        """Return tau2's reward: 1.0 if each part on which it depends is right, else 0.0. None without a task.

        The parts are ``db``, ``env_assertions``, ``actions`` and ``communicate``, and with a judge
        ``nl_assertions``.
        """
        if self.scenario is None:
            return None
        wrong = await asyncio.to_thread(self._wrong, self._task(self.scenario))
        if self.judge is not None and (statements := statements_of(self._task(self.scenario))):
            wrong["nl_assertions"] = await self._judged(self.judge, statements)
        evidence.said.extend(problem for problems in wrong.values() for problem in problems)
        parts = {name: float(not problems) for name, problems in wrong.items()}
        return Reward(min(parts.values(), default=1.0), parts)

    def _wrong(self, task: Task) -> dict[str, list[str]]:
        """Return what is wrong, by the parts on which tau2's reward of the task depends."""
        found: dict[str, list[str]] = {}
        for basis in _package().basis_of(task):
            if basis == "DB":
                same = self.domain.hash_of(self.store) == self._expected(task)
                found["db"] = [] if same else ["the database is not that of the reference actions"]
            elif basis == "ENV_ASSERTION":
                found["env_assertions"] = self.domain.failed_assertions(self.store, task)
            elif basis == "ACTION":
                missing = _package().missing_actions(self.calls, task)
                found["actions"] = [f"nobody called {name} as the task wants it" for name in missing]
            elif basis == "COMMUNICATE":
                said = "\n".join(self._customer.heard).lower().replace(",", "")
                missing = [each for each in communicated_in(task) if each.lower() not in said]
                found["communicate"] = [f"the agent did not say {each!r}" for each in missing]
        return found

    def _expected(self, task: Task) -> str:
        if task.id not in self.expected:
            self.expected[task.id] = self.domain.hash_after(task)
        return self.expected[task.id]

    async def _judged(self, judge: Judge, statements: list[str]) -> list[str]:
        """Return the words for statements of which one is not true."""
        turns = zip(self._customer.heard, self._customer.answers, strict=True)
        said = [{"agent": heard, "customer": answer} for heard, answer in turns]
        shown = {"conversation": said, "calls": to_plain(self.calls, "calls"), "statements": statements}
        score = (await judge.ask(encode(shown).decode())).value
        return [] if reaches(score, 1.0) else ["the judge holds one of the task's statements for wrong"]

    @property
    def _customer(self) -> Customer:
        assert isinstance(self.user, Customer)
        return self.user

    def _task(self, scenario: str) -> Task:
        if scenario not in self.domain.rows:
            raise InvalidMessage(f"the domain {self.domain.name} of tau2 has no task {scenario!r}")
        return self.domain.task(scenario)

    def _function(self, tool: DomainTool) -> Callable[..., str]:
        """Return the function of a tool, with tau2's parameters."""
        side, name = tool.side, tool.name  # texts, because a snapshot keeps no objects around a tool

        def function(**arguments: Any) -> str:
            call = _package().Call(side, name, to_plain(arguments, "arguments"))
            self.calls.append(call)
            return self.domain.call(self.store, call)

        function.__name__ = name
        function.__doc__ = tool.description
        function.__signature__ = tool.signature  # type: ignore[attr-defined]
        return function


class _Row(Mapping[str, Any]):
    """A task as a row of a `TaskSet`. Its fields are made when it is read: a policy in 2,285 prompts has 200 MB."""

    def __init__(self, domain: Domain, task_id: str, played_by: str) -> None:
        self._made_of = (domain, task_id, played_by)

    def __getitem__(self, name: str) -> Any:
        return _fields(*self._made_of)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_fields(*self._made_of))

    def __len__(self) -> int:
        return len(_fields(*self._made_of))


@functools.lru_cache(maxsize=1)
def _fields(domain: Domain, task_id: str, played_by: str) -> dict[str, Any]:
    """Return the fields of a task. A reader asks for one after the other."""
    task = domain.task(task_id)
    alone = played_by == "prompt"
    customer = _SPEAKS
    if alone:
        names = ", ".join(tool.name for tool in domain.of("user"))
        own = _OWN_TOOLS.format(names=names) if names else ""
        customer = _ALONE.format(tools=own, wishes=wishes_of(task, played_by))
    fields: dict[str, Any] = {
        "id": task_id,
        "split": domain.split_of.get(task_id, "rest" if domain.split_of else "test"),
        "prompt": _PROMPT.format(policy=domain.policy(alone), customer=customer),
        "options": {"scenario": task_id},
        "metadata": {"tau2": {"domain": domain.name, "reward_basis": _package().basis_of(task)}},
        "family": domain.name,
    }
    if (why := _paid_wrongly(domain, task)) is not None:
        fields["metadata"]["source_pays"] = why
    if (named := _TELECOM_ID.fullmatch(task_id)) is not None:
        faults = named[2].split("|")
        fields.update(level=len(faults), tags=[named[1], *faults, f"persona {named[3].lower()}"])
    if played_by != "model":
        fields["oracle"] = oracle_of(task, alone)
    return fields


def _paid_wrongly(domain: Domain, task: Task) -> str | None:
    """Return why tau2's own rule pays a task in full without the whole work; None if it does not."""
    if not communicated_in(task) and domain.pays_nothing(task):
        return "the reference actions change nothing, and nothing must be said"
    calls, by_actions = _package().references(task), "ACTION" in _package().basis_of(task)
    names = {call.name for call in calls}
    if by_actions and names == {_TRANSFER}:
        return "a transfer to a human at once, for any reason, is all that is asked for"
    if by_actions and names == {_TRANSFER, _ASKS_FOR_TRANSFER}:
        return "a transfer to a human, for which the customer asks once and not eight times, is all that is asked for"
    unlocked, called = (
        {call.arguments["agent_tool_name"] for call in calls if call.name == name} for name in (_UNLOCK, _CALL_UNLOCKED)
    )
    return None if by_actions or unlocked <= called else "tools that are unlocked and not called count for nothing"


def oracle_of(task: Task, alone: bool) -> list[dict[str, Any]]:
    """Return the reference actions of a task, and what the customer must be told.

    Args:
        alone: the agent has the customer's tools. Otherwise the customer is asked to use them.
    """
    calls = []
    for call in _package().references(task):
        tool, arguments = call.name, dict(call.arguments)
        if call.side == "user" and not alone:
            tool, arguments = "respond", {"message": f"{tool} {encode(arguments).decode()}"}
        calls.append({"tool_name": tool, "arguments": arguments})
    last = "\n".join(communicated_in(task)) or "It is done."
    return [*calls, {"tool_name": "respond", "arguments": {"message": last}}]


def communicated_in(task: Task) -> list[str]:
    """Return the texts that the customer must be told."""
    return list((task.evaluation_criteria and task.evaluation_criteria.communicate_info) or ())


def statements_of(task: Task) -> list[str]:
    """Return the statements in natural language that a judge decides."""
    return list((task.evaluation_criteria and task.evaluation_criteria.nl_assertions) or ())


def wishes_of(task: Task, played_by: str) -> str:
    """Return what the customer wants: for a model with the persona, for an agent without a customer as its ticket."""
    if played_by == "model":
        return str(task.user_scenario)
    return (played_by == "prompt" and task.ticket) or str(task.user_scenario.instructions)


def load(
    domain: str,
    /,
    *,
    user: str | None = None,
    user_url: str | None = None,
    user_model: str | None = None,
    user_key_env: str | None = None,
    judge_url: str | None = None,
    judge_model: str | None = None,
    judge_key_env: str | None = None,
    knowledge: str = "grep",
) -> type[Tau2Environment]:
    """Return the class of a domain.

    Args:
        domain: "retail", "airline", "telecom" or "banking".
        user: "prompt": the agent's prompt has the customer's wishes, and the agent has the customer's tools. "script":
            a customer who tells all wishes, and does what is asked by the name of a tool. "model": a model plays the
            customer, with tau2's own guidelines. Default: "model" with ``user_url``, otherwise "prompt".
        user_url, user_model: the endpoint with OpenAI's chat completions and the model's name there.
        user_key_env: the environment variable with the endpoint's key. Default: no key.
        judge_url, judge_model, judge_key_env: likewise, of the model that judges the statements in natural language
            that some tasks have. Default: they are left out of the reward.
        knowledge: the way to the documents of banking. "grep": a tool that searches them. "full_kb": all are in the
            prompt. "no_knowledge": none.

    Raises:
        ConfigurationError: there is no such domain, the package is not installed, or settings do not fit.
    """
    if domain not in DOMAINS:
        raise ConfigurationError(
            f"there is no domain {domain!r} (there are: {', '.join(DOMAINS)}){meant(domain, DOMAINS)}"
        )
    if knowledge not in KNOWLEDGE or (knowledge != KNOWLEDGE[0] and domain != "banking"):
        raise ConfigurationError(f"knowledge is one of {', '.join(KNOWLEDGE)}, and only banking has documents")
    played_by = user or ("prompt" if user_url is None else "model")
    make_user = _user(played_by, user_url, user_model, user_key_env, domain)
    judge = _judge(judge_url, judge_model, judge_key_env)
    package = _package()
    found: Domain = package.domain_of(domain, knowledge)
    tasks = TaskSet(_Row(found, task_id, played_by) for task_id in found.rows)
    return type(
        "Tau2Environment",
        (Tau2Environment,),
        {
            "__doc__": f"The {domain} domain of tau2.\n{_ABOUT}",
            "__module__": __name__,
            "EXPOSED_NAME": f"tau2-{domain}",
            "VERSION": package.VERSION,
            "tasks": tasks.with_licence(package.LICENCE, source=f"{package.PACKAGE} {package.VERSION}"),
            "domain": found,
            "played_by": played_by,
            "make_user": staticmethod(make_user),
            "judge": judge,
            "expected": {},
        },
    )


def _user(
    played_by: str, url: str | None, model: str | None, key_env: str | None, domain: str
) -> Callable[[str, int | None], User]:
    """Return the function that makes customers, of the wishes and the seed."""
    if played_by not in USERS:
        raise ConfigurationError(f"there is no user {played_by!r} (there are: {', '.join(USERS)})")
    if played_by != "model":
        if any(each is not None for each in (url, model, key_env)):
            raise ConfigurationError(
                "user_url, user_model and user_key_env are for a user that a model plays, and user is "
                f"{played_by!r}; set user_url and user_model, or none of them"
            )
        if played_by == "script":
            return lambda wishes, seed: ObedientUser(wishes)
        return lambda wishes, seed: ScriptedUser([], goodbye="Thank you.")
    if url is None or model is None:
        raise ConfigurationError("a user that a model plays needs user_url and user_model")

    def make(wishes: str, seed: int | None, guidelines: str | None = None) -> User:
        system = (
            f"{guidelines or _package().domain_of(domain, KNOWLEDGE[0]).guidelines}\n<scenario>\n{{goal}}\n</scenario>"
        )
        return ModelUser(
            url, model, wishes, seed=seed, api_key_env=key_env, temperature=0.0, stops=STOPS, system=system
        )

    try:
        make("", None, "checked")
    except ValueError as error:
        raise ConfigurationError(f"user_url: {error}") from error
    return make


def _judge(url: str | None, model: str | None, key_env: str | None) -> Judge | None:
    """Return the judge of statements in natural language; None without an endpoint."""
    if url is None and model is None and key_env is None:
        return None
    if url is None or model is None:
        raise ConfigurationError("a judge needs judge_url and judge_model")
    judge = Judge(url, model, _QUESTION, api_key_env=key_env)
    try:
        judge.endpoint.check("judge_url")
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return judge


def _package() -> Any:
    """Return the module that needs the package. It is imported at the first use, which takes seconds."""
    try:
        return importlib.import_module(f"{__package__}.domains")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("inspect_ai", "inspect_evals"):
            raise
        raise ConfigurationError(f"the package {error.name} is missing. Run pip install 'mcpenv[tau2]'") from error
