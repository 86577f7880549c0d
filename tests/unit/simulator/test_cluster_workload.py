"""The workloads of manifests or of a cluster as the load of a study."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.api.scheduling_constraints import Toleration
from karpenter.cli.main import app
from karpenter.simulator.cluster_workload import LoadPattern, cluster_workload
from karpenter.simulator.workload import WorkloadError
from support.builders import owner, pod, pods
from support.manifest_builders import type_of

_DAY = 86_400
_SNAPSHOT = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: prod}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: main, image: shop, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
"""


def test_pods_of_daemonsets_and_finished_pods_are_left_out_and_the_others_stay() -> None:
    found = [
        *pods(3, {"cpu": "250m"}, meta={"owner_references": (owner("ReplicaSet", "web"),)}),
        pod("agent", {"cpu": "1"}, meta={"owner_references": (owner("DaemonSet", "agent"),)}),
        pod("done", {"cpu": "1"}, status={"phase": "Succeeded"}),
        pod("alone", {"cpu": "2"}, node_name="n", node_selector={"disk": "ssd"}, tolerations=(Toleration(key="t"),)),
    ]
    workload = cluster_workload(found, LoadPattern.STEADY, seed=1, days=2)
    assert Counter(life.template.workload for life in workload.pods) == {"web-0": 3, "alone-1": 1}
    assert {life.leaves_at_seconds for life in workload.pods} == {None}
    (alone,) = (life.template for life in workload.pods if life.template.workload == "alone-1")
    assert dict(alone.requests) == {"cpu": "2"}
    assert (alone.spec.node_selector, alone.spec.node_name) == ({"disk": "ssd"}, "")
    assert alone.spec.tolerations == (Toleration(key="t"),)


@pytest.mark.parametrize(("pattern", "least", "most"), [(LoadPattern.DAILY, 5, 16), (LoadPattern.OFFICE, 1, 10)])
def test_a_pattern_moves_the_replicas_of_a_workload(pattern: LoadPattern, least: int, most: int) -> None:
    found = pods(10, {"cpu": "250m"}, meta={"owner_references": (owner("ReplicaSet", "web"),)})
    workload = cluster_workload(found, pattern, seed=1, days=2)

    def running(second: int) -> int:
        ends = ((life.arrives_at_seconds, life.leaves_at_seconds) for life in workload.pods)
        return sum(begin <= second and (end is None or second < end) for begin, end in ends)

    levels = {running(second) for second in range(600, 2 * _DAY, 600)}
    assert least <= min(levels) < 8
    assert 10 <= max(levels) <= most


def test_without_pods_there_is_nothing_to_simulate() -> None:
    with pytest.raises(WorkloadError, match="there are no pods to simulate"):
        cluster_workload([], LoadPattern.DAILY, seed=1, days=1)


def test_a_file_with_node_pools_and_deployments_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "snapshot.yaml").write_text(_SNAPSHOT)
    (tmp_path / "types.json").write_text(json.dumps([type_of("a.small", 2, 4, 0.1)]))
    files = ("-f", str(tmp_path / "snapshot.yaml"), "--instance-types", str(tmp_path / "types.json"))
    options = ("--pattern", "steady", "--days", "0.05", "-o", "json")
    result = CliRunner().invoke(app, ["simulate", *files, *options], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    assert report["waiting"]["arrivals"]["pods"] == 3
    assert report["waiting"]["stillWaiting"] == 0
