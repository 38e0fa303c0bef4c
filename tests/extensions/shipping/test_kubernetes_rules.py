"""The rules for manifests: each mistake is found and named, in manifests that are right otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_objects import bodies, deployment, everything, one

from mcpenv import ConfigurationError
from mcpenv.extensions.shipping.kubernetes.check import check_manifests, read_manifests
from mcpenv.extensions.shipping.kubernetes.manifests import sandboxes

Objects = list[dict[str, Any]]
Break = Callable[[Objects], object]


def pod(objects: Objects) -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "StatefulSet")["spec"]["template"]["spec"]
    return found


def container(objects: Objects) -> dict[str, Any]:
    found: dict[str, Any] = pod(objects)["containers"][0]
    return found


def given(option: str, value: object) -> Break:
    """The change of an option of the server."""

    def change(objects: Objects) -> None:
        args = container(objects)["args"]
        (index,) = (index for index, each in enumerate(args) if each.startswith(f"{option}="))
        args[index] = f"{option}={value}"

    return change


def of(kind: str, name: str = "shop") -> Callable[[Objects], dict[str, Any]]:
    return lambda objects: one(objects, kind, name)["spec"]


MISTAKES: dict[str, tuple[Break, str, str]] = {
    "a selector that is not the pods' labels": (
        lambda o: of("StatefulSet")(o)["selector"]["matchLabels"].update({"app.kubernetes.io/name": "other"}),
        "StatefulSet/shop",
        "both must be the same",
    ),
    "a service that selects nothing": (
        lambda o: of("Service", "shop-agents")(o)["selector"].update({"tier": "web"}),
        "Service/shop-agents",
        "matches no pods of these manifests: app.kubernetes.io/name=shop",
    ),
    "a service of a pod of another set": (
        lambda o: of("Service", "shop-1")(o)["selector"].update({"statefulset.kubernetes.io/pod-name": "other-1"}),
        "Service/shop-1",
        "matches no pods",
    ),
    "a service's port that pods do not have": (
        lambda o: of("Service", "shop-control")(o)["ports"][0].update({"targetPort": "contol"}),
        "Service/shop-control",
        "the pods of StatefulSet/shop have no port 'contol'",
    ),
    "a set without its service": (
        lambda o: of("StatefulSet")(o).update({"serviceName": "shops"}),
        "StatefulSet/shop",
        "there is no Service 'shops'",
    ),
    "a set whose service is not headless": (
        lambda o: of("Service")(o).pop("clusterIP"),
        "StatefulSet/shop",
        "is not headless",
    ),
    "a probe of a port that is not there": (
        lambda o: container(o)["readinessProbe"]["httpGet"].update({"port": "http"}),
        "StatefulSet/shop",
        "no container has a port 'http'",
    ),
    "a server that listens at another port than agents use": (
        given("--port", 8010),
        "StatefulSet/shop",
        'spec.template.spec.containers[0].args: the server listens at 8010, and the port "agents" is 8000',
    ),
    "a server that listens at another port than orchestrators use": (
        given("--control-port", 8002),
        "StatefulSet/shop",
        'the server listens at 8002, and the port "control" is 8001',
    ),
    "a port of agents at which no server listens": (
        lambda o: container(o)["ports"][0].update({"containerPort": 8005}),
        "StatefulSet/shop",
        'the server listens at 8000, and the port "agents" is 8005; --port and containerPort must be the same',
    ),
    "a port of orchestrators at which no server listens": (
        lambda o: container(o)["ports"][1].update({"containerPort": 8005}),
        "StatefulSet/shop",
        'the server listens at 8001, and the port "control" is 8005; --control-port and containerPort',
    ),
    "an option of two words with another port": (
        lambda o: container(o)["args"].extend(["--port", "8010"]),
        "StatefulSet/shop",
        'the server listens at 8010, and the port "agents" is 8000',
    ),
    "a quantity that is none": (
        lambda o: container(o)["resources"]["limits"].update({"cpu": "lots"}),
        "StatefulSet/shop",
        "'lots' is no quantity",
    ),
    "memory in thousandths": (
        lambda o: container(o)["resources"]["limits"].update({"memory": "512m"}),
        "StatefulSet/shop",
        "thousandths of a byte; write Mi",
    ),
    "a request above its limit": (
        lambda o: container(o)["resources"]["requests"].update({"memory": "64Gi"}),
        "StatefulSet/shop",
        "is more than the limit",
    ),
    "a name with capitals": (
        lambda o: one(o, "PodDisruptionBudget")["metadata"].update({"name": "Shop"}),
        "PodDisruptionBudget/Shop",
        "is no RFC 1123 name",
    ),
    "a service's name that begins with a digit": (
        lambda o: one(o, "Service", "shop-2")["metadata"].update({"name": "2-shop"}),
        "Service/2-shop",
        "is no RFC 1035 name",
    ),
    "a namespace in one object only": (
        lambda o: one(o, "NetworkPolicy")["metadata"].pop("namespace"),
        "manifests",
        "is in some objects only",
    ),
    "a label's value that is a number": (
        lambda o: one(o, "StatefulSet")["metadata"]["labels"].update({"version": 1.2}),
        "StatefulSet/shop",
        "1.2 is no value of a label; quote numbers and true",
    ),
    "an annotation that is no text": (
        lambda o: one(o, "Service")["metadata"].update({"annotations": {"scrape": True}}),
        "Service/shop",
        "put it in quotes",
    ),
    "a volume that is not there": (
        lambda o: container(o)["volumeMounts"][0].update({"name": "token"}),
        "StatefulSet/shop",
        "there is no volume 'token'",
    ),
    "a port that is none": (
        lambda o: container(o)["ports"][0].update({"containerPort": 80000}),
        "StatefulSet/shop",
        "80000 is no port; write a number from 1 to 65535",
    ),
    "a service's port that is none": (
        lambda o: of("Service", "shop-agents")(o)["ports"][0].update({"port": 0}),
        "Service/shop-agents",
        "0 is no port",
    ),
    "a node's port that is text": (
        lambda o: of("Service", "shop-agents")(o)["ports"][0].update({"nodePort": "30080"}),
        "Service/shop-agents",
        "spec.ports[0].nodePort: '30080' is no port",
    ),
    "a port that is there twice": (
        lambda o: container(o)["ports"][1].update({"containerPort": 8000}),
        "StatefulSet/shop",
        "there is another port 8000",
    ),
    "a port's name that is there twice": (
        lambda o: container(o)["ports"][1].update({"name": "agents"}),
        "StatefulSet/shop",
        "there is another port 'agents'",
    ),
    "a port's name that is too long": (
        lambda o: container(o)["ports"][0].update({"name": "agents-of-episodes"}),
        "StatefulSet/shop",
        "'agents-of-episodes' is no name of a port",
    ),
    "ports of a service without names": (
        lambda o: of("Service")(o)["ports"][1].pop("name"),
        "Service/shop",
        "spec.ports[1].name: is missing",
    ),
    "a policy that lets all pods reach the control plane": (
        lambda o: of("NetworkPolicy")(o)["ingress"][1].pop("from"),
        "NetworkPolicy/shop",
        "spec.ingress[1]: lets every pod connect to the control plane",
    ),
    "a policy that lets all pods reach every port": (
        lambda o: of("NetworkPolicy")(o)["ingress"][0].pop("ports"),
        "NetworkPolicy/shop",
        "spec.ingress[0]: lets every pod connect to the control plane",
    ),
    "a policy that lets every namespace reach the control plane": (
        lambda o: of("NetworkPolicy")(o)["ingress"][1]["from"].append({"namespaceSelector": {}}),
        "NetworkPolicy/shop",
        "lets every pod connect to the control plane",
    ),
    "a set whose name is too long for its revisions": (
        lambda o: one(o, "StatefulSet")["metadata"].update({"name": "s" * 53}),
        f"StatefulSet/{'s' * 53}",
        "has more than 52 characters",
    ),
    "an object without a name": (
        lambda o: one(o, "NetworkPolicy")["metadata"].pop("name"),
        "NetworkPolicy/?",
        "metadata.name: is missing",
    ),
    "a namespace with a dot": (
        lambda o: one(o, "NetworkPolicy")["metadata"].update({"namespace": "envs.example"}),
        "NetworkPolicy/shop",
        "metadata.namespace: is no RFC 1123 label",
    ),
    "a label's key with a space": (
        lambda o: one(o, "StatefulSet")["metadata"]["labels"].update({"the version": "1"}),
        "StatefulSet/shop",
        "'the version' is no key of a label",
    ),
    "an annotation's key with two slashes": (
        lambda o: one(o, "Service")["metadata"].update({"annotations": {"a/b/c": "x"}}),
        "Service/shop",
        "'a/b/c' is no key of an annotation",
    ),
    "a container's name with capitals": (
        lambda o: container(o).update({"name": "Server"}),
        "StatefulSet/shop",
        "'Server' is no RFC 1123 label",
    ),
    "a set that selects nothing": (
        lambda o: of("StatefulSet")(o).update({"selector": {}}),
        "StatefulSet/shop",
        "spec.selector: is empty",
    ),
    "a size that is no quantity": (
        lambda o: pod(o)["volumes"][1]["emptyDir"].update({"sizeLimit": "big"}),
        "StatefulSet/shop",
        "'big' is no quantity",
    ),
    "a variable that is not defined": (
        lambda o: container(o)["env"].pop(0),
        "StatefulSet/shop",
        "$(POD_NAME) is not among env",
    ),
    "a pod that is killed while it drains": (
        lambda o: pod(o).update({"terminationGracePeriodSeconds": 30}),
        "StatefulSet/shop",
        "is 30, and preStop, --drain-s and --shutdown-timeout-s take 65: episodes would be killed",
    ),
    "no containers": (lambda o: pod(o).update({"containers": []}), "StatefulSet/shop", "there is none"),
    "two containers of one name": (
        lambda o: pod(o)["containers"].append(copy.deepcopy(container(o))),
        "StatefulSet/shop",
        "there is another container 'server'",
    ),
    "an autoscaler of something else": (
        lambda o: of("HorizontalPodAutoscaler")(o)["scaleTargetRef"].update({"kind": "Deployment"}),
        "HorizontalPodAutoscaler/shop",
        "there is no Deployment 'shop'",
    ),
    "an autoscaler with its range the wrong way round": (
        lambda o: of("HorizontalPodAutoscaler")(o).update({"minReplicas": 9}),
        "HorizontalPodAutoscaler/shop",
        "is 9, more than maxReplicas, 4",
    ),
    "an autoscaler's target that is no quantity": (
        lambda o: of("HorizontalPodAutoscaler")(o)["metrics"][0]["pods"]["target"].update({"averageValue": "most"}),
        "HorizontalPodAutoscaler/shop",
        "'most' is no quantity",
    ),
    "a budget of other pods": (
        lambda o: of("PodDisruptionBudget")(o)["selector"]["matchLabels"].update({"app.kubernetes.io/name": "shops"}),
        "PodDisruptionBudget/shop",
        "matches no pods",
    ),
    "a policy of other pods": (
        lambda o: of("NetworkPolicy")(o)["podSelector"]["matchLabels"].update({"app.kubernetes.io/name": "shops"}),
        "NetworkPolicy/shop",
        "matches no pods",
    ),
    "a policy's port that pods do not have": (
        lambda o: of("NetworkPolicy")(o)["ingress"][1]["ports"][0].update({"port": 9000}),
        "NetworkPolicy/shop",
        "have no port 9000",
    ),
    "a route to a service that is not there": (
        lambda o: of("HTTPRoute", "shop-3")(o)["rules"][0]["backendRefs"][0].update({"name": "shop-9"}),
        "HTTPRoute/shop-3",
        "there is no Service 'shop-9'",
    ),
    "a route to a port that is not there": (
        lambda o: of("HTTPRoute", "shop-3")(o)["rules"][0]["backendRefs"][0].update({"port": 8080}),
        "HTTPRoute/shop-3",
        "the Service 'shop-3' has no port 8080",
    ),
    "a misspelt field of a route": (
        lambda o: of("HTTPRoute", "shop-3")(o)["rules"][0].update({"backendRef": []}),
        "HTTPRoute/shop-3",
        "spec.rules[0].backendRef: is no field of it",
    ),
    "more rules than a route may have": (
        lambda o: of("HTTPRoute", "shop-3")(o).update({"rules": of("HTTPRoute", "shop-3")(o)["rules"] * 17}),
        "HTTPRoute/shop-3",
        "at most 16",
    ),
    "a policy of a route that is not there": (
        lambda o: of("BackendTrafficPolicy", "shop-http")(o)["targetRefs"][0].update({"name": "shop-htp"}),
        "BackendTrafficPolicy/shop-http",
        "there is no HTTPRoute 'shop-htp'",
    ),
    "an object that is there twice": (
        lambda o: o.append(copy.deepcopy(one(o, "StatefulSet"))),
        "StatefulSet/shop",
        "is there 2 times",
    ),
    "an object without a kind": (lambda o: one(o, "NetworkPolicy").pop("kind"), "object/shop", "kind: is missing"),
}


def test_manifests_without_a_mistake_have_no_problem() -> None:
    assert check_manifests(everything()) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_named(name: str) -> None:
    damage, where, says = MISTAKES[name]
    objects = everything()
    damage(objects)
    found = [str(problem) for problem in check_manifests(objects)]
    assert [text for text in found if text.startswith(f"{where}: ") and says in text], found


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ({"name": "shop-9", "port": {"number": 80}}, "there is no Service 'shop-9' in these manifests"),
        ({"name": "shop-agents", "port": {"number": 8080}}, "the Service 'shop-agents' has no port 8080"),
        ({"name": "shop-agents", "port": {"name": "agent"}}, "the Service 'shop-agents' has no port 'agent'"),
    ],
)
def test_the_backends_of_an_ingress_are_there(backend: dict[str, Any], says: str) -> None:
    objects = bodies(host="shop.example.org", route="ingress")
    assert check_manifests(objects) == []
    (rule,) = one(objects, "Ingress", "shop-agents")["spec"]["rules"]
    rule["http"]["paths"][0]["backend"]["service"] = backend
    (problem,) = check_manifests(objects)
    assert (problem.where, problem.text) == ("Ingress/shop-agents", says)
    assert problem.field == "spec.rules[0].http.paths[0].backend.service"


@pytest.mark.parametrize(
    ("kind", "field", "says"),
    [
        ("SandboxTemplate", "podTemplates", "spec.podTemplates: is no field of it"),
        ("SandboxTemplate", "networkPolicyManagement", "Input should be 'Managed' or 'Unmanaged'"),
        ("SandboxWarmPool", "sandboxTemplateRef", "spec.sandboxTemplateRef.name"),
        ("SandboxWarmPool", "replicas", "valid integer"),
    ],
)
def test_the_fields_of_sandboxes_are_known(kind: str, field: str, says: str) -> None:
    objects = [each.body for each in sandboxes(deployment())]
    assert check_manifests(objects) == []
    one(objects, kind)["spec"][field] = "none" if field == "replicas" else {}
    assert any(says in str(problem) for problem in check_manifests(objects))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("--port=8000", "--port=8010", ['the server listens at 8010, and the port "agents" is 8000', "--public-url"]),
        ("--control-port=8001", "--control-port=8002", ['listens at 8002, and the port "control" is 8001']),
        ("--public-url=http://$(POD_IP):8000", "--public-url=http://$(POD_IP)", ["sends agents to port 80 of the pod"]),
    ],
)
def test_a_sandboxs_server_listens_at_the_ports_of_its_container(before: str, after: str, says: list[str]) -> None:
    objects = [each.body for each in sandboxes(deployment())]
    (server,) = one(objects, "SandboxTemplate")["spec"]["podTemplate"]["spec"]["containers"]
    server["args"][server["args"].index(before)] = after
    found = check_manifests(objects)
    assert {(each.where, each.field) for each in found} == {
        ("SandboxTemplate/shop", "spec.podTemplate.spec.containers[0].args")
    }
    assert len(found) == len(says)
    assert all(any(text in each.text for each in found) for text in says)


def test_the_address_that_agents_get_has_the_servers_port() -> None:
    objects = bodies()
    given("--port", 8010)(objects)
    container(objects)["ports"][0]["containerPort"] = 8010
    assert [str(each) for each in check_manifests(objects)] == [
        "StatefulSet/shop: spec.template.spec.containers[0].args: "
        "the server listens at 8010, and --public-url sends agents to port 8000 of the pod"
    ]
    given("--public-url", "http://$(POD_NAME).shop.$(POD_NAMESPACE).svc:8010")(objects)
    assert check_manifests(objects) == []
    given("--public-url", "https://shop.example.org/$(POD_NAME)")(objects)
    assert check_manifests(objects) == []


@pytest.mark.parametrize("port", ["$(PORT)", ""])
def test_a_port_that_is_not_known_here_is_not_judged(port: str) -> None:
    objects = bodies()
    container(objects)["env"].append({"name": "PORT", "value": "8010"})
    given("--port", port)(objects)
    assert check_manifests(objects) == []


def test_a_pool_names_a_template_that_is_there() -> None:
    objects = [each.body for each in sandboxes(deployment())]
    one(objects, "SandboxWarmPool")["spec"]["sandboxTemplateRef"]["name"] = "shops"
    assert [str(each) for each in check_manifests(objects)] == [
        "SandboxWarmPool/shop: spec.sandboxTemplateRef: there is no SandboxTemplate 'shops' in these manifests"
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda o: one(o, "StatefulSet").update({"spec": []}),
        lambda o: one(o, "StatefulSet").update({"metadata": "shop"}),
        lambda o: pod(o).update({"containers": {"name": "server"}}),
        lambda o: container(o).update({"readinessProbe": "/ready"}),
        lambda o: container(o).update({"args": "--port=8010"}),
        lambda o: container(o).update({"args": [8010, None, {}]}),
        lambda o: container(o)["ports"][0].update({"containerPort": "8010"}),
        lambda o: container(o)["readinessProbe"]["httpGet"].update({"port": ["http"]}),
        lambda o: of("Service")(o).update({"ports": 8000}),
        lambda o: of("Service")(o)["ports"][0].update({"targetPort": {}}),
        lambda o: o.append({}),
    ],
)
def test_a_field_of_another_type_is_no_crash(damage: Break) -> None:
    objects = bodies()
    damage(objects)
    check_manifests(objects)


def test_lists_and_empty_documents_are_read(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "# nothing\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n"
        "---\n{apiVersion: v1, kind: Service, metadata: {name: b}}\n",
        encoding="utf-8",
    )
    assert [each["metadata"]["name"] for each in read_manifests(file)] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "has no manifests"), ("a: [", "is not valid YAML"), ("- a\n", "is no object with apiVersion and kind")],
)
def test_what_is_no_manifest_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=says):
        read_manifests(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_manifests(tmp_path / "none.yaml")
