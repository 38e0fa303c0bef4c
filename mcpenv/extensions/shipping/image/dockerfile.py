"""The text of the Dockerfile that `mcpenv init` and `mcpenv build` write."""

from __future__ import annotations

import re
import sys

from .constraints import CONSTRAINTS
from .generated import checked
from .plan import REQUIREMENTS, ImagePlan
from .sbom import SBOM

DOCKERFILE = "Dockerfile"
BASE = f"docker.io/library/python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
"""The base image: the Python version of this interpreter, because its packages are pinned.

Any image with python3, its venv module and useradd works.
"""

PORT = 8000
SPACE_PORT = 7860
"""The port that a Space of Hugging Face has by default."""

SOURCE = "/src"
"""The folder of the environment during the build."""

WHEELS = "wheels"
"""The folder of wheels that are not in a package index."""

_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)


def dockerfile(plan: ImagePlan, *, base: str = BASE, port: int = PORT, options: tuple[str, ...] = ()) -> str:
    """Return the text of the Dockerfile.

    Args:
        plan: the plan.
        base: the default base image.
        port: the port that the server listens on.
        options: further options of ``mcpenv run``.
    """
    tag = tag_of(plan.name)
    variables = "".join(f" -e {name}" for name in ("MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKENS", *plan.secrets))
    command = ["/venv/bin/mcpenv", "run", plan.served, "--host", "0.0.0.0"]
    command += [] if port == PORT else ["--port", str(port)]
    entrypoint = ", ".join(f'"{word}"' for word in (*command, *options))
    health = f"from urllib.request import urlopen; urlopen('http://127.0.0.1:{port}/health')"
    return checked(f"""\
# Build:  mcpenv build .
# Run:    docker run -p 127.0.0.1:{port}:{port}{variables} {tag}
#
# {CONSTRAINTS} pins every version. Wheels in {WHEELS}/ are preferred to those of the package index, of which
# --build-arg PIP_INDEX_URL=... names a mirror. Packages are a layer below the code: a change of the code leaves it.
ARG BASE={base}

FROM ${{BASE}} AS build
ARG PIP_INDEX_URL
{_install(plan)}
{_files(plan)}
FROM ${{BASE}}
RUN useradd --create-home --uid 1000 mcpenv
COPY --from=build /venv /venv
WORKDIR /app
{_copies(plan)}
USER 1000
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
EXPOSE {port}
ARG REVISION=""
LABEL org.opencontainers.image.title={_quoted(plan.name)} org.opencontainers.image.version={_quoted(plan.version)} \\
    org.opencontainers.image.description={_quoted(plan.description)} \\
    org.opencontainers.image.revision="$REVISION"
HEALTHCHECK CMD ["/venv/bin/python", "-c", "{health}"]
# A server that other machines reach needs both tokens (MCPENV_CONTROL_TOKEN, MCPENV_AGENT_TOKENS), or --insecure.
ENTRYPOINT [{entrypoint}]
""")


def base_of(text: str) -> str:
    """Return the base image of a Dockerfile that `dockerfile` wrote; for other texts, this Python's image."""
    found = _BASE.search(text)
    return BASE if found is None else found[1]


def tag_of(name: str) -> str:
    """Return a name as the repository part of an image's reference."""
    tag = re.sub(r"[^a-z0-9]+", lambda found: "_" if "_" in found[0] else "-", name.lower())
    return tag.strip("-_") or "environment"


def _quoted(text: str) -> str:
    """Return a text as a value of an instruction, in which nothing is replaced."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", text) + '"'


def _install(plan: ImagePlan) -> str:
    """Return the lines that install the packages, from files that change less often than the code."""
    pip = "/venv/bin/pip install --no-cache-dir"
    pip += f" --find-links {SOURCE}/{WHEELS} --constraint {SOURCE}/{CONSTRAINTS} mcpenv"
    copied, before, removed = f"pyproject.toml {CONSTRAINTS}", "", "pip"
    if plan.distribution is None:
        # A requirements.txt may name further files.
        copied = "*.txt"
        pip += f" --requirement {SOURCE}/{REQUIREMENTS}" if plan.has_requirements else ""
    elif plan.is_dynamic:
        # Only its build backend knows the dependencies. The environment itself is served from its folder.
        copied, removed = ".", f"{plan.distribution} pip"
        pip += f" {SOURCE}"
    else:
        before = f"\n    && python3 -c {_NEEDS!r} >{SOURCE}/needs.txt \\"
        pip += f" --requirement {SOURCE}/needs.txt"
    return f"""\
COPY {copied} {SOURCE}/
COPY {WHEELS} {SOURCE}/{WHEELS}
RUN python3 -m venv /venv \\{before}
    && {pip} \\
    && /venv/bin/pip uninstall --yes {removed} \\
    && /venv/bin/python -m mcpenv.extensions.shipping.image.sbom {SBOM}"""


_NEEDS = (
    f'import tomllib; print(*tomllib.load(open("{SOURCE}/pyproject.toml", "rb"))["project"].get("dependencies", []), '
    "sep=chr(10))"
)
"""A program that prints the dependencies of a distribution, without its version, which changes more often."""


def _files(plan: ImagePlan) -> str:
    """Return the stage whose files are copied, if all of them are but the wheels."""
    if plan.copied:
        return ""
    return f"\nFROM ${{BASE}} AS files\nCOPY . {SOURCE}\nRUN rm -rf {SOURCE}/{WHEELS}\n"


def _copies(plan: ImagePlan) -> str:
    if not plan.copied:
        return f"COPY --from=files {SOURCE} ./"
    files = [path for path in plan.copied if not (plan.folder / path).is_dir()]
    folders = [path for path in plan.copied if path not in files]
    return "\n".join([f"COPY {' '.join(files)} ./", *(f"COPY {path} ./{path}" for path in folders)])
