"""What ``karpenter plan`` reads, and the one line it writes about what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from support.manifest_builders import Json, Plan, listed, node, pod, pool

Written = Callable[..., Path]

BAD_PODS = {
    "quantity": (pod(cpu="1core"), "spec.containers[0].resources.requests.cpu", "is not a quantity (expected"),
    "boolean": (pod(cpu=True), "spec.containers[0].resources.requests.cpu", "expected a quantity"),
    "negative": (pod(cpu="-1"), "spec.containers[0].resources.requests.cpu", "below zero; expected"),
    "type": (pod(priority="high"), "spec.priority", "expected an integer"),
    "selector": (
        pod(nodeSelector={"a": "x", "b": 1}),
        "spec.nodeSelector.b",
        "expected a string, got an integer; put it in quotes",
    ),
    "list": (pod(tolerations={"key": "a"}), "spec.tolerations", "expected a list"),
}


def placed(result: Result) -> list[str]:
    """Names of the pods on new nodes."""
    assert result.exit_code == 0, result.stderr
    return sorted(name for claim in json.loads(result.stdout)["nodeClaims"] for name in claim["pods"])


def refused(result: Result) -> list[str]:
    """The lines of a refusal."""
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr.splitlines()


@pytest.mark.parametrize(("bad", "path", "words"), BAD_PODS.values(), ids=BAD_PODS)
def test_a_pod_that_does_not_decode_is_refused_in_one_line(
    plan: Plan, written: Written, bad: Json, path: str, words: str
) -> None:
    file = written("a.yaml", yaml.safe_dump_all([pool(), bad]))
    (line,) = refused(plan("-f", file))
    assert line.startswith(f"{file}: document 2 (Pod default/web): {path}: ")
    assert words in line


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        ({"weigth": 5}, "spec.weigth", "did you mean 'weight'?"),
        ({"weight": 0}, "spec.weight", "the least is 1"),
        ({"limits": {"cpu": "many"}}, "spec.limits.cpu", "pattern"),
        ({"disruption": {"consolidateAfter": "99999999999h"}}, "spec.disruption.consolidateAfter", "99999999999h"),
    ],
    ids=["unknown field", "admission", "quantity", "runtime"],
)
def test_a_pool_no_cluster_would_use_is_refused_in_one_line(
    plan: Plan, written: Written, spec: Json, path: str, words: str
) -> None:
    file = written("a.json", pod(), pool("p", **spec))
    (line,) = refused(plan("-f", file))
    assert line.startswith(f"{file}: document 1 (NodePool p): items[1].{path}: ")
    assert words in line


@pytest.mark.parametrize(
    ("name", "text", "start"),
    [
        ("a.yaml", "a: b\n---\nspec: [\n", "document 2: line 4, column 1: malformed YAML"),
        ("a.json", '{"kind": ', "document 1: malformed JSON"),
        ("a.json", '{"kind": "\ud800"}', "document 1: malformed JSON"),
        ("a.json", "[" * 100_000, "document 1: malformed JSON"),
        ("a.yaml", "a: !thing b", "document 1: line 1, column 4: malformed YAML"),
        ("a.yaml", "just text", "document 1: kind: is missing; expected"),
        ("a.yaml", "kind: Pod", "document 1 (Pod): apiVersion: is missing; expected"),
        ("a.yaml", "kind: NodePool\napiVersion: karpenter.sh/v1beta1", "document 1 (NodePool): apiVersion: karpenter"),
        ("a.yaml", "kind: Node\napiVersion: v1", "document 1 (Node): metadata.name: is missing; expected"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(
    plan: Plan, tmp_path: Path, name: str, text: str, start: str
) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode(errors="surrogatepass"))
    *_, line = refused(plan("-f", file))
    assert line.startswith(f"{file}: {start}")
    assert "expected" in line


def test_a_file_that_is_not_there_and_an_empty_directory_are_refused(plan: Plan, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    first, second = refused(plan("-f", tmp_path / "none.yaml", "-f", empty))
    assert first.startswith(f"{tmp_path / 'none.yaml'}: cannot be read (No such file or directory); expected")
    assert second.startswith(f"{empty}: no manifests in it; expected")


def test_all_errors_are_reported_together(plan: Plan, written: Written) -> None:
    file = written("a.json", pool(), pod("a", "x"), pod("b", "y"))
    assert len(refused(plan("-f", file))) == 2


def test_invalid_objects_are_left_out_on_request_and_still_named(plan: Plan, written: Written) -> None:
    file = written("a.json", pool(), pod("good"), pod("bad", "x"))
    result = plan("-f", file, "-f", "none.yaml", "--skip-invalid", "-o", "json")
    assert placed(result) == ["default/good"]
    first, second = result.stderr.splitlines()
    assert first.startswith(f"{file}: document 1 (Pod default/bad): items[2].spec.containers[0]")
    assert second.startswith("none.yaml: cannot be read")


def test_a_bad_instance_type_file_is_refused_even_when_invalid_objects_are_skipped(
    plan: Plan, written: Written
) -> None:
    broken = written("types.json", "{}")
    (line,) = refused(plan("-f", written("a.json", pool()), "--instance-types", broken, "--skip-invalid"))
    assert line.startswith(f"{broken}: ")


def test_a_wrong_option_value_is_refused(plan: Plan, written: Written) -> None:
    assert plan("-f", written("a.json", pool()), "-o", "xml").exit_code == 2


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_lists_typed_lists_and_streams_are_all_read(plan: Plan, written: Written, suffix: str) -> None:
    bare = {key: value for key, value in pod("c").items() if key not in ("apiVersion", "kind")}
    typed = {"apiVersion": "v1", "kind": "PodList", "items": [bare]}
    nested = listed(pool(), listed(pod("b")), typed)
    text = json.dumps(nested) if suffix == "json" else yaml.safe_dump_all([None, pod("a"), nested])
    expected = ["default/a", "default/b", "default/c"][suffix == "json" :]
    assert placed(plan("-f", written(f"a.{suffix}", text), "-o", "json")) == expected


def test_directories_are_read_without_hidden_and_other_files_and_deeper_ones_on_request(
    plan: Plan, written: Written
) -> None:
    folder = written("d/pool.yaml", yaml.safe_dump(pool())).parent
    written("d/x/y/a.yml", yaml.safe_dump(pod("a")))
    written("d/x/b.json", json.dumps(pod("b")))
    written("d/.hidden/c.yaml", yaml.safe_dump(pod("c")))
    written("d/notes.txt", "kind: [")
    assert placed(plan("-f", folder, "-R", "-o", "json")) == ["default/a", "default/b"]
    assert placed(plan("-f", folder, "-o", "json")) == []


def test_standard_input_and_files_mix(plan: Plan, written: Written) -> None:
    result = plan("-f", "-", "-f", written("a.json", pool()), "-o", "json", stdin=yaml.safe_dump(pod("a")))
    assert placed(result) == ["default/a"]


def test_yaml_is_read_with_the_types_kubernetes_knows(plan: Plan, written: Written) -> None:
    text = """
    apiVersion: v1
    kind: Pod
    metadata: {name: a, creationTimestamp: 2025-01-31T12:00:00Z, annotations: {day: 2025-01-31, time: 12:30, eq: =}}
    spec: {priority: 10, nodeSelector: null, containers: [{name: a, resources: {requests: {cpu: 0.5, memory: 1e3}}}]}
    status: {}
    """
    assert placed(plan("-f", written("a.yaml", text), "-f", written("b.json", pool()), "-o", "json")) == ["default/a"]


def test_generated_names_are_distinguished(plan: Plan, written: Written) -> None:
    one = {**pod(), "metadata": {"generateName": "job-", "namespace": "batch"}}
    assert placed(plan("-f", written("a.json", pool(), one, one), "-o", "json")) == ["batch/job-1", "batch/job-2"]


@pytest.mark.parametrize(
    ("status", "spec", "waits"),
    [
        ({}, {}, True),
        ({"phase": "Pending"}, {}, True),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, {}, True),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}, {}, False),
        ({"phase": "Succeeded"}, {}, False),
        ({}, {"schedulingGates": [{"name": "wait"}]}, False),
        ({}, {"nodeName": "elsewhere"}, False),
    ],
)
def test_pods_nobody_has_looked_at_count_as_waiting(
    plan: Plan, written: Written, status: Json, spec: Json, waits: bool
) -> None:
    file = written("a.json", pool(), {**pod("a", **spec), "status": status})
    assert placed(plan("-f", file, "-o", "json")) == (["default/a"] if waits else [])


def test_a_pod_that_waits_for_a_terminating_one_is_reported_so(plan: Plan, written: Written) -> None:
    """On the page and in JSON; the other fits at once."""
    soon = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    ending = {**pod("old", cpu="3", nodeName="n"), "status": {"phase": "Running"}}
    ending["metadata"]["deletionTimestamp"] = soon
    file = written("a.json", pool(), node("n", "4"), node("free", "1"), ending, pod("large", "2"), pod("small", "1"))
    nodes = json.loads(plan("-f", file, "-o", "json").stdout)["existingNodes"]
    assert sorted((each["pods"], each["awaitsTerminatingPods"]) for each in nodes) == [
        (["default/large"], True),
        (["default/small"], False),
    ]
    page = " ".join(plan("-f", file).stdout.split())
    assert page.count("once pods that are being deleted there have ended") == 1


def test_bound_pods_count_on_their_nodes(plan: Plan, written: Written) -> None:
    bound = {**pod("bound", cpu="3", nodeName="n"), "status": {"phase": "Running"}}
    file = written("a.json", pool(), node("n", "4"), bound, pod("small", "1"), pod("large", "2"))
    loads = json.loads(plan("-f", file, "-o", "json").stdout)
    assert loads["existingNodes"] == [{"name": "n", "pods": ["default/small"], "awaitsTerminatingPods": False}]
    assert [claim["pods"] for claim in loads["nodeClaims"]] == [["default/large"]]


def test_kinds_of_no_use_are_counted_in_one_line(plan: Plan, written: Written) -> None:
    others = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} for kind in ("Secret", "ConfigMap", "Secret")
    ]
    result = plan("-f", written("a.json", pool(), *others), "-o", "json")
    assert result.exit_code == 0
    assert result.stderr == "ignored 3 objects of kinds that planning does not use: ConfigMap 1, Secret 2\n"


def test_without_a_pool_pods_wait_and_that_is_reported(plan: Plan, written: Written) -> None:
    result = plan("-f", written("a.json", pod("a")), "-o", "json")
    assert result.exit_code == 0
    assert result.stderr == "no NodePool in the input: nothing can be launched without one; add a NodePool\n"
    (waiting,) = json.loads(result.stdout)["unschedulable"]
    assert (waiting["pod"], waiting["reasons"][0]["category"]) == ("default/a", "no-pool")


def test_labels_that_only_instance_types_define_can_be_required(plan: Plan, written: Written) -> None:
    file = written("a.json", pool(), pod("a", nodeSelector={"example.com/family": "b"}))
    (claim,) = json.loads(plan("-f", file, "-o", "json").stdout)["nodeClaims"]
    assert claim["instanceTypes"] == ["b.large"]
