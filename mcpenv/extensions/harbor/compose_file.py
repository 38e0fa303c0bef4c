"""Read a task's ``environment/docker-compose.yaml``, and write the one that runs an episode.

Harbor merges the file with its own settings of the service ``main``, in which the agent works: the image of the task,
and a command that sleeps. An episode has names, networks and volumes of its own, so that many run at once, and
publishes no port. What would give a container a part of this machine is refused: `SERVICE_KEYS` has all that is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]

from mcpenv.errors import ConfigurationError

from .config import MAIN
from .task import HarborTask

NAME = "docker-compose.yaml"

SERVICE_KEYS = frozenset({
    "annotations", "attach", "build", "cap_add", "cap_drop", "command", "configs", "container_name", "cpu_count",
    "cpu_percent", "cpu_period", "cpu_quota", "cpu_shares", "cpus", "cpuset", "depends_on", "deploy", "dns", "dns_opt",
    "dns_search", "domainname", "entrypoint", "env_file", "environment", "expose", "extra_hosts", "group_add",
    "healthcheck", "hostname", "image", "init", "ipc", "labels", "links", "logging", "mem_limit", "mem_reservation",
    "mem_swappiness", "memswap_limit", "network_mode", "networks", "oom_score_adj", "pid", "pids_limit", "platform",
    "ports", "privileged", "profiles", "pull_policy", "read_only", "restart", "secrets", "security_opt", "shm_size",
    "stdin_open", "stop_grace_period", "stop_signal", "sysctls", "tmpfs", "tty", "ulimits", "user", "volumes",
    "working_dir",
})  # fmt: skip
"""The keys of a service that are taken, some of them with few values."""

BUILD_KEYS = frozenset({
    "args", "context", "dockerfile", "dockerfile_inline", "extra_hosts", "labels", "network", "no_cache", "platforms",
    "pull", "shm_size", "target", "ulimits",
})  # fmt: skip
"""The keys of a build that are taken. Others read or write files of this machine, or name images of others."""

_TOP_KEYS = frozenset({"version", "name", "services", "networks", "volumes", "configs", "secrets"})
_HARMLESS_CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "MKNOD", "NET_ADMIN",
    "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE",
    "SYS_RESOURCE",
})  # fmt: skip
"""Capabilities that stay within the namespaces of a container. With DAC_READ_SEARCH, `open_by_handle_at` opens the root
folder of this machine."""

_HARMLESS_OPTIONS = re.compile(r"no-new-privileges([:=]true)?|label[:=].*")
_LOGS = frozenset({"/logs/agent", "/logs/artifacts", "/logs/verifier"})
_DROPPED = (
    "annotations", "build", "container_name", "depends_on", "links", "logging", "ports", "profiles", "pull_policy",
)  # fmt: skip
"""Keys that are not written for an episode: it is built, ordered and named otherwise. Options of ``logging`` and some
annotations name files of this machine."""

_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?:(:?[-+?])((?:[^{}]|\$\{[^{}]*\})*))?\})")


class ComposeFile:
    """The services of a task.

    Args:
        task: the task.

    Raises:
        ConfigurationError: the file cannot be read, or needs what no container is given.
    """

    def __init__(self, task: HarborTask) -> None:
        self._task = task
        self._folder = task.environment
        self._place = f"task {task.name!r}: {task.environment.relative_to(task.folder)}/{NAME}"
        try:
            read = yaml.safe_load((self._folder / NAME).read_text(encoding="utf-8")) or {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigurationError(f"{self._place}: {' '.join(str(error).split())}") from error
        if not isinstance(read, dict) or not isinstance(read.get("services"), dict):
            raise ConfigurationError(f"{self._place} has no services")
        self._read: dict[str, Any] = read
        self.needs: dict[str, dict[str, str]] = {}
        """The services in the order of their start, each with the conditions of those that it needs."""
        try:
            self.project("mcpenv", public=True)
            self.builds()
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:  # values of another kind
            raise ConfigurationError(f"{self._place} cannot be read: {' '.join(str(error).split())}") from error

    def project(self, name: str, *, public: bool) -> dict[str, Any]:
        """Return the file of an episode, of which all services are to be made.

        Args:
            name: the name of the project, with which names of containers, networks and volumes begin.
            public: False to give its networks no way out.
        """
        document = self._filled(name)
        services = {key: dict(value or {}) for key, value in document["services"].items()}
        main = services.get(MAIN, {})
        services[MAIN] = {**self._default_main(main), **main}
        self.needs = self._ordered(services)
        services = {key: services[key] for key in self.needs}
        tags = {self._image(key, spec): self._tag(key) for key, spec in services.items() if "build" in spec}
        written = {key: self._service(key, spec, services, tags, name) for key, spec in services.items()}
        networks = {key: self._named("networks", key, value, name) for key, value in _items(document, "networks")}
        if any("default" in spec.get("networks", ()) for spec in written.values()):
            networks.setdefault("default", {"name": f"{name}_default"})
        if not public:
            networks = {key: {**value, "internal": True} for key, value in networks.items()}
        whole = {
            "services": written,
            "networks": networks,
            "volumes": {key: self._named("volumes", key, value, name) for key, value in _items(document, "volumes")},
        }
        for kind in ("configs", "secrets"):
            whole[kind] = {key: self._file(f"{kind}.{key}", value or {}) for key, value in _items(document, kind)}
        return {key: value for key, value in whole.items() if value}

    def builds(self) -> dict[str, Any]:
        """Return the file by which the images of the task are built; without services if there are none."""
        services = self._filled("mcpenv")["services"]
        main = services.get(MAIN) or {}
        services[MAIN] = {**self._default_main(main), **main}
        made = {}
        for name in self.needs:
            build = services[name].get("build")
            if build is not None:
                made[name] = {"image": self._tag(name), "build": self._build(name, build)}
        return {"services": made}

    def _filled(self, project: str) -> dict[str, Any]:
        """Return the document with its variables substituted.

        Raises:
            ConfigurationError: a variable must be set and is not, or a part is not taken.
        """
        environment = self._task.config.environment
        own = {
            "COMPOSE_PROJECT_NAME": project,
            "CONTEXT_DIR": str(self._folder),
            "MAIN_IMAGE_NAME": self._tag(MAIN),
            "PREBUILT_IMAGE_NAME": environment.docker_image,
            "CPUS": None if environment.cpus is None else f"{environment.cpus:g}",
            "MEMORY": None if environment.memory_mb is None else f"{environment.memory_mb}M",
        }
        for name in ("VERIFIER_LOGS", "AGENT_LOGS", "ARTIFACTS"):  # mounts of tasks for older versions
            own[f"HOST_{name}_PATH"] = own[f"ENV_{name}_PATH"] = f"/logs/{name.removesuffix('_LOGS').lower()}"
        variables = {**_dotenv(self._folder / ".env"), **os.environ, **self._task.env}
        variables |= {name: value for name, value in own.items() if value is not None}
        for key in self._read:
            if key not in _TOP_KEYS and not str(key).startswith("x-"):
                raise self._refused(f"{key!r} beside its services")
        try:
            filled: dict[str, Any] = _substituted(self._read, variables)
        except _NotSet as error:
            raise ConfigurationError(f"{self._place} needs the variable {error}") from None
        if not all(isinstance(spec, dict | None) for spec in filled["services"].values()):
            raise ConfigurationError(f"{self._place}: a service is no mapping")
        return filled

    def _default_main(self, main: Mapping[str, Any]) -> dict[str, Any]:
        """Return Harbor's settings of the main service, which the task's file overrides key by key."""
        environment = self._task.config.environment
        made: dict[str, Any] = {"command": ["sh", "-c", "sleep infinity"]}
        if environment.docker_image is not None:
            made["image"] = environment.docker_image
        elif "build" in main or "image" not in main or (self._folder / "Dockerfile").is_file():
            made["build"] = {"context": "."}
        return made

    def _ordered(self, services: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
        """Return the services to start in their order; those of a profile only if another needs them."""
        needs = {name: dict(self._conditions(name, spec, services)) for name, spec in services.items()}
        ordered: dict[str, dict[str, str]] = {}

        def add(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                raise ConfigurationError(f"{self._place}: {' needs '.join((*above, name))}")
            for other in needs[name] if name not in ordered else ():
                add(other, (*above, name))
            ordered[name] = needs[name]

        for name, spec in services.items():
            if not spec.get("profiles"):
                add(name, ())
        return ordered

    def _conditions(self, name: str, spec: Mapping[str, Any], all_of: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        after = spec.get("depends_on") or {}
        pairs = after.items() if isinstance(after, dict) else ((other, {}) for other in after)
        named = [str(link).partition(":")[0] for link in spec.get("links") or ()]
        mode = str(spec.get("network_mode", ""))
        named += [mode.removeprefix("service:")] if mode.startswith("service:") else []
        for other, how in (*((name, {}) for name in named), *pairs):
            if other not in all_of:
                if (how or {}).get("required", True):
                    raise ConfigurationError(f"{self._place}: service {name!r} needs {other!r}, which is not there")
                continue
            yield other, (how or {}).get("condition", "service_started")

    def _service(
        self,
        name: str,
        spec: Mapping[str, Any],
        services: Mapping[str, dict[str, Any]],
        tags: Mapping[str, str],
        project: str,
    ) -> dict[str, Any]:
        where = f"services.{name}"
        for key in spec:
            if key not in SERVICE_KEYS and not key.startswith("x-"):
                raise self._refused(f"{where}.{key}")
        self._check(name, where, spec)
        written = {key: value for key, value in spec.items() if key not in _DROPPED}
        written["container_name"] = f"{project}-{name}"
        image = self._image(name, spec)
        written["image"] = tags.get(image, image)
        if "env_file" in spec:
            written["env_file"] = self._env_files(where, spec["env_file"])
        if spec.get("volumes"):
            written["volumes"] = list(filter(None, (self._mount(where, mount) for mount in spec["volumes"])))
        mode = str(spec.get("network_mode", ""))
        if mode.startswith("service:"):
            written["network_mode"] = f"container:{project}-{mode.removeprefix('service:')}"
        elif not mode:
            written["networks"] = self._networks_of(name, spec, services)
        if name == MAIN:
            environment = self._task.config.environment
            written["environment"] = {**_variables(spec.get("environment")), **self._task.env}
            written |= {} if environment.cpus is None else {"cpus": environment.cpus}
            written |= {} if environment.memory_mb is None else {"mem_limit": f"{environment.memory_mb}m"}
        return written

    def _check(self, name: str, where: str, spec: Mapping[str, Any]) -> None:
        """Raise if a value gives a container a part of this machine."""
        mode = str(spec.get("network_mode", ""))
        asked = {
            "privileged": bool(spec.get("privileged")),
            f"network_mode: {mode}": not (mode in ("", "none") or mode.startswith("service:")),
            f"network_mode: {mode}, whose container is replaced before the tests,": mode == f"service:{MAIN}",
            f"pid: {spec.get('pid')}": bool(spec.get("pid")),
            f"ipc: {spec.get('ipc')}": spec.get("ipc", "private") not in ("private", "none"),
            "replicas": (spec.get("deploy") or {}).get("replicas", 1) != 1,
        }
        devices = ((spec.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
        asked["deploy.resources.reservations.devices"] = bool(devices.get("devices"))
        for capability in spec.get("cap_add") or ():
            short = str(capability).upper().removeprefix("CAP_")
            asked[f"cap_add: {capability}"] = short not in _HARMLESS_CAPABILITIES
        for option in spec.get("security_opt") or ():
            asked[f"security_opt: {option}"] = not _HARMLESS_OPTIONS.fullmatch(str(option))
        for what, is_asked in asked.items():
            if is_asked:
                raise self._refused(f"{where}.{what}")

    def _networks_of(
        self, name: str, spec: Mapping[str, Any], services: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the networks of a service, with the further names by which others know it."""
        names = [str(spec["container_name"])] if "container_name" in spec else []
        for other in services.values():
            for link in map(str, other.get("links") or ()):
                target, _, alias = link.partition(":")
                names += [alias] if target == name and alias else []
        given = spec.get("networks") or {"default": None}
        pairs = given.items() if isinstance(given, dict) else ((network, None) for network in given)
        return {
            network: {**(how or {}), "aliases": list(dict.fromkeys([*((how or {}).get("aliases") or ()), *names]))}
            for network, how in pairs
        }

    def _named(self, kind: str, key: str, spec: Mapping[str, Any] | None, project: str) -> dict[str, Any]:
        """Return a network or volume that belongs to the episode alone."""
        spec = dict(spec or {})
        if spec.get("external"):
            raise self._refused(f"{kind}.{key}, which is external,")
        usual = {"networks": (None, "bridge", "default"), "volumes": (None, "local")}[kind]
        if spec.get("driver") not in usual or spec.get("driver_opts"):
            raise self._refused(f"{kind}.{key}.driver")
        return {**spec, "name": f"{project}_{key}"}

    def _mount(self, where: str, mount: str | Mapping[str, Any]) -> str | dict[str, Any] | None:
        """Return a mount with the whole path of its source; None for the folders of logs, which each container has."""
        if isinstance(mount, str):
            source, _, rest = mount.partition(":")
            if not rest or not source.startswith((".", "/", "~")):
                return mount
            target, _, mode = rest.partition(":")
            found: dict[str, Any] = {"type": "bind", "source": source, "target": target}
            found |= {"read_only": True} if "ro" in mode.split(",") else {}
        else:
            found = dict(mount)
        if found.get("type") in ("volume", "tmpfs"):
            return found
        if found.get("type") != "bind":
            raise self._refused(f"{where}.volumes of type {found.get('type')!r}")
        if PurePosixPath(str(found.get("target"))).as_posix() in _LOGS:
            return None
        found["source"] = str(self._path(f"{where}.volumes", found.get("source")))
        return found

    def _env_files(self, where: str, files: Any) -> list[Any]:
        found = []
        for file in files if isinstance(files, list) else [files]:
            path = file.get("path") if isinstance(file, dict) else file
            whole = self._path(f"{where}.env_file", path)
            if whole.exists() or not (isinstance(file, dict) and file.get("required") is False):
                found.append(str(whole))
        return found

    def _file(self, where: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration or secret; a file's path becomes a whole one."""
        if spec.get("external"):
            raise self._refused(f"{where}, which is external,")
        return {**spec, "file": str(self._path(where, spec["file"]))} if "file" in spec else dict(spec)

    def _build(self, name: str, build: Any) -> dict[str, Any]:
        made = {"context": build} if isinstance(build, str) else {"context": ".", **build}
        where = f"services.{name}.build"
        for key in made:
            if key not in BUILD_KEYS and not key.startswith("x-"):
                raise self._refused(f"{where}.{key}")
        if made.get("network") not in (None, "none", "default"):
            raise self._refused(f"{where}.network: {made['network']}")
        context = self._path(where, made["context"])
        if "dockerfile" in made:
            self._path(where, context / str(made["dockerfile"]))
        return {**made, "context": str(context)}

    def _path(self, where: str, path: Any) -> Path:
        """Return the whole path of a file of the task.

        Raises:
            ConfigurationError: it is outside of the task.
        """
        whole = (self._folder / str(path)).resolve()
        if str(path).startswith("~") or not whole.is_relative_to(self._task.folder.resolve()):
            raise self._refused(f"{where}: {path}, outside of the task's folder,")
        return whole

    def _image(self, name: str, spec: Mapping[str, Any]) -> str:
        image = spec.get("image") or (self._tag(name) if "build" in spec else None)
        if image is None:
            raise ConfigurationError(f"{self._place}: service {name!r} has neither an image nor a build")
        return str(image)

    def _tag(self, service: str) -> str:
        more = "" if service == MAIN else f"-{re.sub('[^a-z0-9_.-]', '-', service.lower())}"
        return f"mcpenv-harbor:{self._task.tag}{more}"

    def _refused(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self._place} asks for {what} which mcpenv gives to no task")


class _NotSet(Exception):
    """Raised if a variable must be set and is not. The text is its name and the author's reason."""


def _substituted(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a value of the file with its variables substituted, by the rules of Compose."""
    if isinstance(value, dict):
        return {str(key): _substituted(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_substituted(each, variables) for each in value]
    return _VARIABLE.sub(_filler(variables), value) if isinstance(value, str) else value


def _filler(variables: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def text(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        name, how, more = match[2] or match[3], match[4] or "", match[5] or ""
        found = variables.get(name)
        is_set = bool(found) if how.startswith(":") else found is not None
        other = _VARIABLE.sub(text, more)
        if how.endswith("+"):
            return other if is_set else ""
        if how.endswith("?") and not is_set:
            raise _NotSet(f"{name}: {other}" if other else name)
        return (found or "") if is_set or not how.endswith("-") else other

    return text


def _dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a file ``.env``."""
    if not path.is_file():
        return {}
    lines = (line.strip().removeprefix("export ") for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def _items(document: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    yield from (document.get(kind) or {}).items()


def _variables(environment: Any) -> dict[str, str | None]:
    """Return the variables of a service; None for one that has its value from this process."""
    if isinstance(environment, dict):
        return dict(environment)
    words = (str(word).partition("=") for word in environment or ())
    return {name: value if equals else None for name, equals, value in words}
