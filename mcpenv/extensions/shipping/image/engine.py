"""The programs that build and push images: docker, podman and buildah."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.sandbox.engine import PROBE_S, why_not

ENGINES = ("docker", "podman", "buildah")
"""The programs, in order of preference."""

_LINES = 5
_WIDTH = 300
_ERROR = re.compile(r"\W*(\w*Error|ERROR|error)\b.*:")
"""A line of a program's output that says why it failed."""


@dataclass(frozen=True)
class ImageEngine:
    """A program that builds images.

    Attributes:
        name: docker, podman or buildah.
        program: its path.
    """

    name: str
    program: str

    def build(
        self, context: Path, tag: str, options: Sequence[str], base: str | None, revision: str | None, *, show: bool
    ) -> None:
        """Build the Dockerfile of a folder.

        Args:
            context: the folder.
            tag: the reference of the image.
            options: further options of the program's build.
            base: the base image instead of the Dockerfile's.
            revision: the commit of the folder, for a label; None if it is not known.
            show: True to show the program's output on stderr.

        Raises:
            ConfigurationError: the build failed. The text ends with the end of the program's output.
        """
        command = [self.program, "bud" if self.name == "buildah" else "build", "--tag", tag]
        # The format of OCI has no health check. Without layers, buildah would make and push everything again.
        command += [] if self.name == "docker" else ["--format", "docker", "--layers"]
        command += [] if base is None else ["--build-arg", f"BASE={base}"]
        command += [] if revision is None else ["--build-arg", f"REVISION={revision}"]
        self._run([*command, *options, str(context)], "the build", show)

    def push(self, tag: str, *, show: bool) -> None:
        """Push an image to the registry that its reference names.

        Raises:
            ConfigurationError: the push failed. The text ends with the end of the output.
        """
        self._run([self.program, "push", tag], "the push", show)

    def size(self, tag: str) -> int | None:
        """Return the bytes of an image; None if the engine does not report them."""
        if self.name == "buildah":
            return None
        command = [self.program, "image", "inspect", tag]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_S, check=False
        )
        size = json.loads(done.stdout)[0].get("Size") if done.returncode == 0 else None
        return size if isinstance(size, int) else None

    def _run(self, command: Sequence[str], what: str, show: bool) -> None:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line.rstrip())
                if show:
                    print(line.rstrip(), file=sys.stderr, flush=True)
        if process.returncode != 0:
            cause = "see its output above" if show else cause_in(lines)
            raise ConfigurationError(f"{what} by {self.name} failed with status {process.returncode}: {cause}")


def cause_in(lines: Sequence[str]) -> str:
    """Return what the output of a failed program says about the reason: its last errors, else its last lines, cut."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if _ERROR.match(line)]
    return " | ".join(line if len(line) <= _WIDTH else f"{line[:_WIDTH]}..." for line in (errors or said)[-_LINES:])


def find_engine(name: str | None = None) -> ImageEngine | None:
    """Return the engine of that name, or the first that works here; None if there is none.

    Raises:
        ConfigurationError: the named engine is not installed or does not work.
    """
    for each in ENGINES if name is None else (name,):
        reason = why_not(each)
        if reason is None:
            return ImageEngine(each, shutil.which(each) or each)
        if name is not None:
            raise ConfigurationError(f"{reason}; install it, or choose another --engine")
    return None
