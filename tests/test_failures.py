from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from fastmcp.dependencies import Depends
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, field_validator, with_config
from typing_extensions import TypedDict

from mcpenv import Action, ExecutionError, MCPEnvironment, Mode, ToolCall, ToolError, ToolOutcome
from mcpenv_client import ToolErrorType, ToolFailure

INCIDENT = re.compile(r"\(incident ([0-9a-f]{8})\)$")


class Failing(MCPEnvironment):
    """The environment whose tools raise a given exception, in sync and in async functions."""

    def __init__(self, raises: Any) -> None:
        @self.tool
        def now() -> str:
            """Raise."""
            raise raises

        @self.tool
        async def later() -> str:
            """Raise, later."""
            await asyncio.sleep(0)
            raise raises

        @self.tool
        def fine() -> str:
            """Do not raise."""
            return "fine"


def failure_of(env: MCPEnvironment, tool: str, /, **arguments: Any) -> ToolFailure:
    failure = env.call_tool(tool, arguments).error
    assert failure is not None
    return failure


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


class Refusal(ToolError):
    """An author's own kind of ToolError."""


@pytest.mark.parametrize("tool", ["now", "later"])
@pytest.mark.parametrize(
    "raises",
    [
        ValueError("text"),
        KeyError("key"),
        AssertionError(),
        StopIteration(3),
        StopAsyncIteration(),
        TimeoutError("slow"),
        RecursionError(),
        MemoryError(),
        SystemExit(3),
        ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
        BaseExceptionGroup("several", [SystemExit(1)]),
        type("BaseOfItsOwn", (BaseException,), {})("odd"),
        Unprintable(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_tool_raises_is_an_execution_error_and_the_episode_goes_on(raises: BaseException, tool: str) -> None:
    env = Failing(raises)
    for _ in range(2):
        failure = failure_of(env, tool)
        assert failure.error_type is ToolErrorType.EXECUTION_ERROR
        if not isinstance(raises, StopIteration):  # a coroutine cannot raise it (PEP 479)
            assert failure.message.startswith(type(raises).__name__)
        assert INCIDENT.search(failure.message)
    assert env.call_tool("fine").text == "fine" and env.step_count == 3


@pytest.mark.parametrize("tool", ["now", "later"])
def test_ctrl_c_in_a_tool_reaches_the_caller(tool: str) -> None:
    env = Failing(KeyboardInterrupt())
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.call_tool(tool)
    assert env.call_tool("fine").text == "fine"


@pytest.mark.parametrize("raises", [ToolError("See /etc/hosts:\n  no."), Refusal("Not for you.")])
@pytest.mark.parametrize("tool", ["now", "later"])
def test_the_words_of_a_tool_error_reach_the_agent_as_they_are(raises: ToolError, tool: str) -> None:
    failure = failure_of(Failing(raises), tool)
    assert failure == ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=str(raises))


def test_a_tool_error_without_words_says_that_the_tool_failed() -> None:
    assert failure_of(Failing(ToolError()), "now").message == "The tool failed."


def test_the_tool_s_own_words_reach_the_agent_without_paths() -> None:
    error = ValueError("cannot open\n  /home/someone/secret.txt or C:\\Users\\x\\y.txt, try https://example.com/a/b")
    message = failure_of(Failing(error), "now").message
    assert INCIDENT.sub("", message) == ("ValueError: cannot open <path> or <path>, try https://example.com/a/b ")


def test_long_words_are_cut() -> None:
    assert len(failure_of(Failing(ValueError("x" * 100_000)), "now").message) < 2_100


@pytest.mark.parametrize("mode", Mode)
def test_in_production_the_words_of_an_exception_stay_in_the_log(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    env = Failing(ValueError("secret"))
    env._execution.mode = mode
    with caplog.at_level(logging.ERROR, "mcpenv"):
        message = failure_of(env, "now").message
    incident = INCIDENT.search(message)
    assert incident is not None
    assert (
        message == f"{'ValueError: secret' if mode is Mode.SIMULATION else 'The tool failed'} (incident {incident[1]})"
    )
    (record,) = caplog.records
    assert incident[1] in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_of_a_group_with_one_error_the_agent_reads_that_error() -> None:
    from mcpenv.failures import own_words

    one = ExceptionGroup("unhandled errors in a TaskGroup", [LookupError("no such table: tools")])
    assert own_words(ExceptionGroup("outer", [one])) == "LookupError: no such table: tools"
    assert own_words(ExceptionGroup("both", [one, ValueError("x")])) == "ExceptionGroup: both (2 sub-exceptions)"


def test_of_an_os_error_only_the_reason_reaches_the_agent() -> None:
    env = MCPEnvironment()

    @env.tool
    def read() -> str:
        """Read a file that is not there."""
        with open("no/such/secret/file") as file:
            return file.read()

    message = failure_of(env, "read").message
    assert message.startswith("FileNotFoundError: No such file or directory (incident")


def test_invariant_8_errors_are_sorted_by_type_and_never_by_their_text() -> None:
    texts = [
        "Unknown tool: 'now'",
        "invalid arguments",
        "1 validation error for call[now]",
        "timeout",
        "Field required",
    ]
    for text in texts:
        for error in (ToolError(text), ValueError(text)):
            assert failure_of(Failing(error), "now").error_type is ToolErrorType.EXECUTION_ERROR


def test_invariant_8_a_validation_error_of_the_tool_s_own_is_no_invalid_argument() -> None:
    class Item(BaseModel):
        size: int

    env = MCPEnvironment()

    @env.tool
    def weigh(text: str) -> int:
        """Weigh."""
        return Item.model_validate({"size": text}).size

    assert failure_of(env, "weigh", text="x").error_type is ToolErrorType.EXECUTION_ERROR
    assert failure_of(env, "weigh", text=3).error_type is ToolErrorType.INVALID_ARGS


def refuse(value: str) -> str:
    raise ValueError("not this one")


def crash(value: str) -> str:
    raise KeyError("a mistake of the validator")


class Checked(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def check(cls, text: str) -> str:
        return refuse(text)


@pytest.mark.parametrize("hint", [Annotated[str, AfterValidator(refuse)], Annotated[str, BeforeValidator(refuse)]])
def test_what_a_validator_refuses_is_an_invalid_argument(hint: Any) -> None:
    env = MCPEnvironment()

    def take(text: hint) -> str:
        """Take."""
        return str(text)

    take.__annotations__["text"] = hint
    env.tool(take)
    failure = failure_of(env, "take", text="x")
    assert (
        failure.error_type is ToolErrorType.INVALID_ARGS
        and failure.message == "take: invalid arguments: text: not this one"
    )


def test_what_a_model_s_validator_refuses_is_an_invalid_argument() -> None:
    env = MCPEnvironment()

    @env.tool
    def take(checked: Checked) -> str:
        """Take."""
        return checked.text

    failure = failure_of(env, "take", checked={"text": "x"})
    assert failure.error_type is ToolErrorType.INVALID_ARGS and "checked.text" in failure.message


def test_a_validator_that_crashes_is_an_execution_error_and_the_episode_goes_on() -> None:
    env = MCPEnvironment()

    def take(text: Any) -> str:
        """Take."""
        return str(text)

    take.__annotations__["text"] = Annotated[str, AfterValidator(crash)]
    env.tool(take)
    for _ in range(2):
        assert failure_of(env, "take", text="x").error_type is ToolErrorType.EXECUTION_ERROR
    assert env.step_count == 2


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = ""
    number: int = 0


class Area(BaseModel):
    model_config = ConfigDict(extra="forbid")

    corners: list[Place] = []


@with_config(ConfigDict(extra="forbid"))
class Note(TypedDict, total=False):
    text: str


@with_config(ConfigDict(extra="forbid"))
@dataclasses.dataclass
class Coat:
    colour: str = "red"


def look(
    at: Place | Area | None = None,
    named: dict[str, Place] | None = None,
    pair: tuple[int, Place] | None = None,
    note: Note | None = None,
    coat: Coat | None = None,
) -> str:
    """Look."""
    return f"{at} {named} {pair} {note} {coat}"


PARAMETERS = "The parameters are: at, named, pair, note, coat"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"att": 1}, f"att: Unexpected keyword argument. Did you mean 'at'? {PARAMETERS}"),
        ({"": 1}, f"'': Unexpected keyword argument. {PARAMETERS}"),
        ({"one\ntwo\x1b": 1}, rf"'one\ntwo\x1b': Unexpected keyword argument. {PARAMETERS}"),
        ({"x" * 300: 1}, f"{'x' * 100}: Unexpected keyword argument. {PARAMETERS}"),
        (
            {"at": {"naem": ""}},
            "at.Place.naem: Extra inputs are not permitted; at.Area.naem: Extra inputs are not permitted. "
            "Did you mean 'name'? The fields of at.Place are: name, number. The fields of at.Area are: corners",
        ),
        (
            {"named": {"a": {"": 1}, "b": {"": 1}}},
            "named.a.'': Extra inputs are not permitted; named.b.'': Extra inputs are not permitted. "
            "The fields of named.a are: name, number",
        ),
        (
            {"pair": [1, {"nummer": 2}]},
            "pair.1.nummer: Extra inputs are not permitted. Did you mean 'number'? "
            "The fields of pair.1 are: name, number",
        ),
        (
            {"note": {"test": ""}},
            "note.test: Extra inputs are not permitted. Did you mean 'text'? The fields of note are: text",
        ),
        (
            {"coat": {"color": ""}},
            "coat.color: Unexpected keyword argument. Did you mean 'colour'? The fields of coat are: colour",
        ),
    ],
)
def test_unknown_arguments_and_fields_are_named_on_one_line_with_those_that_exist(
    arguments: dict[str, Any], message: str
) -> None:
    env = MCPEnvironment()
    env.tool(look)
    assert env.call_tool("look", arguments).text == f"look: invalid arguments: {message}"


def test_an_error_of_pydantic_in_a_tool_is_told_without_values_and_without_pydantic_s_own_words() -> None:
    env = MCPEnvironment()

    class Checked(BaseModel):
        text: Annotated[str, AfterValidator(refuse)]

    @env.tool
    def take(text: str) -> str:
        """Take."""
        return Checked(text=text).text

    assert failure_of(env, "take", text="secret").message.startswith("ValidationError: text: not this one (incident ")


def test_invalid_arguments_say_nothing_of_the_values() -> None:
    env = MCPEnvironment()

    @env.tool
    def login(token: int) -> str:
        """Log in."""
        return str(token)

    failure = failure_of(env, "login", token="secret")
    assert failure.error_type is ToolErrorType.INVALID_ARGS and "secret" not in failure.message


def test_a_dependency_that_fails_is_a_failure_of_the_tool() -> None:
    env = MCPEnvironment()

    def connection() -> str:
        raise LookupError("no database")

    @env.tool
    def query(database: str = Depends(connection)) -> str:
        """Query."""
        return database

    failure = failure_of(env, "query")
    assert failure.error_type is ToolErrorType.EXECUTION_ERROR and INCIDENT.search(failure.message)


def test_a_tool_that_fails_with_injected_parameters_fails_in_its_own_words() -> None:
    env = MCPEnvironment()

    def connection() -> str:
        return "connection"

    @env.tool
    def query(database: str = Depends(connection)) -> str:
        """Query."""
        raise ToolError("No such table.")

    assert failure_of(env, "query").message == "No such table."


STAGES = ["reset", "score", "act", "state", "close"]
ODD = [ValueError("secret"), SystemExit(2), StopIteration(), Unprintable()]


@pytest.mark.parametrize("raises", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("stage", STAGES)
def test_whatever_other_code_of_the_author_raises_is_an_execution_error(
    stage: str, how: str, raises: BaseException
) -> None:
    def sync(*args: Any, **kwargs: Any) -> Any:
        raise raises

    async def later(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        raise raises

    if stage == "state" and how == "async":
        pytest.skip("state is a property")
    body: Any = sync if how == "sync" else later

    class Go(Action):
        type: Literal["go"] = "go"

    env: Any = type("Env", (Failing,), {stage: property(body) if stage == "state" else body, "action_types": (Go,)})(
        ValueError()
    )
    calls: dict[str, Callable[[], Any]] = {
        "reset": env.reset,
        "score": lambda: env.call_tool("fine"),
        "act": lambda: env.step(Go()),
        "state": lambda: env._execution.blocking.run(env._execution.read_state()),
        "close": env.close,
    }
    with pytest.raises(ExecutionError) as raised:
        calls[stage]()
    assert "secret" not in str(raised.value) and raised.value.incident is not None
    cause = raised.value.__cause__
    assert cause is raises or (isinstance(raises, StopIteration) and isinstance(cause, RuntimeError))


def test_the_log_has_the_traceback_of_an_error_of_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    class Env(Failing):
        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            return 1 / 0

    with caplog.at_level(logging.ERROR, "mcpenv"), pytest.raises(ExecutionError) as raised:
        Env(ValueError()).call_tool("fine")
    (record,) = caplog.records
    assert raised.value.incident is not None and raised.value.incident in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ZeroDivisionError)
    assert raised.value.data["stage"] == "score"


@pytest.mark.parametrize(
    "text",
    [
        "file:///srv/data/secret.db gone",
        "err:/srv/x/secret.pem:12",
        "open '/srv/my data/secret key.pem' failed",
        "see ~/secret/key.pem",
        r"\\host\share\secret.txt",
        r"C:\Users\me\secret.txt",
        "path=/srv/secret/place, done",
    ],
)
def test_invariant_8_no_form_of_a_path_is_read_by_an_agent(text: str) -> None:
    from mcpenv.failures import own_words

    said = own_words(ValueError(text))
    assert "secret" not in said
    assert "<path>" in said


@pytest.mark.parametrize("text", ["/" * 50_000 + '"', "'/" * 500_000, "/a" * 500_000, "~/a" * 500_000])
def test_paths_are_found_in_linear_time_whatever_an_agent_writes(text: str) -> None:
    from mcpenv.failures import own_words

    began = time.monotonic()
    assert own_words(KeyError(text)).startswith("KeyError: ")
    assert time.monotonic() - began < 5  # quadratic: 15 s for the first text


@pytest.mark.parametrize("text", ["http://example.com/a/b", "a/b/c", "1/2 of it", "and/or"])
def test_what_is_no_path_of_this_machine_stays(text: str) -> None:
    from mcpenv.failures import own_words

    assert own_words(ValueError(text)) == f"ValueError: {text}"


class Broken(MCPEnvironment):
    """An environment whose reset and verify raise."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

        @self.tool
        def fine() -> str:
            """Do not raise."""
            return "fine"

    def _fail(self) -> None:
        raise LookupError("no table 'orders'")

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        if self.stage == "reset":
            self._fail()

    def verify(self, evidence: Any) -> float:
        self._fail()
        return 0.0


@pytest.mark.parametrize("stage", ["reset", "verify"])
def test_in_process_a_failed_stage_ends_with_the_text_file_and_line_of_the_cause(stage: str) -> None:
    env = Broken(stage)
    with pytest.raises(ExecutionError) as raised:
        env.reset()
        env.end()
    env.close()
    line = Broken._fail.__code__.co_firstlineno + 1
    last = traceback.format_exception(raised.value)[-1].strip()
    assert last.endswith(f"test_failures.py:{line})") and last.startswith("LookupError: no table 'orders' (")
    assert "orders" not in str(raised.value)
