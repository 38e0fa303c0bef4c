"""A Space of Hugging Face: its name, and the folder that is uploaded for an environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from mcpenv.errors import TargetError
from mcpenv.extensions.shipping.image.dockerfile import DOCKERFILE, SPACE_PORT, dockerfile
from mcpenv.extensions.shipping.image.files import ImageFiles, stage
from mcpenv.extensions.shipping.image.generated import is_changed
from mcpenv.extensions.shipping.image.plan import ImagePlan
from mcpenv.targets.manifest_file import manifest_in

HUB = "hub:"
"""The prefix of a Space: ``hub:OWNER/NAME`` or ``hub:OWNER/NAME@REVISION``."""

TOKENS = ("MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKENS")
"""The secrets that a server needs if other machines can reach it."""

_FRAMED = ("--frame-ancestors", "https://huggingface.co")
"""The page of a Space shows its server in a frame."""

_NAME = re.compile(r"hub:([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---[ \t]*\r?\n?", re.DOTALL | re.MULTILINE)
_EXPOSE = re.compile(r"^EXPOSE\s+(\d+)", re.MULTILINE)
_SHORT = 60
"""Maximum characters of a Space's short description."""


@dataclass(frozen=True)
class SpaceName:
    """The name of a Space, as ``hub:OWNER/NAME@REVISION``.

    Attributes:
        repository: ``OWNER/NAME``.
        revision: a branch, tag or commit; None for the newest.
    """

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, target: str) -> SpaceName:
        """Return the name in a target.

        Raises:
            TargetError: the target is not a Space.
        """
        found = _NAME.fullmatch(target)
        if found is None:
            raise TargetError(target, "is no Space; write hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
        return cls(f"{found[1]}/{found[2]}", found[3])

    @property
    def host(self) -> str:
        """The host on which the Space is served."""
        return re.sub(r"[^a-z0-9]+", "-", self.repository.lower()) + ".hf.space"


def secrets_of(plan: ImagePlan) -> tuple[str, ...]:
    """Return the names of the secrets that a Space of an environment needs."""
    return (*TOKENS, *plan.secrets)


def stage_space(plan: ImagePlan, files: ImageFiles, wheels: Sequence[Path], space: SpaceName, place: Path) -> int:
    """Write the files to upload into an empty folder, and return the Space's port.

    A Dockerfile that its author has changed is uploaded unchanged, and serves at the port that it exposes.

    Raises:
        TargetError: the author's Dockerfile exposes no port, or the front matter of README.md is not a mapping.
    """
    stage(plan, files, wheels, place)
    # The hub skips files that .gitignore names, such as wheels.
    (place / ".gitignore").unlink(missing_ok=True)
    own = plan.folder / DOCKERFILE
    if own.is_file() and is_changed(text := own.read_text(encoding="utf-8")):
        exposed = _EXPOSE.findall(text)
        if not exposed:
            raise TargetError(str(own), "it exposes no port; add a line such as EXPOSE 7860, or remove the file")
        port = int(exposed[-1])
    else:
        port = SPACE_PORT
        text = dockerfile(plan, port=port, options=("--public-url", f"https://{space.host}", *_FRAMED))
    (place / DOCKERFILE).write_text(text, encoding="utf-8")
    readme = place / "README.md"
    before = readme.read_text(encoding="utf-8") if readme.is_file() else f"# {plan.name}\n"
    readme.write_text(_with_front_matter(plan, before, port, readme.name), encoding="utf-8")
    return port


def _with_front_matter(plan: ImagePlan, text: str, port: int, file: str) -> str:
    """Return a README with the settings of a Space. Existing settings win, except the port."""
    found = _FRONT_MATTER.match(text)
    given: Any = {}
    if found is not None:
        try:
            given = yaml.safe_load(found[1]) or {}
        except yaml.YAMLError as error:
            raise TargetError(file, f"its front matter is not valid YAML: {error}") from error
        if not isinstance(given, dict):
            raise TargetError(file, "its front matter must be a mapping of keys to values")
        text = text[found.end() :]
    manifest = manifest_in(plan.folder)
    settings: dict[str, Any] = {
        "title": plan.name,
        "emoji": "🧭",
        "colorFrom": "blue",
        "colorTo": "green",
        "sdk": "docker",
        "base_path": "/console",
        "tags": ["mcpenv"],
    }
    if manifest is not None and manifest.description is not None:
        settings["short_description"] = manifest.description[:_SHORT]
    settings |= given
    settings["app_port"] = port
    return f"---\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}---\n\n{text.lstrip()}"
