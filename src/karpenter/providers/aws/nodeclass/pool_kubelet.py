"""The kubelet configuration of a NodePool or NodeClaim of ``v1beta1``, which counts before that of its class (API-735).

``v1`` has it in the EC2NodeClass. An object that was applied as ``v1beta1`` keeps its own in an annotation.
"""

from __future__ import annotations

import msgspec

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.conversion.metadata import KUBELET_ANNOTATION


def with_own_kubelet(node_class: EC2NodeClass, *owners: NodeClaim | NodePool | None) -> EC2NodeClass:
    """The class with the kubelet configuration of the first owner that has one; unreadable ones count as none."""
    for owner in owners:
        text = owner.metadata.annotations.get(KUBELET_ANNOTATION, "") if owner is not None else ""
        kubelet = _decoded(text)
        if kubelet:
            return msgspec.structs.replace(node_class, spec=msgspec.structs.replace(node_class.spec, kubelet=kubelet))
    return node_class


def _decoded(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except (msgspec.ValidationError, msgspec.DecodeError):
        return {}
