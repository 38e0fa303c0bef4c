"""The manifests of an environment on Kubernetes: what is in them, and where their values come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from kubernetes_objects import (
    GOLDEN,
    GOLDEN_FOLDER,
    IMAGE,
    bodies,
    container_of,
    deployment,
    everything,
    golden,
    one,
)

from mcpenv import ConfigurationError
from mcpenv.extensions.shipping.kubernetes.deployment import Deployment
from mcpenv.extensions.shipping.kubernetes.manifests import secret_commands, text_of, write
from mcpenv.extensions.shipping.kubernetes.objects import sandboxes, server_objects
from mcpenv.targets.manifest import Manifest


def test_the_objects_are_those_that_the_settings_need() -> None:
    kinds = [each["kind"] for each in bodies()]
    assert kinds == ["StatefulSet", "Service", "Service", "Service", "PodDisruptionBudget", "NetworkPolicy"]
    more = {each["kind"] for each in everything()}
    assert more - set(kinds) == {
        *("RuntimeClass", "HorizontalPodAutoscaler", "PodMonitor", "HTTPRoute", "BackendTrafficPolicy", "DaemonSet"),
        "PersistentVolumeClaim",
    }
    by_ingress = [each["kind"] for each in bodies(host="shop.example.org", route="ingress")]
    assert "Ingress" in by_ingress and "HTTPRoute" not in by_ingress


@pytest.mark.parametrize("name", GOLDEN)
def test_the_manifests_are_those_that_were_reviewed(name: str) -> None:
    """Compare with the file, in which a change is reviewed; ``python kubernetes_objects.py`` writes the files."""
    assert golden(name) == (GOLDEN_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def test_an_update_leaves_running_episodes_their_time() -> None:
    pod = one(bodies(drain_s=600, shutdown_timeout_s=40), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--drain-s=600" in container["args"] and "--shutdown-timeout-s=40" in container["args"]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= 600 + 40 + sleep + 10


def test_an_episodes_address_leads_to_its_pod() -> None:
    inside = container_of(bodies())
    assert "--public-url=http://$(POD_NAME).shop.$(POD_NAMESPACE).svc:8000" in inside["args"]
    objects = everything()
    assert "--public-url=https://shop.example.org/$(POD_NAME)" in container_of(objects)["args"]
    for ordinal in range(4):
        pod = f"shop-{ordinal}"
        service = one(objects, "Service", pod)["spec"]
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == pod
        assert service["publishNotReadyAddresses"], "agents reach a pod that drains"
        (rule,) = one(objects, "HTTPRoute", pod)["spec"]["rules"]
        assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": f"/{pod}"}}]
        assert rule["filters"][0]["urlRewrite"]["path"]["replacePrefixMatch"] == "/"
        assert rule["backendRefs"] == [{"name": pod, "port": 80}]


@pytest.mark.parametrize("route", ["gateway", "ingress"])
def test_any_pod_answers_for_durable_episodes(route: str) -> None:
    objects = bodies(durable="shop-store", host="shop.example.org", route=route)
    container = container_of(objects)
    assert {"--durable=$(MCPENV_DURABLE)", "--public-url=https://shop.example.org"} <= set(container["args"])
    assert container["env"][-1] == {
        "name": "MCPENV_DURABLE", "valueFrom": {"secretKeyRef": {"name": "shop-store", "key": "url"}}
    }  # fmt: skip
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert services == ["shop", "shop-agents", "shop-control"]
    text = yaml.safe_dump([each for each in objects if each["kind"] in ("HTTPRoute", "Ingress")])
    assert "/episodes" in text and "shop-0" not in text
    inside = container_of(bodies(durable="shop-store"))
    assert "--public-url=http://shop-agents.$(POD_NAMESPACE).svc:80" in inside["args"]


def test_pods_of_durable_episodes_reach_each_other_and_the_store_and_may_be_moved() -> None:
    objects = bodies(durable="shop-store")
    egress = one(objects, "NetworkPolicy")["spec"]["egress"]
    selector = one(objects, "NetworkPolicy")["spec"]["podSelector"]
    assert {"to": [{"podSelector": selector}], "ports": [{"protocol": "TCP", "port": "agents"}]} in egress
    assert [each["port"] for rule in egress if "to" not in rule for each in rule["ports"]] == [5432, 6379]
    assert "annotations" not in one(objects, "StatefulSet")["spec"]["template"]["metadata"]
    assert one(bodies(durable="shop-store", network=True), "NetworkPolicy")["spec"]["egress"] == [{}]
    assert any("shop-store" in command for command in secret_commands(deployment(durable="shop-store")))


def test_sessions_and_tokens_stay_at_one_pod() -> None:
    objects = everything()
    by = {
        name: one(objects, "BackendTrafficPolicy", f"shop-{name}")["spec"]["loadBalancer"]["consistentHash"]
        for name in ("agents", "sockets", "http")
    }
    assert by["agents"]["header"] == {"name": "Authorization"}
    assert by["sockets"]["header"] == {"name": "Mcpenv-Session-Id"}
    assert by["http"]["cookie"]["name"] == "mcpenv_server"
    ingresses = bodies(host="shop.example.org", control_host="c.example.org", route="ingress")
    prefix = "nginx.ingress.kubernetes.io/"
    assert one_annotations(ingresses, "shop-agents")[prefix + "upstream-hash-by"] == "$http_authorization"
    assert one_annotations(ingresses, "shop-sockets")[prefix + "upstream-hash-by"] == "$http_mcpenv_session_id"
    assert one_annotations(ingresses, "shop-http")[prefix + "affinity"] == "cookie"


def one_annotations(objects: list[dict[str, Any]], name: str) -> dict[str, str]:
    return dict(one(objects, "Ingress", name)["metadata"]["annotations"])


def test_agents_are_kept_off_the_control_port() -> None:
    objects = bodies()
    agents, control = one(objects, "NetworkPolicy")["spec"]["ingress"]
    assert agents == {"ports": [{"protocol": "TCP", "port": "agents"}]}
    assert control["ports"] == [{"protocol": "TCP", "port": "control"}]
    assert {"podSelector": {"matchLabels": {"mcpenv.role": "orchestrator"}}} in control["from"]
    outside = bodies(host="shop.example.org", control_host="c.example.org")
    by_ingress = bodies(host="shop.example.org", control_host="c.example.org", route="ingress")
    elsewhere = bodies(host="shop.example.org", control_host="c.example.org", proxy_namespace="infra")
    for made, namespace in ((outside, "envoy-gateway-system"), (by_ingress, "ingress-nginx"), (elsewhere, "infra")):
        proxies = one(made, "NetworkPolicy")["spec"]["ingress"][1]["from"][-1]
        assert proxies == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    ports = {port["name"]: port["containerPort"] for port in container_of(objects)["ports"]}
    assert ports["agents"] != ports["control"]
    assert f"--control-port={ports['control']}" in container_of(objects)["args"]


def test_tools_reach_other_machines_only_where_the_manifest_says_so() -> None:
    (cut_off,) = one(bodies(), "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for port in cut_off["ports"]} == {53}
    assert one(bodies(network=True), "NetworkPolicy")["spec"]["egress"] == [{}]


def test_pods_are_confined_and_have_requests_and_limits() -> None:
    objects = bodies(memory="2Gi", cpu=0.25)
    pod = one(objects, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    container = container_of(objects)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"]["cpu"] == "250m"
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "2Gi"}


def test_the_number_of_pods_follows_the_sessions_of_a_pod() -> None:
    scaler = one(bodies(max_sessions=64, replicas=2, max_replicas=6), "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    (metric,) = scaler["metrics"]
    assert metric["pods"]["metric"]["name"] == "mcpenv_sessions_taken"
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "44"}
    assert scaler["behavior"]["scaleDown"]["policies"][0]["value"] == 1
    objects = server_objects(deployment(max_sessions=64))
    (written,) = (each for each in objects if each.kind == "HorizontalPodAutoscaler")
    rule = yaml.safe_load(written.comment[written.comment.index("- series") : written.comment.index("The pod with")])
    assert rule[0]["name"] == {"as": "mcpenv_sessions_taken"} and "pod" in rule[0]["resources"]["overrides"]
    monitor = one([each.body for each in objects], "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert monitor["selector"]["matchLabels"] == deployment().selector and endpoint["port"] == "control"
    assert endpoint["authorization"]["credentials"] == {"name": "shop-tokens", "key": "metrics-token"}
    for given in ({}, {"max_sessions": 64, "replicas": 3, "max_replicas": 3}):
        assert all(each["kind"] != "HorizontalPodAutoscaler" for each in bodies(**given))


def test_keda_asks_prometheus_for_the_sessions_of_these_pods() -> None:
    objects = bodies(max_sessions=64, replicas=2, max_replicas=6, autoscaler="keda", namespace="envs")
    assert all(each["kind"] != "HorizontalPodAutoscaler" for each in objects), "KEDA makes it"
    scaler = one(objects, "ScaledObject")["spec"]
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"]) == (2, 6)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "shop"}
    (trigger,) = scaler["triggers"]
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus-operated.monitoring.svc:9090",
        "query": 'sum(mcpenv_sessions_taken{namespace="envs",pod=~"shop-[0-9]+"})',
        "threshold": "44",
    }
    behaviour = scaler["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    by_adapter = one(bodies(max_sessions=64), "HorizontalPodAutoscaler")["spec"]["behavior"]
    assert behaviour == by_adapter and one(objects, "PodMonitor")


def test_no_number_of_pods_is_written_beside_an_autoscaler() -> None:
    """Each apply would set it again, and end the sessions of the pods that the autoscaler added."""
    keda: dict[str, Any] = {"autoscaler": "keda", "namespace": "envs"}
    for scaled in ({}, keda):
        assert "replicas" not in one(bodies(max_sessions=64, **scaled), "StatefulSet")["spec"]
    assert one(bodies(), "StatefulSet")["spec"]["replicas"] == 2
    assert one(bodies(replicas=3, max_replicas=6), "StatefulSet")["spec"]["replicas"] == 3


def test_pods_are_spread_and_not_moved_while_sessions_run() -> None:
    template = one(bodies(), "StatefulSet")["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    spread = template["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(each["labelSelector"]["matchLabels"] == deployment().selector for each in spread)
    # A pod that does not get ready must not stop a node from being drained.
    assert one(bodies(), "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_every_pod_pulls_with_the_secret() -> None:
    objects = bodies(pull_secrets=["one", "other"], pre_pull=True)
    for kind, name in (("StatefulSet", "shop"), ("DaemonSet", "shop-pre-pull")):
        pod = one(objects, kind, name)["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "other"}]
    assert "imagePullSecrets" not in one(bodies(), "StatefulSet")["spec"]["template"]["spec"]


@pytest.mark.parametrize("make", [server_objects, sandboxes])
def test_all_pods_record_to_one_volume(make: Any) -> None:
    objects = [each.body for each in make(deployment(records="20Gi", storage_class="shared"))]
    claim = one(objects, "PersistentVolumeClaim", "shop-records")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"] and claim["storageClassName"] == "shared"
    assert claim["resources"] == {"requests": {"storage": "20Gi"}}
    (holder,) = (each for each in objects if each["kind"] in ("StatefulSet", "SandboxTemplate"))
    pod = holder["spec"].get("template", holder["spec"].get("podTemplate"))["spec"]
    assert {"name": "records", "persistentVolumeClaim": {"claimName": "shop-records"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert "--record=/records" in container["args"]
    assert {"name": "records", "mountPath": "/records"} in container["volumeMounts"]
    assert "--record=/records" not in container_of(bodies())["args"]


@pytest.mark.parametrize("route", ["gateway", "ingress"])
def test_the_console_of_each_pod_has_an_address_of_the_control_host(route: str) -> None:
    objects = bodies(host="shop.example.org", control_host="control.example.org", route=route)
    for ordinal in range(2):
        pod = f"shop-{ordinal}"
        assert {"name": "control", "port": 8001, "targetPort": "control"} in one(objects, "Service", pod)["spec"][
            "ports"
        ]
        if route == "gateway":
            made = one(objects, "HTTPRoute", f"{pod}-control")["spec"]
            assert made["hostnames"] == ["control.example.org"]
            (rule,) = made["rules"]
            assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": f"/{pod}"}}]
            assert rule["backendRefs"] == [{"name": pod, "port": 8001}]
        else:
            (rule,) = one(objects, "Ingress", "shop-pods-control")["spec"]["rules"]
            assert rule["http"]["paths"][ordinal]["backend"]["service"] == {"name": pod, "port": {"number": 8001}}
    only_agents = bodies(host="shop.example.org", route=route)
    assert [port["name"] for port in one(only_agents, "Service", "shop-0")["spec"]["ports"]] == ["agents"]


@pytest.mark.parametrize(
    ("given", "pods", "says"),
    [
        ({}, 2, ""),
        ({"replicas": 6}, 6, ""),
        ({"max_sessions": 64}, 4, "For later: autoscaling adds pods shop-2 to -3."),
        ({"max_sessions": 64, "replicas": 6}, 6, ""),
        (
            {"max_replicas": 3},
            3,
            "For later: kubectl scale statefulset shop --replicas 3 adds pod shop-2.",
        ),
    ],
)
@pytest.mark.parametrize("route", ["gateway", "ingress"])
def test_only_pods_that_there_may_be_have_a_service_and_a_route(
    given: dict[str, Any], pods: int, says: str, route: str
) -> None:
    objects = server_objects(deployment(host="shop.example.org", route=route, **given))
    names = [f"shop-{ordinal}" for ordinal in range(pods)]
    of_pods = [each for each in objects if each.name[-1].isdecimal()]
    assert [each.name for each in of_pods if each.kind == "Service"] == names
    if route == "gateway":
        assert [each.name for each in of_pods if each.kind == "HTTPRoute"] == names
        told = [each for each in of_pods if each.name == "shop-2" and each.comment]
        assert [each.comment for each in told] == ([says, says] if says else [])
    else:
        (ingress,) = (each for each in objects if each.name == "shop-pods")
        paths = ingress.body["spec"]["rules"][0]["http"]["paths"]
        assert [path["backend"]["service"]["name"] for path in paths] == names
        assert ingress.comment.splitlines()[1:] == ([says] if says else [])


def test_tokens_come_from_files_of_a_secret_and_secrets_by_name() -> None:
    container = container_of(everything())
    assert "--control-token-file=/run/mcpenv/control-token" in container["args"]
    assert not any("TOKEN" in variable["name"] and "value" in variable for variable in container["env"])
    (token,) = (variable for variable in container["env"] if variable["name"] == "SHOP_API_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "shop-secrets", "key": "SHOP_API_TOKEN"}}
    *made, tokens, values = secret_commands(deployment(namespace="envs", secrets=("SHOP_API_TOKEN",)))
    assert tokens.startswith("kubectl create secret generic shop-tokens --namespace envs --from-file=control-token ")
    assert [command.rpartition(">")[2] for command in made] == re.findall(r"--from-file=(\S+)", tokens)
    assert values.endswith('shop-secrets --namespace envs --from-literal=SHOP_API_TOKEN="$SHOP_API_TOKEN"')
    assert all(each["kind"] != "Secret" for each in everything())


def test_a_setting_with_a_dollar_reaches_the_environment_as_it_is() -> None:
    assert "--set=price=5$$ $$(POD)" in container_of(bodies(settings=("price=5$ $(POD)",)))["args"]


def test_values_come_from_the_manifest_and_given_ones_win() -> None:
    manifest = Manifest.model_validate(
        {
            "schema_version": 1,
            "name": "Corner_Shop",
            "entry": "shop/environment.py:Shop",
            "limits": {"max_sessions": 64, "drain_s": 600.0},
            "needs": {"memory": "512Mi", "cpu": 2.0, "network": True},
            "secrets": {"SHOP_API_TOKEN": "the shop's"},
            "modes": ["production"],
        }
    )
    made = Deployment.of(manifest, {"image": IMAGE, "max_sessions": 8, "name": None})
    assert made.name == "corner-shop"
    assert (made.max_sessions, made.drain_s, made.memory, made.cpu, made.network) == (8, 600, "512Mi", 2, True)
    assert (made.secrets, made.mode) == (("SHOP_API_TOKEN",), "production")
    with pytest.raises(ConfigurationError, match="the manifest allows production only"):
        Deployment.of(manifest, {"image": IMAGE, "mode": "simulation"})
    with pytest.raises(ConfigurationError, match="--image is missing"):
        Deployment.of(manifest, {})
    assert Deployment.of(manifest, {"image": IMAGE, "replicas": 9}).most_pods == 9


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "Corner_Shop"}, "cannot be that of Kubernetes objects; give --name"),
        ({"name": "s" * 49}, "at most 48"),
        ({"image": "a b"}, "is no image"),
        ({"namespace": "My_Envs"}, "--namespace My_Envs"),
        ({"replicas": 0}, "--replicas 0"),
        ({"replicas": 5, "max_replicas": 4}, "the second not less"),
        ({"max_sessions": 0}, "--max-sessions is 0"),
        ({"memory": "lots"}, "--memory lots: write an amount such as 512Mi"),
        ({"memory": "512"}, "--memory 512"),
        ({"cpu": 0}, "--cpu is 0"),
        ({"durable": "Not A Secret"}, "--durable Not A Secret"),
        ({"durable": "s", "mode": "production"}, "--durable: there are no episodes to keep in production mode"),
        ({"host": "shop"}, "--host shop: it must be a host name"),
        ({"host": "a.example.org", "control_host": "a.example.org"}, "agents would reach the control plane"),
        ({"gateway": "a/b/c"}, "--gateway a/b/c"),
        ({"runtime_class": "g Visor"}, "--runtime-class g Visor"),
        ({"monitoring_namespace": "Mon"}, "--monitoring-namespace Mon"),
        ({"proxy_namespace": "a.b"}, "--proxy-namespace a.b"),
        ({"warm": -1}, "--warm is -1"),
        ({"records": "much"}, "--records much: write an amount such as 20Gi"),
        ({"records": "1Gi", "mode": "production"}, "no episodes to record in production"),
        ({"storage_class": "shared"}, "--storage-class is for the volume of --records"),
        ({"autoscaler": "keda"}, "--autoscaler keda: give --namespace as well"),
        ({"prometheus": "http://p:9090"}, "--prometheus is for --autoscaler keda"),
        ({"pull_secrets": ["a b"]}, "--pull-secret a b"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_option(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        deployment(**given)
    assert says in str(refused.value)


def test_sandboxes_have_a_template_and_a_pool() -> None:
    template, pool = (each.body for each in sandboxes(deployment(warm=5)))
    assert (template["kind"], pool["kind"]) == ("SandboxTemplate", "SandboxWarmPool")
    assert template["apiVersion"] == pool["apiVersion"] == "extensions.agents.x-k8s.io/v1beta1"
    assert pool["spec"]["replicas"] == 5 and pool["spec"]["sandboxTemplateRef"] == {"name": "shop"}
    (container,) = template["spec"]["podTemplate"]["spec"]["containers"]
    assert "--public-url=http://$(POD_IP):8000" in container["args"]


def test_the_text_is_yaml_with_comments_and_says_the_same(tmp_path: Path) -> None:
    objects = server_objects(deployment(max_sessions=64, pre_pull=True))
    text = text_of(objects, "the head")
    assert text.startswith("# the head\n---\n# The servers.")
    assert "&id" not in text and "*id" not in text
    assert list(yaml.safe_load_all(text)) == [each.body for each in objects]
    file = tmp_path / "deploy" / "shop.yaml"
    assert write(objects, file, "the head") == [file]
    assert file.read_text(encoding="utf-8") == text


def test_a_folder_can_be_applied_by_kustomize(tmp_path: Path) -> None:
    objects = server_objects(deployment(host="shop.example.org"))
    written = write(objects, tmp_path / "shop", "the head")
    kustomization = yaml.safe_load((tmp_path / "shop" / "kustomization.yaml").read_text(encoding="utf-8"))
    assert {path.name for path in written} == {*kustomization["resources"], "kustomization.yaml"}
    read = [
        (each["kind"], each["metadata"]["name"])
        for file in kustomization["resources"]
        for each in yaml.safe_load_all((tmp_path / "shop" / file).read_text(encoding="utf-8"))
    ]
    assert sorted(read) == sorted((each.kind, each.name) for each in objects)


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    objects = server_objects(deployment())
    for place in (tmp_path / "shop", tmp_path / "shop.yaml"):
        (first, *_) = write(objects, place, "")
        first.write_text("mine", encoding="utf-8")
        with pytest.raises(ConfigurationError, match="would be overwritten; give another --out, or --force"):
            write(objects, place, "")
        assert first.read_text(encoding="utf-8") == "mine"
        write(objects, place, "", force=True)
        assert first.read_text(encoding="utf-8") != "mine"
