"""Labels, annotations and tags the launch reads and writes (AWS-062, AWS-065, AWS-320)."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.model import labels
from karpenter.providers.aws.aws_settings import AwsClusterInfo

NODE_CLASS = f"{labels.AWS_GROUP}/ec2nodeclass"
TENANCY = f"{labels.AWS_GROUP}/instance-tenancy"
RESERVATION_TYPE = f"{labels.AWS_GROUP}/capacity-reservation-type"
RESERVATION_INTERRUPTIBLE = f"{labels.AWS_GROUP}/capacity-reservation-interruptible"
PLACEMENT_GROUP_ID = f"{labels.AWS_GROUP}/placement-group-id"
PLACEMENT_GROUP_PARTITION = f"{labels.AWS_GROUP}/placement-group-partition"
ZONE_ID = "topology.k8s.aws/zone-id"

#: On a NodeClaim: the launch batch it took part in. On its instance: the same, as a tag. Ours.
LAUNCH_BATCH = f"{labels.AWS_GROUP}/launch-batch"
NODE_CLASS_HASH = f"{labels.AWS_GROUP}/ec2nodeclass-hash"
NODE_CLASS_HASH_VERSION = f"{labels.AWS_GROUP}/ec2nodeclass-hash-version"
INSTANCE_PROFILE_NAME = f"{labels.AWS_GROUP}/instance-profile-name"
TAGGED = f"{labels.AWS_GROUP}/tagged"
CLUSTER_NAME_TAGGED = f"compatibility.{labels.AWS_GROUP}/cluster-name-tagged"

NODE_CLAIM_TAG = "karpenter.sh/nodeclaim"
CLUSTER_TAG = "eks:eks-cluster-name"
NAME_TAG = "Name"

EFA_RESOURCE = "vpc.amazonaws.com/efa"
#: On an EC2NodeClass: how device claims share a GPU (K15-A24).
NVIDIA_CONSUMABLE_CAPACITY = f"{labels.AWS_GROUP}/nvidia-consumable-capacity"

DEFAULT = "default"
CAPACITY_BLOCK = "capacity-block"
INTERRUPTIBLE = "interruptible-capacity-reservation"

_RESTRICTED_TAGS = frozenset({CLUSTER_TAG, labels.NODE_POOL, NODE_CLAIM_TAG, NODE_CLASS})
_CLUSTER_PREFIX = "kubernetes.io/cluster"


def is_restricted_tag(key: str) -> bool:
    """Whether users may not set this tag (AWS-040)."""
    return key in _RESTRICTED_TAGS or key.startswith(_CLUSTER_PREFIX)


def resource_tags_for(node_class: EC2NodeClass, cluster: AwsClusterInfo, pool: str) -> Mapping[str, str]:
    """Tags of everything made for a class and a pool; ours win over the user's (AWS-446)."""
    return {
        **node_class.spec.tags,
        f"{_CLUSTER_PREFIX}/{cluster.name}": "owned",
        labels.NODE_POOL: pool,
        CLUSTER_TAG: cluster.name,
        NODE_CLASS: node_class.metadata.name,
    }
