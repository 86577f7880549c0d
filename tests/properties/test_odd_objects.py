"""Every object that an API server admits is decoded, validated and used in plans: one odd object never blocks the others."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import Wire
from karpenter.api.node_overlay import NodeOverlay
from karpenter.capacitybuffer import buffer_pods
from karpenter.instancetypes import overlay_application
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes
from karpenter.model import durations, nodepool_budgets, nodepool_hash, runtime_validation
from karpenter.model import resources as res
from support import mutations
from support.builders import NOW, READY, node_pool, plan, pod, replaced
from support.instance_types import STD
from support.server_writes import KINDS, in_memory

_WRITES = (1, 700)
_EC2_WRITES = (1, 300)


@pytest.fixture(scope="module")
def admitted() -> tuple[Wire, ...]:
    """Objects as the in-memory server hands them out, which a real one agrees with (``cluster/test_crds_drift``)."""
    writes = (*mutations.writes(*_WRITES), *mutations.ec2_writes(*_EC2_WRITES))
    answers = [(write.kind, in_memory(write).stored) for write in writes]
    result = [KINDS[kind].decode(msgspec.json.encode(stored)) for kind, stored in answers if stored is not None]
    assert len(result) > _WRITES[1] / 3
    return tuple(result)


def test_every_admitted_object_can_be_validated(admitted: tuple[Wire, ...]) -> None:
    """API-027, API-028, API-033"""
    for obj in admitted:
        assert all(finding.path and finding.message for finding in runtime_validation.advise_object(obj))
        if isinstance(obj, NodePool):
            assert all(finding.path and finding.message for finding in runtime_validation.validate_node_pool(obj))
            assert nodepool_hash.node_pool_hash(obj).isdigit()
            assert nodepool_budgets.nodepool_budgets(obj).allowance(10, "Empty", NOW).nodes >= 0
            durations.parse_duration_or_never(obj.spec.disruption.consolidate_after)
        if isinstance(obj, NodeClaim):
            durations.parse_duration_or_never(obj.spec.expire_after)
        if isinstance(obj, NodeOverlay) and not runtime_validation.validate_node_overlay(obj):
            offered = NodePoolInstanceTypes(node_pool("fine"), STD)
            judgement = overlay_application.evaluate_overlays([overlay_application.parse_overlay(obj)], [offered])
            assert len(overlay_application.apply_overlays(judgement.accepted, offered)) == len(STD)
        if isinstance(obj, CapacityBuffer) and not runtime_validation.check_quantities(obj):
            assert buffer_pods.target_replicas(obj.spec, 10, res.parse_resources({"cpu": "1"})) >= 0


def test_every_admitted_object_can_be_planned_with(admitted: tuple[Wire, ...]) -> None:
    """A pod that has a sound pool is served, whatever else there is."""
    for obj in admitted:
        if isinstance(obj, NodePool):
            ready = replaced(obj.status, conditions=(*obj.status.conditions, READY))
            assert not plan(replaced(obj, status=ready), node_pool("fine"), pod("p")).unschedulable
        if isinstance(obj, NodeClaim):
            assert not plan(obj, node_pool("fine"), pod("p")).unschedulable
