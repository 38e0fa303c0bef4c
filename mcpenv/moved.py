"""Import paths that the documentation of version 0.1 named, and where their modules are now.

They work in version 0.2, too, with a `DeprecationWarning`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MOVED = {
    "mcpenv.chat_completions": "mcpenv.extensions.models.chat_completions",
    "mcpenv.cli.inspect": "mcpenv.extensions.inspection.inspect",
    "mcpenv.cli.json_option": "mcpenv.cli.tool_arguments",
    "mcpenv.cli.tasks": "mcpenv.extensions.inspection.tasks",
    "mcpenv.evaluation": "mcpenv.extensions.evaluation",
    "mcpenv.in_process": "mcpenv.extensions.in_process",
    "mcpenv.integrations.gymnasium": "mcpenv.extensions.gymnasium.environment",
    "mcpenv.integrations.harbor": "mcpenv.extensions.harbor",
    "mcpenv.integrations.mcp_proxy": "mcpenv.extensions.mcp_proxy",
    "mcpenv.integrations.openapi": "mcpenv.extensions.openapi.environment",
    "mcpenv.integrations.openenv": "mcpenv.extensions.openenv",
    "mcpenv.integrations.tau2": "mcpenv.extensions.tau2.environment",
    "mcpenv.model_proxy": "mcpenv.extensions.model_proxy",
    "mcpenv.packaging": "mcpenv.targets",
    "mcpenv.server.stdio": "mcpenv.extensions.stdio.serving",
    "mcpenv.targets.folder_files": "mcpenv.extensions.shipping.folder_files",
    "mcpenv.targets.user_error": "mcpenv.errors",
    "mcpenv.tasks.dataset": "mcpenv.extensions.datasets.dataset",
    "mcpenv.tasks.folder": "mcpenv.extensions.datasets.folder",
    "mcpenv.tasks.parquet": "mcpenv.extensions.datasets.parquet",
    "mcpenv.testing.parts": "mcpenv.extensions.validation.parts",
    "mcpenv.testing.tasks": "mcpenv.extensions.validation.tasks",
    "mcpenv.testing": "mcpenv.extensions.contract",  # after its packages, which went elsewhere
    "mcpenv.tools.users": "mcpenv.extensions.users.user_tools",
    "mcpenv.trajectories.check": "mcpenv.extensions.records.check",
    "mcpenv.trajectories.export": "mcpenv.extensions.exports",
    "mcpenv.trajectories.fingerprint": "mcpenv_client.fingerprint",
    "mcpenv.trajectories.replay": "mcpenv.extensions.records.replay",
    "mcpenv.user_error": "mcpenv.errors",
    "mcpenv.users": "mcpenv.extensions.users",
    "mcpenv.worlds.files": "mcpenv.extensions.files_world.world",
    "mcpenv.worlds.git": "mcpenv.extensions.git_world.world",
    "mcpenv.worlds.postgres": "mcpenv.extensions.postgres_world.world",
    "mcpenv.worlds.sqlite": "mcpenv.extensions.sqlite_world.world",
}
"""Old module or package to new. The modules of a package are found below its new name."""

_INTEGRATIONS = "mcpenv.integrations"
"""A package that only held others. It is empty now."""

_OF_THE_CLIENT = (
    *("ServerCapacityStatus", "ServerMode", "SessionInfo", "Stage", "StatusCode", "StepRecord", "Tool"),
    *("ToolErrorType", "ToolFailure", "ToolResult", "discounted_returns", "worth_of"),
)

NAMES = {
    **dict.fromkeys(("mcpenv.GitWorld", "mcpenv.worlds.GitWorld"), "mcpenv.extensions.git_world"),
    **{f"mcpenv.{name}": "mcpenv_client" for name in _OF_THE_CLIENT},
    **{f"mcpenv.{name}": "mcpenv.errors" for name in ("DamagedRecord", "InvalidVerifier", "VerifierFailed")},
    "mcpenv.CompletingProvider": "mcpenv.execution.components",
    "mcpenv.ConcurrencyConfig": "mcpenv.server",
    "mcpenv.NoSuchTask": "mcpenv.tasks",
    "mcpenv.Snapshot": "mcpenv.execution.snapshots",
    "mcpenv.Judge": "mcpenv.extensions.models",
    "mcpenv.rewards.rubrics.rescore": "mcpenv.extensions.records.rescoring",
    "mcpenv.LongOutputs": "mcpenv.extensions.long_outputs",
}
"""Names of packages of the kernel, and the module where each is now."""

OFFERED = {
    **dict.fromkeys(("mcpenv.api.FilesWorld", "mcpenv.worlds.FilesWorld"), "mcpenv.extensions.files_world"),
    **dict.fromkeys(("mcpenv.api.SQLiteWorld", "mcpenv.worlds.SQLiteWorld"), "mcpenv.extensions.sqlite_world"),
}
"""Names of extensions that these packages offer as their own, without a warning."""


class _Redirect(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a moved module under its old name, as the same object."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("mcpenv."):
            return None
        if fullname == _INTEGRATIONS:
            return importlib.util.spec_from_loader(fullname, self, is_package=True)
        return importlib.util.spec_from_loader(fullname, self) if new_name(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        now = new_name(spec.name)
        if now is None:
            return None
        warnings.warn(f"{spec.name} is {now} now; import it from there", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(now)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import system replaced. Its code ran under its new name."""
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


def new_name(old: str) -> str | None:
    """Return the new name of a moved module; None if it did not move."""
    for prefix, now in MOVED.items():
        if old == prefix or old.startswith(f"{prefix}."):
            return now + old.removeprefix(prefix)
    return None


def moved_name(package: str, name: str) -> Any:
    """Return what a package offered by a name, from where it is now.

    Raises:
        AttributeError: it did not move, or its extension is not installed.
    """
    path = f"{package}.{name}"
    now = OFFERED.get(path) or NAMES.get(path)
    if now is None or importlib.util.find_spec(now) is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if path not in OFFERED:
        warnings.warn(f"{path} is {now}.{name} now; import it from there", DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(now), name)


def redirect_imports() -> None:
    """Let the old import paths find the modules, in this process."""
    if not any(isinstance(finder, _Redirect) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Redirect())  # before the path finder, which would load a package's modules twice
