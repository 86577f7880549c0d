"""Which instance a Node without a provider ID runs on (AWS-927). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions
from karpenter.providers.aws.bootstrap.bootstrap_objects import AddressedNode
from karpenter.providers.aws.ec2_descriptions import InstanceInfo

_INTERNAL_IP = "InternalIP"


def may_be_node_of(claim: NodeClaim, node: AddressedNode) -> bool:
    """Whether a NodeClaim waits for its Node, and is not younger than this one."""
    meta = claim.metadata
    if meta.deletion_timestamp is not None or conditions.is_true(claim.status.conditions, conditions.REGISTERED):
        return False
    claim_created, node_created = meta.creation_timestamp, node.metadata.creation_timestamp
    return claim_created is None or node_created is None or claim_created <= node_created


def matching_instance(node: AddressedNode, instances: Iterable[InstanceInfo]) -> InstanceInfo | None:
    """The one instance with the Node's name or internal address; None where there is none or more than one."""
    matches = [info for info in instances if _runs_on(node, info)]
    return matches[0] if len(matches) == 1 else None


def _runs_on(node: AddressedNode, info: InstanceInfo) -> bool:
    names = {info.instance_id, info.private_dns_name} - {""}
    internal = {address.address for address in node.status.addresses if address.type == _INTERNAL_IP}
    return node.metadata.name in names or (info.private_ip_address != "" and info.private_ip_address in internal)
