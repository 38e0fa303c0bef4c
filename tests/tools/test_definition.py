# Without `from __future__ import annotations`: hints here are objects; tests/environments.py has them as text.
import enum
import functools
import gc
import textwrap
import types
import weakref
from typing import Annotated, Any, Literal, Optional

import pytest
from environments import EverythingEnvironment
from fastmcp.dependencies import Depends
from pydantic import BaseModel, Field

from mcpenv import Context, InvalidTool, MCPEnvironment, Mode
from mcpenv.tools.definition import DefinitionCache, ToolDefinition
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv_client import Tool, ToolErrorType


class Item(BaseModel):
    name: str


def kind_of(env: MCPEnvironment, name: str) -> ToolDefinition:
    tool = env._execution.tools.by_mode[Mode.SIMULATION].get(name)
    assert tool is not None
    return tool.kind


def data_of(env: MCPEnvironment, tool: str, /, **arguments: Any) -> Any:
    observation: Any = env.call_tool(tool, arguments)
    assert observation.error is None, observation.text
    return observation.result.data


def schema_of(env: MCPEnvironment, name: str) -> dict[str, Any]:
    return next(tool.input_schema for tool in env.list_tools() if tool.name == name)


def test_instances_that_define_a_tool_alike_share_its_kind() -> None:
    one, other = EverythingEnvironment(), EverythingEnvironment()
    names = [tool.name for tool in one.list_tools()]
    anew = [name for name in names if kind_of(one, name) is not kind_of(other, name)]
    assert anew == []


def test_a_shared_kind_calls_each_instance_its_own_function() -> None:
    class Env(MCPEnvironment):
        def __init__(self, factor: int) -> None:
            self.factor = factor

            @self.tool
            def closure(value: int) -> int:
                """Multiply."""
                return value * factor

            self.tool(self.method)
            self.tool(functools.partial(multiply, factor), name="bound")

        def method(self, value: int) -> int:
            """Multiply."""
            return value * self.factor

    envs = [Env(factor) for factor in (2, 3, 5)]
    for _ in range(2):
        for env in envs:
            assert {data_of(env, name, value=7) for name in ("closure", "method", "bound")} == {7 * env.factor}
    for name in ("closure", "method", "bound"):
        assert len({id(kind_of(env, name)) for env in envs}) == 1


def multiply(factor: int, value: int) -> int:
    """Multiply."""
    return factor * value


class Suit(enum.Enum):
    HEARTS = "hearts"


def made(kind: str, variant: int) -> Any:
    """A function whose code is always the same, but for what ``kind`` says differs."""
    hint: Any = int
    default: Any = 1
    doc = "Do it."
    if kind == "literal":
        hint = Literal["a", "b"] if variant else Literal["a", "c"]
        default = "a"
    elif kind == "literal types":
        hint, default = (Literal[1], 1) if variant else (Literal[True], True)
    elif kind == "annotated":
        hint = Annotated[int, Field(ge=variant)]
    elif kind == "description":
        hint = Annotated[int, Field(description=str(variant))]
    elif kind == "default":
        default = variant
    elif kind == "default types":
        default = 1 if variant else True
    elif kind == "doc":
        doc = f"Do it {variant} times."
    elif kind == "model":
        hint = type("Item", (BaseModel,), {"__annotations__": {f"field_{variant}": int}})
        default = None
    elif kind == "enum":
        hint, default = enum.Enum("Suit", {"A": variant}), None
    elif kind == "union":
        hint = Optional[int] if variant else int  # noqa: UP045

    def tool(value: hint = default) -> str:
        return repr(value)

    tool.__doc__ = doc
    return tool


@pytest.mark.parametrize(
    "kind",
    [
        "literal",
        "literal types",
        "annotated",
        "description",
        "default",
        "default types",
        "doc",
        "model",
        "enum",
        "union",
    ],
)
def test_instances_whose_tools_differ_never_share_a_kind(kind: str) -> None:
    class Env(MCPEnvironment):
        def __init__(self, variant: int) -> None:
            self.tool(made(kind, variant))

    one, other, again = Env(1), Env(0), Env(1)
    assert kind_of(one, "tool") is not kind_of(other, "tool")
    listed = [env.list_tools()[0].model_dump_json() for env in (one, other, again)]
    assert listed[0] != listed[1] and listed[0] == listed[2]


@pytest.mark.parametrize("kind", ["plain", "literal", "annotated", "default", "doc", "union"])
def test_instances_whose_tools_are_made_alike_share_a_kind(kind: str) -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(made(kind, 1))

    assert kind_of(Env(), "tool") is kind_of(Env(), "tool")


def test_options_are_part_of_the_kind() -> None:
    class Env(MCPEnvironment):
        def __init__(self, **options: Any) -> None:
            @self.tool(**options)
            def tool() -> int:
                """Do it."""
                return 1

    for options in ({"title": "T"}, {"timeout_s": 2}, {"terminal": True}, {"annotations": {"readOnlyHint": True}}):
        plain, one, other = Env(), Env(**options), Env(**options)
        assert kind_of(plain, "tool") is not kind_of(one, "tool")
        assert kind_of(one, "tool") is kind_of(other, "tool")


def test_two_functions_of_one_name_are_two_kinds() -> None:
    class Env(MCPEnvironment):
        def __init__(self, hard: bool) -> None:
            if hard:

                @self.tool
                def play(move: str) -> str:
                    """Play."""
                    return f"hard {move}"
            else:

                @self.tool
                def play(move: int) -> str:  # type: ignore[misc]
                    """Play."""
                    return f"easy {move}"

    hard, easy = Env(True), Env(False)
    assert data_of(hard, "play", move="a") == "hard a" and data_of(easy, "play", move=1) == "easy 1"
    error = easy.call_tool("play", {"move": "a"}).error
    assert error is not None and error.error_type is ToolErrorType.INVALID_ARGS


def test_sync_and_async_functions_with_one_signature_are_two_kinds() -> None:
    class Env(MCPEnvironment):
        def __init__(self, later: bool) -> None:
            def now(text: str) -> str:
                """Give it back."""
                return f"now {text}"

            async def afterwards(text: str) -> str:
                """Give it back."""
                return f"later {text}"

            self.tool(afterwards if later else now, name="give")

    for later in (True, False, True):
        assert data_of(Env(later), "give", text="x") == ("later x" if later else "now x")


def test_a_dependency_made_in_the_constructor_stays_with_its_instance() -> None:
    class Env(MCPEnvironment):
        def __init__(self, name: str) -> None:
            def who() -> str:
                return name

            @self.tool
            async def ask(ctx: Context, name: str = Depends(who)) -> str:
                """Ask who."""
                return name

    one, other = Env("one"), Env("other")
    assert [data_of(env, "ask") for env in (one, other, one)] == ["one", "other", "one"]
    assert kind_of(one, "ask") is not kind_of(other, "ask")


def test_a_dependency_of_the_module_is_shared() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            async def ask(name: str = Depends(a_name)) -> str:
                """Ask who."""
                return name

    assert kind_of(Env(), "ask") is kind_of(Env(), "ask")


def a_name() -> str:
    return "name"


def test_a_method_that_a_subclass_overrides_is_the_subclass_s() -> None:
    class Base(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(self.act_out)

        def act_out(self, text: str) -> str:
            """Base."""
            return f"base {text}"

    class Derived(Base):
        def act_out(self, text: str, loud: bool = False) -> str:
            """Derived."""
            return f"derived {text} {loud}"

    assert data_of(Base(), "act_out", text="x") == "base x"
    assert data_of(Derived(), "act_out", text="x", loud=True) == "derived x True"
    assert "loud" not in schema_of(Base(), "act_out")["properties"]


LATE = textwrap.dedent(
    '''
    from __future__ import annotations
    from typing import Literal
    from pydantic import BaseModel
    from mcpenv import MCPEnvironment

    class Item(BaseModel):
        module_level: str

    class OfModule(MCPEnvironment):
        def __init__(self):
            @self.tool
            def take(item: Item, side: Literal["l", "r"] = "l") -> str:
                """Take."""
                return f"{type(item).__name__} {side}"

    class OfConstructor(MCPEnvironment):
        def __init__(self, values):
            Side = Literal[tuple(values)]

            class Thing(BaseModel):
                local: int

            @self.tool
            def take(thing: Thing, side: Side) -> str:
                """Take."""
                return f"{thing.local} {side}"

    class Shadowed(MCPEnvironment):
        def __init__(self):
            class Item(BaseModel):
                of_the_constructor: str

            @self.tool
            def take(item: Item) -> str:
                """Take."""
                return "taken"
    '''
)


@pytest.fixture(scope="module")
def late() -> types.ModuleType:
    module = types.ModuleType("late")
    exec(compile(LATE, "late.py", "exec"), module.__dict__)
    return module


def test_hints_as_text_are_resolved_with_the_names_of_the_module(late: types.ModuleType) -> None:
    one, other = late.OfModule(), late.OfModule()
    assert data_of(one, "take", item={"module_level": "x"}) == "Item l"
    assert kind_of(one, "take") is kind_of(other, "take")


def test_hints_as_text_are_resolved_with_the_names_of_the_constructor(late: types.ModuleType) -> None:
    envs = [late.OfConstructor(values) for values in (["a"], ["b"], ["a"])]
    for env, side, other in zip(envs, "aba", "bab", strict=True):
        assert data_of(env, "take", thing={"local": 3}, side=side) == f"3 {side}"
        error = env.call_tool("take", {"thing": {"local": 3}, "side": other}).error
        assert error is not None and error.error_type is ToolErrorType.INVALID_ARGS


def test_a_name_of_the_constructor_goes_before_the_module_s(late: types.ModuleType) -> None:
    schema = schema_of(late.Shadowed(), "take")
    assert "of_the_constructor" in str(schema) and "module_level" not in str(schema)


def test_a_module_name_that_changed_is_resolved_anew(late: types.ModuleType) -> None:
    before = late.OfModule()
    old = late.Item
    try:

        class Item(BaseModel):
            changed: int

        late.Item = Item  # type: ignore[attr-defined]
        assert "changed" in str(schema_of(late.OfModule(), "take"))
        assert "changed" not in str(schema_of(before, "take"))
    finally:
        late.Item = old  # type: ignore[attr-defined]


def test_a_quoted_name_inside_of_a_hint_is_found_in_the_constructor() -> None:
    class Env(MCPEnvironment):
        def __init__(self, field: str) -> None:
            thing = type("Thing", (BaseModel,), {"__annotations__": {field: int}})
            names = {"Thing": thing}
            Thing = names["Thing"]

            @self.tool
            def take(things: "list['Thing']") -> int:  # type: ignore[valid-type]
                """Take."""
                return len(things) if Thing else 0

    one, other = Env("one"), Env("other")
    assert data_of(one, "take", things=[{"one": 1}]) == data_of(other, "take", things=[{"other": 1}]) == 1
    assert "other" not in str(schema_of(one, "take"))


def test_a_kind_keeps_no_instance() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(self.method)
            self.tool(functools.partial(self.method, 1), name="bound")

        def method(self, value: int) -> int:
            """Give it back."""
            return value

    env = Env()
    alive = weakref.ref(env)
    assert data_of(env, "method", value=2) == 2 and data_of(env, "bound") == 1
    env.close()
    del env
    gc.collect()
    assert alive() is None


def test_a_kind_of_hints_that_nothing_explains_is_refused() -> None:
    def tool(value: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
        """Do it."""
        return 1

    with pytest.raises(InvalidTool, match="Nowhere"):
        MCPEnvironment().tool(tool)


def test_beyond_its_bound_a_cache_parses_for_the_instance_and_keeps_nothing() -> None:
    class Env(MCPEnvironment):
        def __init__(self, number: int) -> None:
            @self.tool
            def tool(value: Literal[number]) -> int:  # type: ignore[valid-type]
                """Do it."""
                return int(value)

    for number in range(DefinitionCache.MAX_PER_NAME + 3):
        env = Env(number)
        assert data_of(env, "tool", value=number) == number
    assert len(Env._kinds._kinds["tool"]) == DefinitionCache.MAX_PER_NAME


def test_each_class_has_kinds_of_its_own() -> None:
    class One(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(multiply)

    class Other(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(multiply)

    assert kind_of(One(), "multiply") is not kind_of(Other(), "multiply")


def test_a_tool_known_by_its_schemas_has_all_that_a_parsed_one_shows_to_a_step() -> None:
    described = Tool(name="far", description="Far away.", input_schema={"type": "object"}, output_schema=None)
    kind = SchemaTool(described)
    # How it was parsed is asked where it is parsed only.
    shown = {name for name in ToolDefinition.__slots__ if not name.startswith("_")} - {"twin"}
    assert {name for name in shown if not hasattr(kind, name)} == set()
