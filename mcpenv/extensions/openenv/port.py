"""Convert the folder of an OpenEnv environment to mcpenv. Code is parsed, never run.

    server/app.py      names the environment's class, its actions, observations and state
    their modules      are copied into one folder, with imports of OpenEnv's names replaced
    the class          becomes an MCPEnvironment: reset, tools, state and close stay as they are

Code without a counterpart is kept or omitted, and reported.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mcpenv.errors import TargetError

from . import MANIFEST
from .own_actions import ActingEnvironment

ENVIRONMENT_FILE = "environment.py"
ACTING = ActingEnvironment.__module__

_NAMES = {
    "Action": "Action",
    "CallToolAction": "CallToolAction",
    "CallToolObservation": "CallToolObservation",
    "Environment": ActingEnvironment.__name__,
    "ListToolsAction": "ListToolsAction",
    "ListToolsObservation": "ListToolsObservation",
    "MCPEnvironment": "MCPEnvironment",
    "Observation": "Observation",
    "State": "State",
    "Tool": "Tool",
    "ToolErrorType": "ToolErrorType",
}
"""Names of OpenEnv and their counterparts in mcpenv."""

_STEPS = ("step", "step_async", "_step_impl")
_GONE = {
    "get_metadata": "name, version and description are EXPOSED_NAME, VERSION and the docstring",
    "render_web": "mcpenv has no web page to show it",
    "web_actions": "mcpenv has no web page to show it",
}
_SERVERS = ("create_app", "create_fastapi_app", "create_web_interface_app", "HTTPEnvServer")
_STEP_COUNT = re.compile(r"(\b\w*State\((?:[^()]|\([^()]*(?:\([^()]*\))?[^()]*\))*?),\s*step_count\s*=\s*0\b")
_NOT_COPIED = ("client.py", "conftest.py", "setup.py")
_NO_COUNTERPART = {
    "rubric": "rubrics: give rewards by score(self, call, outcome)",
    "_apply_rubric": "rubrics: give rewards by score(self, call, outcome)",
    "_apply_rubric_async": "rubrics: give rewards by score(self, call, outcome)",
    "_reset_rubric": "rubrics: give rewards by score(self, call, outcome)",
    "_reset_rubric_async": "rubrics: give rewards by score(self, call, outcome)",
    "transform": "transforms of observations",
    "_apply_transform": "transforms of observations",
    "mcp_client": "a client of one's own server: call the function itself",
    "mcp_server": "the server is what super().__init__(mcp) was given; keep it under a name of your own",
    "mcp_session": "a client of one's own server: call the function itself",
    "execute_code": "code mode",
    "get_callables": "code mode",
}


@dataclass
class Port:
    """The result of a conversion.

    Attributes:
        environment: the name of the class.
        files: the texts to write, by their names in the new folder.
        could_not: the changes to make by hand, each with its place.
    """

    environment: str
    files: dict[str, str] = field(default_factory=dict)
    could_not: list[str] = field(default_factory=list)


def port(folder: Path) -> Port:
    """Read an OpenEnv folder and return the files of an mcpenv environment.

    Raises:
        TargetError: if it is not an OpenEnv folder, or its server cannot be parsed.
    """
    manifest = read_manifest(folder)
    app = folder / f"{manifest.get('app', 'server.app:app').partition(':')[0].replace('.', '/')}.py"
    served = _served(folder, app)
    modules = _Modules(folder, app)
    home = modules.defining(served.environment)
    if home is None:
        raise TargetError(str(folder), f"no module of the folder defines {served.environment}, which {app.name} serves")
    done = Port(served.environment)
    for file, name in modules.names.items():
        text = _Rewrite(
            file, file.read_text(encoding="utf-8"), modules, done, served if file == home else None, manifest
        )
        done.files[ENVIRONMENT_FILE if file == home else f"{name}.py"] = text.rewritten()
    done.could_not += modules.could_not
    readme = folder / "README.md"
    if readme.is_file():
        text_of_readme = readme.read_text(encoding="utf-8", errors="replace")
        # The front matter is for OpenEnv's hub.
        done.files["README.md"] = re.sub(r"\A---\n.*?\n---\n+", "", text_of_readme, flags=re.DOTALL)
    done.could_not += _needs(folder)
    return done


def read_manifest(folder: Path) -> dict[str, str]:
    """Return the plain ``key: value`` lines of openenv.yaml.

    Raises:
        TargetError: if there is none.
    """
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except OSError as error:
        raise TargetError(str(folder), f"has no {MANIFEST}, so it is not an OpenEnv environment") from error
    found = re.findall(r"^([a-z_]+):[ \t]+([^\s#][^#\n]*?)[ \t]*(?:#.*)?$", text, re.MULTILINE)
    return {key: value.strip("\"'") for key, value in found}


# -- the served environment


@dataclass(frozen=True)
class _Served:
    """The classes that the application names."""

    environment: str
    action: str | None
    observation: str | None
    state: str | None

    def has_tools(self, text: str) -> bool:
        """Return True if the class is in this module and its steps are tool calls."""
        return re.search(rf"^class {re.escape(self.environment)}\(MCPEnvironment\b", text, re.MULTILINE) is not None


def _served(folder: Path, app: Path) -> _Served:
    try:
        tree = ast.parse(app.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(str(folder), f"has no {app.relative_to(folder)}, which openenv.yaml names") from error
    except SyntaxError as error:
        raise TargetError(str(folder), f"{app.relative_to(folder)} cannot be parsed: {error.msg}") from error
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in _SERVERS]
    if not calls:
        raise TargetError(str(folder), f"{app.relative_to(folder)} calls none of {', '.join(_SERVERS)}")
    parameters = ("env", "action_cls", "observation_cls", "state_cls")
    given: dict[str | None, ast.expr] = {keyword.arg: keyword.value for keyword in calls[0].keywords}
    given |= dict(zip(parameters[:-1], calls[0].args, strict=False))  # the last one is given by name only
    environment, *types = (each.id if isinstance(each := given.get(name), ast.Name) else None for name in parameters)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    if environment is None or environment in defined:
        raise TargetError(
            str(folder), f"{app.relative_to(folder)} serves the result of a function. Name the class there"
        )
    return _Served(environment, *types)


def _called(call: ast.Call) -> str:
    """Return the name of the called function, without the module or object that has it."""
    return ast.unparse(call.func).rpartition(".")[2]


class _Modules:
    """The copied modules of the folder, flat: by their own names, without their packages."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder = folder
        self.names: dict[Path, str] = {}
        self.could_not: list[str] = []
        for file in sorted(folder.rglob("*.py")):
            inner = file.relative_to(folder)
            if file == app or inner.name in _NOT_COPIED or _hidden(inner):
                continue
            if inner.name == "__init__.py":
                if _has_code(file):
                    self.could_not.append(f"{inner}: code of a package; the new folder is not a package")
            elif file.stem in self.names.values():
                self.could_not.append(f"{inner}: a second module named {file.stem}; rename it, and import it")
            else:
                self.names[file] = file.stem

    def defining(self, name: str) -> Path | None:
        """Return the module that defines a class."""
        for file in self.names:
            if re.search(rf"^class {re.escape(name)}\b", file.read_text(encoding="utf-8"), re.MULTILINE):
                return file
        return None

    def module_of(self, module: str | None, level: int) -> str | None:
        """Return the flat name of an imported module of the folder; None for other modules."""
        last = (module or "").rpartition(".")[2]
        first = (module or "").partition(".")[0]
        inside = level > 0 or first in (self.folder.name, "server", "models") or first in self.names.values()
        return last if inside and last in self.names.values() else None


def _hidden(inner: Path) -> bool:
    return any(part.startswith(".") or part in ("tests", "test", "build", "dist") for part in inner.parts[:-1])


def _has_code(file: Path) -> bool:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr, ast.Try)
    return any(not isinstance(node, plain) for node in body)


def _needs(folder: Path) -> Iterator[str]:
    """Yield further dependencies of its pyproject.toml."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    lines = "" if listed is None else re.sub(r"^\s*#.*$", "", listed.group(1), flags=re.MULTILINE)
    for found in re.findall(r'"([^"]+)"', lines):
        if not re.match(r"(openenv|openenv-core|fastapi|uvicorn|fastmcp|pydantic)\b", found):
            yield f"pyproject.toml: it needs {found}, which is not installed with it"


# -- one module


class _Rewrite:
    """A module in which only the necessary lines are changed."""

    def __init__(
        self, file: Path, text: str, modules: _Modules, done: Port, served: _Served | None, manifest: dict[str, str]
    ) -> None:
        self._place = str(file.relative_to(modules.folder))
        # The framework counts steps, so the state must not set step_count.
        self._text = _STEP_COUNT.sub(r"\1", text) if served is not None and served.has_tools(text) else text
        self._modules = modules
        self._done = done
        self._served = served
        self._manifest = manifest
        self._edits: list[tuple[int, int, str]] = []
        self._renamed: dict[str, str] = {}

    def rewritten(self) -> str:
        """Return the new text."""
        tree = ast.parse(self._text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._import_from(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if _of_openenv(alias.name):
                        self._cannot(node, f"import {alias.name}")
            elif isinstance(node, ast.Attribute) and node.attr in _NO_COUNTERPART and ast.unparse(node.value) == "self":
                self._cannot(node, f"self.{node.attr}: {_NO_COUNTERPART[node.attr]}")
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and self._served is not None and node.name == self._served.environment:
                self._environment(node)
            if isinstance(node, ast.ClassDef):
                self._declared_end(node)
        for child in ast.walk(tree):
            if isinstance(child, ast.Name) and child.id in self._renamed:
                self._replace_in_line(child, self._renamed[child.id])
        lines = self._text.splitlines(keepends=True)
        for begin, end, text in sorted(self._edits, reverse=True):
            lines[begin:end] = [text] if text else []
        return "".join(lines)

    def _import_from(self, node: ast.ImportFrom) -> None:
        flat = self._modules.module_of(node.module, node.level)
        if flat is not None:
            home = self._modules.defining(self._done.environment)
            is_environment = self._served is None and home is not None and self._modules.names[home] == flat
            self._line(node, f"from {'environment' if is_environment else flat} import {_listed(node.names)}")
            return
        if not _of_openenv(node.module or ""):
            return
        known = [alias for alias in node.names if alias.name in _NAMES]
        for alias in node.names:
            if alias.name == "EnvironmentMetadata":
                continue  # for `get_metadata` only
            if alias.name not in _NAMES:
                self._cannot(node, f"{alias.name} of {node.module}")
            elif alias.asname is None and _NAMES[alias.name] != alias.name:
                self._renamed[alias.name] = _NAMES[alias.name]
        homes: dict[str, list[str]] = {}
        for alias in known:
            name = _NAMES[alias.name]
            package = ACTING if name == ActingEnvironment.__name__ else "mcpenv"
            homes.setdefault(package, []).append(name + (f" as {alias.asname}" if alias.asname else ""))
        lines = [f"from {package} import {', '.join(sorted(set(names)))}" for package, names in sorted(homes.items())]
        self._line(node, f"\n{' ' * node.col_offset}".join(lines))

    def _environment(self, node: ast.ClassDef) -> None:
        assert self._served is not None
        generic = next((base for base in node.bases if isinstance(base, ast.Subscript)), None)
        header = self._text.splitlines()[node.lineno - 1]
        if generic is not None:
            plain = header.replace(ast.get_source_segment(self._text, generic) or "", ActingEnvironment.__name__)
            self._edits.append((node.lineno - 1, node.lineno, plain + "\n"))
        with_tools = any(isinstance(base, ast.Name) and base.id == "MCPEnvironment" for base in node.bases)
        methods = {
            child.name: child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self._settings(node, with_tools)
        for call in [child for child in ast.walk(node) if isinstance(child, ast.Call)]:
            if not with_tools and (call.args or call.keywords) and ast.unparse(call.func).endswith(").__init__"):
                indent = " " * call.col_offset
                self._edits.append((call.lineno - 1, call.end_lineno or call.lineno, f"{indent}super().__init__()\n"))
                self._cannot(
                    call, "super().__init__ with a rubric or a transform: give rewards by score(self, call, outcome)"
                )
        for name, why in _GONE.items():
            if name in methods:
                self._drop(methods[name])
                self._cannot(methods[name], f"{name}: {why}")
        if with_tools:
            for name in _STEPS:
                if name in methods:
                    self._drop(methods[name])
                    if not _only_counts(methods[name]):
                        self._cannot(methods[name], f"{name}: steps are the framework's; move what it does to score")
        else:
            self._own_step(methods)
            made = methods.get("__init__")
            if made is not None and ".__init__(" not in ast.unparse(made):
                self._cannot(made, f"agents get no tool for {self._served.action}: call super().__init__() first")
        if "reset_async" in methods:
            self._rename(methods["reset_async"], "reset")
            if "reset" in methods:
                self._drop(methods["reset"])

    def _declared_end(self, node: ast.ClassDef) -> None:
        """Remove the field ``done`` of an observation, which mcpenv derives. Report a default that is not False."""
        if not any(ast.unparse(base).endswith("Observation") for base in node.bases):
            return
        for field_ in node.body:
            if isinstance(field_, ast.AnnAssign) and ast.unparse(field_.target) == "done":
                default = "" if field_.value is None else ast.unparse(field_.value)
                if not re.match(r"$|False$|Field\((default=)?False\b", default):
                    self._cannot(field_, "the default of done: give done to each observation")
                rest = f"{' ' * field_.col_offset}pass\n" if len(node.body) == 1 else ""
                self._edits.append((field_.lineno - 1, field_.end_lineno or field_.lineno, rest))

    def _settings(self, node: ast.ClassDef, with_tools: bool) -> None:
        """Insert class attributes after the docstring: names, and the types of actions, observations and state."""
        assert self._served is not None
        served = self._served
        lines = [f"    EXPOSED_NAME = {json.dumps(self._manifest.get('name', node.name))}"]
        if "version" in self._manifest:
            lines.append(f"    VERSION = {json.dumps(self._manifest['version'])}")
        if not with_tools:
            lines.append(f"    action_types = ({served.action},)")
            lines.append(f"    observation_type = {served.observation}")
        if served.state is not None:
            lines.append(f"    state_type = {served.state}")
        first = node.body[0]
        is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        at = (first.end_lineno or first.lineno) if is_doc else node.lineno
        self._edits.append((at, at, "\n" + "\n".join(lines) + "\n"))

    def _own_step(self, methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef]) -> None:
        """Convert an environment without tools: its step becomes `act`."""
        if "step_async" in methods:
            self._rename(methods["step_async"], "act")
            if "step" in methods:
                self._drop(methods["step"])
        elif "step" in methods:
            self._rename(methods["step"], "act")

    def _rename(self, method: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        line = self._text.splitlines()[method.lineno - 1]
        self._edits.append(
            (method.lineno - 1, method.lineno, re.sub(rf"\b{method.name}\b", name, line, count=1) + "\n")
        )

    def _drop(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        begin = min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)]) - 1
        end = method.end_lineno or method.lineno
        lines = self._text.splitlines()
        while end < len(lines) and not lines[end].strip():
            end += 1
        self._edits.append((begin, end, ""))

    def _line(self, node: ast.ImportFrom, text: str) -> None:
        # A block must not be empty.
        code = text or ("pass" if node.col_offset else "")
        line = f"{' ' * node.col_offset}{code}\n" if code else ""
        self._edits.append((node.lineno - 1, node.end_lineno or node.lineno, line))

    def _replace_in_line(self, name: ast.Name, new: str) -> None:
        line = self._text.splitlines()[name.lineno - 1]
        if not any(begin <= name.lineno - 1 < end for begin, end, _ in self._edits):
            changed = re.sub(rf"\b{name.id}\b", new, line)
            self._edits.append((name.lineno - 1, name.lineno, changed + "\n"))

    def _cannot(self, node: ast.stmt | ast.expr, what: str) -> None:
        self._done.could_not.append(f"{self._place}:{node.lineno}: {what}")


def _of_openenv(module: str) -> bool:
    return module.partition(".")[0] in ("openenv", "openenv_core")


def _listed(names: list[ast.alias]) -> str:
    return ", ".join(alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in names)


def _only_counts(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if a step only counts and calls OpenEnv's own, or only refuses other actions.

    Any other code may give rewards or end episodes and needs review by a person.
    """
    body = [node for node in method.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if method.name == "_step_impl":
        return all(_refuses(node) for node in body)
    return all(_counts_a_step(node) or _returns_super(node, method.name) for node in body)


def _refuses(node: ast.stmt) -> bool:
    """Match ``raise ...``, or the return of an observation without reward and end."""
    if isinstance(node, ast.Raise | ast.Pass):
        return True
    call = node.value if isinstance(node, ast.Return) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        return False
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    telling = [given[name] for name in ("reward", "done") if name in given]
    return None not in given and all(isinstance(value, ast.Constant) and not value.value for value in telling)


def _counts_a_step(node: ast.stmt) -> bool:
    """Match ``self._state.step_count += 1``."""
    return isinstance(node, ast.AugAssign) and ast.unparse(node).endswith(".step_count += 1")


def _returns_super(node: ast.stmt, name: str) -> bool:
    """Match ``return super().step(...)``, or the same awaited, and nothing else."""
    value = node.value if isinstance(node, ast.Return) else None
    if isinstance(value, ast.Await):
        value = value.value
    return (
        isinstance(value, ast.Call) and re.fullmatch(rf"super\([^()]*\)\.{name}", ast.unparse(value.func)) is not None
    )
