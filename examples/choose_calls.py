"""A tiny policy that chooses tool calls, for `train_grpo.py --env office`: no language model, a CPU, some minutes.

It reads the request, the schemas of the tools and their answers, and nothing else. A call is a chain of choices: the
tool, or to stop, and then a value for each parameter. The choices are words, names, numbers and quoted texts of the
request, values of the answers so far, and values that a schema allows. A network of 139,360 numbers scores them.
"""

import copy
import itertools
import random
import re
import statistics
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

STOP = "stop"
LEFT_OUT = object()
"""The choice of no value for a parameter that may be left out."""

BUCKETS, WIDTH = 2048, 32
MOST_CALLS, MOST_SEEN, MOST_ROWS = 5, 80, 8
"""Maximum calls of an episode, and of an answer's values and rows that can be chosen."""

GROUPS, GROUP, BATCH = 8, 8, 32
RATE, IMITATION_RATE, EPOCHS, CLIP, ENTROPY, MOST_GRADIENT = 3e-3, 3e-3, 3, 0.2, 0.003, 1.0

LEVELS = (1, 2)
FAMILIES = [
    "plan-a-meeting",
    "request-leave",
    "pin-a-message",
    "topic-of-a-channel",
    "open-a-ticket",
    "days-of-leave-left",
    "cancel-leave",
    "file-an-expense",
    "cancel-a-meeting",
    "close-a-ticket",
    "due-with-the-project",
    "label-mails-of-an-account",
]
"""The families of office that are learned, whose right values are always among the options."""
TRAIN_TASKS, TEST_TASKS = 1000, 500
"""The tasks of each split among which those of the families are taken."""

GAMES, ASIDE = 2, 1
"""The solved tasks of each family that are imitated, and those by which the skill is measured."""
SKILL, MOST_EPOCHS = 0.15, 60
"""Imitation ends when all choices of a solution together have this mean probability."""

UPDATES, LOOK_EVERY, LOOKS = 24, 8, 2
"""Updates, and those after which the test tasks are played; before and after, each is played `LOOKS` times."""

_ENTITIES = re.compile(
    r'"(?P<quoted>[^"]+)"|(?P<date>\d{4}-\d\d-\d\d)|(?P<time>\b\d\d:\d\d\b)|(?P<code>\b[A-Z]{1,2}-?\d+\b)'
    r"|(?P<number>\+?\b\d+(?:\.\d+)?\b)|(?P<name>\b[A-Z][a-z]+(?: [A-Z][a-z]+)*)|(?P<word>\b[a-z]+\b)"
)


class Option(NamedTuple):
    """A choice: its value, and the words by which the network knows it."""

    value: Any
    features: tuple[str, ...]


class Choice(NamedTuple):
    """A choice that was made: what it depends on, the features of the options, the place and log of the chosen one."""

    about: tuple[tuple[str, ...], ...]
    options: tuple[tuple[str, ...], ...]
    at: int
    log: float = 0.0


@dataclass
class Desk:
    """The view of the policy: the request, the calls made and what they answered."""

    words: list[str] = field(default_factory=list)
    named: list[Option] = field(default_factory=list)
    seen: list[Option] = field(default_factory=list)
    past: list[str] = field(default_factory=list)

    def read(self, prompt: str) -> None:
        """Read the last paragraph that is a request."""
        request = next(line for line in reversed(prompt.splitlines()) if "canary" not in line)
        kinds: defaultdict[str, int] = defaultdict(int)
        before = ["^", "^"]
        found = list(_ENTITIES.finditer(request))
        for at, match in enumerate(found):
            kind, value = match.lastgroup or "word", match.group(match.lastgroup or 0)
            place = ("request", f"kind {kind}", f"after {before[-1]}", f"after {before[-2]} {before[-1]}")
            values = [value]
            if kind == "name" and " " in value and request[: match.start()].rstrip()[-1:] in ("", ".", ":"):
                values.append(value.partition(" ")[2])  # the first word may only begin a sentence
            if kind == "word" and at + 1 < len(found) and found[at + 1].lastgroup == "word":
                values.append(f"{value} {found[at + 1].group()}")
            for number, each in enumerate(values):
                self.named.append(Option(each, (*place, f"{kind} {kinds[kind]}", f"cut {number}", f"value {each}")))
            kinds[kind] += 1
            shown = value.casefold() if kind in ("word", "name") and " " not in value else f"<{kind}>"
            self.words.append(shown)
            before.append(shown)

    def about(self, place: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Return what a choice depends on: the request, the calls so far, and what is to be chosen."""
        calls = (f"{len(self.past)} calls", f"last {self.past[-1]}" if self.past else "first", *self.past)
        return tuple(self.words), calls, tuple(place)

    def note(self, tool: str, answer: Any) -> None:
        """Remember a call and the values of its answer."""
        rows = answer if isinstance(answer, list) else [answer]
        how_many = "none" if not rows else "one" if len(rows) == 1 else "many"
        self.past.append(f"{tool} found {how_many}" if answer is not None else f"{tool} failed")
        names = {str(option.value).casefold() for option in self.named if "kind word" not in option.features}
        new = []
        for number, row in enumerate(rows[:MOST_ROWS]):
            leaves = list(_leaves(row))
            meant = any(str(value).casefold() in names for _, value in leaves if not isinstance(value, bool))
            for path, value in leaves:
                known = "of the request" if str(value).casefold() in names else "new"
                place = (f"{tool}.{path}", f"field {path}", f"row {number} of {how_many}", f"meant {meant}", known)
                new.append(Option(value, ("seen", *place, f"meant {meant} {tool}.{path}")))
        new.append(Option(len(rows), ("seen", f"{tool} count", f"count of {how_many}")))
        self.seen = (new + self.seen)[:MOST_SEEN]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value[:MOST_ROWS]:
            yield from _leaves(each, path)
    elif value is not None:
        yield path, value


def options_of(desk: Desk, schema: dict[str, Any], required: bool) -> list[Option]:
    """Return the values that a parameter can have."""
    kind = next(each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
    if "enum" in kind:
        said = set(desk.words)
        fitting = [
            Option(value, ("allowed", f"value {value}", f"said {bool(said & set(str(value).split()))}"))
            for value in kind["enum"]
        ]
    elif kind.get("type") == "boolean":
        fitting = [Option(value, ("allowed", f"value {value}")) for value in (False, True)]
    elif kind.get("type") == "array":
        fitting = [Option([value], features) for value, features in options_of(desk, kind["items"], True)]
    else:
        merged: dict[str, Option] = {}
        for value, features in desk.seen + desk.named:
            value = _fitting(kind.get("type"), value)
            if value is not None:
                known = merged.get(repr(value), Option(value, ())).features
                merged[repr(value)] = Option(value, tuple(dict.fromkeys((*known, *features))))
        fitting = list(merged.values())
    return fitting if required else [Option(LEFT_OUT, ("left out",)), *fitting]


def _fitting(kind: str | None, value: Any) -> Any:
    """Return a value as one of this type; None if it is not."""
    if isinstance(value, bool):
        return None
    try:
        return str(value) if kind == "string" else int(value) if kind == "integer" else float(value)
    except ValueError:
        return None


class Chooser(nn.Module):  # type: ignore[misc,unused-ignore]  # not typed where it is not installed
    """The network: it scores options by words about them, the request, the calls so far and what is to be chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.about = nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean")
        self.options = nn.EmbeddingBag(BUCKETS, WIDTH, mode="sum")
        self.hidden = nn.Sequential(nn.Linear(3 * WIDTH, 64), nn.Tanh(), nn.Linear(64, WIDTH))
        nn.init.normal_(self.options.weight, std=0.1)

    def forward(self, about: Sequence[Sequence[str]], options: Sequence[Sequence[str]]) -> torch.Tensor:
        """Return the logarithms of the options' probabilities."""
        scores: torch.Tensor = self.options(*_bags(options)) @ self.hidden(self.about(*_bags(about)).flatten())
        return scores.log_softmax(-1)

    def log_of(self, choice: Choice) -> torch.Tensor:
        """Return the logarithm of the probability of a choice."""
        return self(choice.about, choice.options)[choice.at]


def _bags(texts: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = [0, *itertools.accumulate(len(each) for each in texts[:-1])]
    return torch.tensor([_bucket(text) for each in texts for text in each]), torch.tensor(starts)


@cache
def _bucket(text: str) -> int:
    return zlib.crc32(text.encode()) % BUCKETS


Choose = Callable[[Desk, Sequence[str], Sequence[Option]], Any]


@dataclass
class Tools:
    """The tools of an environment, as options."""

    schemas: dict[str, dict[str, Any]]

    def call(self, desk: Desk, choose: Choose) -> tuple[str, dict[str, Any]] | None:
        """Choose a call; None to stop."""
        every = [Option(STOP, (STOP,))]
        every += [
            Option(name, (f"tool {name}", *(f"part {part}" for part in name.split("_")))) for name in self.schemas
        ]
        tool = choose(desk, ("tool",), every)
        if tool == STOP:
            return None
        arguments = {}
        schema = self.schemas[tool]
        for name, each in schema.get("properties", {}).items():
            options = options_of(desk, each, name in schema.get("required", ()))
            if not options:
                return None
            value = choose(desk, (f"parameter {name}", f"{tool}.{name}"), options)
            if value is not LEFT_OUT:
                arguments[name] = value
        return tool, arguments


class Sampler:
    """Chooses by the network's probabilities, and keeps its choices."""

    def __init__(self, network: Chooser, seed: int) -> None:
        self.network, self.dice, self.made = network, torch.Generator().manual_seed(seed), list[Choice]()

    def __call__(self, desk: Desk, place: Sequence[str], options: Sequence[Option]) -> Any:
        about, features = desk.about(place), tuple(option.features for option in options)
        with torch.no_grad():
            logs = self.network(about, features)
        at = int(torch.multinomial(logs.exp(), 1, generator=self.dice))
        self.made.append(Choice(about, features, at, logs[at].item()))
        return options[at].value


class Copied:
    """Chooses as a player did who made these calls, and keeps the choices."""

    def __init__(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> None:
        self.calls, self.made = calls, list[Choice]()

    def __call__(self, desk: Desk, place: Sequence[str], options: Sequence[Option]) -> Any:
        tool, arguments = self.calls[len(desk.past)] if len(desk.past) < len(self.calls) else (STOP, {})
        wanted = tool if place[0] == "tool" else arguments.get(place[0].removeprefix("parameter "), LEFT_OUT)
        at = [option.value for option in options].index(wanted)
        self.made.append(Choice(desk.about(place), tuple(option.features for option in options), at))
        return options[at].value


class Remembered:
    """An environment that makes equal calls of one task only once: it is deterministic, so they have equal results."""

    def __init__(self, env: Any) -> None:
        self.env, self.known = env, dict[tuple[str, ...], Any]()

    def reset(self, task: Any) -> None:
        self.task, self.calls, self.made = task, list[tuple[str, dict[str, Any]]](), -1

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.calls.append((name, arguments))
        return self._result("call")

    def end(self) -> Any:
        return self._result("end")

    def _result(self, what: str) -> Any:
        key = (self.task.id, *map(repr, self.calls), what)
        if key not in self.known:
            if self.made < 0:  # the environment has not been reset for these calls
                self.env.reset(task=self.task)
            results = [self.env.call_tool(*call) for call in self.calls[max(self.made, 0) :]]
            self.made = len(self.calls)
            self.known[key] = self.env.end() if what == "end" else results[-1]
        return self.known[key]


def play(env: Any, task: Any, tools: Tools, choose: Choose) -> float:
    """Play an episode, and return its return."""
    env.reset(task=task)
    desk = Desk()
    desk.read(task.prompt)
    while len(desk.past) < MOST_CALLS:
        call = tools.call(desk, choose)
        if call is None:
            break
        answer = env.call_tool(*call)
        desk.note(call[0], answer.result.data if answer.error is None else None)
        if answer.done:
            break
    return float(env.end().info["return"] or 0.0)


def imitate(network: Chooser, games: Sequence[Sequence[Choice]], aside: Sequence[Sequence[Choice]]) -> dict[str, Any]:
    """Teach the network the choices of some games until it has the skill in others, and return the numbers of it.

    Raises:
        RuntimeError: it has not the skill after many epochs.
    """
    began = time.perf_counter()
    optimizer, order = torch.optim.Adam(network.parameters(), lr=IMITATION_RATE), random.Random(0)
    choices = [choice for game in games for choice in game]
    reached = 0.0
    for epoch in range(1, MOST_EPOCHS + 1):
        shuffled = order.sample(choices, len(choices))
        for at in range(0, len(shuffled), BATCH):
            optimizer.zero_grad()
            (-torch.stack([network.log_of(choice) for choice in shuffled[at : at + BATCH]]).mean()).backward()
            optimizer.step()
        with torch.no_grad():
            logs = [torch.stack([network.log_of(choice) for choice in game]).sum() for game in aside]
        reached = statistics.fmean(log.exp().item() for log in logs)
        if reached >= SKILL:
            seconds = round(time.perf_counter() - began, 1)
            return {"games": len(games), "epochs": epoch, "skill": reached, "seconds": seconds}
    raise RuntimeError(f"after {MOST_EPOCHS} epochs the solutions have a probability of {reached:.2f}, not {SKILL}")


def learn(optimizer: Any, network: Chooser, groups: Sequence[Sequence[tuple[float, Sequence[Choice]]]]) -> None:
    """Improve the network by groups of episodes of one task each (GRPO, Shao et al. 2024).

    A group of equal returns teaches nothing, and is left out.

    Args:
        groups: the return and the choices of each episode.
    """
    spread = statistics.pstdev(score for group in groups for score, _ in group) or 1.0
    number = sum(len(group) for group in groups)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        for group in groups:
            mean = statistics.fmean(score for score, _ in group)
            for score, choices in group if any(score != mean for score, _ in group) else ():
                better = torch.tensor((score - mean) / spread)
                terms = []
                for choice in choices:
                    logs = network(choice.about, choice.options)
                    ratio = (logs[choice.at] - choice.log).exp()
                    gain = torch.minimum(ratio * better, ratio.clamp(1 - CLIP, 1 + CLIP) * better)
                    terms.append(gain - ENTROPY * (logs.exp() * logs).sum())
                (-torch.stack(terms).sum() / number).backward()
        nn.utils.clip_grad_norm_(network.parameters(), MOST_GRADIENT)
        optimizer.step()


class Plain:
    """Takes tasks as they come: each is as likely as any other."""

    def __init__(self, tasks: Sequence[Any], dice: random.Random) -> None:
        self.tasks, self.dice = tasks, dice

    def take(self) -> Any:
        return self.dice.choice(self.tasks)

    def note(self, task: Any, scores: Sequence[float]) -> None:
        """Hear of the returns of a group."""


class Bandit(Plain):
    """Takes a family by the running mean of what its groups were worth: the standard deviation of their returns."""

    LEAST, FORGET = 0.05, 0.3

    def __init__(self, tasks: Sequence[Any], dice: random.Random) -> None:
        super().__init__(tasks, dice)
        self.worth = dict.fromkeys(sorted({task.family for task in tasks}), 0.5)  # the most that there can be

    def take(self) -> Any:
        (family,) = self.dice.choices([*self.worth], [worth + self.LEAST for worth in self.worth.values()])
        return self.dice.choice([task for task in self.tasks if task.family == family])

    def note(self, task: Any, scores: Sequence[float]) -> None:
        self.worth[task.family] += self.FORGET * (statistics.pstdev(scores) - self.worth[task.family])


SAMPLERS: dict[str, type[Plain]] = {"plain": Plain, "bandit": Bandit}


def tasks_of(env: Any, split: str, number: int) -> list[Any]:
    """Return the tasks of the families among the first ones of a split."""
    tasks = (env.get_task(split, index) for index in range(number))
    return [task for task in tasks if task.level in LEVELS and task.family in FAMILIES]


def started(env: Any, tools: Tools, tasks: Sequence[Any], seed: int) -> tuple[Chooser, dict[str, Any]]:
    """Return a network that has imitated the solutions of some tasks for training, and the numbers of this start."""
    torch.manual_seed(seed)
    network, games, aside = Chooser(), list[list[Choice]](), list[list[Choice]]()
    for family in FAMILIES:
        own = [task for task in tasks if task.family == family]
        for at, task in enumerate(random.Random(seed).sample(own, min(GAMES + ASIDE, len(own)))):
            player = Copied([(call.tool_name, call.arguments) for call in task.oracle])
            play(env, task, tools, player)
            (aside if at < ASIDE else games).append(player.made)
    return network, imitate(network, games, aside)


def train(env: Any, seed: int, samplers: Sequence[str], updates: int = UPDATES) -> Iterator[dict[str, Any]]:
    """Train a policy by each sampler of tasks, all from one start, and yield their curves.

    Args:
        env: the environment office, or a client of it.
        samplers: names of `SAMPLERS`.
    """
    torch.set_num_threads(1)
    tasks, held_out = tasks_of(env, "train", TRAIN_TASKS), tasks_of(env, "test", TEST_TASKS)
    env.reset(task=tasks[0])
    tools = Tools({tool.name: tool.input_schema for tool in env.list_tools()})
    env = Remembered(env)
    network, start = started(env, tools, tasks, seed)
    print(f"imitation ends after {start['epochs']} epochs: a solution has {start['skill']:.2f}", flush=True)
    before = measured(env, tools, network, held_out, LOOKS)
    for sampler in samplers:
        began, points, looks, pupil = time.perf_counter(), [], [(0, before)], copy.deepcopy(network)
        for point in curve_of(env, tools, pupil, SAMPLERS[sampler](tasks, random.Random(seed)), updates):
            points.append(point)
            update, last = len(points), len(points) == updates
            if last or update % LOOK_EVERY == 0:
                seen = measured(env, tools, pupil, held_out, LOOKS if last else 1)
                looks.append((update, seen))
                print(f"{sampler}, steps to {update}: reward {point['reward']:.2f}, test {seen:.2f}", flush=True)
        yield {
            "seed": seed,
            "sampler": sampler,
            "cheat": False,
            "start": start,
            "tasks": [len(tasks), len(held_out)],
            "seconds": round(time.perf_counter() - began, 1),
            "lost": 0,
            **{name: [before, looks[-1][1]] for name in ("reward", "verified")},
            "held_out": looks,
            "curve": points,
        }


def measured(env: Any, tools: Tools, network: Chooser, tasks: Sequence[Any], times: int) -> float:
    """Return the mean return of tasks that are played some times each."""
    choose = Sampler(network, 0)
    return statistics.fmean(play(env, task, tools, choose) for task in tasks for _ in range(times))


def curve_of(env: Any, tools: Tools, network: Chooser, sampler: Plain, updates: int) -> Iterator[dict[str, Any]]:
    """Improve a network, and yield the mean return of the episodes of each update."""
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    for update in range(1, updates + 1):
        groups = []
        for _ in range(GROUPS):
            task = sampler.take()
            players = [Sampler(network, sampler.dice.getrandbits(32)) for _ in range(GROUP)]
            scores = [play(env, task, tools, player) for player in players]
            sampler.note(task, scores)
            groups.append([(score, player.made) for score, player in zip(scores, players, strict=True)])
        learn(optimizer, network, groups)
        reward = statistics.fmean(score for group in groups for score, _ in group)
        yield {"steps": update, "episodes": GROUPS * GROUP, "reward": reward, "verified": reward}
