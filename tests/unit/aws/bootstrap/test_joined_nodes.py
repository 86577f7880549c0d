"""Joined Nodes of self-managed clusters: their provider IDs, and their deletion when the instance is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from karpenter.api.core import Node, NodeSpec, NodeStatus
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus
from karpenter.api.kinds import NODE
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.kube.errors import NotFound
from karpenter.providers.aws.bootstrap.bootstrap_controllers import LostNodeCollector, ProviderIdController
from karpenter.providers.aws.bootstrap.bootstrap_objects import (
    ADDRESSED_NODE,
    AddressedNode,
    NodeAddress,
    NodeAddresses,
)
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings
from karpenter.providers.aws.ec2_descriptions import InstanceInfo, InstancePlacement, InstanceState
from karpenter.providers.contract import InstanceNotFound
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support import launch_environment

_KUBEADM = BootstrapSettings(mode=BootstrapMode.KUBEADM)
_ANNOTATED = {"karpenter.k8s.aws/bootstrap": "kubeadm"}
_PROVIDER_ID = "aws:///eu-west-1a/i-1"


def _instance(number: int = 1, state: str = "running") -> InstanceInfo:
    return InstanceInfo(
        instance_id=f"i-{number}",
        placement=InstancePlacement(availability_zone="eu-west-1a"),
        private_ip_address=f"10.0.0.{number}",
        private_dns_name=f"ip-10-0-0-{number}.ec2.internal",
        state=InstanceState(name=state),
    )


@dataclass
class FakeInstances:
    """Existing instances."""

    infos: tuple[InstanceInfo, ...] = (_instance(),)

    async def describe(self, instance_id: str) -> InstanceInfo:
        for info in self.infos:
            if info.instance_id == instance_id:
                return info
        raise InstanceNotFound(instance_id)


@dataclass
class View:
    """The cluster view."""

    known_claims: list[NodeClaim] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    node_class: EC2NodeClass | None = None

    def claims(self) -> Iterable[NodeClaim]:
        return self.known_claims

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        return next((claim for claim in self.known_claims if claim.status.provider_id.endswith(instance_id)), None)

    def node_of(self, instance_id: str) -> Node | None:
        return self.nodes.get(instance_id)

    def node_class_named(self, name: str) -> EC2NodeClass | None:
        return self.node_class


def _claim(provider_id: str = _PROVIDER_ID, **status: object) -> NodeClaim:
    known = NodeClaimStatus(provider_id=provider_id, **status)
    return msgspec.structs.replace(launch_environment.claim("one"), status=known)


def _node(name: str, *addresses: tuple[str, str], provider_id: str = "") -> AddressedNode:
    known = tuple(NodeAddress(type=kind, address=address) for kind, address in addresses)
    return AddressedNode(
        metadata=ObjectMeta(name=name),
        spec=NodeSpec(provider_id=provider_id),
        status=NodeAddresses(addresses=known),
    )


def _reconciled(
    node: AddressedNode, view: View, instances: FakeInstances | None = None, settings: BootstrapSettings = _KUBEADM
) -> tuple[str, float | None]:
    """The Node's provider ID after one reconcile, and the delay until the next."""

    async def main(clock: virtual.LoopClock) -> tuple[str, float | None]:
        kube = MemoryKube(MemoryServer(clock))
        await kube.create(ADDRESSED_NODE, node)
        await kube.patch(
            ADDRESSED_NODE,
            node.metadata.name,
            {"status": {"addresses": [msgspec.to_builtins(address) for address in node.status.addresses]}},
            subresource="status",
        )
        controller = ProviderIdController(kube, view, instances or FakeInstances(), settings)
        again = await controller.reconcile(node.metadata.name)
        return (await kube.get(NODE, node.metadata.name)).spec.provider_id, again

    return virtual.run_virtual(main, launch_environment.START)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(_node("anything", ("InternalIP", "10.0.0.1")), id="AWS-T913: internal IP"),
        pytest.param(_node("ip-10-0-0-1.ec2.internal"), id="private DNS name"),
        pytest.param(_node("i-1"), id="instance ID"),
    ],
)
def test_a_node_without_provider_id_gets_that_of_its_instance(node: AddressedNode) -> None:
    """AWS-927, AWS-T913: by name or by address; otherwise registration would time out."""
    assert _reconciled(node, View([_claim()])) == (_PROVIDER_ID, None)


def test_a_node_without_an_instance_is_unchanged_and_retried_while_a_claim_waits() -> None:
    """AWS-T914: two instances, and the Node's address is that of neither."""
    instances = FakeInstances((_instance(1), _instance(2)))
    claims = [_claim(), _claim("aws:///eu-west-1a/i-2")]
    stranger = _node("stranger", ("InternalIP", "10.0.0.9"), ("ExternalIP", "10.0.0.1"))
    assert _reconciled(stranger, View(claims), instances) == ("", 10.0)
    registered = Condition(type="Registered", status="True")
    assert _reconciled(stranger, View([_claim(conditions=(registered,))]), instances) == ("", None)


def test_a_node_that_matches_two_instances_is_unchanged() -> None:
    """AWS-927: a provider ID is immutable, so an ambiguous match waits."""
    instances = FakeInstances((_instance(1), msgspec.structs.replace(_instance(2), private_ip_address="10.0.0.1")))
    claims = [_claim(), _claim("aws:///eu-west-1a/i-2")]
    assert _reconciled(_node("n", ("InternalIP", "10.0.0.1")), View(claims), instances) == ("", 10.0)


def test_an_instance_with_a_node_and_a_node_older_than_its_claim_are_no_match() -> None:
    """AWS-927: an instance with a Node gets no second one; Nodes of the control plane are older than the NodeClaim."""
    joined = View([_claim()], {"i-1": Node(metadata=ObjectMeta(name="first"))})
    assert _reconciled(_node("i-1"), joined)[0] == ""
    later = launch_environment.START + timedelta(minutes=1)
    claim = _claim()
    younger = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, creation_timestamp=later))
    assert _reconciled(_node("i-1"), View([younger])) == ("", None)


def test_an_existing_provider_id_is_not_changed() -> None:
    """AWS-927: it is immutable."""
    assert _reconciled(_node("i-1", provider_id="other:///1"), View([_claim()])) == ("other:///1", None)


@pytest.mark.parametrize(("annotations", "expected"), [({}, ""), (_ANNOTATED, _PROVIDER_ID)])
def test_outside_mode_kubeadm_only_annotated_classes_count(annotations: dict[str, str], expected: str) -> None:
    """AWS-901, AWS-927."""
    plain = launch_environment.node_class({"ami_family": "Custom", "user_data": "x"})
    view = View([_claim()], node_class=launch_environment.replaced_annotations(plain, annotations))
    assert _reconciled(_node("i-1"), view, settings=BootstrapSettings())[0] == expected


def _lost(node: Node, view: View, instances: FakeInstances) -> bool:
    async def main(clock: virtual.LoopClock) -> bool:
        kube = MemoryKube(MemoryServer(clock))
        await kube.create(NODE, node)
        await kube.patch(
            NODE,
            node.metadata.name,
            {"status": msgspec.to_builtins(NodeStatus(conditions=node.status.conditions))},
            subresource="status",
        )
        await LostNodeCollector(kube, view, instances).reconcile()
        try:
            await kube.get(NODE, node.metadata.name)
        except NotFound:
            return True
        return False

    return virtual.run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))


def _managed(ready: str = "Unknown", pool: str = "default", provider_id: str = _PROVIDER_ID) -> Node:
    return Node(
        metadata=ObjectMeta(name="n", labels={"karpenter.sh/nodepool": pool} if pool else {}),
        spec=NodeSpec(provider_id=provider_id),
        status=NodeStatus(conditions=(Condition(type="Ready", status=ready),)),
    )


@pytest.mark.parametrize(
    ("node", "view", "infos", "is_deleted"),
    [
        pytest.param(_managed(), View(), (), True, id="unknown to EC2"),
        pytest.param(_managed(), View(), (_instance(state="terminated"),), True, id="terminated"),
        pytest.param(_managed(), View(), (_instance(),), False, id="the instance runs"),
        pytest.param(_managed(ready="True"), View(), (), False, id="the node is ready"),
        pytest.param(_managed(), View([_claim()]), (), False, id="deleted by its NodeClaim"),
        pytest.param(_managed(pool=""), View(), (), False, id="unmanaged node"),
        pytest.param(_managed(provider_id="other"), View(), (), False, id="another cloud's"),
    ],
)
def test_a_node_is_deleted_when_its_instance_is_gone(
    node: Node, view: View, infos: tuple[InstanceInfo, ...], is_deleted: bool
) -> None:
    """AWS-933: there is no cloud controller to delete it."""
    assert _lost(node, view, FakeInstances(infos)) is is_deleted
