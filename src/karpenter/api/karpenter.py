"""NodePool and NodeClaim (``karpenter.sh/v1``).

The constraints in the annotations are the admission rules a schema can carry; the CRDs are generated from them
(``api.crds``). Rules that need more than one field are rule expressions there, rules about meaning are in ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources
from karpenter.api.scheduling_constraints import Taint

# API-030. RE2 and Python agree on these; `\Z` is not RE2, so a trailing newline is refused by `model.validation`.
DURATION_OR_NEVER_PATTERN = r"^(([0-9]+(s|m|h))+|Never)$"
DURATION_PATTERN = r"^([0-9]+(s|m|h))+$"
QUALIFIED_NAME_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
LABEL_VALUE_PATTERN = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
BUDGET_NODES_PATTERN = r"^((100|[0-9]{1,2})%|[0-9]+)$"
BUDGET_SCHEDULE_PATTERN = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
BUDGET_DURATION_PATTERN = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
#: Sleep is ours: it is the reason of NodePools that a CapacitySchedule sends to sleep.
DisruptionReason = Literal["Underutilized", "Empty", "Drifted", "Unhealthy", "Sleep"]


class NodeSelectorRequirementWithMinValues(Wire, frozen=True, kw_only=True):
    """A requirement on a node label, optionally asking for ``min_values`` different values among the types (API-400)."""

    key: Annotated[str, Meta(max_length=316, pattern=QUALIFIED_NAME_PATTERN)]
    operator: Operator
    values: tuple[str, ...] = ()
    min_values: Annotated[int, Meta(ge=1, le=50)] | None = None


class NodeClassReference(Wire, frozen=True, kw_only=True):
    """Which node class describes the instances. None of the three may be empty."""

    group: Annotated[str, Meta(pattern=r"^[^/]*$")]
    kind: str
    name: str


class NodePoolTaint(Wire, frozen=True, kw_only=True):
    """A taint a pool puts on its nodes; stricter than a node's own taint (API-054)."""

    key: Annotated[str, Meta(min_length=1, pattern=QUALIFIED_NAME_PATTERN)]
    effect: TaintEffect
    value: Annotated[str, Meta(pattern=QUALIFIED_NAME_PATTERN)] | None = None
    time_added: datetime | None = None

    def as_taint(self) -> Taint:
        """The same taint as a node carries it."""
        return Taint(key=self.key, value=self.value or "", effect=self.effect, time_added=self.time_added)


class Budget(Wire, frozen=True, kw_only=True):
    """How many nodes of a pool may go at once, for which reasons, and when (API-048 ff.)."""

    nodes: Annotated[str, Meta(pattern=BUDGET_NODES_PATTERN)] = "10%"
    reasons: Annotated[tuple[DisruptionReason, ...], Meta(max_length=50)] | None = None
    schedule: Annotated[str, Meta(pattern=BUDGET_SCHEDULE_PATTERN)] | None = None
    duration: Annotated[str, Meta(pattern=BUDGET_DURATION_PATTERN)] | None = None


class Disruption(Wire, frozen=True, kw_only=True):
    """When and how fast nodes of a pool may be given back (API-044 ff.)."""

    consolidate_after: Annotated[str, Meta(pattern=DURATION_OR_NEVER_PATTERN)] = "0s"
    consolidation_policy: Literal["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"] = "WhenEmptyOrUnderutilized"
    budgets: Annotated[tuple[Budget, ...], Meta(max_length=50)] = (Budget(),)


class NodeClaimTemplateMeta(Wire, frozen=True, kw_only=True):
    """Labels and annotations every node of the pool gets."""

    labels: Annotated[
        Mapping[str, Annotated[str, Meta(max_length=63, pattern=LABEL_VALUE_PATTERN)]], Meta(max_length=100)
    ] = {}
    annotations: Mapping[str, str] = {}


class NodeClaimTemplateSpec(Wire, frozen=True, kw_only=True):
    """What every NodeClaim of the pool starts from."""

    requirements: Annotated[tuple[NodeSelectorRequirementWithMinValues, ...], Meta(max_length=100)]
    node_class_ref: NodeClassReference
    taints: tuple[NodePoolTaint, ...] = ()
    startup_taints: tuple[NodePoolTaint, ...] = ()
    expire_after: Annotated[str, Meta(pattern=DURATION_OR_NEVER_PATTERN)] = "720h"
    termination_grace_period: Annotated[str, Meta(pattern=DURATION_PATTERN)] | None = None


class NodeClaimTemplate(Wire, frozen=True, kw_only=True):
    """Blueprint of the pool's NodeClaims."""

    spec: NodeClaimTemplateSpec
    metadata: NodeClaimTemplateMeta = NodeClaimTemplateMeta()


class NodePoolSpec(Wire, frozen=True, kw_only=True):
    """Specification of a NodePool (API-040 ff.)."""

    template: NodeClaimTemplate
    disruption: Disruption = Disruption()
    limits: WireResources = {}
    weight: Annotated[int, Meta(ge=1, le=100)] | None = None
    replicas: Annotated[int, Meta(ge=0)] | None = None


class NodePoolStatus(Wire, frozen=True, kw_only=True):
    """Status of a NodePool (API-065 ff.)."""

    resources: WireResources = {}
    nodes: int = 0
    node_class_observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class NodePool(Wire, frozen=True, kw_only=True):
    """A family of interchangeable nodes and the rules for launching and removing them."""

    spec: NodePoolSpec
    metadata: ObjectMeta = ObjectMeta()
    status: NodePoolStatus = NodePoolStatus()


class NodeClaimResourceRequests(Wire, frozen=True, kw_only=True):
    """What the pods planned for a claim need, DaemonSets included."""

    requests: WireResources = {}


class NodeClaimSpec(Wire, frozen=True, kw_only=True):
    """Specification of a NodeClaim; immutable as a whole (API-100 ff.)."""

    requirements: Annotated[tuple[NodeSelectorRequirementWithMinValues, ...], Meta(max_length=100)]
    node_class_ref: NodeClassReference
    resources: NodeClaimResourceRequests = NodeClaimResourceRequests()
    taints: tuple[NodePoolTaint, ...] = ()
    startup_taints: tuple[NodePoolTaint, ...] = ()
    expire_after: Annotated[str, Meta(pattern=DURATION_OR_NEVER_PATTERN)] = "720h"
    termination_grace_period: Annotated[str, Meta(pattern=DURATION_PATTERN)] | None = None


class NodeClaimStatus(Wire, frozen=True, kw_only=True):
    """Status of a NodeClaim (API-110 ff.)."""

    node_name: str = ""
    provider_id: str = msgspec.field(name="providerID", default="")
    image_id: str = msgspec.field(name="imageID", default="")
    capacity: WireResources = {}
    allocatable: WireResources = {}
    last_pod_event_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class NodeClaim(Wire, frozen=True, kw_only=True):
    """One requested node: launched, registered, initialised and terminated."""

    spec: NodeClaimSpec
    metadata: ObjectMeta = ObjectMeta()
    status: NodeClaimStatus = NodeClaimStatus()
