"""The manifests of `deploy/` agree with each other, with the program they start and with what is written about them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from controlplane import deployed
from controlplane.deployed import DEPLOY
from controlplane.harness import Json
from karpenter.api import crds
from karpenter.model import freezes
from karpenter.settings import SETTINGS, resolve_settings

ROOT = DEPLOY.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GUIDE = (ROOT / "docs" / "install.md").read_text()
KUSTOMIZATIONS = sorted(DEPLOY.rglob("kustomization.yaml"))
OBJECTS = deployed.manifests("simulated", "aws")
#: What the pod tells about itself; no setting.
_ABOUT_THE_POD = frozenset({"POD_NAMESPACE"})
_READ = frozenset({"get", "list", "watch"})


class Grant(NamedTuple):
    """What one role allows on one resource."""

    role: str
    resource: str
    verbs: frozenset[str]


def named(manifest: Json) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def the(kind: str) -> Json:
    (result,) = (manifest for manifest in deployed.manifests("aws") if manifest["kind"] == kind)
    return result


def core_roles() -> list[Json]:
    """Roles of the controller that every provider has."""
    names = ("karpenter", "karpenter-core")
    return [role for role in deployed.rights("aws") if "rules" in role and role["metadata"]["name"] in names]


def test_the_kinds_installed_are_those_the_program_knows() -> None:
    """API-870"""
    stored = (DEPLOY / "crds" / "crds.yaml").read_text()
    assert stored == crds.to_yaml(), "the kinds have changed: write deploy/crds/crds.yaml with `make crds`"


@pytest.mark.parametrize("file", KUSTOMIZATIONS, ids=lambda file: file.parent.name)
def test_a_kustomization_names_everything_beside_it_and_nothing_that_is_missing(file: Path) -> None:
    folder = file.parent
    listed = set(yaml.safe_load(file.read_text())["resources"])
    beside = {glob.name for glob in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert beside <= listed
    assert [name for name in listed if not (folder / name).exists()] == []


@pytest.mark.parametrize("manifest", OBJECTS, ids=named)
def test_every_object_is_labelled_as_ours(manifest: Json) -> None:
    labels = manifest["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == labels["app.kubernetes.io/instance"] == "karpenter"


def test_the_pods_run_as_karpenters_chart_runs_them() -> None:
    """AWS-016: two replicas apart from each other and from nodes of NodePools, critical, and not as root."""
    spec: Any = the("Deployment")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    (term,) = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    (apart,) = pod["affinity"]["podAntiAffinity"][required]
    (spread,) = pod["topologySpreadConstraints"]
    assert (spec["replicas"], pod["priorityClassName"]) == (2, "system-cluster-critical")
    assert container["securityContext"]["runAsUser"] == 65532
    assert {"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"} in term["matchExpressions"]
    assert (apart["topologyKey"], spread["topologyKey"]) == ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    assert {"key": "CriticalAddonsOnly", "operator": "Exists"} in pod["tolerations"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]}.items() >= {
        ("http-metrics", 8080),
        ("http", 8081),
    }
    sources = {variable["name"]: variable.get("valueFrom", {}) for variable in container["env"]}
    assert sources["POD_NAMESPACE"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert sources["CPU_REQUESTS"]["resourceFieldRef"]["resource"] == "requests.cpu"
    assert sources["MEMORY_LIMIT"]["resourceFieldRef"]["resource"] == "limits.memory"


def test_the_provider_may_read_node_classes_and_write_their_status() -> None:
    """AWS-016: read EC2NodeClasses, patch them and their status; deleting them is left to users."""
    resource = "ec2nodeclasses.karpenter.k8s.aws"
    verbs = {grant.resource: grant.verbs for grant in granted() if grant.role == "ClusterRole `karpenter-aws`"}
    assert verbs[resource] >= _READ | {"patch"}
    assert "patch" in verbs["ec2nodeclasses/status.karpenter.k8s.aws"]
    assert "delete" not in verbs[resource]


def test_device_claims_may_only_be_read() -> None:
    """SCH-782: the cluster's scheduler allocates devices; plans write nothing to ResourceClaims."""
    claims = [grant for grant in granted() if grant.resource.startswith("resourceclaim")]
    assert claims
    assert all(grant.verbs <= _READ for grant in claims)


def test_whatever_selects_the_pods_selects_them_alike() -> None:
    """OPS-627, OPS-628, OPS-650, OPS-654"""
    deployment: Json = the("Deployment")["spec"]
    pod: Json = deployment["template"]["spec"]
    selectors = [
        deployment["selector"]["matchLabels"],
        the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        the("Service")["spec"]["selector"],
        *(
            term["labelSelector"]["matchLabels"]
            for term in pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ),
        *(term["labelSelector"]["matchLabels"] for term in pod["topologySpreadConstraints"]),
    ]
    assert selectors == [deployment["template"]["metadata"]["labels"]] * 5


def test_the_container_has_the_name_that_users_read_logs_of() -> None:
    """OPS-631 and the command line of OPS §4.7."""
    assert deployed.container()["name"] == "controller"
    assert "-c controller -l app.kubernetes.io/name=karpenter" in GUIDE


def test_the_image_is_of_this_release() -> None:
    image = f"karpenter:{PROJECT['version']}"
    assert deployed.container()["image"] == image
    assert f"-t {image} ." in (DEPLOY / "Dockerfile").read_text()
    assert f"-t {image} ." in GUIDE


def test_the_program_accepts_the_arguments_of_its_container() -> None:
    """OPS-653"""
    environment = deployed.environment()
    settings = {setting.spelling.variable for setting in SETTINGS.values()}
    assert environment.keys() - settings == _ABOUT_THE_POD
    resolve_settings({}, environment)
    assert (environment["CPU_REQUESTS"], environment["MEMORY_LIMIT"]) == ("1000", str(2**30))


def test_the_ports_are_those_in_the_programs_arguments() -> None:
    """OPS-650"""
    environment = deployed.environment()
    ports = {port["name"]: str(port["containerPort"]) for port in deployed.container()["ports"]}
    assert ports == {
        "http-metrics": environment["METRICS_PORT"],
        "http": environment["HEALTH_PROBE_PORT"],
        "https-webhook": environment["WEBHOOK_PORT"],
    }
    served = [port["targetPort"] for port in the("Service")["spec"]["ports"]]
    assert served == ["http-metrics", "https-webhook"]
    assert environment["KARPENTER_SERVICE"] == the("Service")["metadata"]["name"]


def test_only_the_lease_of_the_leader_may_be_changed() -> None:
    """OPS-318, OPS-664"""
    (role,) = (manifest for manifest in core_roles() if manifest["kind"] == "Role")
    named = [rule for rule in _rules(role) if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in named] == [["karpenter-leader-election"]]


def test_probes_ask_where_the_program_answers() -> None:
    """OPS-651"""
    container = deployed.container()
    probes = {name: container[name] for name in ("livenessProbe", "readinessProbe")}
    assert {name: probe["httpGet"] for name, probe in probes.items()} == {
        "livenessProbe": {"path": "/healthz", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
    }


def test_the_image_runs_as_the_user_the_pod_demands() -> None:
    """OPS-652"""
    context: Json = deployed.container()["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in (DEPLOY / "Dockerfile").read_text()


def test_the_image_is_made_with_the_tools_of_this_project() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert "RUN /build.sh /source /opt/karpenter\n" in dockerfile
    (version,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"uv=={version}\n" in dockerfile
    bases = set(re.findall(r"^FROM python:([0-9.]+)-slim", dockerfile, re.MULTILINE))
    assert {f">={base}" for base in bases} == {PROJECT["requires-python"]}


def test_every_package_of_the_image_has_a_wheel_for_both_architectures() -> None:
    """The image is built for amd64 and arm64, without a compiler."""
    for name, files in _runtime_wheels().items():
        for machine in ("x86_64", "aarch64"):
            assert any(_fits(file, machine) for file in files), f"{name} has no wheel for {machine}"


def _runtime_wheels() -> dict[str, list[str]]:
    """The wheels in the lock file of what the controller needs, by package; some have a version for each Python."""
    packages: dict[str, list[dict[str, list[dict[str, str]]]]] = {}
    for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        packages.setdefault(one["name"], []).append(one)
    wanted, names = ["karpenter"], set[str]()
    while wanted:
        name = wanted.pop()
        if name not in names:
            names.add(name)
            needed = (link for one in packages[name] for link in one.get("dependencies", ()))
            wanted += [link["name"] for link in needed if "win32" not in link.get("marker", "")]
    return {
        name: [file["url"] for one in packages[name] for file in one.get("wheels", ())]
        for name in names - {"karpenter"}
    }


def _fits(file: str, machine: str) -> bool:
    python, _, platform = file.rsplit("/", 1)[1].removesuffix(".whl").rsplit("-", 3)[1:]
    return ("cp311" in python or "py3" in python or "abi3" in file) and (
        platform == "any" or ("manylinux" in platform and machine in platform)
    )


def test_the_bill_of_materials_names_every_package_of_the_image(tmp_path: Path) -> None:
    recipe = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if "cyclonedx" in line and "uv export" in line
    )
    bill = tmp_path / "bill.json"
    words = recipe.split(">")[0].replace("$(BIN)", str(Path(sys.executable).parent)).split()
    subprocess.run(
        [str(bill) if word.startswith("dist/") else word for word in words], cwd=ROOT, check=True, capture_output=True
    )
    named = {one["name"]: one for one in json.loads(bill.read_text())["components"]}
    needed = _runtime_wheels().keys()
    assert needed <= named.keys()
    assert all(named[name]["purl"].startswith("pkg:pypi/") for name in needed)


def _roles() -> list[Json]:
    return [obj for obj in (*deployed.rights(), *deployed.rights("aws")) if "rules" in obj]


def _rules(role: Json) -> list[dict[str, list[str]]]:
    return role["rules"]


def test_the_only_secret_that_may_be_read_is_the_webhooks_certificate() -> None:
    """API-851"""
    roles = [role for role in _roles() if any("secrets" in rule["resources"] for rule in _rules(role))]
    assert {(role["kind"], role["metadata"]["namespace"]) for role in roles} == {("Role", "kube-system")}
    for named, creating in map(_rules, roles):
        assert (named["resourceNames"], named["verbs"]) == (["karpenter-cert"], ["get", "patch"])
        assert creating["verbs"] == ["create"]


def test_no_right_is_a_wildcard_or_leads_to_others() -> None:
    for rule in (rule for role in _roles() for rule in _rules(role) if rule["resources"] != ["secrets"]):
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert not {"secrets", "serviceaccounts", "serviceaccounts/token"} & set(rule["resources"])
        assert rule["apiGroups"] != ["rbac.authorization.k8s.io"]


def test_what_only_some_nodes_need_is_not_granted_elsewhere() -> None:
    core = {grant for grant in granted() if "simulated" not in grant.role and "aws" not in grant.role}
    assert {grant.role for grant in core} == {
        "ClusterRole `karpenter-core`",
        "Role `karpenter` in `kube-system`",
        "Role `karpenter-webhook` in `kube-system`",
    }
    resources = {grant.resource for grant in core}
    assert resources.isdisjoint(
        {"nodes/status", "kwoknodeclasses.karpenter.kwok.sh", "ec2nodeclasses.karpenter.k8s.aws"}
    )
    (nodes,) = (grant for grant in core if grant.resource == "nodes")
    assert "create" not in nodes.verbs


def test_of_config_maps_only_the_freeze_may_be_read() -> None:
    """Others may hold what is nobody's business."""
    rules = [rule for role in core_roles() for rule in _rules(role)]
    (rule,) = (rule for rule in rules if "configmaps" in rule["resources"])
    assert (rule["resourceNames"], frozenset(rule["verbs"])) == ([freezes.FREEZE_CONFIG_MAP], _READ)


def granted() -> set[Grant]:
    """What the roles allow, by resource."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for role in _roles():
        for rule in _rules(role):
            for resource in rule["resources"]:
                group = rule["apiGroups"][0]
                name = f"{resource}.{group}" if group else resource
                verbs.setdefault((_title(role), name), set()).update(rule["verbs"])
    return {Grant(role, resource, frozenset(allowed)) for (role, resource), allowed in verbs.items()}


def _title(role: Json) -> str:
    metadata: Json = role["metadata"]
    where = f" in `{metadata['namespace']}`" if "namespace" in metadata else ""
    return f"{role['kind']} `{metadata['name']}`{where}"


def explained() -> Iterator[Grant]:
    """What the guide says about each right."""
    role = ""
    table = GUIDE.partition("| role | on | verbs | what for |\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[1:]:
        title, resource, verbs, reason = (cell.strip() for cell in row.strip("|").split("|"))
        assert reason
        role = title or role
        spelled = verbs.replace("read", ", ".join(sorted(_READ))).split(", ")
        yield Grant(role, resource.strip("`"), frozenset(spelled))


def test_the_guide_says_what_each_right_is_for() -> None:
    assert set(explained()) == granted()


def test_the_guide_names_the_release_the_tests_run_on() -> None:
    module = (ROOT / "tests" / "controlplane" / "go.mod").read_text()
    (release,) = re.findall(r"k8s.io/kubernetes v(\d+\.\d+)\.\d+ ", module)
    assert f"Every test that needs a control plane runs on {release};" in GUIDE
