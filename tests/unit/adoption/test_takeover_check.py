"""``karpenter adopt --check``: every object gets a verdict, and what has to be changed first says how."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.adoption.takeover_check import AdoptionFinding, AdoptionInput, Verdict, check_takeover
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.control_plane import CustomResourceDefinition, CustomResourceDefinitionStatus, Lease, LeaseSpec
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.cli import cluster_reader
from karpenter.cli.main import app
from karpenter.model import labels, nodepool_hash
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.builders import NOW, node_and_claim, node_pool, replaced
from support.manifest_builders import pool as pool_manifest

CLASS = KWOKNodeClass(metadata=ObjectMeta(name="default"))
_V3 = {labels.NODE_POOL_HASH: "1", labels.NODE_POOL_HASH_VERSION: "v3"}


def annotated(wire: Wire, **annotations: str) -> Any:
    """The object with the stamps of Karpenter, some of them others."""
    named = {labels.NODE_POOL_HASH: annotations.get("hash", "1"), labels.NODE_POOL_HASH_VERSION: "v3"}
    return replaced(wire, metadata=replaced(wire.metadata, annotations=named))  # type: ignore[attr-defined]


def pool(name: str = "np") -> NodePool:
    result: NodePool = annotated(node_pool(name))
    return result


def claim(name: str = "a", **fields: Any) -> NodeClaim:
    """A claim of the pool ``np`` as Karpenter leaves it."""
    _, made = _pair(name)
    result: NodeClaim = annotated(made, **fields)
    return result


def _pair(name: str) -> tuple[Any, Any]:
    by_type = {type(wire).__name__: wire for wire in node_and_claim(name, {"cpu": 4}, pool="np")}
    return by_type["Node"], by_type["NodeClaim"]


def verdicts(**objects: Any) -> dict[str, Verdict]:
    return {finding.subject: finding.verdict for finding in findings(**objects)}


def findings(**objects: Any) -> tuple[AdoptionFinding, ...]:
    given = {"pools": (pool(),), "node_classes": (CLASS,), **objects}
    return check_takeover(AdoptionInput(NOW, **given))


def the_one(subject: str, **objects: Any) -> AdoptionFinding:
    (finding,) = [finding for finding in findings(**objects) if finding.subject == subject]
    return finding


def test_what_karpenter_made_is_kept() -> None:
    """API-504"""
    node, _ = _pair("a")
    assert set(verdicts(claims=(claim(),), nodes=(node,)).values()) == {Verdict.COMPATIBLE}
    assert "version v3 is stamped anew" in the_one("NodePool np").text
    own = nodepool_hash.hash_annotations(node_pool("np"))
    mine = replaced(node_pool("np"), metadata=ObjectMeta(name="np", annotations=own))
    assert the_one("NodePool np", pools=(mine,)).text == "is used as it is"


@pytest.mark.parametrize(
    ("replicas", "verdict"), [(2, Verdict.CHANGE_FIRST), (None, Verdict.CHANGE_FIRST), (0, Verdict.COMPATIBLE)]
)
def test_a_karpenter_that_runs_has_to_stop_first(replicas: int | None, verdict: Verdict) -> None:
    meta = ObjectMeta(name="karpenter", namespace="kube-system", labels={"app.kubernetes.io/name": "karpenter"})
    deployment = Deployment(metadata=meta, spec=ReplicatedSpec(replicas=replicas))
    other = Deployment(metadata=ObjectMeta(name="web", namespace="shop"))
    found = [
        finding for finding in findings(deployments=(deployment, other)) if finding.subject.startswith("Deployment")
    ]
    assert [(finding.subject, finding.verdict) for finding in found] == [("Deployment kube-system/karpenter", verdict)]
    if verdict is Verdict.CHANGE_FIRST:
        assert "kubectl -n kube-system scale deployment karpenter --replicas 0" in found[0].fix


@pytest.mark.parametrize(("age_seconds", "is_said"), [(10, True), (300, False)])
def test_a_lease_that_is_renewed_has_a_holder(age_seconds: int, is_said: bool) -> None:
    renewed = (NOW - timedelta(seconds=age_seconds)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    meta = ObjectMeta(name="karpenter-leader-election", namespace="kube-system")
    lease = Lease(metadata=meta, spec=LeaseSpec(holder_identity="karpenter-1", renew_time=renewed))
    assert ("Lease kube-system/karpenter-leader-election" in verdicts(leases=(lease,))) == is_said


@pytest.mark.parametrize(
    ("name", "versions", "is_said"),
    [
        ("nodepools.karpenter.sh", ("v1beta1", "v1"), True),
        ("nodepools.karpenter.sh", ("v1",), False),
        ("nodeoverlays.karpenter.sh", ("v1alpha1",), False),
        ("certificates.cert-manager.io", ("v1beta1",), False),
    ],
)
def test_definitions_that_hold_older_versions_need_a_hand(name: str, versions: tuple[str, ...], is_said: bool) -> None:
    """API-830: a version that is stored cannot be dropped from a definition."""
    status = CustomResourceDefinitionStatus(stored_versions=versions)
    definition = CustomResourceDefinition(metadata=ObjectMeta(name=name), status=status)
    said = verdicts(definitions=(definition,)).get(f"CustomResourceDefinition {name}")
    assert said is (Verdict.CHANGE_FIRST if is_said else None)


def test_a_pool_without_its_class_launches_nothing() -> None:
    finding = the_one("NodePool np", node_classes=())
    assert finding.verdict is Verdict.CHANGE_FIRST
    assert "names the KWOKNodeClass default, which is not there" in finding.text


def test_a_pool_of_another_provider_is_left_alone() -> None:
    given = pool()
    template = given.spec.template
    reference = replaced(template.spec.node_class_ref, kind="AKSNodeClass", group="karpenter.azure.com")
    azure = replaced(
        given,
        spec=replaced(given.spec, template=replaced(template, spec=replaced(template.spec, node_class_ref=reference))),
    )
    finding = the_one("NodePool np", pools=(azure,))
    assert (finding.verdict, "AKSNodeClass" in finding.text) == (Verdict.CHANGE_FIRST, True)


def test_a_claim_between_request_and_answer_needs_a_hand() -> None:
    """An instance may exist whose ID nobody has written."""
    starting = replaced(claim(), status=replaced(claim().status, provider_id=""))
    finding = the_one("NodeClaim claim-a", claims=(starting,))
    assert (finding.verdict, finding.fix.startswith("stop Karpenter when it is launched")) == (
        Verdict.CHANGE_FIRST,
        True,
    )


def test_claims_of_an_older_template_are_named_because_they_would_count_as_new() -> None:
    """API-504: stamps of another version are written anew unless the claim is already Drifted."""
    finding = the_one("NodeClaims of NodePool np", claims=(claim("a", hash="0"), claim("b", hash="0")))
    assert finding.verdict is Verdict.DIFFERS
    assert finding.text.startswith("claim-a, claim-b were made from an older template")


def test_drifted_and_deleted_claims_go_on_as_before() -> None:
    drifted = replaced(claim(), status=replaced(claim().status, conditions=(Condition(type="Drifted", status="True"),)))
    assert the_one("NodeClaim claim-a", claims=(drifted,)).verdict is Verdict.COMPATIBLE
    deleted = replaced(claim(), metadata=replaced(claim().metadata, deletion_timestamp=NOW))
    assert "its drain goes on" in the_one("NodeClaim claim-a", claims=(deleted,)).text


def test_claims_without_pool_and_nodes_without_claim_are_reported() -> None:
    node, _ = _pair("b")
    said = verdicts(pools=(), claims=(claim(),), nodes=(node,))
    assert said["NodeClaim claim-a"] is said["Node b"] is Verdict.DIFFERS


# -- the command ----------------------------------------------------------------------------------------------------------------


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["adopt", *arguments], catch_exceptions=False)


def test_without_check_it_says_that_there_is_nothing_to_write() -> None:
    result = _run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("a take-over writes nothing beforehand")


def test_files_are_checked_as_a_cluster_is(tmp_path: Any) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(pool_manifest()))
    result = _run("--check", "-f", str(file), "-o", "json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["subject"], finding["verdict"]) == ("NodePool default", "change first")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "no NodePool, NodeClaim, EC2NodeClass or Node in the input: "),
        (None, "a.yaml: cannot be read (No such file or directory); expected Kubernetes objects as YAML or JSON"),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n",
            "no NodePool, NodeClaim, EC2NodeClass or Node in the input: ",
        ),
    ],
)
def test_files_with_nothing_to_check_are_wrong_input(tmp_path: Any, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "a.yaml").write_text(text)
    result = _run("--check", "-f", str(tmp_path / "a.yaml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_cluster_is_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryServer(SystemClock())
    deployment = {
        "replicas": 1,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}},
    }
    meta = {"name": "karpenter", "namespace": "karpenter", "labels": {"app.kubernetes.io/name": "karpenter"}}
    server.load_objects(
        [pool_manifest(), {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": deployment}]
    )
    before = server.revision

    def ask(_settings: object, question: Callable[[Any], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            return await question(MemoryKube(server))

        return asyncio.run(asked())

    monkeypatch.setattr(cluster_reader, "query_cluster", ask)
    result = _run("--check")
    assert (result.exit_code, server.revision) == (1, before)
    assert "CHANGE  Deployment karpenter/karpenter: runs" in result.stdout
    assert "2 change first" in result.stdout
