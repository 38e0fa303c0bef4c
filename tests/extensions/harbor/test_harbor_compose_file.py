"""Read the services of Harbor tasks, and refuse those that ask for a part of this machine. Nothing needs an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from harbor_tasks import CONFIG, harbor_task

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.harbor.compose_file import ComposeFile
from mcpenv.extensions.harbor.task import read_task


def read(folder: Path, text: str, config: str = CONFIG, **files: str | None) -> ComposeFile:
    names = {name.replace("__", "/"): content for name, content in files.items()}
    contents = {"environment/docker-compose.yaml": text, **names}
    return ComposeFile(read_task(harbor_task(folder / "shop", contents, config=config)))


def main_of(file: ComposeFile) -> dict[str, object]:
    found: dict[str, object] = file.project("p", public=True)["services"]["main"]
    return found


def test_the_main_service_is_harbors_with_what_the_file_overrides(tmp_path: Path) -> None:
    config = CONFIG + 'cpus = 2\nmemory = "1G"\n[environment.env]\nA = "task"\n'
    file = read(tmp_path, "services: {main: {environment: [A=file, B=file], build: {args: {X: 1}}}}", config)
    main = main_of(file)
    assert main["command"] == ["sh", "-c", "sleep infinity"] and main["container_name"] == "p-main"
    assert main["environment"] == {"A": "task", "B": "file"} and (main["cpus"], main["mem_limit"]) == (2.0, "1024m")
    context = str(tmp_path / "shop" / "environment")
    assert file.builds()["services"]["main"]["build"] == {"context": context, "args": {"X": 1}}
    assert file.builds()["services"]["main"]["image"] == main["image"]


def test_the_image_of_the_main_service(tmp_path: Path) -> None:
    prebuilt = read(tmp_path / "a", "services: {db: {image: db}}", CONFIG + 'docker_image = "ours"\n')
    assert main_of(prebuilt)["image"] == "ours" and prebuilt.builds() == {"services": {}}
    alone = read(tmp_path / "b", "services: {main: {image: theirs}}", environment__Dockerfile=None)
    assert main_of(alone)["image"] == "theirs" and alone.builds() == {"services": {}}


def test_one_image_that_two_services_name_is_built_once(tmp_path: Path) -> None:
    file = read(tmp_path, "services: {one: {build: ., image: app}, two: {image: app}, other: {image: redis}}")
    services = file.project("p", public=True)["services"]
    assert services["one"]["image"] == services["two"]["image"] == file.builds()["services"]["one"]["image"]
    assert services["other"]["image"] == "redis" and set(file.builds()["services"]) == {"main", "one"}


def test_variables_are_filled_in_as_compose_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "set")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)
    words = "$SET ${SET:-x} ${EMPTY:-x} ${EMPTY-x} ${UNSET-x} ${UNSET:-${SET}} ${SET:+y} ${UNSET} $$SET ${FROM_FILE}"
    text = f"services: {{main: {{hostname: '{words}', domainname: 'in-${{COMPOSE_PROJECT_NAME}}'}}}}"
    main = main_of(read(tmp_path, text, **{"environment__.env": "# a\nFROM_FILE='file'\nSET=other\n"}))
    assert main["hostname"] == "set set x  x set y  $SET file" and main["domainname"] == "in-p"
    with pytest.raises(ConfigurationError, match="needs the variable UNSET: say what"):
        read(tmp_path / "other", "services: {main: {hostname: '${UNSET:?say what}'}}")


def test_services_start_after_those_that_they_need_and_profiles_only_then(tmp_path: Path) -> None:
    text = """
    services:
      main: {depends_on: {web: {condition: service_healthy}, none: {condition: service_started, required: false}}}
      web: {image: web, depends_on: [db]}
      db: {image: db, profiles: [needed]}
      debug: {image: debug, profiles: [debug]}
    """
    file = read(tmp_path, text)
    assert file.needs == {"db": {}, "web": {"db": "service_started"}, "main": {"web": "service_healthy"}}
    with pytest.raises(ConfigurationError, match="main needs web needs main"):
        read(tmp_path / "cycle", "services: {main: {depends_on: [web]}, web: {image: web, depends_on: [main]}}")


def test_an_episode_has_names_networks_and_volumes_of_its_own_and_publishes_nothing(tmp_path: Path) -> None:
    text = """
    services:
      main: {links: ["db:store"], networks: [front]}
      db:
        image: db
        container_name: the-db
        ports: ["5432:5432"]
        networks: {front: {aliases: [sql]}}
        volumes: [data:/data, ./seed:/seed:ro, /cache, "${HOST_ARTIFACTS_PATH}:/logs/artifacts"]
    networks: {front: {name: shared}}
    volumes: {data: }
    """
    closed = read(tmp_path, text).project("p", public=False)
    assert closed["networks"] == {"front": {"name": "p_front", "internal": True}}
    assert closed["volumes"] == {"data": {"name": "p_data"}}
    db = closed["services"]["db"]
    assert db["container_name"] == "p-db" and "ports" not in db
    assert db["networks"] == {"front": {"aliases": ["sql", "the-db", "store"]}}
    seed = {"type": "bind", "source": str(tmp_path / "shop/environment/seed"), "target": "/seed", "read_only": True}
    assert db["volumes"] == ["data:/data", seed, "/cache"]


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("privileged: true", "services.main.privileged"),
        ("network_mode: host", "services.main.network_mode: host"),
        ('pid: "host"', "services.main.pid: host"),
        ("ipc: host", "services.main.ipc: host"),
        ("cap_add: [SYS_ADMIN]", "services.main.cap_add: SYS_ADMIN"),
        ("cap_add: [CAP_DAC_READ_SEARCH]", "services.main.cap_add: CAP_DAC_READ_SEARCH"),
        ("security_opt: ['seccomp:unconfined']", "services.main.security_opt: seccomp:unconfined"),
        ("devices: [/dev/kvm]", "services.main.devices"),
        (
            "volumes: ['/var/run/docker.sock:/var/run/docker.sock']",
            "/var/run/docker.sock, outside of the task's folder",
        ),
        ("volumes: ['../../x:/x']", "../../x, outside of the task's folder"),
        ("volumes: [{type: bind, source: ~/x, target: /x}]", "~/x, outside of the task's folder"),
        ("volumes: [{type: image, source: x, target: /x}]", "services.main.volumes of type 'image'"),
        ("env_file: /etc/environment", "/etc/environment, outside of the task's folder"),
        ("volumes_from: ['container:other']", "services.main.volumes_from"),
        ("deploy: {replicas: 2}", "services.main.replicas"),
        ("gpus: all", "services.main.gpus"),
        ("extends: {file: other.yaml, service: x}", "services.main.extends"),
    ],
)
def test_what_would_give_a_container_a_part_of_this_machine_is_refused(tmp_path: Path, service: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, f"services:\n  main:\n    {service}\n")
    assert said in str(raised.value) and "task 'shop': environment/docker-compose.yaml asks for" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include: [a.yaml]\nservices: {}", "'include' beside its services"),
        ("services: {}\nnetworks: {a: {external: true}}", "networks.a, which is external"),
        ("services: {}\nnetworks: {a: {driver: host}}", "networks.a.driver"),
        ("services: {}\nvolumes: {a: {driver_opts: {o: bind, device: /etc}}}", "volumes.a.driver"),
        ("services: {a: {network_mode: 'service:main', image: x}}", "whose container is replaced before the tests"),
        ("services: {}\nsecrets: {a: {file: /etc/shadow}}", "/etc/shadow, outside of the task's folder"),
        ("services: {a: {image: x, depends_on: [b]}}", "service 'a' needs 'b', which is not there"),
        ("services: {a: {}}", "service 'a' has neither an image nor a build"),
        ("services: {a: 1}", "a service is no mapping"),
        ("{", "environment/docker-compose.yaml: "),
        ("version: '3'", "has no services"),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_with_the_part(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, text)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "build",
    [
        "../..",
        "{dockerfile: /etc/passwd}",
        "{ssh: [default]}",
        "{network: host}",
        "{cache_to: ['type=local,dest=/etc']}",
        "{cache_from: ['type=local,src=/etc']}",
        "{tags: ['debian:latest']}",
        "{some_key_of_tomorrow: x}",
    ],
)
def test_a_build_has_no_part_of_this_machine(tmp_path: Path, build: str) -> None:
    with pytest.raises(ConfigurationError, match=r"services\.web\.build"):
        read(tmp_path, f"services: {{web: {{build: {build}}}}}")


def test_no_log_and_no_annotation_of_a_container_names_a_file_of_this_machine(tmp_path: Path) -> None:
    own = "logging: {driver: k8s-file, options: {path: /etc/a}}, annotations: {run.oci.hooks.stdout: /etc/a}"
    assert not {"logging", "annotations"} & main_of(read(tmp_path, f"services: {{main: {{{own}}}}}")).keys()


@pytest.mark.parametrize(
    "text", ["services: {main: [1]}", "services: {web: {image: a, depends_on: 3}}", "{services: {}, networks: [a]}"]
)
def test_a_value_of_another_kind_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"task 'shop': environment/docker-compose\.yaml"):
        read(tmp_path, text)


def test_a_file_of_variables_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "shop", {"environment/docker-compose.yaml": "services: {main: {hostname: $A}}"})
    (folder / "environment" / ".env").write_bytes(b"A=\xe9")
    with pytest.raises(ConfigurationError, match=r"task 'shop': environment/docker-compose\.yaml .*can't decode"):
        ComposeFile(read_task(folder))
