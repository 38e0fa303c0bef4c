"""``mcpenv share``: ``push``, ``fork`` and ``mcpenv run hub:``, by the hub's library and a stand-in of the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from command_line import Cli, command_lines, started
from hub_standin import COMMIT, TOKEN, Hub, Space
from served import served

from mcpenv.extensions.shipping.image.dockerfile import dockerfile
from mcpenv.extensions.shipping.image.local_wheels import build_wheels, local_distributions
from mcpenv.extensions.shipping.image.plan import plan_image
from mcpenv.extensions.shipping.scaffold import make_scaffold
from mcpenv_client import EnvClient

TIMEOUT_S = 100
SPACE = "some-org/corner_shop"
SECRETS = {
    "MCPENV_CONTROL_TOKEN": "control-secret-1",
    "MCPENV_AGENT_TOKENS": "agent=agent-secret-2",
    "ROOMS_API_TOKEN": "rooms-secret-3",
}

pytestmark = pytest.mark.slow


class Bench:
    """A hub, a folder of an environment, and commands of mcpenv that see both."""

    def __init__(self, hub: Hub, url: str, place: Path, wheels: list[Path]) -> None:
        self.hub = hub
        self.place = place
        # Without them they are built at each push, which takes ten times as long.
        self.wheels = tuple(f"--wheel={wheel}" for wheel in wheels)
        self.shop = make_scaffold("corner_shop", "http-api", place / "shop").folder
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MCPENV_", "HF_"))},
            "HF_ENDPOINT": url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(place / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mcpenv", *arguments],
            cwd=self.place,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def pushed(self, *options: str) -> dict[str, object]:
        done = self.run("share", "push", str(self.shop), f"hub:{SPACE}", "--json", *self.wheels, *options, **SECRETS)
        assert done.returncode == 0, done.stderr
        assert not any(secret in done.stdout + done.stderr for secret in SECRETS.values())
        document: dict[str, object] = json.loads(done.stdout)
        return document


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of what is installed here from a folder."""
    place = tmp_path_factory.mktemp("wheels")
    plan = plan_image(str(make_scaffold("corner_shop", "http-api", place / "shop").folder))
    return build_wheels(local_distributions(plan, []), place)


@pytest.fixture
def bench(tmp_path: Path, wheels: list[Path]) -> Iterator[Bench]:
    hub = Hub()
    with served(hub.app()) as url:
        yield Bench(hub, url.removesuffix("/mcp"), tmp_path, wheels)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def test_a_space_gets_the_files_and_the_secrets_and_is_private(bench: Bench) -> None:
    (bench.shop / ".env").write_text("A=1", encoding="utf-8")
    wheel = bench.place / "extra-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    document = bench.pushed("--wheel", str(wheel))
    space = bench.hub.spaces[SPACE]
    assert space.private is True and space.secrets == SECRETS
    assert document["serves"] == "https://some-org-corner-shop.hf.space" and document["commit"] == COMMIT
    assert document["secrets"] == list(SECRETS) and document["files"] == sorted(space.files)
    assert {"Dockerfile", "README.md", "mcpenv.yaml", "constraints.txt", f"wheels/{wheel.name}"} <= set(space.files)
    assert not {".env", ".gitignore", "tests/test_corner_shop.py"} & set(space.files)
    text = space.files["Dockerfile"].decode()
    assert '"--port", "7860", "--public-url", "https://some-org-corner-shop.hf.space", ' in text
    assert '"--frame-ancestors", "https://huggingface.co"]' in text
    assert "EXPOSE 7860" in text
    _, front, rest = space.files["README.md"].decode().split("---\n", 2)
    settings = yaml.safe_load(front)
    assert (settings["sdk"], settings["app_port"], settings["base_path"]) == ("docker", 7860, "/console")
    assert len(settings["short_description"]) <= 60 and rest.lstrip().startswith("# corner_shop")
    assert "7860" not in (bench.shop / "Dockerfile").read_text(encoding="utf-8"), "the folder's own is unchanged"


def test_a_second_push_replaces_the_files(bench: Bench) -> None:
    bench.pushed()
    bench.hub.spaces[SPACE].files["old.py"] = b"x"
    bench.pushed()
    assert bench.hub.spaces[SPACE].deleted == ["old.py"]


def test_a_public_space_is_public_on_request_and_says_so(bench: Bench) -> None:
    done = bench.run("share", "push", str(bench.shop), f"hub:{SPACE}", "--public", **SECRETS)
    assert done.returncode == 0, done.stderr
    assert "Everybody sees its code, and can connect" in done.stdout
    assert bench.hub.spaces[SPACE].private is False


def test_a_dry_run_sends_and_writes_nothing(bench: Bench) -> None:
    (bench.shop / "Dockerfile").unlink()
    assert bench.pushed("--dry-run")["pushed"] is False
    assert bench.hub.spaces == {} and not (bench.shop / "Dockerfile").exists()


def test_a_dry_run_needs_no_secrets_and_says_how_to_make_them(bench: Bench) -> None:
    (bench.shop / ".env").write_text("KEY=env-secret-4", encoding="utf-8")
    given = {"MCPENV_AGENT_TOKENS": SECRETS["MCPENV_AGENT_TOKENS"]}
    done = bench.run("share", "push", str(bench.shop), f"hub:{SPACE}", "--dry-run", *bench.wheels, HF_TOKEN="", **given)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert "mcpenv.yaml" in lines["files"] and ".env," not in lines["files"]
    assert lines["not"] == "  not set   MCPENV_CONTROL_TOKEN, ROOMS_API_TOKEN; to set them:"
    commands = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("export ")]
    assert commands[0] == "export MCPENV_CONTROL_TOKEN=$(openssl rand -hex 32)"
    assert commands[1].startswith("export ROOMS_API_TOKEN=...  # ") and len(commands) == 2
    assert "agent-secret-2" not in done.stdout and "env-secret-4" not in done.stdout
    assert bench.hub.spaces == {} and bench.hub.refused == 0


def test_what_the_author_wrote_wins(bench: Bench) -> None:
    (bench.shop / "Dockerfile").write_text("FROM mine\nEXPOSE 9000\n", encoding="utf-8")
    readme = bench.shop / "README.md"
    readme.write_text("---\ntitle: Mine\nemoji: 🛒\n---\n\n# Shop\n", encoding="utf-8")
    bench.pushed()
    files = bench.hub.spaces[SPACE].files
    assert files["Dockerfile"] == b"FROM mine\nEXPOSE 9000\n"
    settings = yaml.safe_load(files["README.md"].decode().split("---\n", 2)[1])
    assert (settings["title"], settings["emoji"], settings["app_port"]) == ("Mine", "🛒", 9000)


def test_what_is_missing_is_refused_before_anything_is_sent(bench: Bench) -> None:
    without = bench.run("share", "push", str(bench.shop), f"hub:{SPACE}", MCPENV_CONTROL_TOKEN="x")
    assert without.returncode == 2
    assert "set the environment variables MCPENV_AGENT_TOKENS, ROOMS_API_TOKEN" in without.stderr
    (bench.shop / "corner_shop" / "server.pem").touch()
    key = bench.run("share", "push", str(bench.shop), f"hub:{SPACE}", **SECRETS)
    assert key.returncode == 2 and "corner_shop/server.pem (a file of secrets, by its name)" in key.stderr
    assert bench.hub.spaces == {} and bench.hub.refused == 0


def test_a_refusal_of_the_hub_is_one_line_without_secrets(bench: Bench) -> None:
    done = bench.run(
        "share", "push", str(bench.shop), f"hub:{SPACE}", *bench.wheels, **{**SECRETS, "HF_TOKEN": "hf_" + "b" * 34}
    )
    assert done.returncode == 2 and f"the hub refused {SPACE}: " in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not any(secret in done.stderr for secret in SECRETS.values())


def test_a_dry_run_of_an_image_needs_no_engine(bench: Bench) -> None:
    done = bench.run("share", "push", str(bench.shop), "registry.example/team/shop:1", "--dry-run", PATH="")
    assert (done.returncode, done.stderr) == (0, "")
    assert "would be built and pushed by docker, podman or buildah, of which none works here" in done.stdout
    assert "export MCPENV_AGENT_TOKENS=my-agent=$(openssl rand -hex 32)" in done.stdout
    document = json.loads(
        bench.run("share", "push", str(bench.shop), "registry.example/shop:1", "--dry-run", "--json", PATH="").stdout
    )
    assert document["engine"] is None and document["pushed"] is False and document["secrets"] == list(SECRETS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hub:org",), "is no Space; write hub:OWNER/NAME"),
        (("hub:org/env@main",), "the revision main cannot be pushed to"),
        (("weather",), "names no registry; write HOST/NAME:TAG"),
        (("registry.example/weather:1", "--public"), "--public is for Spaces"),
        (("hub:org/env", "--engine", "podman"), "--engine is for images that are built here"),
    ],
)
def test_a_destination_that_does_not_fit_is_refused(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    folder = make_scaffold("corner_shop", "minimal", tmp_path / "shop").folder
    done = cli("share", "push", str(folder), *arguments)
    assert done.status == 2 and said in done.err


@pytest.fixture
def shared(bench: Bench) -> Bench:
    """A bench whose hub has an environment of somebody else."""
    folder = make_scaffold("their_shop", "minimal", bench.place / "theirs").folder
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    files["Dockerfile"] = dockerfile(plan_image(str(folder)), port=7860).encode()
    bench.hub.spaces["their/shop"] = Space(False, files)
    return bench


def test_a_fork_is_a_copy_that_nothing_has_run(shared: Bench) -> None:
    done = shared.run("share", "fork", "hub:their/shop@main", "mine", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["commit"], document["folder"]) == (COMMIT, str(shared.place / "mine"))
    assert document["files"] == sorted(shared.hub.spaces["their/shop"].files)
    assert not (shared.place / "mine" / ".cache").exists()
    again = shared.run("share", "fork", "hub:their/shop", "mine")
    assert again.returncode == 2 and "is not empty" in again.stderr


def test_a_space_that_is_not_there_is_said_so(shared: Bench) -> None:
    gone = shared.run("share", "fork", "hub:their/gone", "mine")
    assert gone.returncode == 2 and "there is no Space their/gone, or it is private" in gone.stderr
    revision = shared.run("share", "fork", "hub:their/shop@gone", "mine")
    assert revision.returncode == 2 and "the hub refused their/shop" in revision.stderr


def test_code_of_somebody_else_runs_only_with_consent(shared: Bench) -> None:
    done = shared.run("run", "hub:their/shop", "--port", "0")
    assert done.returncode == 2
    assert "hub:their/shop is code of somebody else, and would run with your rights on this machine" in done.stderr
    with started(shared.place, "run", "hub:their/shop@main", "--trust", "--port", "0", **shared.environ) as process:
        with EnvClient(process.url()).sync() as env:
            assert env.metadata()["name"] == "their_shop"
            env.reset(seed=1)


def test_options_that_an_image_cannot_have_are_refused(cli: Cli) -> None:
    refused = (("--workers", "2"), ("--reload",), ("--max-sessions", "3"), ("--host", "0.0.0.0"), ("--record", "x"))
    for option in refused:
        done = cli("run", "image:any", *option)
        assert done.status == 2 and f"{option[0]} has no effect on an image: target" in done.err
    done = cli("run", "image:any", "--env", "NOT_SET_ANYWHERE")
    assert done.status == 2 and "--env: not set: NOT_SET_ANYWHERE" in done.err
    assert "names no image; write image:REF" in cli("run", "image:").err


def test_an_image_without_an_engine_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    done = cli("run", "image:any")
    assert done.status == 2 and "DockerProvider cannot start a server: no engine answers" in done.err
    assert len(done.err.splitlines()) == 1
