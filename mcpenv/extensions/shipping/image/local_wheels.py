"""Wheels of distributions that are installed here from a folder or a repository, not from a package index."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from mcpenv.errors import ConfigurationError

from .constraints import installed
from .dockerfile import WHEELS
from .engine import cause_in
from .plan import ImagePlan

BUILD_S = 600.0


@dataclass(frozen=True)
class LocalDistribution:
    """A distribution that is not installed from a package index.

    Attributes:
        name: its name.
        source: the source for ``pip wheel``: a folder, a file, or the address of a repository at a commit.
    """

    name: str
    source: str


def local_distributions(plan: ImagePlan, given: Sequence[Path]) -> list[LocalDistribution]:
    """Return the local distributions among an environment's requirements, as they are installed here.

    Args:
        plan: the image.
        given: wheels. Their distributions are omitted, like the distributions of wheels in the environment's folder.
    """
    there = {name_of(wheel) for wheel in (*given, *sorted((plan.folder / WHEELS).glob("*.whl")))}
    found = []
    for distribution in installed(*plan.needs):
        name = canonicalize_name(distribution.name)
        source = _source_of(distribution)
        if source is not None and name not in there:
            found.append(LocalDistribution(name, source))
    return sorted(found, key=lambda each: each.name)


@contextmanager
def wheels_of(plan: ImagePlan, given: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the wheels that an environment's image needs in addition to the package index.

    Args:
        plan: the image.
        given: wheels; wheels in the environment's folder and wheels of local distributions are added.

    Raises:
        ConfigurationError: one cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="mcpenv-wheels-") as place:
        yield [*given, *build_wheels(local_distributions(plan, given), Path(place))]


def build_wheels(distributions: Iterable[LocalDistribution], place: Path) -> list[Path]:
    """Build the wheel of each distribution into a folder, and return the wheels.

    Raises:
        ConfigurationError: pip failed. The text ends with the end of its output.
    """
    wheels = []
    for each in distributions:
        into = place / each.name
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(into), each.source]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_S,
            check=False,
        )
        made = sorted(into.glob("*.whl"))
        if done.returncode != 0 or not made:
            cause = cause_in(done.stdout.splitlines())
            raise ConfigurationError(
                f"{each.name} is installed from {each.source}, and no wheel could be built of that: {cause}; "
                "give its wheel, with --wheel"
            )
        wheels += made
    return wheels


def _source_of(distribution: importlib.metadata.Distribution) -> str | None:
    """Return the place from which a distribution was installed; None if that was a package index (PEP 610)."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        return None
    record: dict[str, Any] = json.loads(text)
    url, below = str(record["url"]), record.get("subdirectory")
    if (vcs := record.get("vcs_info")) is not None:
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + (f"#subdirectory={below}" if below else "")
    return url2pathname(urlsplit(url).path) if urlsplit(url).scheme == "file" else url


def name_of(wheel: Path) -> str:
    """Return the distribution of a wheel.

    Raises:
        ConfigurationError: its file name is not the name of a wheel.
    """
    try:
        return parse_wheel_filename(wheel.name)[0]
    except InvalidWheelFilename as error:
        raise ConfigurationError(f"--wheel {wheel}: that is not the name of a wheel: {error}") from error
