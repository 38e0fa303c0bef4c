"""The bill of materials of an image: the Python packages of this interpreter, as CycloneDX JSON.

The Dockerfile runs this module in the image, after its packages are installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from .constraints import dependencies_of

SBOM = "/venv/sbom.cdx.json"
"""The file in an image."""


def sbom() -> dict[str, Any]:
    """Return the distributions that are installed for this interpreter, in the format of CycloneDX 1.6.

    Packages of the operating system are not included. Equal installations give equal documents.
    """
    found: dict[str, importlib.metadata.Distribution] = {
        canonicalize_name(each.name): each for each in importlib.metadata.distributions()
    }
    purls = {name: f"pkg:pypi/{name}@{quote(each.version)}" for name, each in sorted(found.items())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [_component(name, found[name], purl) for name, purl in purls.items()],
        "dependencies": [
            {"ref": purl, "dependsOn": sorted(purls[each] for each in dependencies_of(found[name]) if each in purls)}
            for name, purl in purls.items()
        ],
    }


def _component(name: str, distribution: importlib.metadata.Distribution, purl: str) -> dict[str, Any]:
    stated = {"type": "library", "bom-ref": purl, "name": name, "version": distribution.version, "purl": purl}
    fields = {
        name: distribution.metadata.get_all(name) or [] for name in ("License-Expression", "Classifier", "License")
    }
    if fields["License-Expression"]:
        return {**stated, "licenses": [{"expression": each} for each in fields["License-Expression"]]}
    texts = [each.rpartition(" :: ")[2] for each in fields["Classifier"] if each.startswith("License")]
    # The field License may hold the whole text of one.
    texts = texts or [each for each in fields["License"] if each and "\n" not in each]
    return {**stated, "licenses": [{"license": {"name": each}} for each in texts]} if texts else stated


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(sbom(), indent=1) + "\n", encoding="utf-8")
