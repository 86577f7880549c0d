"""Whom the doctor looks at: a cluster on AWS, as told by settings, manifests and the cluster itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.providers.aws.doctor.ports import DoctorPort
from karpenter.providers.aws.iam import Place
from karpenter.providers.aws.ports import Services
from karpenter.providers.aws.settings import AwsSettings


@dataclass(frozen=True)
class Patient:
    """Everything checks go by.

    ``principal`` is the ARN of the role whose permissions count. ``aws_auth`` is the text of ``mapRoles`` in ConfigMap
    kube-system/aws-auth; None where it cannot be read. ``classes`` and ``pools`` come from manifests or the cluster.
    """

    services: Services
    more: DoctorPort
    settings: AwsSettings
    place: Place
    principal: str
    classes: tuple[EC2NodeClass, ...] = ()
    pools: tuple[NodePool, ...] = ()
    aws_auth: str | None = None

    @property
    def tag_command(self) -> str:
        """How to tag a resource so that the usual selectors find it."""
        return (
            f"aws ec2 create-tags --region {self.place.region} --resources ID "
            f"--tags Key=karpenter.sh/discovery,Value={self.place.cluster}"
        )


#: AWS-852: groups with this tag are the cluster's own for load balancers.
def ownership_tag(place: Place) -> Mapping[str, str]:
    """The tag that says a resource is the cluster's."""
    return {f"kubernetes.io/cluster/{place.cluster}": "owned"}
