"""Conditions for episodes: a small language, its parser, and the rows that it speaks of.

    return < 0.2 and tool("transfer") and not (seed > 5 or agent = "codex")

The command line and the console use this parser. The grammar, loosest first: ``or``, ``and``, ``not``, then a
comparison, ``tool("name")``, ``caller("name")``, ``tag("name")``, ``text("words")``, a text alone (the same as
``text``), or parentheses.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal, NoReturn

from mcpenv.trajectories.episode import RecordedEpisode, name_of_agent
from mcpenv.trajectories.summary import named_task_of, summary_of
from mcpenv_client.fingerprint import canonical
from mcpenv_client.scores import equal, reaches
from mcpenv_client.types.records import StepRecord, Trajectory

from .reviews import Review, facts_of

MAX_LENGTH, MAX_DEPTH = 8_000, 50
"""Maximum characters of an expression, and maximum levels of parentheses and ``not``."""

MAX_DIGITS, MAX_TEXTS, MAX_VALUES = 40, 10, 200
"""Maximum digits of a whole number, texts that are searched for, and values of one `in`."""

Kind = Literal["number", "text", "time"]

FIELDS: dict[str, tuple[Kind, str]] = {
    "id": ("text", "id"),
    "task": ("text", "task_id"),
    "split": ("text", "split"),
    "level": ("number", "level"),
    "family": ("text", "family"),
    "environment": ("text", "environment"),
    "agent": ("text", "agent"),
    "model": ("text", "model"),
    "status": ("text", "status"),
    "ending": ("text", "ending"),
    "fault": ("text", "fault"),
    "return": ("number", "return"),
    "steps": ("number", "n_steps"),
    "errors": ("number", "errors"),
    "seed": ("number", "seed"),
    "parent": ("text", "parent"),
    "parent_step": ("number", "parent_step"),
    "policy_version": ("number", "policy_version"),
    "verified": ("number", "verified"),
    "started": ("time", "started_at"),
    "rating": ("number", "rating"),
    "note": ("text", "note"),
}
"""The kind of each field, and its key in a row."""

FUNCTIONS = ("tool", "caller", "tag", "text")
_TEXT = "a text in quotes"
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "=": operator.eq, "<": operator.lt, ">": operator.gt,
    "~": lambda value, wanted: wanted.casefold() in value.casefold(),
}  # fmt: skip
_RETURNS: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda value, wanted: reaches(wanted, value),
    ">=": reaches,
    "!=": lambda value, wanted: not equal(value, wanted),
    "=": equal,
    "<": lambda value, wanted: not reaches(value, wanted),
    ">": lambda value, wanted: not reaches(wanted, value),
}
"""Sums of rewards are compared but for rounding, as everywhere."""

_HINTS = {
    "=": "equal",
    "!=": "not equal",
    "<": "less",
    "<=": "at most",
    ">": "more",
    ">=": "at least",
    "~": "contains, in any case",
}
MAX_WORDS = 12
"""Maximum words that a completion offers."""

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<time>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?)
    | (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
    | (?P<word>[A-Za-z_][\w.-]*)
    | (?P<operator><=|>=|!=|=|<|>|~|\(|\)|,)
    )""",
    re.VERBOSE,
)
_UNFINISHED = re.compile(r"""\s*(?P<string>["'](?:[^"\\]|\\.)*)$""")

Row = Mapping[str, Any]
Searched = Callable[[str], bool | None]
"""Return if the episode contains a text, ignoring case; None: unknown so far."""


class WhereError(ValueError):
    """A condition that cannot be read.

    Attributes:
        position: the place of the fault in the text, in characters from 0.
        expected: the things that may stand there, such as ``an operator`` or ``")"``.
    """

    def __init__(self, text: str, position: int, expected: Sequence[str], found: str | None = None) -> None:
        self.position = position
        self.expected = list(dict.fromkeys(expected))
        wanted = ", ".join(self.expected[:-1]) + (" or " if self.expected[1:] else "") + self.expected[-1]
        rest = text[position:].split()
        found = found or (f"found {rest[0][:40]!r}" if rest else "found the end")
        super().__init__(f"column {position + 1}: expected {wanted}, {found}")


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of a field. A missing value fits only ``= none`` and ``!=``."""

    field: str
    operator: str
    value: float | str | None

    def holds(self, row: Row, searched: Searched) -> bool:
        """Return True if it holds for a row."""
        value = row.get(FIELDS[self.field][1])
        if value is None or self.value is None:
            return (value is self.value) == (self.operator == "=") if self.operator in ("=", "!=") else False
        if self.field in ("return", "verified") and not isinstance(self.value, str):
            return _RETURNS[self.operator](value, self.value)
        if self.field == "task" and value != self.value and str(self.value).startswith(f"{row['split']}/"):
            value = f"{row['split']}/{value}"  # a task may be named with its split
        return OPERATORS[self.operator](value, self.value)

    def __str__(self) -> str:
        return f"{self.field} {self.operator} {_written(self.field, self.value)}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field that has one of several values."""

    field: str
    values: tuple[float | str | None, ...]

    def holds(self, row: Row, searched: Searched) -> bool:
        """Return True if it holds for a row."""
        if self.field in ("return", "verified"):
            return any(Compare(self.field, "=", value).holds(row, searched) for value in self.values)
        value = row.get(FIELDS[self.field][1])
        return value in self.values or (self.field == "task" and f"{row['split']}/{value}" in self.values)

    def __str__(self) -> str:
        return f"{self.field} in ({', '.join(_written(self.field, value) for value in self.values)})"


@dataclass(frozen=True, slots=True)
class Has:
    """An episode with a called tool, a caller, a tag of its task, or a text anywhere in it."""

    what: str
    name: str

    def holds(self, row: Row, searched: Searched) -> bool | None:
        """Return True if it holds for a row; None if the text was not searched so far."""
        if self.what == "text":
            return searched(self.name)
        if self.what == "caller":  # "person" is also "person Ann"
            return any(f"{caller} ".startswith(f"{self.name} ") for caller in row["callers"])
        return self.name in (row["tools"] if self.what == "tool" else [*row["tags"], *row["review_tags"]])

    def __str__(self) -> str:
        return f"{self.what}({quoted(self.name)})"


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a condition."""

    inner: Condition

    def holds(self, row: Row, searched: Searched) -> bool | None:
        """Return True if the inner one does not hold; None if that is unknown."""
        held = self.inner.holds(row, searched)
        return None if held is None else not held

    def __str__(self) -> str:
        return f"not ({self.inner})"


@dataclass(frozen=True, slots=True)
class All:
    """Conditions that must all hold."""

    parts: tuple[Condition, ...]

    def holds(self, row: Row, searched: Searched) -> bool | None:
        """Return True if all hold, False if one does not; None if that is unknown."""
        known: bool | None = True
        for part in self.parts:
            held = part.holds(row, searched)
            if held is False:
                return False
            known = None if held is None else known
        return known

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Either) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Either:
    """Conditions of which one must hold."""

    parts: tuple[Condition, ...]

    def holds(self, row: Row, searched: Searched) -> bool | None:
        """Return True if one holds, False if none does; None if that is unknown."""
        known: bool | None = False
        for part in self.parts:
            held = part.holds(row, searched)
            if held is True:
                return True
            known = None if held is None else known
        return known

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


Condition = Compare | OneOf | Has | Not | All | Either
EVERYTHING = All(())
"""The condition that all episodes fit."""


def row_of(episode: RecordedEpisode, reviews: Sequence[Review] = ()) -> dict[str, Any]:
    """Return an episode as a row: `summary_of` and, beside it, what conditions speak of.

    ``agent`` is what names the agent (`name_of_agent`), ``tools`` the names of called tools, ``errors`` the number
    of calls that failed, ``callers`` the named callers of steps, ``calls`` the name, the calls and the failed calls of
    each tool, ``verified`` the value of the verification, ``calls_digest`` a hash of task, seed and calls (None without
    all calls), ``model`` and ``policy_version`` those of the model's last known turn; None if no proxy recorded them.
    ``parent`` and ``parent_step`` are the episode that a fork or branch continues, and the steps in common. Fields of
    reviews are those of `facts_of`.
    """
    origin = episode.trajectory.forked_from
    trajectory, agent, turns = episode.trajectory, episode.agent or {}, episode.model_turns or ()
    calls = _calls_of(trajectory.steps)
    return {
        **summary_of(episode),
        "agent": name_of_agent(agent),
        "model": next((turn.model for turn in reversed(turns) if turn.model), agent.get("model")),
        "policy_version": next((known for turn in reversed(turns) if (known := turn.policy_version) is not None), None),
        "verified": None if trajectory.verified is None else trajectory.verified.value,
        "tools": [name for name, _, _ in calls],
        "calls": calls,
        "callers": sorted({step.call.principal for step in trajectory.steps if step.call.principal is not None}),
        "calls_digest": _digest_of_calls(trajectory),
        "errors": sum(bad for _, _, bad in calls),
        "parent": None if origin is None else origin.episode_id,
        "parent_step": None if origin is None else origin.step,
        **facts_of(reviews),
    }


def _calls_of(steps: Sequence[StepRecord]) -> Sequence[tuple[str, int, int]]:
    counts: dict[str, list[int]] = {}
    for step in steps:
        count = counts.setdefault(step.call.name, [0, 0])
        count[0] += 1
        count[1] += failed(step)
    return _kept(tuple((name, calls, bad) for name, (calls, bad) in sorted(counts.items())))


@functools.lru_cache(10_000)
def _kept(calls: tuple[tuple[str, int, int], ...]) -> tuple[tuple[str, int, int], ...]:
    """Return equal tuples as one object: many of the rows in memory have equal ones."""
    return calls


def _digest_of_calls(trajectory: Trajectory) -> str | None:
    if trajectory.dropped or not trajectory.steps:
        return None
    calls = [[step.call.name, step.call.arguments] for step in trajectory.steps]
    text = canonical({"task": named_task_of(trajectory), "seed": trajectory.seed, "calls": calls})
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def failed(step: StepRecord) -> bool:
    """Return True if a call failed, or its tool marked the result as an error."""
    return step.outcome.error is not None or (step.outcome.result is not None and step.outcome.result.is_error)


def parse(text: str) -> Condition:
    """Return the condition of a text; the one that all episodes fit for an empty text.

    Raises:
        WhereError: the text is no condition.
    """
    if not text.strip():
        return EVERYTHING
    parser = _Parser(text)
    found = parser.either(0)
    parser.end()
    if len(texts_of(found)) > MAX_TEXTS:
        raise WhereError(text, 0, [f"at most {MAX_TEXTS} texts to search for"], "found more")
    return found


def texts_of(condition: Condition) -> set[str]:
    """Return the texts that a condition searches for."""
    match condition:
        case Has("text", name):
            return {name}
        case Not(inner):
            return texts_of(inner)
        case All(parts) | Either(parts):
            return set().union(*map(texts_of, parts))
    return set()


def parts_of(condition: Condition) -> dict[str, str]:
    """Return a condition as the parts that charts set, each as text: bounds, tasks, and the rest; empty without it.

    Returns:
        ``return_from``, ``return_below``, ``steps_from``, ``steps_below`` (numbers), ``tasks``, and ``rest``. Together
        they are the condition: of several bounds, the narrowest.
    """
    parts = condition.parts if isinstance(condition, All) else (condition,)
    bounds: dict[str, float] = {}
    tasks, rest = "", []
    for part in parts:
        match part:
            case Compare("return" | "steps" as field, ">=", int() | float() as value):
                name = f"{field}_from"
                bounds[name] = max(value, bounds.get(name, value))
            case Compare("return" | "steps" as field, "<", int() | float() as value):
                name = f"{field}_below"
                bounds[name] = min(value, bounds.get(name, value))
            case OneOf("task", _) if not tasks:
                tasks = str(part)
            case _:
                rest.append(f"({part})" if isinstance(part, Either) else str(part))
    found = {f"{field}_{side}": "" for field in ("return", "steps") for side in ("from", "below")}
    found |= {name: repr(value) for name, value in bounds.items()}
    return {**found, "tasks": tasks, "rest": " and ".join(rest)}


def forms_of(text: str) -> set[str]:
    """Return the forms, in lower case, that a text may have in a line of a record: as it is, and escaped as in JSON."""
    return {text.casefold(), json.dumps(text, ensure_ascii=False)[1:-1].casefold()}


def signs_of(field: str) -> Sequence[str]:
    """Return the operators of a field."""
    return ("=", "!=", "~") if FIELDS[field][0] == "text" else ("=", "!=", "<", "<=", ">", ">=")


def completed(text: str) -> tuple[int, list[str], str | None]:
    """Return what may stand at the end of a text that is being written.

    Returns:
        The position where the last unfinished token begins; what may stand there: words, and ``a value``; and, if a
        value may, the field or function that it is for.
    """
    tokens = _tokens(text, unfinished=True)
    start = len(text)
    if tokens and tokens[-1].kind in ("word", "string", "number", "time") and tokens[-1].end == len(text):
        start = tokens[-1].start
    parser = _Parser(text[:start])
    try:
        parser.either(0)
        parser.end()
    except WhereError as error:
        if error.position < len(text[:start].rstrip()):
            return start, [], None
    return start, list(dict.fromkeys(parser.tried)), parser.subject


def words_of(begun: str, expected: Sequence[str], subject: str | None, rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return at most `MAX_WORDS` completions as ``text``, what is to be written, and ``hint``, what it is.

    Args:
        begun: the beginning of the word; those that begin with it are first, then those that contain it.
        expected, subject: as `completed` returns them.
        rows: the rows whose values are offered, the most frequent first.
    """
    words: list[dict[str, str]] = []
    for each in expected:
        if each == "a field":
            words += [{"text": name, "hint": kind} for name, (kind, _) in FIELDS.items()]
        elif each == "a function":
            words += [{"text": f"{name}(", "hint": f'{name}("...")'} for name in FUNCTIONS]
        elif each == "an operator":
            signs = signs_of(subject or "return")
            words += [{"text": sign, "hint": _HINTS[sign]} for sign in signs]
        elif each == _TEXT and subject is not None:
            key = f"{subject}s" if subject in FUNCTIONS else FIELDS[subject][1]
            seen = Counter(value for row in rows for value in _texts(row.get(key)))
            words += [{"text": quoted(text), "hint": f"{count:,}"} for text, count in seen.most_common()]
        elif each in ("and", "or", "not", "in", "none", "(", ")", ","):
            words.append({"text": each, "hint": ""})
    begun = begun.strip("\"'").casefold()
    fitting = [(at, word) for word in words if (at := word["text"].strip('"').casefold().find(begun)) >= 0]
    fitting.sort(key=lambda pair: pair[0] > 0)
    return [word for _, word in fitting[:MAX_WORDS]]


def _texts(value: Any) -> Sequence[str]:
    return value if isinstance(value, list) else () if value is None else (str(value),)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def _tokens(text: str, unfinished: bool = False) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    if len(text) > MAX_LENGTH:
        raise WhereError(text, MAX_LENGTH, [f"at most {MAX_LENGTH} characters"], "found more")
    while text[at:].strip():
        match = _TOKEN.match(text, at) or (_UNFINISHED.match(text, at) if unfinished else None)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            found.append(_Token("unknown", text[start:], start, len(text)))
            break
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind), match.end()))
        at = match.end()
    return found


class _Parser:
    """A recursive descent over the tokens.

    Attributes:
        tried: the things that may stand at the token that is next.
        subject: the field or function for which a value may stand there.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), _Token("end", "", len(text), len(text))]
        self._at = 0
        self.tried: list[str] = []
        self.subject: str | None = None

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, name: str, kind: str, *texts: str) -> str | None:
        """Take the next token if it is of a kind and, if some are given, one of these texts."""
        token = self._next
        if token.kind == kind and (not texts or token.text in texts):
            self._at += 1
            self.tried, self.subject = [], None
            return token.text
        self.tried.append(name)
        return None

    def _refuse(self, found: str | None = None, at: int | None = None) -> NoReturn:
        raise WhereError(self._text, self._next.start if at is None else at, self.tried, found)

    def _need(self, name: str, kind: str, *texts: str) -> str:
        found = self._accept(name, kind, *texts)
        return self._refuse() if found is None else found

    def end(self) -> None:
        """Refuse further tokens."""
        if self._next.kind != "end":
            self._refuse()

    def either(self, depth: int) -> Condition:
        """Read conditions with ``or`` between them."""
        parts = [self._all(depth)]
        while self._accept("or", "word", "or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _all(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._accept("and", "word", "and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            self.tried = [f"at most {MAX_DEPTH} levels"]
            self._refuse("found more")
        if self._accept("not", "word", "not"):
            return Not(self._one(depth + 1))
        if self._accept("(", "operator", "("):
            inner = self.either(depth + 1)
            self._need(")", "operator", ")")
            return inner
        string = self._accept(_TEXT, "string")
        if string is not None:
            return Has("text", _unquoted(string))
        function = self._accept("a function", "word", *FUNCTIONS)
        if function is not None:
            self._need("(", "operator", "(")
            self.subject = function
            name = _unquoted(self._need(_TEXT, "string"))
            self._need(")", "operator", ")")
            return Has(function, name)
        field = self._accept("a field", "word", *FIELDS)
        if field is not None:
            return self._compared(field)
        near = get_close_matches(self._next.text, [*FIELDS, *FUNCTIONS], 1)
        return self._refuse(f"found {self._next.text!r} (did you mean {near[0]!r}?)" if near else None)

    def _compared(self, field: str) -> Condition:
        if self._accept("in", "word", "in"):
            self._need("(", "operator", "(")
            values = [self._value(field)]
            while self._accept(",", "operator", ","):
                values.append(self._value(field))
                if len(values) > MAX_VALUES:
                    raise WhereError(self._text, self._next.start, [f"at most {MAX_VALUES} values"], "found more")
            self._need(")", "operator", ")")
            return OneOf(field, tuple(values))
        self.subject = field
        sign = self._need("an operator", "operator", *signs_of(field))
        return Compare(field, sign, self._value(field, none=sign in ("=", "!=")))

    def _value(self, field: str, none: bool = True) -> float | str | None:
        kind = FIELDS[field][0]
        self.subject = field
        if none and self._accept("none", "word", "none"):
            return None
        self.subject = field
        at = self._next.start
        if kind == "number":
            number = _number(self._need("a number", "number"))
            if number is None:
                self.tried = ["a number"]
                self._refuse("found one that is too large", at)
            return number
        if kind == "text":
            # A word needs no quotes, nor do dates and numbers, which names may look like.
            for each in ("word", "number", "time"):
                if (word := self._accept(_TEXT, each)) is not None:
                    return word
            return _unquoted(self._need(_TEXT, "string"))
        name = "a time such as 2026-11-29 or 2026-11-29T18:00"
        text = self._accept(name, "time") or _unquoted(self._need(name, "string"))
        try:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            datetime.fromtimestamp(seconds, UTC)  # the first and the last day have zones without a time in UTC
        except (OverflowError, ValueError):
            self.tried = [name]
            self._refuse(f"found {text[:40]!r}", at)
        return seconds


def _number(text: str) -> float | None:
    """Return a number; None if it has more digits than JSON's readers take, or is infinite."""
    whole = re.fullmatch(r"-?\d+", text)
    if whole is not None:
        return int(text) if len(text) <= MAX_DIGITS else None
    number = float(text)
    return number if math.isfinite(number) else None


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _written(field: str, value: float | str | None) -> str:
    if value is None:
        return "none"
    if FIELDS[field][0] == "time":
        assert not isinstance(value, str)
        return datetime.fromtimestamp(value, UTC).isoformat()
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """Return a text as it stands in an expression."""
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
