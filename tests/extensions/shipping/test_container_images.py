"""Images, really built and run: by `mcpenv build`, podman, and Docker's SDK on podman's socket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from podman_engine import BASE, build_options, import_base, podman, podman_service, podman_settings, registry

from mcpenv.extensions.shipping.cluster.smoke import Smoke, smoke_episode
from mcpenv.extensions.shipping.hub.space import SpaceName, stage_space
from mcpenv.extensions.shipping.image.files import files_of
from mcpenv.extensions.shipping.image.local_wheels import wheels_of
from mcpenv.extensions.shipping.image.plan import plan_image
from mcpenv.extensions.shipping.image.sbom import SBOM
from mcpenv.extensions.shipping.scaffold import make_scaffold
from mcpenv_client import EnvClient, InstanceFailed, ProviderUnavailable, Unauthorized
from mcpenv_client.portal import PORTAL
from mcpenv_client.providers.docker import DockerProvider
from mcpenv_client.providers.docker_engine import LABEL
from mcpenv_client.providers.pool import ProviderPool

TAG = "localhost/mcpenv-test-shop:1"
SAME = ("User", "Entrypoint", "ExposedPorts", "Env", "WorkingDir")
"""Settings of an image that do not depend on who built it."""

MOST_BYTES = 600 * 2**20
OWNER = """
import asyncio, sys
from mcpenv_client.providers.docker import DockerProvider

async def main():
    async with DockerProvider(sys.argv[1]).instance() as instance:
        print(instance.container, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

pytestmark = [pytest.mark.world, pytest.mark.timeout(900)]


def mcpenv(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcpenv", *arguments],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def engine_options(engine: str) -> list[str]:
    return ["--engine", engine, "--base", BASE, *(f"--build-option={option}" for option in build_options())]


@dataclass(frozen=True)
class Built:
    """What `mcpenv build` printed, and the folder."""

    document: dict[str, object]
    folder: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    place = tmp_path_factory.mktemp("images")
    with podman_settings(place):
        import_base(place)
        folder = make_scaffold("corner_shop", "tasks", place / "shop").folder
        done = mcpenv("build", str(folder), "--tag", TAG, *engine_options("podman"), "--json")
        assert done.returncode == 0, done.stderr
        yield Built(json.loads(done.stdout), folder)
        podman("image", "rm", "--force", TAG)


@pytest.fixture(scope="module")
def engine(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Podman's API, where Docker's SDK finds it."""
    with podman_service(tmp_path_factory.mktemp("service")) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        yield


def containers() -> set[str]:
    return set(podman("ps", "--all", "--filter", f"label={LABEL}=docker", "--format", "{{.Names}}").split())


def test_the_image_is_small_and_of_a_user_and_has_no_tests_and_no_wheels(built: Built) -> None:
    assert (built.document["image"], built.document["engine"]) == (TAG, "podman")
    size = built.document["bytes"]
    assert isinstance(size, int) and 0 < size < MOST_BYTES
    config = json.loads(podman("image", "inspect", TAG))[0]["Config"]
    assert config["User"] == "1000" and list(config["ExposedPorts"]) == ["8000/tcp"]
    listed = podman("run", "--rm", "--network=none", "--entrypoint", "ls", TAG, "-A", "/app", "/app/corner_shop")
    names = set(listed.replace("/app:", "").replace("/app/corner_shop:", "").split())
    assert names == {"mcpenv.yaml", "README.md", "corner_shop", "__init__.py", "environment.py", "tasks.jsonl"}
    versions = podman("run", "--rm", "--network=none", "--entrypoint", "/venv/bin/mcpenv", TAG, "--version")
    assert version("mcpenv") in versions


def test_a_changed_word_of_the_code_makes_and_pushes_one_small_layer(built: Built, tmp_path: Path) -> None:
    def layers(tag: str) -> list[str]:
        return list(json.loads(podman("image", "inspect", tag))[0]["RootFS"]["Layers"])

    def bytes_of(folder: Path) -> int:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    file = built.folder / "corner_shop" / "environment.py"
    text = file.read_text(encoding="utf-8")
    with registry(tmp_path) as address:
        pushed, tag = [0], f"{address}/team/word:1"
        podman("push", TAG, tag)
        pushed.append(bytes_of(tmp_path / "registry"))
        file.write_text(f"{text}\n# One more word.\n", encoding="utf-8")
        try:
            done = mcpenv("share", "push", str(built.folder), tag, *engine_options("podman"), "--json")
        finally:
            file.write_text(text, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        pushed.append(bytes_of(tmp_path / "registry"))
    before, after = layers(TAG), layers(tag)
    podman("image", "rm", tag)
    assert before[:-1] == after[:-1] and before[-1] != after[-1]
    assert pushed[1] > 50 * 2**20 and pushed[2] - pushed[1] < 50_000


def test_the_image_plays_a_smoke_episode(engine: None) -> None:
    async def played() -> Smoke:
        async with DockerProvider(TAG).instance() as instance:
            token = instance.headers["Authorization"].removeprefix("Bearer ")
            return await asyncio.to_thread(smoke_episode, instance.url, token)

    smoke = PORTAL.call(played)
    assert (smoke.environment, smoke.reward) == ("corner_shop", 1.0) and smoke.task and smoke.calls > 0


def test_an_image_says_what_it_is_and_what_is_in_it(built: Built) -> None:
    labels = json.loads(podman("image", "inspect", TAG))[0]["Config"]["Labels"]
    named = {name: labels[f"org.opencontainers.image.{name}"] for name in ("title", "version", "description")}
    assert named["title"] == "corner_shop" and named["version"] and named["description"]
    own = json.loads(podman("run", "--rm", "--network=none", "--entrypoint", "cat", TAG, SBOM))
    components = {each["name"]: each["version"] for each in own["components"]}
    assert components["mcpenv"] == version("mcpenv") and "pip" not in components and "pytest" not in components


def test_episodes_are_rolled_out_in_a_container_of_their_own(engine: None) -> None:
    launched = EnvClient.from_docker_image(TAG).sync()
    with launched as env:
        (container,) = containers()
        for index in range(3):
            env.reset(split="train", index=index)
            env.call_tool("put", {"bin": "letters"})
            assert env.end().info["return"] is not None
        inspected = podman("inspect", container)
        assert launched.instance is not None and launched.instance.control_token is not None
        assert launched.instance.control_token not in inspected
        host = json.loads(inspected)[0]["HostConfig"]
        assert host["ReadonlyRootfs"] and host["Memory"] == 2 * 2**30 and host["PidsLimit"] == 512
        assert {port[0]["HostIp"] for port in host["PortBindings"].values()} == {"127.0.0.1"}
        assert json.loads(inspected)[0]["EffectiveCaps"] in (None, [])
        podman("healthcheck", "run", container)
        with pytest.raises(Unauthorized), EnvClient(env.base_url).sync():
            pass
    assert containers() == set()


def test_the_container_of_an_owner_that_was_killed_is_removed_by_the_next(engine: None) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, TAG], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner:
        container = owner.stdout.readline().strip()
        assert PORTAL.call(DockerProvider(TAG).remove_orphans) == [], "its owner runs"
        os.kill(owner.pid, signal.SIGKILL)
    assert container in containers()
    with EnvClient.from_docker_image(TAG).sync():
        assert container not in containers() and len(containers()) == 1
    assert containers() == set()


def test_the_error_of_a_container_that_does_not_start_quotes_its_output(engine: None) -> None:
    with pytest.raises(InstanceFailed) as raised, EnvClient.from_docker_image(TAG, options=["--set", "no=1"]).sync():
        pass
    assert raised.value.reason == "it ended while it started" and "'no'" in raised.value.log
    assert containers() == set()


def test_an_image_that_is_nowhere_is_refused(engine: None) -> None:
    name = "localhost/mcpenv-test-none:1"
    with pytest.raises(ProviderUnavailable, match=f"run: docker pull {name}"):
        PORTAL.call(DockerProvider(name, pull=False).instance().__aenter__)
    with pytest.raises(InstanceFailed, match=f"image {name}: it cannot be pulled: .*refused"):
        PORTAL.call(DockerProvider(name).instance().__aenter__)
    with pytest.raises(ProviderUnavailable, match="has no entrypoint that takes options of `mcpenv run`; use one that"):
        PORTAL.call(DockerProvider(BASE).instance().__aenter__)


def test_a_port_that_is_taken_is_refused_and_nothing_is_left(engine: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(InstanceFailed, match=r"the engine refused: .*address already in use"):
            PORTAL.call(DockerProvider(TAG, host_port=taken.getsockname()[1]).instance().__aenter__)
    assert containers() == set()


def test_a_pool_uses_containers_again(engine: None) -> None:
    async def use() -> list[str]:
        names = []
        async with ProviderPool(DockerProvider(TAG), 2, reset={"split": "train", "index": 0}) as pool:
            for _ in range(4):
                async with EnvClient.from_provider(pool) as env:
                    await env.reset(split="train", index=1)
                    await env.call_tool("put", {"bin": "letters"})
                    names.append(env.base_url)
            assert pool.replaced == [] and pool.pristine is not None
        return names

    assert len(set(PORTAL.call(use))) == 2
    assert containers() == set()


def test_an_image_is_a_target_of_run(engine: None, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    environ = {**os.environ, "MCPENV_CONTROL_TOKEN": "of-this-test"}
    command = [sys.executable, "-m", "mcpenv", "run", f"image:{TAG}", "--ready-file", str(ready)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = next(line for line in process.stdout if "Ctrl-C" in line)
            assert "removes it" in said
            url = json.loads(ready.read_text(encoding="utf-8"))["url"]
            with EnvClient(url, headers={"Authorization": "Bearer of-this-test"}).sync() as env:
                env.reset(split="train", index=0)
        finally:
            process.terminate()
        assert process.wait(60) == 0
    assert containers() == set()


def test_buildah_builds_it_as_well(built: Built) -> None:
    done = mcpenv("build", str(built.folder), "--tag", f"{TAG}-buildah", *engine_options("buildah"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == "buildah"
    ours, theirs = (json.loads(podman("image", "inspect", tag))[0] for tag in (TAG, f"{TAG}-buildah"))
    podman("image", "rm", f"{TAG}-buildah")
    assert ours["Healthcheck"] == theirs["Healthcheck"] and theirs["Healthcheck"] is not None
    assert {key: ours["Config"][key] == theirs["Config"][key] for key in SAME} == dict.fromkeys(SAME, True)


def test_an_image_is_pushed_to_a_registry_and_pulled_from_it(built: Built, tmp_path: Path) -> None:
    with registry(tmp_path) as address, podman_service(tmp_path) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine)
        image = f"{address}/team/shop:1"
        done = mcpenv("share", "push", str(built.folder), image, *engine_options("podman"), "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert (document["image"], document["engine"], document["pushed"]) == (image, "podman", True)
        podman("image", "rm", image)
        with EnvClient.from_docker_image(image).sync() as env:
            env.reset(split="train", index=0)
        podman("image", "rm", image)
        with pytest.raises(InstanceFailed, match=r"it cannot be pulled: .*manifest unknown"):
            PORTAL.call(DockerProvider(f"{address}/team/none:1").instance().__aenter__)
        refused = mcpenv(
            "share", "push", str(built.folder), f"{tmp_path.name}.invalid/shop:1", *engine_options("podman")
        )
        assert refused.returncode == 2 and "error: the push by podman failed with status 125: " in refused.stderr


def test_what_a_space_gets_is_built_and_serves_agents_at_its_address_on_this_machine(
    built: Built, engine: None, tmp_path: Path
) -> None:
    plan, tag = plan_image(str(built.folder)), f"{TAG}-space"
    with wheels_of(plan, []) as wheels:
        files = files_of(plan, (built.folder / ".dockerignore").read_text(encoding="utf-8"))
        assert stage_space(plan, files, wheels, SpaceName("org/shop"), tmp_path) == 7860
    podman(
        "build", "--quiet", "--format=docker", f"--build-arg=BASE={BASE}", *build_options(), "--tag", tag, str(tmp_path)
    )
    with EnvClient.from_docker_image(tag).sync() as env:
        begun = env.reset(split="train", index=0)
        assert begun.info["mcp_url"].startswith(f"{env.base_url}/episodes/")
    podman("image", "rm", tag)
