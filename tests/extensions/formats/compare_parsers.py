"""Compare the reader of text calls with the parsers of vLLM and SGLang, from their unpacked wheels, without torch.

docs/how-to/chat-rollouts.md has the command and what was found. What the parsers import and do not use is a stand-in.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mcpenv_client.formats.text_calls import TextCalls, calls_in
from mcpenv_client.formats.tool_formats import tools_for
from mcpenv_client.types.tools import Tool

ABSENT = ("torch", "xgrammar", "openai_harmony", "cachetools", "prometheus_client", "gguf", "zmq", "uvloop", "cbor2")
OF_VLLM = (
    "sampling_params", "config", "tokenizers", "entrypoints.openai.responses.protocol", "entrypoints.serve",
    "entrypoints.openai.chat_completion.protocol", "entrypoints.generate.base.protocol", "entrypoints.chat_utils",
    "entrypoints.mcp", "renderers", "utils.mistral", "utils.import_utils", "platforms", "logger", "outputs", "v1",
    "inputs", "distributed", "model_executor", "triton_utils",
)  # fmt: skip
BARE = (
    "vllm", "vllm.utils", "vllm.entrypoints", "vllm.entrypoints.openai", "sglang", "sglang.srt", "sglang.utils",
    "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.function_call", "sglang.srt.parser",
)  # fmt: skip
"""Packages whose own ``__init__`` is not run."""

SPECIAL = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>")
MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "on": {"type": "boolean"},
        "data": {"type": "object"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Level"}},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "some": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "level": {"$ref": "#/$defs/Level"},
        "word": {"enum": ["1", "2", "x"]},
        "point": {"$ref": "#/$defs/Point"},
        "label": {"type": "string", "nullable": True},
    },
    "$defs": {"Level": {"enum": [1, 2, None]}, "Point": {"type": "object"}},
}
TAGS = [*SPECIAL, *MARKS, "</function>", "</parameter>", "<parameter=text>", "<function=buy>", '{"name": "buy"}', "};"]
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(
    ["", "a\nb", " a ", "5", "true", "é\u2028😀", "<b>x</b>", "a > b", "'", '"', "\\", "\n", "x\n"]
)
TEXTS = WORDS | st.builds("{}{}{}".format, WORDS, st.sampled_from(TAGS), WORDS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "count": st.integers(-(2**70), 2**70),
        "size": st.floats(allow_nan=False, allow_infinity=False),
        "on": st.booleans(),
        "data": st.dictionaries(st.text("ab", max_size=2), JSON, max_size=2),
        "items": st.lists(st.sampled_from([1, 2, None]), max_size=3),
        "maybe": st.none() | WORDS.filter(lambda word: word != "null"),
        "some": st.none() | st.integers(-5, 5),
        "either": st.integers(0, 9) | st.sampled_from(["x", "a b"]),
        "level": st.sampled_from([1, 2, None]),
        "word": st.sampled_from(["1", "2", "x"]),
        "point": st.dictionaries(st.just("x"), st.integers(0, 3)),
        "label": st.none() | st.sampled_from(["a", "5"]),
    },
)
CALLS = st.lists(st.tuples(st.sampled_from(["buy", "sell"]), ARGUMENTS), max_size=3)
THOUGHTS = st.sampled_from(["", "", "", "closed", "with a call", "open", "end only"])

Calls = list[list[Any]]


class StandIn(type):
    """A class that has every attribute, and stands for any type in annotations and models."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return made(name)

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def made(name: str) -> Any:
    from pydantic_core import core_schema

    def schema(cls: type, *more: Any) -> Any:
        return core_schema.any_schema()

    parts = {"__init__": lambda self, *a, **k: None, "__get_pydantic_core_schema__": classmethod(schema)}
    return StandIn(name, (), parts)


class Module(types.ModuleType):
    """A module in which everything is a stand-in."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, made(name))
        return self.__dict__[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are absent."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        absent = (*ABSENT, *(f"vllm.{part}" for part in OF_VLLM))
        if any(name == each or name.startswith(f"{each}.") for each in absent):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Module:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def prepare(folder: Path) -> None:
    """Make the parsers in a folder of unpacked wheels importable."""
    sys.meta_path.insert(0, Finder())
    for name in BARE:
        package = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    cast(Any, sys.modules["sglang.utils"]).convert_json_schema_to_str = json.dumps
    cast(Any, importlib.import_module("vllm.logger")).init_logger = logging.getLogger
    mistral = cast(Any, importlib.import_module("vllm.utils.mistral"))
    mistral.is_mistral_tokenizer = mistral.is_mistral_tool_parser = lambda given: False
    cast(Any, importlib.import_module("vllm.renderers.chat_utils")).make_tool_call_id = lambda *a, **k: "id"
    messages = cast(Any, importlib.import_module("vllm.entrypoints.generate.base.protocol"))
    for name in ("FunctionCall", "ToolCall", "ExtractedToolCallInformation", "DeltaMessage", "DeltaToolCall"):
        setattr(messages, name, type(name, (Message,), {}))


class Message(types.SimpleNamespace):
    """Stands for vLLM's models of messages, in which what was not given is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Tokenizer:
    """A tokenizer with the special tokens of all forms. Before version 11, Mistral's had no ``[ARGS]``."""

    all_special_tokens = SPECIAL

    def __init__(self, version: int) -> None:
        names = [each for each in (*SPECIAL, *MARKS) if version >= 11 or each not in ("[ARGS]", "[CALL_ID]")]
        self.tokens = {name: 1000 + number for number, name in enumerate(names)}

    def get_vocab(self) -> dict[str, int]:
        return self.tokens

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(map(ord, text))


def of_mcpenv(form: str, text: str) -> Calls:
    tools = tools_for("openai", [Tool(name=name, description="", input_schema=SCHEMA) for name in ("buy", "sell")])
    found = calls_in(text, cast(TextCalls, form.partition(" ")[0]), tools)
    return [[each["name"], each.get("arguments", each.get("parameters"))] for each in found if isinstance(each, dict)]


def of_vllm(form: str, text: str) -> Calls:
    from openai.types.responses.function_tool import FunctionTool

    module, name = {
        "hermes": ("hermes_tool_parser", "Hermes2ProToolParser"),
        "qwen-xml": ("qwen3_engine_tool_parser", "Qwen3EngineToolParser"),
        "llama": ("llama_tool_parser", "Llama3JsonToolParser"),
    }.get(form, ("mistral_tool_parser", "MistralToolParser"))
    parser = getattr(importlib.import_module(f"vllm.tool_parsers.{module}"), name)
    tools = [FunctionTool(type="function", name=name, parameters=SCHEMA, strict=False) for name in ("buy", "sell")]
    request = types.SimpleNamespace(tools=tools, tool_choice="auto", include_reasoning=True)
    told = parser(Tokenizer(3 if form == "mistral list" else 11), tools).extract_tool_calls(text, request)
    return [[call.function.name, json.loads(call.function.arguments)] for call in told.tool_calls]


def of_sglang(form: str, text: str) -> Calls:
    from sglang.srt.entrypoints.openai.protocol import Function, Tool  # type: ignore[import-not-found]

    module, name = {
        "hermes": ("hermes_detector", "HermesDetector"),
        "qwen-xml": ("qwen3_coder_detector", "Qwen3CoderDetector"),
        "llama": ("llama32_detector", "Llama32Detector"),
    }.get(form, ("mistral_detector", "MistralDetector"))
    parser = getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), name)
    tools = [Tool(type="function", function=Function(name=name, parameters=SCHEMA)) for name in ("buy", "sell")]
    return [[call.name, json.loads(call.parameters)] for call in parser().detect_and_parse(text, tools).calls]


def written(form: str, calls: Calls, style: int) -> str:
    """Return calls as the template of a model writes them."""

    def encoded(value: Any) -> str:
        return json.dumps(value, ensure_ascii=style % 2 == 0, indent=2 if style == 3 else None)

    def one(name: str, arguments: dict[str, Any]) -> str:
        if form == "qwen-xml":
            texts = {key: each if isinstance(each, str) else encoded(each) for key, each in arguments.items()}
            parts = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
            return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"
        if form == "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{encoded(arguments)}"
        key = "parameters" if form == "llama" else "arguments"
        call = f'{{"name": "{name}", "{key}": {encoded(arguments)}}}'
        return f"<tool_call>\n{call}\n</tool_call>" if form == "hermes" else call

    between = {"mistral": "", "mistral list": ", ", "llama": "; "}.get(form, "\n")
    text = between.join(one(*call) for call in calls)
    return f"[TOOL_CALLS] [{text}]" if form == "mistral list" and calls else text


def spoken(form: str, thought: str, text: str) -> tuple[str, str]:
    """Return a message with a thought before the calls, and what a parser of thoughts leaves of it."""
    begin, end = MARKS[2:] if form.startswith("mistral") else MARKS[:2]
    inner = written(form, [["sell", {"text": "no"}]], 0)
    before = {
        "": "",
        "closed": f"{begin}hm{end}\n",
        "with a call": f"{begin}I could {inner}{end}\n",
        "open": f"{begin}hm {inner} ",
        "end only": f"I could {inner}{end}\n",
    }[thought]
    return before + text, "" if thought == "open" else text


def compare(form: str, count: int) -> None:
    """Print how often each parser misses what was written, with the shortest message of each kind."""
    missed: Counter[str] = Counter()
    shortest: dict[str, tuple[str, Calls, Any]] = {}

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CALLS, st.integers(0, 3), THOUGHTS, st.none() | st.floats(0, 1))
    def play(calls: Calls, style: int, thought: str, cut: float | None) -> None:
        calls = [list(call) for call in calls]
        text = written(form, calls, style)
        text = text if cut is None or thought else text[: int(cut * len(text))]
        message, left = spoken(form, thought, text)
        right = [] if thought == "open" else calls
        texts = json.dumps([arguments for _, arguments in calls])
        tags = any(json.dumps(tag)[1:-1] in texts for tag in TAGS)
        kind = thought or ("cut" if cut is not None else "whole")
        readers: dict[str, tuple[Callable[[str, str], Calls], str]] = {
            "mcpenv": (of_mcpenv, message),
            "vLLM": (of_vllm, left),
            "SGLang": (of_sglang, left),
        }
        found: dict[str, Any] = {}
        for name, (read, given_text) in readers.items():
            try:
                found[name] = read(form, given_text)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                found[name] = repr(error)
        expected = found["mcpenv"] if kind == "cut" else right
        for name in found:
            if json.dumps(found[name], sort_keys=True) != json.dumps(expected, sort_keys=True):
                key = f"{name}, {kind}{', tags in texts' if tags else ''}"
                missed[key] += 1
                if key not in shortest or len(message) < len(shortest[key][0]):
                    shortest[key] = (message, expected, found[name])

    play()
    print(f"== {form}: {count} messages")
    for key, number in sorted(missed.items()):
        print(f"{number:5} {key}", *(f"\n      {each!r}"[:400] for each in shortest[key]))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    prepare(Path(sys.argv[1]))
    for each in sys.argv[3:] or ("hermes", "qwen-xml", "mistral", "mistral list", "llama"):
        compare(each, int(sys.argv[2]))
