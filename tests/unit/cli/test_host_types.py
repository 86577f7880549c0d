"""Plans, explanations and lint of NodePools whose hosts a MachineNodeClass lists."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from karpenter.cli.main import app

CLASS = """
apiVersion: karpenter.machines/v1alpha1
kind: MachineNodeClass
metadata: {name: rack}
spec:
  power: wol
  hosts:
  - {name: h1, capacity: {cpu: "8", memory: 32Gi}, costPerHour: "0.10", labels: {topology.kubernetes.io/zone: rack-a}}
  - {name: h2, capacity: {cpu: "16", memory: 64Gi}, costPerHour: "0.30", labels: {topology.kubernetes.io/zone: rack-b}}
"""
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: rack}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.machines, kind: MachineNodeClass, name: rack}
      requirements: []
"""
EC2_POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: cloud}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
"""


def pod(name: str, cpu: str) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  containers: [{{name: app, image: pause, resources: {{requests: {{cpu: "{cpu}", memory: 1Gi}}}}}}]
"""


def run(tmp_path: Path, *manifests: str, command: tuple[str, ...] = ("plan",)) -> Result:
    file = tmp_path / "rack.yaml"
    file.write_text("---".join(manifests))
    return CliRunner().invoke(app, [*command, "-f", str(file)])


def test_a_plan_launches_the_cheapest_host_that_fits_at_the_cost_of_its_class(tmp_path: Path) -> None:
    done = run(tmp_path, CLASS, POOL, pod("web", "10"), command=("plan", "-o", "json"))
    plan = json.loads(done.stdout)
    (claim,) = plan["nodeClaims"]
    assert (claim["cheapest"]["zone"], claim["cheapest"]["price"]) == ("rack-b", 0.3)
    assert plan["prices"] == {"source": "MachineNodeClasses", "region": None}
    assert done.stderr == ""


def test_the_page_names_the_source_of_prices_and_no_region(tmp_path: Path) -> None:
    said = run(tmp_path, CLASS, POOL, pod("web", "2")).stdout
    assert "prices: costPerHour of the hosts of MachineNodeClasses" in said
    assert "us-east-1" not in said


def test_a_pod_that_no_host_holds_stays_pending_and_explain_names_the_largest_host(tmp_path: Path) -> None:
    plan = run(tmp_path, CLASS, POOL, pod("huge", "20"), command=("plan", "-o", "json"))
    assert [left["pod"] for left in json.loads(plan.stdout)["unschedulable"]] == ["shop/huge"]
    said = run(tmp_path, CLASS, POOL, pod("huge", "20"), command=("explain", "pod", "huge", "-n", "shop"))
    assert "host-16cpu-64gi" in said.stdout


def test_a_host_in_use_is_not_launched_again(tmp_path: Path) -> None:
    busy = (
        CLASS
        + """status:
  inUse: [{host: h2, claimName: rack-1, claimUid: u1, since: "2026-01-01T00:00:00Z"}]
"""
    )
    plan = json.loads(run(tmp_path, busy, POOL, pod("web", "10"), command=("plan", "-o", "json")).stdout)
    assert (plan["nodeClaims"], [left["pod"] for left in plan["unschedulable"]]) == ([], ["shop/web"])


def test_a_plan_never_launches_more_hosts_than_are_free(tmp_path: Path) -> None:
    pods = [pod(f"web-{number}", "14") for number in range(3)]
    plan = json.loads(run(tmp_path, CLASS, POOL, *pods, command=("plan", "-o", "json")).stdout)
    assert [claim["cheapest"]["zone"] for claim in plan["nodeClaims"]] == ["rack-b"]
    assert len(plan["unschedulable"]) == 2
    left = plan["unschedulable"][0]["pod"].partition("/")[2]
    said = run(tmp_path, CLASS, POOL, *pods, command=("explain", "pod", left, "-n", "shop")).stdout
    assert "unavailable in rack-b as on-demand" in said


def test_hosts_and_instances_of_a_cloud_compete_in_one_plan(tmp_path: Path) -> None:
    done = run(tmp_path, CLASS, POOL, EC2_POOL, pod("small", "7"), pod("large", "60"), command=("plan", "-o", "json"))
    plan = json.loads(done.stdout)
    assert {claim["nodePool"] for claim in plan["nodeClaims"]} == {"rack", "cloud"}
    assert "NodePool rack: its prices are the costPerHour of its hosts" in done.stderr


def test_a_missing_class_is_named_and_nothing_is_launched(tmp_path: Path) -> None:
    done = run(tmp_path, CLASS.replace("name: rack}", "name: rak}"), POOL, pod("web", "1"))
    assert (
        "NodePool rack: spec.template.spec.nodeClassRef.name: MachineNodeClass rack is not there; did you mean rak?; without its "
        "hosts nothing can be launched"
    ) in done.stderr.splitlines()
    assert "Unschedulable pods" in done.stdout


def test_a_misspelt_field_of_the_class_ends_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, CLASS.replace("power:", "powr:"), POOL, pod("web", "1"))
    assert done.exit_code == 2
    assert "spec.powr: unknown field 'powr' would be dropped; did you mean 'power'?" in done.stderr


def test_hosts_that_contradict_each_other_end_the_command_in_one_line(tmp_path: Path) -> None:
    typed = CLASS.replace("labels: {", "labels: {node.kubernetes.io/instance-type: box, ")
    done = run(tmp_path, typed, POOL, pod("web", "1"))
    assert done.exit_code == 2
    assert done.stderr == "MachineNodeClass rack: hosts h1 and h2 differ and have the same instance type box\n"


def test_lint_knows_what_the_pool_of_hosts_can_launch(tmp_path: Path) -> None:
    """KL202 and the like count hosts, not the instance types of a cloud; the class itself is checked as in a plan."""
    small = POOL.replace("  template:", '  limits: {cpu: "4"}\n  template:')
    said = run(tmp_path, CLASS, small, command=("lint",)).stdout
    assert "KL211" not in said  # all hosts are amd64
    assert "limits" in said
    wrong = run(tmp_path, CLASS.replace("power:", "powr:"), POOL, command=("lint",))
    assert "spec.powr" in wrong.stdout + wrong.stderr
