"""An environment's world in a sandbox, in which an agent runs shell commands."""

from __future__ import annotations

from .sandbox import BACKENDS, Completed, Sandbox, SandboxFailed, make_sandbox

__all__ = ["BACKENDS", "Completed", "Sandbox", "SandboxFailed", "make_sandbox"]
