"""Check manifests offline: what their schemas do not show, and the fields of custom resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from mcpenv.errors import ConfigurationError

from .crds import check_custom
from .link_rules import check_links
from .manifests import KUSTOMIZATION, SUFFIXES
from .object_rules import check_object
from .problem import Found, Problem


def read_manifests(place: Path) -> list[dict[str, Any]]:
    """Return the objects in a file, or in the manifests of a folder.

    Raises:
        ConfigurationError: there are none, or one cannot be read or is no object.
    """
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if path.suffix in SUFFIXES and path.name != KUSTOMIZATION)
    else:
        files = [place]
    objects = [each for file in files for each in _read(file)]
    if not objects:
        raise ConfigurationError(f"{place} has no manifests")
    return objects


def check_manifests(objects: Iterable[dict[str, Any]]) -> list[Problem]:
    """Return the mistakes in manifests, sorted by object.

    The schemas of Kubernetes' own kinds are not checked: ``kubernetes-validate --strict`` does that.
    """
    found = [Found(each) for each in objects]
    problems = [problem for each in found for problem in (*check_object(each), *check_custom(each))]
    return sorted({*problems, *check_links(found)})


def _read(file: Path) -> Sequence[dict[str, Any]]:
    try:
        documents = [each for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    objects: list[dict[str, Any]] = []
    for each in documents:
        if not isinstance(each, dict):
            raise ConfigurationError(f"{file}: a document is no object with apiVersion and kind")
        items = each["items"] if each.get("kind") == "List" and isinstance(each.get("items"), list) else [each]
        objects.extend(item for item in items if isinstance(item, dict))
    return objects


__all__ = ["check_manifests", "read_manifests"]
