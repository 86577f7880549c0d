"""Drift that the provider finds without calls to EC2 (AWS-560, AWS-561)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.providers.aws.aws_provider import AwsProvider, AwsProviderDependencies
from karpenter.providers.aws.nodeclass.nodeclass_hash import (
    HASH_ANNOTATION,
    HASH_VERSION_ANNOTATION,
    NodeClassHashInputs,
)
from karpenter.providers.contract import InstanceDrift
from support.builders import NOW, claim, node_pool
from support.interruption_cluster import CLASS, RecordedEvents

CHANGED = {HASH_ANNOTATION: "2", HASH_VERSION_ANNOTATION: "py1"}


class Seen:
    """A cluster with at most one NodePool."""

    def __init__(self, pools: tuple[NodePool, ...], node_class: EC2NodeClass | None) -> None:
        self._pools = pools
        self._node_class = node_class

    def node_class_named(self, name: str) -> EC2NodeClass | None:
        return self._node_class if name == CLASS.name else None

    def pools(self) -> tuple[NodePool, ...]:
        return self._pools


def provider(node_class: EC2NodeClass | None, told: RecordedEvents, *pools: NodePool) -> AwsProvider:
    """A provider without EC2."""
    nobody: Any = None
    dependencies = AwsProviderDependencies(
        nobody, cast(Any, Seen(pools, node_class)), told, *(nobody,) * 5, hash_inputs=NodeClassHashInputs(), hooks=()
    )
    return AwsProvider(dependencies, SystemClock(), reserved_capacity=True)


def made() -> NodeClaim:
    nodeclaim = claim("c", labels={labels.NODE_POOL: "np"})
    return replace(
        nodeclaim,
        metadata=replace(nodeclaim.metadata, annotations={HASH_ANNOTATION: "1", HASH_VERSION_ANNOTATION: "py1"}),
    )


def class_named(name: str, **meta: Any) -> EC2NodeClass:
    return EC2NodeClass(metadata=ObjectMeta(name=name, annotations=CHANGED, **meta))


async def test_a_changed_class_is_drift_without_a_call_to_ec2() -> None:
    """AWS-T566"""
    asked = provider(class_named("default"), RecordedEvents(), node_pool())
    assert await asked.drift(made()) == InstanceDrift("NodeClassDrift", "EC2NodeClass default was changed")


@pytest.mark.parametrize("node_class", [None, class_named("default", deletion_timestamp=NOW)], ids=["gone", "going"])
async def test_without_a_class_nothing_drifts_and_the_node_pool_gets_an_event(node_class: EC2NodeClass | None) -> None:
    """AWS-560, AWS-791"""
    told = RecordedEvents()
    assert await provider(node_class, told, node_pool()).drift(made()) is None
    assert told.events == [("Warning", "NodePool", "np", "NodeClassNotResolved")]


async def test_a_claim_without_its_pool_does_not_drift() -> None:
    """AWS-560"""
    told = RecordedEvents()
    assert await provider(class_named("default"), told).drift(made()) is None
    assert told.events == []
