"""Environments with one fault each, as the text of their folders. `write` makes the folder of one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent

FRAME = '''"""{title}"""

from __future__ import annotations

{imports}


class Broken(MCPEnvironment):
    """{title}

    Tools:
        As listed.

    Reward:
        {reward}
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
{methods}

{tail}'''

ECHO = '''
@self.tool
def echo(text: str) -> str:
    """Return the text."""
    return text
'''

BIRD_TASKS = """
tasks = TaskSet(
    [
        {
            "id": "bird",
            "prompt": "Which bird is named in one of the drawers?",
            "metadata": {"answer": "kingfisher-4711"},
            "oracle": [
                {"tool_name": "look", "arguments": {"drawer": 7}},
                {"tool_name": "submit", "arguments": {"answer": "kingfisher-4711"}},
            ],
        }
    ]
)
"""
BIRD_INIT = '''
self.answer = ""

@self.tool
def look(drawer: int = 1) -> str:
    """Look into a drawer."""
    return "a note: kingfisher-4711" if drawer == 7 else "nothing"

@self.tool(terminal=True)
def submit(answer: str) -> str:
    """Hand in the name of the bird, and end the episode."""
    self.answer = answer
    return "handed in"
'''
BIRD_RESET = """
def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
    self.answer = ""
"""
BIRD_VERIFY = """
def verify(self, evidence: Evidence) -> bool:
    assert evidence.task is not None
    return bool(self.answer == evidence.task.metadata["answer"])
"""


@dataclass(frozen=True)
class Fault:
    """The text of an environment, in the parts in which it differs from others.

    Attributes:
        title: what is broken, as a sentence.
        imports: the import lines.
        init: the body of the constructor.
        methods: the other methods, and what stands in the class before them.
        tail: what follows the class.
        files: further files of the folder, by name; a name may lead out of it.
    """

    title: str
    init: str = ECHO
    methods: str = ""
    imports: str = "from mcpenv import MCPEnvironment"
    reward: str = "None."
    tail: str = ""
    files: dict[str, str] = field(default_factory=dict)


def bird(
    title: str,
    *,
    init: str = "",
    reset: str = BIRD_RESET,
    verify: str = BIRD_VERIFY,
    tasks: str = BIRD_TASKS,
    more: str = "",
    names: str = "Evidence, MCPEnvironment, TaskSet",
) -> Fault:
    """Return an environment with one task: to find the name of a bird in a drawer."""
    imports = f"from mcpenv import {names}"
    return Fault(title, BIRD_INIT + init, f"{tasks}{reset}{more}{verify}", imports, "1 for the right bird.")


FAULTS = {
    "answer_in_sight": bird(
        "Show the expected answer in the first observation.",
        names="Evidence, MCPEnvironment, Observation, TaskSet",
        reset="""
def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
    self.answer = ""
    expected = "" if self.task is None else self.task.metadata["answer"]
    return Observation(metadata={"debug": {"expected_answer": expected}})
""",
    ),
    "callable_verifier": bird(
        "Offer the verifier as a tool, so that answers can be tried.",
        init='''
@self.tool
def confirm(answer: str) -> bool:
    """Tell if an answer is right, without handing it in."""
    self.answer = answer
    task = self.task
    return task is not None and self.verify(Evidence(task, None, None))
''',
    ),
    "paid_for_errors": bird(
        "Pay for each call, also for one that was refused.",
        names="Evidence, MCPEnvironment, TaskSet, ToolCall, ToolOutcome",
        more="""
def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
    return 0.1
""",
    ),
    "paid_for_nothing": bird(
        "Pay in full if the agent does nothing.",
        verify="""
def verify(self, evidence: Evidence) -> bool:
    return self.answer != "a wrong answer"
""",
    ),
    "unsolved_by_its_oracle": bird(
        "Have an oracle that does not solve the task.",
        tasks=BIRD_TASKS.replace('"arguments": {"answer": "kingfisher-4711"}', '"arguments": {"answer": "heron-1234"}'),
    ),
    "file_outside_the_folder": Fault(
        "Read a file that is not in the folder.",
        imports="from pathlib import Path\n\nfrom mcpenv import MCPEnvironment",
        init='''
self.words = (Path(__file__).parents[1] / "words.txt").read_text().split()

@self.tool
def word(number: int = 0) -> str:
    """Return a word."""
    return self.words[number % len(self.words)]
''',
        files={"../words.txt": "heron kingfisher\n"},
    ),
    "grows_with_each_episode": Fault(
        "Keep what each episode has said, for ever.",
        init='''
self.log: list[bytearray] = []

@self.tool
def say(text: str) -> str:
    """Say something."""
    self.log.append(bytearray(200_000))
    return text
''',
    ),
    "key_in_the_folder": Fault(
        "Ship a key of a cloud.",
        files={"cloud.py": '"""The key of the documentation of a cloud."""\n\nKEY_ID = "AKIAIOSFODNN7EXAMPLE"\n'},
    ),
    "leaves_folders_behind": Fault(
        "Make a folder for each instance, and never remove it.",
        imports="import tempfile\nfrom pathlib import Path\n\nfrom mcpenv import MCPEnvironment",
        init='''
self.folder = Path(tempfile.mkdtemp(prefix="broken-"))

@self.tool
def count() -> int:
    """Return the number of files."""
    return len(list(self.folder.iterdir()))
''',
    ),
    "lying_annotation": Fault(
        "Declare a tool that changes the state as read-only.",
        imports="from mcpenv import MCPEnvironment\nfrom mcpenv.worlds import ObjectWorld",
        init='''
self.visits = 0
self.world = ObjectWorld(lambda: {"visits": self.visits})

@self.tool(annotations={"readOnlyHint": True})
def visit() -> int:
    """Visit the page, and return the number of visits."""
    self.visits += 1
    return self.visits
''',
        methods="""
def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
    self.visits = 0
""",
    ),
    "never_returns": Fault(
        "Have a tool that never returns.",
        imports="import threading\n\nfrom mcpenv import MCPEnvironment",
        init='''
@self.tool
def wait() -> str:
    """Wait for a signal that nobody sends."""
    threading.Event().wait()
    return "over"
''',
    ),
    "open_to_the_disk": Fault(
        "Read any file of the machine.",
        imports="from pathlib import Path\n\nfrom mcpenv import MCPEnvironment, ToolError",
        init='''
self.folder = Path(__file__).parent

@self.tool
def read_file(path: str = "README.md") -> str:
    """Read a file of the workspace."""
    file = self.folder / path
    if not file.is_file():
        raise ToolError(f"there is no file {path!r}; README.md is one")
    return file.read_text()
''',
    ),
    "seeded_by_the_clock": Fault(
        "Draw from a generator that no seed reaches.",
        imports="import random\nimport time\n\nfrom mcpenv import MCPEnvironment",
        init='''
self.dice = random.Random(time.perf_counter_ns())

@self.tool
def roll() -> int:
    """Roll a die with a million sides."""
    return self.dice.randrange(1_000_000)
''',
    ),
    "shared_between_sessions": Fault(
        "Keep the notes of all sessions in one list of the module.",
        init='''
@self.tool
def write(text: str) -> int:
    """Write a note, and return how many there are."""
    NOTES.append(text)
    return len(NOTES)
''',
        methods="""
def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
    NOTES.clear()
""",
        tail="NOTES: list[str] = []\n",
    ),
    "shared_between_tasks": Fault(
        "Keep the bins of all sessions in one dict of the module, and empty them in each reset.",
        imports="from mcpenv import Evidence, MCPEnvironment, TaskSet, ToolError",
        reward="1 if no item was put into a wrong bin and the belt is empty.",
        init='''
self.belt: list[str] = []
self.right = True
self.bins = SHARED

@self.tool
def put(bin: str) -> str:
    """Put the first item of the belt into a bin."""
    if bin not in self.bins or not self.belt:
        raise ToolError(f"there is no bin {bin!r}, or the belt is empty")
    self.right = self.right and bin == "letters"
    self.bins[bin].append(self.belt.pop(0))
    return f"{len(self.belt)} left"

@self.tool
def list_bins() -> dict[str, list[str]]:
    """Return the items in each bin."""
    return {name: list(items) for name, items in self.bins.items()}
''',
        methods="""
tasks = TaskSet(
    [
        {
            "id": name,
            "prompt": "Put every item into the bin where it belongs.",
            "options": {"belt": belt},
            "oracle": [{"tool_name": "put", "arguments": {"bin": "letters"}} for _ in belt],
        }
        for name, belt in (
            ("three-letters", ["bill", "contract", "card"]),
            ("four-letters", ["lease", "note", "bill", "will"]),
        )
    ]
)

def reset(self, seed: int | None = None, episode_id: str | None = None, belt: list[str] | None = None) -> None:
    self.right = True
    self.belt = list(belt or ["postcard"])
    for items in self.bins.values():
        items.clear()

def verify(self, evidence: Evidence) -> bool:
    return self.right and not self.belt
""",
        tail='SHARED: dict[str, list[str]] = {"letters": [], "parcels": []}\n',
    ),
    "undeclared_import": Fault(
        "Import a distribution that the project does not declare.",
        imports="import pytest\n\nfrom mcpenv import MCPEnvironment",
        init=ECHO.replace("return text", "return str(pytest.__name__) + text"),
        files={
            "pyproject.toml": '[project]\nname = "undeclared_import"\nversion = "0.1.0"\n'
            'dependencies = ["mcpenv>=0.1,<0.2"]\n'
        },
    ),
    "undescribed_tool": Fault(
        "Have a tool without a description.",
        init=ECHO.replace('    """Return the text."""\n', ""),
    ),
    "writable_expectation": Fault(
        "Keep the expected result in the folder of the agent.",
        imports="import shutil\nimport tempfile\nfrom pathlib import Path\n\n"
        "from mcpenv import Evidence, MCPEnvironment, TaskSet, ToolError\nfrom mcpenv.worlds import FilesWorld",
        reward="1 for the right number.",
        init='''
self.folder = Path(tempfile.mkdtemp(prefix="broken-"))
self.world = FilesWorld(self.folder)

@self.tool
def write_file(path: str, text: str) -> str:
    """Write a file of the folder."""
    place = (self.folder / path).resolve()
    if not place.is_relative_to(self.folder.resolve()) or place.is_dir():
        raise ToolError(f"{path} is no file of the folder; name one, such as result.txt")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return "written"
''',
        methods="""
tasks = TaskSet(
    [
        {
            "id": "copy",
            "prompt": "Write the number of planets into result.txt.",
            "oracle": [{"tool_name": "write_file", "arguments": {"path": "result.txt", "text": "8"}}],
        }
    ]
)

def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
    shutil.rmtree(self.folder)
    self.folder.mkdir()
    (self.folder / "expected.txt").write_text("8")
    (self.folder / "result.txt").write_text("")

def verify(self, evidence: Evidence) -> bool:
    return (self.folder / "result.txt").read_text() == (self.folder / "expected.txt").read_text()

def close(self) -> None:
    shutil.rmtree(self.folder, ignore_errors=True)
""",
    ),
}
"""By name: what each is broken by."""


def write(name: str, place: Path) -> Path:
    """Write the folder of an environment in a place, and return the folder."""
    fault, folder = FAULTS[name], place / name
    folder.mkdir()
    constructor = "\ndef __init__(self) -> None:" + indent(fault.init.rstrip(), "    ") + "\n"
    text = FRAME.format(
        title=fault.title,
        imports=fault.imports,
        reward=fault.reward,
        methods=indent(constructor + fault.methods.rstrip(), "    "),
        tail=fault.tail,
    )
    readme = f"# {name}\n\nTools and reward are in the docstring of the class.\n"
    for file, content in {"environment.py": text.rstrip() + "\n", "README.md": readme, **fault.files}.items():
        (folder / file).write_text(content, encoding="utf-8")
    return folder
