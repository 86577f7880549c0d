"""ProvisioningRequest (``autoscaling.x-k8s.io/v1``): capacity for pods that do not exist yet, all of it or none.

Kueue creates one per workload and admits the workload once it is provisioned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from karpenter.api.capacity_buffer import PodTemplateReference
from karpenter.api.meta import Condition, ObjectMeta, Wire

#: Looks for room on the nodes there are; no node is launched.
CHECK_CAPACITY = "check-capacity.autoscaling.x-k8s.io"
#: Launches the nodes that are missing, all of them or none.
ATOMIC_SCALE_UP = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
#: Annotation of pods that take the room of the named request.
CONSUME_ANNOTATION = "autoscaling.x-k8s.io/consume-provisioning-request"

#: Condition types.
ACCEPTED = "Accepted"
PROVISIONED = "Provisioned"
FAILED = "Failed"
BOOKING_EXPIRED = "BookingExpired"
CAPACITY_REVOKED = "CapacityRevoked"


class RequestedPodSet(Wire, frozen=True, kw_only=True):
    """So many pods of one PodTemplate of the request's namespace."""

    pod_template_ref: PodTemplateReference
    count: Annotated[int, Meta(ge=1)]


class ProvisioningRequestSpec(Wire, frozen=True, kw_only=True):
    """What is requested. ``parameters``: ``ValidUntilSeconds`` of the atomic class, ``noRetry`` of the other."""

    provisioning_class_name: str
    pod_sets: tuple[RequestedPodSet, ...] = ()
    parameters: Mapping[str, str] = {}


class ProvisioningRequestStatus(Wire, frozen=True, kw_only=True):
    """What became of the request."""

    conditions: tuple[Condition, ...] = ()


class ProvisioningRequest(Wire, frozen=True, kw_only=True):
    """A request for capacity."""

    spec: ProvisioningRequestSpec
    metadata: ObjectMeta = ObjectMeta()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()
