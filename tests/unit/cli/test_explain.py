"""``karpenter explain pod``: where a pod would go and why there, or what would have to change."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from karpenter.api.meta import OwnerReference
from karpenter.cli import cluster_reader
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.main import app
from support import builders
from support.manifest_builders import Json, pod, pool

Explain = Callable[..., Result]
Written = Callable[..., Path]
TAINT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}


@pytest.fixture
def explain(types: Path) -> Explain:
    """``karpenter explain pod`` with the three types and these arguments."""

    def run(*arguments: str | Path) -> Result:
        given = ["explain", "pod", *map(str, arguments), "--instance-types", str(types)]
        return CliRunner().invoke(app, given, catch_exceptions=False)

    return run


def tainted() -> Json:
    result = pool()
    result["spec"]["template"]["spec"]["taints"] = [TAINT]
    return result


def existing(name: str = "n", cpu: str = "4") -> Json:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_a_pod_that_stays_waiting_gets_one_sentence_and_a_tree(explain: Explain, written: Written) -> None:
    result = explain("huge", "-f", written("a.json", pool(), pod("huge", "64")))
    assert result.exit_code == 0
    first, *rest = result.stdout.splitlines()
    assert first == (
        "Pod default/huge unschedulable: nearest is NodePool default: the pod is 56 CPU short on a.large, "
        "the largest otherwise suitable type (asks 64 CPU, 8 CPU there)"
    )
    assert rest[0] == "├── NodePool default: no instance type has enough resources"
    assert rest[1].endswith("of 3 types with 3 offerings")
    assert rest[2].endswith("3 filtered by cpu: the pod asks 64 CPU (the largest of them, a.large, has 8 CPU)")


def test_json_has_the_whole_tree_as_data(explain: Explain, written: Written) -> None:
    loads = json.loads(explain("web", "-f", written("a.json", tainted(), pod()), "-o", "json").stdout)
    assert list(loads) == [
        "pod", "state", "text", "reasons", "sentence", "nearestFit", "nearestExistingNode", "prices",
    ]  # fmt: skip
    assert (loads["pod"], loads["state"]) == ("default/web", "unschedulable")
    assert loads["nearestFit"]["nodePool"] == "default"
    assert loads["nearestFit"]["changes"] == [
        {
            "kind": "untolerated-taint",
            "subject": "dedicated=gpu:NoSchedule",
            "message": "the pod does not tolerate the taint dedicated=gpu:NoSchedule",
        }
    ]
    (reason,) = loads["reasons"]
    assert reason["types"]["types"] == 3
    assert [
        (element["kind"], element["types"], element["typesFilteredAlone"]) for element in reason["types"]["filtered"]
    ] == [("untolerated-taint", 3, 3)]


def test_what_is_short_has_its_numbers_as_quantities(explain: Explain, written: Written) -> None:
    loads = json.loads(explain("huge", "-f", written("a.json", pool(), pod("huge", "64")), "-o", "json").stdout)
    (change,) = loads["nearestFit"]["changes"]
    numbers = {name: change[name] for name in ("subject", "on", "asked", "there", "short")}
    assert numbers == {"subject": "cpu", "on": "a.large", "asked": "64", "there": "8", "short": "56"}


def test_yaml_says_the_same_as_json(explain: Explain, written: Written) -> None:
    file = written("a.json", tainted(), pod())
    from_json = json.loads(explain("web", "-f", file, "-o", "json").stdout)
    assert yaml.safe_load(explain("web", "-f", file, "-o", "yaml").stdout) == from_json


def test_a_pod_for_which_a_node_is_launched_shows_the_node_and_its_price(explain: Explain, written: Written) -> None:
    file = written("a.json", pool(), pod("a", "3"), pod("b", "3"))
    lines = explain("a", "-f", file).stdout.splitlines()
    assert lines == [
        "Pod default/a new node: a.large of NodePool default in zone-a, on-demand, $0.3500 per hour",
        "├── no existing node fits",
        "├── cheapest of 2 types that fit: a.large, b.large",
        "├── shared with 1 other pod of this plan",
        "└── prices: of the instance type file types.json",
    ]
    loads = json.loads(explain("a", "-f", file, "-o", "json").stdout)
    assert (loads["state"], loads["nodeClaim"]["cheapest"]["price"]) == ("new-node", 0.35)


def test_a_pod_that_fits_on_an_existing_node_shows_it(explain: Explain, written: Written) -> None:
    file = written("a.json", pool(), existing(), pod())
    assert explain("web", "-f", file).stdout.startswith("Pod default/web fits on existing or in-flight node n")
    loads = json.loads(explain("web", "-f", file, "-o", "json").stdout)
    assert (loads["state"], loads["node"]) == ("existing-node", "n")


def test_the_node_that_nearly_has_room_is_reported(explain: Explain, written: Written) -> None:
    result = explain("web", "-f", written("a.json", tainted(), existing(cpu="1200m"), pod(cpu="1500m")))
    assert "existing nodes: node n has 0.3 CPU too little" in result.stdout


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"nodeName": "n"}, "is bound to node n and stays there"),
        ({"schedulingGates": [{"name": "quota"}]}, "it has scheduling gates (quota)"),
    ],
)
def test_a_pod_nothing_is_planned_for_shows_the_reason(
    fields: Json, expected: str, explain: Explain, written: Written
) -> None:
    result = explain("web", "-f", written("a.json", pool(), existing(), pod(**fields)))
    assert expected in result.stdout


@pytest.mark.parametrize(
    ("metadata", "phase", "expected"),
    [
        ({}, "Succeeded", "Pod default/web has finished on node n: Succeeded"),
        ({}, "Failed", "Pod default/web has finished on node n: Failed"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "Running", "Pod default/web is being deleted on node n"),
    ],
)
def test_a_pod_without_a_node_is_not_reported_as_staying(
    metadata: Json, phase: str, expected: str, explain: Explain, written: Written
) -> None:
    over = {**pod(nodeName="n"), "metadata": {"name": "web", **metadata}, "status": {"phase": phase}}
    assert explain("web", "-f", written("a.json", pool(), existing(), over)).stdout.startswith(expected)


def test_a_pod_no_scheduler_has_refused_yet_says_so(explain: Explain, written: Written) -> None:
    looked_at = {**pod(), "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "Unknown"}]}}
    assert (
        "the scheduler has not marked it unschedulable yet"
        in explain("web", "-f", written("a.json", pool(), looked_at)).stdout
    )


def test_a_name_that_is_not_there_is_wrong_input_with_a_hint(explain: Explain, written: Written) -> None:
    elsewhere = {**pod(), "metadata": {"name": "web", "namespace": "shop"}}
    file = written("a.json", pool(), elsewhere)
    result = explain("web", "-f", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "no pod default/web in the input; there is one of that name with -n shop\n"
    assert explain("web", "-n", "shop", "-f", file).exit_code == 0
    assert explain("nobody", "-f", file).stderr == "no pod default/nobody in the input\n"


def of_shop() -> Json:
    body = pod("web")
    body["metadata"]["namespace"] = "shop"
    return body


@pytest.mark.parametrize("subject", [("pod", "shop/web"), ("pod/shop/web",), ("-n", "shop", "pod/shop/web")])
def test_a_pod_may_be_named_with_its_namespace_as_plans_and_events_do(
    written: Written, subject: tuple[str, ...]
) -> None:
    file = written("a.yaml", pool(), of_shop())
    result = CliRunner().invoke(app, ["explain", *subject, "-f", str(file)])
    assert result.exit_code == 0, result.stderr
    assert "Pod shop/web" in result.stdout


@pytest.mark.parametrize("namespace", ["other", "default"])
def test_two_namespaces_for_one_pod_are_wrong_input(written: Written, namespace: str) -> None:
    file = written("a.yaml", pool(), of_shop())
    result = CliRunner().invoke(app, ["explain", "pod/shop/web", "-n", namespace, "-f", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"shop/web is not in --namespace {namespace}" in result.stderr


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("node/shop/n1", "'shop/n1': nodes have no namespace, write node n1"),
        ("pod/a/b/web", "'a/b/web' has too many slashes: write NAME or NAMESPACE/NAME"),
    ],
)
def test_a_name_with_a_namespace_that_it_cannot_have_is_wrong_input(
    written: Written, subject: str, message: str
) -> None:
    result = CliRunner().invoke(app, ["explain", subject, "-f", str(written("a.yaml", pool(), of_shop()))])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_another_kind_than_pod_is_wrong_input(written: Written) -> None:
    result = CliRunner().invoke(app, ["explain", "node", "n", "-f", str(written("a.json", pool()))])
    assert result.exit_code == 2


def test_without_files_the_cluster_is_read(explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "read_cluster", lambda _settings, further: ClusterObjects(from_cluster=True))
    result = explain("web")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == "no pod default/web in the cluster"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), "new node: "), (("--profile", "karpenter"), "the scheduler has not marked it unschedulable yet")],
)
def test_an_untried_sibling_of_a_marked_pod_is_planned_for_as_the_controller_does(
    arguments: tuple[str, ...], expected: str, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)
    meta = {"owner_references": (owner,)}
    replicas = [
        builders.pod("tried", {"cpu": "1"}, meta=meta),
        builders.pod("untried", {"cpu": "1"}, meta=meta, status={"conditions": ()}),
    ]
    objects = ClusterObjects(from_cluster=True, pods=replicas, pools=[builders.node_pool()])
    monkeypatch.setattr(cluster_reader, "read_cluster", lambda _settings, further: objects)
    assert expected in explain("untried", *arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "fits on existing or in-flight node n once pods that are being deleted there have ended"),
        (("--profile", "karpenter"), "new node: "),
    ],
)
def test_a_pod_that_waits_for_the_end_of_another_is_reported_so(
    arguments: tuple[str, ...], expected: str, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=20)
    both = [
        builders.pod("old", {"cpu": "2"}, node_name="n", meta={"deletion_timestamp": deadline}),
        builders.pod("new", {"cpu": "2"}),
    ]
    node = builders.node("n", {"cpu": "2"})
    objects = ClusterObjects(from_cluster=True, pods=both, nodes=[node], pools=[builders.node_pool()])
    monkeypatch.setattr(cluster_reader, "read_cluster", lambda _settings, further: objects)
    assert expected in explain("new", *arguments).stdout


def test_a_cluster_that_does_not_answer_is_one_line(explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_settings: object, further: object) -> ClusterObjects:
        raise cluster_reader.ClusterUnreachable("the API server does not answer")

    monkeypatch.setattr(cluster_reader, "read_cluster", refused)
    result = explain("web")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "the API server does not answer\n")


def weighted(name: str, weight: int, capacity_type: str = "", **spec: object) -> Json:
    """A NodePool with a weight, of one capacity type if that is given."""
    body = pool(name, weight=weight, **spec)
    if capacity_type:
        requirement = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]}
        body["spec"]["template"]["spec"]["requirements"] = [requirement]
    return body


def sold_out_spot(types: Path) -> None:
    """Every type of the file is offered as spot, too, and there is none left."""
    loaded = json.loads(types.read_text())
    for entry in loaded:
        on_demand = entry["offerings"][0]
        zone, _ = on_demand["requirements"]
        spot = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
        entry["offerings"].append({"price": 0.01, "available": False, "requirements": [zone, spot]})
    types.write_text(json.dumps(loaded))


def test_a_heavier_pool_without_spot_is_named_with_its_reason(explain: Explain, written: Written, types: Path) -> None:
    sold_out_spot(types)
    file = written("a.json", weighted("spot", 50, "spot"), weighted("fallback", 1, "on-demand"), pod("a", "3"))
    page = explain("a", "-f", file).stdout
    assert "of NodePool fallback in zone-a" in page.splitlines()[0]
    assert "heavier NodePool spot (weight 50) is passed over: none of its 3 offerings is available now\n" in page
    (passed,) = json.loads(explain("a", "-f", file, "-o", "json").stdout)["passedNodePools"]
    assert (passed["nodePool"], passed["weight"]) == ("spot", 50)


def test_a_heavier_pool_whose_limits_the_plan_uses_up_is_named_with_its_reason(
    explain: Explain, written: Written
) -> None:
    """Eight CPU are one node of type a.large: the second pod of seven CPU goes to the lighter pool."""
    pools = (weighted("first", 50, limits={"cpu": "8"}), weighted("second", 1))
    file = written("a.json", *pools, pod("a", "7"), pod("b", "7"))
    pages = {name: explain(name, "-f", file).stdout for name in ("a", "b")}
    (lighter,) = [page for page in pages.values() if "of NodePool second" in page]
    (heavier,) = [page for page in pages.values() if "of NodePool first" in page]
    (line,) = [line for line in lighter.splitlines() if "heavier NodePool first (weight 50) is passed over: " in line]
    assert line.endswith("cpu were 8 CPU higher: a node needs 8 CPU, the limit leaves 0 CPU")
    assert "passed over" not in heavier


def test_a_heavier_pool_with_a_taint_is_named_and_a_lighter_one_is_not(explain: Explain, written: Written) -> None:
    gpu = weighted("gpu", 90)
    gpu["spec"]["template"]["spec"]["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
    page = explain("a", "-f", written("a.json", gpu, weighted("main", 10), weighted("rest", 1), pod("a"))).stdout
    (line,) = [line for line in page.splitlines() if "passed over" in line]
    assert "heavier NodePool gpu (weight 90)" in line
    assert "taint" in line


_APART = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: [{key: topology.kubernetes.io/zone, operator: In, values: [us-east-1a]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: web}}}
      containers: [{name: c, resources: {requests: {cpu: 500m}}}]
"""


@pytest.mark.parametrize(("arguments", "is_long"), [((), False), (("-v",), True), (("-o", "wide"), True)])
def test_counts_and_domains_of_a_topology_constraint_are_for_those_who_ask(
    tmp_path: Path, arguments: tuple[str, ...], is_long: bool
) -> None:
    (tmp_path / "apart.yaml").write_text(_APART)
    page = CliRunner().invoke(app, ["explain", "pod/web-2", "-f", str(tmp_path / "apart.yaml"), *arguments]).stdout
    sentence = "the pod's anti-affinity by topology.kubernetes.io/zone leaves no zone: such pods are in us-east-1a (1)"
    assert page.splitlines()[0] == f"Pod default/web-2 unschedulable: {sentence}"
    assert page.count(sentence) == 1
    assert ("podDomains = " in page) == is_long
