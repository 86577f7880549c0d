"""Kinds of releases before 0.33: Provisioner, Machine, AWSNodeTemplate (API §15, API-850).

Their schema is open: what stands in a ``spec`` is read by ``karpenter.conversion``, which says what it cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from karpenter.api.kinds import Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources


class OlderStatus(Wire, frozen=True, kw_only=True):
    """What the controller reports, and of Machines the instance that an older release launched (API-856)."""

    conditions: tuple[Condition, ...] = ()
    resources: WireResources = {}
    last_scale_time: datetime | None = None
    provider_id: str = msgspec.field(default="", name="providerID")


class OlderProvisioner(Wire, frozen=True, kw_only=True):
    """NodePool of releases before 0.33. The controller keeps a NodePool of the same name in step with it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Mapping[str, object] = {}
    status: OlderStatus = msgspec.field(default_factory=OlderStatus)


class OlderMachine(Wire, frozen=True, kw_only=True):
    """NodeClaim of releases before 0.33. The controller keeps a NodeClaim of the same name in step with it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Mapping[str, object] = {}
    status: OlderStatus = msgspec.field(default_factory=OlderStatus)


class OlderNodeTemplate(Wire, frozen=True, kw_only=True):
    """EC2NodeClass of releases before 0.33. The controller keeps an EC2NodeClass of the same name in step with it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Mapping[str, object] = {}
    status: OlderStatus = msgspec.field(default_factory=OlderStatus)


PROVISIONER = Kind("karpenter.sh", "v1alpha5", "provisioners", "Provisioner", False, OlderProvisioner)
MACHINE = Kind("karpenter.sh", "v1alpha5", "machines", "Machine", False, OlderMachine)
AWS_NODE_TEMPLATE = Kind(
    "karpenter.k8s.aws", "v1alpha1", "awsnodetemplates", "AWSNodeTemplate", False, OlderNodeTemplate
)
