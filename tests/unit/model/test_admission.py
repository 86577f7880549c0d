"""The offline check says what the API server says (API-033); the same table runs against a real one elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from admission import ROWS, Row, built, req
from karpenter.api.kinds import KWOK_NODE_CLASS, NODE_CLAIM, NODE_POOL
from karpenter.model import validation

KINDS = {kind.name: kind for kind in (NODE_POOL, NODE_CLAIM, KWOK_NODE_CLASS)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_admission_accepts_and_refuses_what_the_table_says(row: Row) -> None:
    found = validation.admit(KINDS[row.kind], row.object, row.stored)
    assert (not found) == row.accepted, found
    text = " / ".join(map(str, found))
    assert [word for word in row.words if word not in text] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.accepted], ids=lambda row: row.id)
def test_what_is_admitted_can_be_decoded(row: Row) -> None:
    kind = KINDS[row.kind]
    decoded = kind.decode(msgspec.json.encode(row.object))
    assert kind.decode(kind.encode(decoded)) == decoded


def test_all_findings_of_an_object_come_together_with_their_paths() -> None:
    """API-034"""
    pool = built(
        "NodePool",
        {
            "spec.weight": 101,
            "spec.disruption.budgets": [{"nodes": "1"}, {"nodes": "x", "duration": "1d"}],
            "spec.template.spec.requirements": [{"key": "a"}],
        },
    )
    assert {finding.path for finding in validation.admit(NODE_POOL, pool)} == {
        "spec.template.spec.requirements[0].operator",
        "spec.disruption.budgets[1].nodes",
        "spec.disruption.budgets[1].duration",
        "spec.weight",
    }


def test_a_null_in_a_list_is_refused() -> None:
    """API-020"""
    pool = built("NodePool", {"spec.template.spec.requirements": [None]})
    assert [finding.path for finding in validation.admit(NODE_POOL, pool)] == ["spec.template.spec.requirements[0]"]


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
    found = {finding.path: finding.message for finding in validation.unknown_fields(NODE_POOL, pool)}
    assert set(found) == {
        "metadata.label",
        "spec.disruption.consolidateafter",
        "spec.template.spec.requirements[0].minvalue",
        "spec.template.metadata.name",
        "zzz",
    }
    assert "did you mean 'consolidateAfter'" in found["spec.disruption.consolidateafter"]
    assert "did you mean 'minValues'" in found["spec.template.spec.requirements[0].minvalue"]
    assert "did you mean 'labels'" in found["metadata.label"]
    assert "did you mean" not in found["zzz"]


def test_known_fields_status_included_are_not_called_unknown() -> None:
    pool = built("NodePool", {"status": {"nodes": 1, "resources": {"cpu": "1"}, "conditions": []}})
    assert validation.unknown_fields(NODE_POOL, pool) == ()
