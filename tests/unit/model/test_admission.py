"""The offline check says what the API server says (API-033); the same table runs against a real one elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api.kinds import NODE_POOL
from karpenter.model import crd_admission, runtime_validation
from support.admission import ROWS
from support.admission_rows import Row, built, req
from support.admission_statuses import STATUS
from support.server_writes import KINDS
from support.writes_for_both_servers import ec2_writes_for_both_servers, lone_rule, writes_for_both_servers

#: Metadata is not the schema's affair, save the name of an object that was never stored.
_OURS = [row for row in ROWS if not any(path.startswith("metadata.") for path in row.change)]
_STORED = [row for row in (*_OURS, *STATUS) if row.accepted]
_POOLS = [row for row in ROWS if row.accepted and row.kind == "NodePool"]


@pytest.mark.parametrize("row", _OURS, ids=lambda row: row.id)
def test_admission_accepts_and_refuses_what_the_table_says(row: Row) -> None:
    """API-033"""
    findings = runtime_validation.admit(KINDS[row.kind], row.object, row.stored)
    assert (not findings) == row.accepted, findings
    if not row.accepted:
        text = " / ".join(map(str, findings))
        assert [word for word in row.words if word not in text] == []


@pytest.mark.parametrize("row", STATUS, ids=lambda row: row.id)
def test_a_status_is_accepted_and_refused_as_the_table_says(row: Row) -> None:
    """API-607, API-115"""
    kind = KINDS[row.kind]
    findings = crd_admission.validate_object(kind, crd_admission.prune_and_default_object(kind, row.object))
    assert (not findings) == row.accepted, findings


@pytest.mark.parametrize("row", _STORED, ids=lambda row: row.id)
def test_what_is_admitted_can_be_decoded(row: Row) -> None:
    """Whatever the schema lets in, the structs decode: as it was written, and as a server hands it out."""
    kind = KINDS[row.kind]
    stored = kind.decode(msgspec.json.encode(crd_admission.prune_and_default_object(kind, row.object)))
    assert kind.decode(kind.encode(stored)) == stored


@pytest.mark.parametrize("row", _POOLS, ids=lambda row: row.id)
def test_runtime_validation_finds_what_the_table_says(row: Row) -> None:
    """API-075 to API-079: all that is wrong with these pools, and nothing with the others."""
    findings = runtime_validation.validate_node_pool(NODE_POOL.decode(msgspec.json.encode(row.object)))
    assert bool(findings) == (row.verdict == "N"), findings
    if findings:
        text = " / ".join(map(str, findings))
        assert [word for word in row.words if word not in text] == []


def test_all_findings_of_an_object_come_together_with_their_paths() -> None:
    """API-034"""
    pool = built(
        "NodePool",
        {
            "spec.weight": 101,
            "spec.replicas": 3,
            "spec.limits": {"cpu": "many"},
            "spec.disruption.budgets": [{"nodes": "1"}, {"nodes": "x", "duration": "1d"}],
            "spec.template.metadata.labels": {"karpenter.sh/foo": "a", "fine": "-"},
            "spec.template.spec.requirements": [{"key": "a"}],
            "spec.template.spec.nodeClassRef": {"group": "", "kind": "b"},
        },
    )
    assert sorted((finding.path, finding.code) for finding in runtime_validation.admit(NODE_POOL, pool)) == [
        ("spec.disruption.budgets[1]", "together"),
        ("spec.disruption.budgets[1].duration", "pattern"),
        ("spec.disruption.budgets[1].nodes", "pattern"),
        ("spec.limits", "static"),
        ("spec.limits.cpu", "pattern"),
        ("spec.template.metadata.labels.fine", "pattern"),
        ("spec.template.metadata.labels[karpenter.sh/foo]", "restricted"),
        ("spec.template.spec.nodeClassRef.group", "empty"),
        ("spec.template.spec.nodeClassRef.name", "required"),
        ("spec.template.spec.requirements[0].operator", "required"),
        ("spec.weight", "range"),
        ("spec.weight", "static"),
    ]


def test_a_null_in_a_list_is_refused() -> None:
    """API-020"""
    pool = built("NodePool", {"spec.template.spec.requirements": [None]})
    assert [finding.path for finding in runtime_validation.admit(NODE_POOL, pool)] == [
        "spec.template.spec.requirements[0]"
    ]


def test_an_unknown_field_is_named_with_its_path_and_the_nearest_known_name() -> None:
    """API-021"""
    pool = built(
        "NodePool",
        {
            "metadata.label": {},
            "spec.disruption.consolidateafter": "30s",
            "spec.template.spec.requirements": [req("Exists", minvalue=3)],
            "spec.template.metadata.name": "x",
            "zzz": 1,
        },
    )
    actual = {finding.path: finding.message for finding in runtime_validation.unknown_fields_of(NODE_POOL, pool)}
    assert set(actual) == {
        "metadata.label",
        "spec.disruption.consolidateafter",
        "spec.template.spec.requirements[0].minvalue",
        "spec.template.metadata.name",
        "zzz",
    }
    assert "did you mean 'consolidateAfter'" in actual["spec.disruption.consolidateafter"]
    assert "did you mean 'minValues'" in actual["spec.template.spec.requirements[0].minvalue"]
    assert "did you mean 'labels'" in actual["metadata.label"]
    assert "did you mean" not in actual["zzz"]


def test_known_fields_status_included_are_not_called_unknown() -> None:
    pool = built("NodePool", {"status": {"nodes": 1, "resources": {"cpu": "1"}, "conditions": []}})
    assert runtime_validation.unknown_fields_of(NODE_POOL, pool) == ()


_LABELS, _REQUIRED = "spec.template.metadata.labels", "spec.template.spec.requirements"


def test_the_mutations_both_servers_validate_break_every_rule_by_itself() -> None:
    """Otherwise a rule could change on one side only and ``cluster/test_crds_drift`` would not see it."""
    lone_rules = {lone_rule(write) for write in (*writes_for_both_servers(), *ec2_writes_for_both_servers())}
    assert lone_rules >= {
        ("immutable", "spec", ""),
        ("immutable", "spec.replicas", ""),
        ("immutable", "spec.template.spec.nodeClassRef.group", ""),
        ("immutable", "spec.template.spec.nodeClassRef.kind", ""),
        ("static", "spec.limits", ""),
        ("static", "spec.weight", ""),
        ("together", "spec.disruption.budgets", ""),
        ("price", "spec", ""),
        ("restricted", "spec.capacity.cpu", ""),
        ("count", "spec", ""),
        ("reference", "spec", ""),
        ("minValues", _REQUIRED, ""),
        ("values", _REQUIRED, ""),
        ("values", "spec.requirements", ""),
        ("bound", _REQUIRED, ""),
        ("bound", "spec.requirements", ""),
        *(
            ("restricted", place, name)
            for place in (_LABELS, _REQUIRED)
            for name in ("karpenter.sh", "karpenter.k8s.aws")
        ),
        *(("restricted", place, "karpenter.kwok.sh") for place in (_LABELS, _REQUIRED)),
        *(("restricted", place, "karpenter.sh/nodepool") for place in (_LABELS, _REQUIRED)),
        *(("restricted", place, "kubernetes.io") for place in (_LABELS, _REQUIRED)),
        *(("empty", f"spec.template.spec.nodeClassRef.{name}", "") for name in ("group", "kind", "name")),
        *(("exclusive", f"spec.{name}SelectorTerms", "") for name in ("subnet", "securityGroup", "ami")),
        *(("empty", f"spec.{name}SelectorTerms", "") for name in ("subnet", "securityGroup", "ami")),
        *(("size", f"spec.{name}SelectorTerms", "") for name in ("subnet", "securityGroup")),
        ("exclusive", "spec.capacityReservationSelectorTerms", ""),
        ("empty", "spec.capacityReservationSelectorTerms", ""),
        *((code, "spec.amiSelectorTerms", "") for code in ("values", "pattern")),
        *((code, "spec.amiFamily", "") for code in ("values", "required")),
        *((code, "spec.placementGroupSelector", "") for code in ("empty", "exclusive")),
        ("exclusive", "spec", ""),
        ("empty", "spec.role", ""),
        ("empty", "spec.tags", ""),
        *((code, "spec.blockDeviceMappings", "") for code in ("exclusive", "empty", "together")),
        *((code, "spec.networkInterfaces", "") for code in ("required", "duplicate")),
        ("empty", "spec.connectionTracking", ""),
    }
