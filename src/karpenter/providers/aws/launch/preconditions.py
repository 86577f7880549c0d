"""Whether a class can be launched from at all (AWS-410 to AWS-415)."""

from __future__ import annotations

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import Reader
from karpenter.model import conditions
from karpenter.providers.aws import names
from karpenter.providers.aws.launch.consequences import Notices
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError

#: Reason and text of the event on whoever names a class that is not there, or goes (AWS-410, AWS-560).
UNRESOLVED = "NodeClassNotResolved"
UNRESOLVED_TEXT = "Failed resolving NodeClass"


async def usable_class(kube: Reader, claim: NodeClaim, notices: Notices) -> EC2NodeClass:
    """The claim's class, fit for a launch. Raises ``ProviderError``; a missing class is also told on the claim (AWS-410)."""
    name = claim.spec.node_class_ref.name
    try:
        node_class = await kube.get(EC2_NODE_CLASS, name)
    except NotFound as error:
        _tell(claim, notices)
        raise InsufficientCapacity(f"EC2NodeClass {name} does not exist") from error
    except KubeError as error:
        raise ProviderError(f"reading EC2NodeClass {name}, {error}") from error
    if node_class.metadata.deletion_timestamp is not None:
        _tell(claim, notices)
        raise InsufficientCapacity(f"EC2NodeClass {name} is being deleted")
    check(node_class)
    return node_class


def check(node_class: EC2NodeClass) -> None:
    """Raises where the class is not ready (AWS-412 to AWS-415)."""
    name = node_class.metadata.name
    ready = conditions.find(node_class.status.conditions, "Ready")
    if ready is None or ready.status == conditions.UNKNOWN:
        message = ready.message if ready is not None else ""
        raise LaunchFailed("NodeClassReadinessUnknown", f"EC2NodeClass {name} is not known to be ready: {message}")
    if ready.status == conditions.FALSE:
        raise NodeClassNotReady(ready.message)
    if ready.observed_generation != node_class.metadata.generation:
        raise NodeClassNotReady(f"EC2NodeClass {name} has changed and is not looked at yet")
    restricted = sorted(key for key in node_class.spec.tags if names.is_restricted_tag(key))
    if restricted:
        raise NodeClassNotReady(f"EC2NodeClass {name}: the tag {restricted[0]} is ours to set")


def _tell(claim: NodeClaim, notices: Notices) -> None:
    notices.warning(NODE_CLAIM, claim.metadata, UNRESOLVED, UNRESOLVED_TEXT)  # type: ignore[arg-type]
