"""The manifests of a deployment, as text and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from mcpenv.errors import ConfigurationError

from .deployment import Deployment
from .objects import KubeObject
from .overlays import BASE, OVERLAYS, PLATFORMS, overlay

KUSTOMIZATION = "kustomization.yaml"
SUFFIXES = (".yaml", ".yml")


def secret_commands(deployment: Deployment) -> list[str]:
    """Return the commands that create the Secrets; no manifest contains their values."""
    namespace = "" if deployment.namespace is None else f" --namespace {deployment.namespace}"
    tokens = "--from-file=control-token --from-file=metrics-token --from-file=agent-tokens"
    made = ("control-token", "metrics-token")
    commands = [
        *(f"openssl rand -hex 32 >{name}" for name in made),
        'echo "my-agent=$(openssl rand -hex 32)" >agent-tokens',
    ]
    commands += [f"kubectl create secret generic {deployment.tokens_secret}{namespace} {tokens}"]
    if deployment.secrets:
        values = " ".join(f'--from-literal={name}="${name}"' for name in deployment.secrets)
        commands.append(f"kubectl create secret generic {deployment.values_secret}{namespace} {values}")
    if deployment.durable is not None:
        url = "--from-literal=url=postgresql://USER:PASSWORD@HOST/DATABASE"
        commands.append(f"kubectl create secret generic {deployment.durable}{namespace} {url}")
    return commands


def text_of(objects: Sequence[KubeObject], header: str = "") -> str:
    """Return objects as one YAML text.

    Args:
        objects: the objects.
        header: lines of a comment at the top.
    """
    documents = [f"{_comment(each.comment)}{_dump(each.body)}" for each in objects]
    return _comment(header) + ("---\n" if header else "") + "---\n".join(documents)


def write(
    objects: Sequence[KubeObject],
    place: Path,
    header: str,
    *,
    force: bool = False,
    overlays_of: Deployment | None = None,
) -> list[Path]:
    """Write objects to a file, or to a folder that ``kubectl apply -k`` takes. Return the files.

    Args:
        objects: the objects.
        place: a file if its name ends with ``.yaml`` or ``.yml``, else a folder.
        header: lines of a comment at the top.
        force: True to overwrite files. Others in the folder stay, and the kustomization does not list them.
        overlays_of: the settings of the objects, to write them to the folder ``base``, with overlays beside it.

    Raises:
        ConfigurationError: a file exists, or cannot be written.
    """
    if overlays_of is not None:
        texts = {**_folder(objects, place / BASE, header), **_overlays(objects, place, overlays_of)}
    else:
        texts = {place: text_of(objects, header)} if place.suffix in SUFFIXES else _folder(objects, place, header)
    existing = [path.name for path in texts if path.exists()]
    if existing and not force:
        raise ConfigurationError(f"{place}: {', '.join(existing)} would be overwritten; give another --out, or --force")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename or place}: {error.strerror or error}") from error
    return list(texts)


def _folder(objects: Sequence[KubeObject], place: Path, header: str) -> dict[Path, str]:
    """Return the files of a folder: one for each kind, and the kustomization."""
    by_file: dict[str, list[KubeObject]] = {}
    for each in objects:
        by_file.setdefault(f"{each.kind.lower()}.yaml", []).append(each)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(by_file),
    }
    return {
        **{place / name: text_of(found) for name, found in by_file.items()},
        place / KUSTOMIZATION: _comment(header) + _dump(kustomization),
    }


def _overlays(objects: Sequence[KubeObject], place: Path, deployment: Deployment) -> dict[Path, str]:
    made = {platform: overlay(platform, deployment, objects) for platform in PLATFORMS}
    return {
        place / OVERLAYS / platform / KUSTOMIZATION: _comment(comment) + _dump(kustomization)
        for platform, (kustomization, comment) in made.items()
    }


class _WithoutAliases(yaml.SafeDumper):  # type: ignore[misc]
    """The YAML writer that repeats equal values instead of using aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True for every value."""
        return True


def _text_style(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return a text as YAML; one of several lines as a block, as patches are."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_WithoutAliases.add_representer(str, _text_style)


def _dump(body: dict[str, Any]) -> str:
    text: str = yaml.dump(body, Dumper=_WithoutAliases, sort_keys=False, default_flow_style=False, width=120)
    return text


def _comment(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())
