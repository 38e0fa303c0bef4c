"""An environment's world in a sandbox, in which an agent runs shell commands."""

from __future__ import annotations

from .sandbox import BACKENDS, Completed, Sandbox, SandboxFailed, make_sandbox
from .shell_tools import ShellTools

__all__ = ["BACKENDS", "Completed", "Sandbox", "SandboxFailed", "ShellTools", "make_sandbox"]
